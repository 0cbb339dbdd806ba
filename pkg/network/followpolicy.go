package network

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
)

// follow keeps policy in line with the API. Pods and namespaces are followed once
// there is a policy that could look at them.
func (e *enforcer) follow(ctx context.Context, client kubernetes.Interface, cluster policyclient.Interface) error {
	synced := []cache.InformerSynced{
		inform(ctx, client, client.NetworkingV1().NetworkPolicies("").List, client.NetworkingV1().NetworkPolicies("").Watch,
			&networkingv1.NetworkPolicy{}, everything, func(p *networkingv1.NetworkPolicy) { trimMeta(&p.ObjectMeta) },
			e.setNetworkPolicy, e.deleteNetworkPolicy),
		e.followClusterPolicies(ctx, cluster),
	}
	if !waitFor(ctx, synced...) {
		return nil
	}
	following, first := false, true
	var again <-chan time.Time
	for {
		if !following && e.needed() {
			following = true
			e.setPartial(true)
			if !waitFor(ctx, e.followPeers(ctx, client)...) {
				return nil
			}
			e.setPartial(false)
		}
		err := e.catchUp(first)
		again = nil
		if err != nil {
			again = time.After(2 * time.Second)
		} else if first {
			first = false
			close(e.ready)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.changed:
		case <-again:
		}
	}
}

// catchUp brings what changed into the data plane, and says so once if it cannot.
func (e *enforcer) catchUp(first bool) error {
	var err error
	if first {
		err = e.takeOver()
	} else {
		e.mu.Lock()
		err = e.apply()
		e.mu.Unlock()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil && e.sick == nil {
		e.log.Error("network policy is not up to date; trying again", "error", err)
	} else if err == nil && e.sick != nil {
		e.log.Info("network policy is up to date again")
	}
	e.sick = err
	return err
}

func (e *enforcer) needed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.policies) > 0
}

func (e *enforcer) setPartial(partial bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.partial = partial
	e.wake()
}

func everything(*metav1.ListOptions) {}

// followPeers follows what policies select.
func (e *enforcer) followPeers(ctx context.Context, client kubernetes.Interface) []cache.InformerSynced {
	core := client.CoreV1()
	return []cache.InformerSynced{
		inform(ctx, client, core.Namespaces().List, core.Namespaces().Watch, &corev1.Namespace{}, everything,
			func(n *corev1.Namespace) {
				labels := n.Labels
				trimMeta(&n.ObjectMeta)
				n.Labels = labels
			},
			func(n *corev1.Namespace) { e.change(func() { e.engine.SetNamespace(n.Name, n.Labels) }) },
			func(n *corev1.Namespace) { e.change(func() { e.engine.DeleteNamespace(n.Name) }) }),
		inform(ctx, client, core.Pods("").List, core.Pods("").Watch, &corev1.Pod{}, everything, trimPod, e.setPod, e.deletePod),
	}
}

func (e *enforcer) setNode(n *corev1.Node) {
	e.change(func() { e.engine.SetNode(n.Name, n.Labels, nodeAddrs(n)) })
}

func (e *enforcer) deleteNode(n *corev1.Node) {
	e.change(func() { e.engine.DeleteNode(n.Name) })
}

func (e *enforcer) setNetworkPolicy(p *networkingv1.NetworkPolicy) {
	e.change(func() {
		e.policies["NetworkPolicy "+p.Namespace+"/"+p.Name] = true
		e.complain(e.engine.SetNetworkPolicy(p))
	})
}

func (e *enforcer) deleteNetworkPolicy(p *networkingv1.NetworkPolicy) {
	e.change(func() {
		delete(e.policies, "NetworkPolicy "+p.Namespace+"/"+p.Name)
		e.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	})
}

func (e *enforcer) complain(err error) {
	if err != nil {
		e.log.Warn("a network policy is not valid; its bad rules allow nothing", "error", err)
	}
}

// followClusterPolicies follows ClusterNetworkPolicies. A cluster may not have
// their CustomResourceDefinition, at its first start or because somebody removed it;
// then it has none of them.
func (e *enforcer) followClusterPolicies(ctx context.Context, client policyclient.Interface) cache.InformerSynced {
	api := client.PolicyV1alpha2().ClusterNetworkPolicies()
	retry := retryTimes{first: 2 * time.Second, last: 30 * time.Second}
	list := func(ctx context.Context, o metav1.ListOptions) (*policyv1alpha2.ClusterNetworkPolicyList, error) {
		all, err := api.List(ctx, o)
		if apierrors.IsNotFound(err) {
			return &policyv1alpha2.ClusterNetworkPolicyList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}}, nil
		}
		return all, err
	}
	follow := func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := api.Watch(ctx, o)
		if apierrors.IsNotFound(err) {
			return endAfter(ctx, retry.next()), nil
		}
		return w, err
	}
	return inform(ctx, client, list, follow, &policyv1alpha2.ClusterNetworkPolicy{}, everything,
		func(p *policyv1alpha2.ClusterNetworkPolicy) { trimMeta(&p.ObjectMeta) },
		func(p *policyv1alpha2.ClusterNetworkPolicy) {
			e.change(func() {
				e.policies["ClusterNetworkPolicy "+p.Name] = true
				e.complain(e.engine.SetClusterNetworkPolicy(p))
			})
		},
		func(p *policyv1alpha2.ClusterNetworkPolicy) {
			e.change(func() {
				delete(e.policies, "ClusterNetworkPolicy "+p.Name)
				e.engine.DeleteClusterNetworkPolicy(p.Name)
			})
		})
}

// retryTimes doubles from first to last.
type retryTimes struct{ first, last, now time.Duration }

func (r *retryTimes) next() time.Duration {
	r.now = min(max(r.first, 2*r.now), r.last)
	return r.now
}

// endAfter is a watch without events that asks to be made anew after a time.
func endAfter(ctx context.Context, d time.Duration) watch.Interface {
	w := watch.NewRaceFreeFake()
	go func() {
		select {
		case <-ctx.Done():
		case <-time.After(d):
			w.Error(&apierrors.NewResourceExpired("the kind may be there now").ErrStatus)
		}
		w.Stop()
	}()
	return w
}
