package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// ours leaves out Services that another proxy serves and those without an address.
const ours = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless"

// follow keeps the data plane in line with the API, and lets pods be attached
// once the node has a prefix and its services are in place.
func (n *Network) follow(ctx context.Context) error {
	client := n.client
	if client == nil {
		if n.opts.Kube == nil {
			return errors.New("network: no client configuration; services and the pod prefix cannot be known")
		}
		cfg := rest.CopyConfig(n.opts.Kube)
		cfg.ContentType = runtime.ContentTypeProtobuf
		cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		var err error
		if client, err = kubernetes.NewForConfig(cfg); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	prefixes := make(chan []netip.Prefix, 1)
	own := n.onNode(prefixes)
	nodes := inform(ctx, client, client.CoreV1().Nodes().List, client.CoreV1().Nodes().Watch, &corev1.Node{}, everything, trimNode,
		func(node *corev1.Node) {
			if node.Name == n.opts.NodeName {
				n.table.SetNode(services.Node{
					Zone: node.Labels[corev1.LabelTopologyZone], Internal: internalAddrs(node), External: externalAddrs(node),
				})
				own(node)
			} else {
				n.peers.set(node.Name, peer{addrs: internalAddrs(node), prefixes: podPrefixes(node)})
			}
			n.enforcer.setNode(node)
		},
		func(node *corev1.Node) {
			n.peers.remove(node.Name)
			n.enforcer.deleteNode(node)
		})
	svcs := inform(ctx, client, client.CoreV1().Services("").List, client.CoreV1().Services("").Watch, &corev1.Service{},
		func(o *metav1.ListOptions) { o.LabelSelector = ours }, trimService,
		n.table.SetService, func(s *corev1.Service) { n.table.DeleteService(s.Namespace, s.Name) })
	eps := inform(ctx, client, client.DiscoveryV1().EndpointSlices("").List, client.DiscoveryV1().EndpointSlices("").Watch, &discoveryv1.EndpointSlice{},
		func(o *metav1.ListOptions) { o.LabelSelector = ours }, trimSlice, n.table.SetSlice, n.table.DeleteSlice)

	policies, enforced := n.policyClient, make(chan error, 1)
	if policies == nil {
		var err error
		if policies, err = policyclient.NewForConfig(n.opts.Kube); err != nil {
			return fmt.Errorf("network: %w", err)
		}
	}
	go func() { enforced <- n.enforcer.follow(ctx, client, policies) }()

	waiting := n.complain(ctx)
	waiting("Services and EndpointSlices from the API; is it up, and may the network's identity list them?")
	if !waitFor(ctx, svcs, eps, nodes) {
		return nil
	}
	waiting("the network policies of the API; may the network's identity list them?")
	select {
	case <-n.enforcer.ready:
	case err := <-enforced:
		return err
	case <-ctx.Done():
		return nil
	}
	waiting("spec.podCIDRs of this Node; is it registered, and does the controller manager allocate node prefixes?")
	if err := n.fill(); err != nil {
		return err
	}
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-enforced:
			return err
		case p := <-prefixes:
			if err := n.openFor(p); err != nil {
				return err
			}
			waiting("")
		case <-n.table.Changed():
			if n.flush() != nil {
				again = time.After(2 * time.Second)
			}
		case <-again:
			if n.flush() != nil {
				again = time.After(10 * time.Second)
			}
		}
	}
}

// complain returns a function that says what the node waits for. When that takes
// long it is logged, because nothing else would tell why no pod starts.
func (n *Network) complain(ctx context.Context) func(what string) {
	const patience = 20 * time.Second
	now := make(chan string, 1)
	go func() {
		what := ""
		for {
			select {
			case <-ctx.Done():
				return
			case what = <-now:
				if what == "" {
					return
				}
			case <-time.After(patience):
				n.opts.Log.Warn("the network is not ready for pods; it waits for " + what)
			}
		}
	}()
	return func(what string) {
		select {
		case now <- what:
		case <-ctx.Done():
		default: // nobody listens any more
		}
	}
}

// waitFor waits until all are true. The library's own wait looks only ten times a second.
func waitFor(ctx context.Context, all ...cache.InformerSynced) bool {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for _, synced := range all {
		for !synced() {
			select {
			case <-ctx.Done():
				return false
			case <-tick.C:
			}
		}
	}
	return true
}

// fill brings all services into the maps, starting from what they hold.
func (n *Network) fill() error {
	n.apply.Lock()
	defer n.apply.Unlock()
	if err := n.dp.Services().Sync(n.table.All()); err != nil {
		return fmt.Errorf("cannot fill in the services: %w", err)
	}
	n.synced = true
	n.health = newHealth(n.Healthy)
	if err := n.health.sync(n.table.HealthChecks()); err != nil {
		n.opts.Log.Warn("cannot serve all health check ports", "error", err)
	}
	return n.takeOver()
}

// openFor makes the node ready for pods with addresses of the prefixes.
func (n *Network) openFor(prefixes []netip.Prefix) error {
	if err := n.pods.setPrefixes(prefixes); err != nil {
		return err
	}
	n.peers.setOwn(prefixes)
	n.peers.sweep()
	n.pods.open()
	if err := writeConf(n.opts); err != nil {
		return err
	}
	n.opts.Log.Info("ready for pods", "prefixes", prefixes, "mtu", n.devices.MTU())
	return nil
}

// flush brings the table's changes into the maps. What fails is tried again later.
func (n *Network) flush() error {
	n.apply.Lock()
	defer n.apply.Unlock()
	if !n.synced {
		return nil // fill takes everything
	}
	var errs []error
	for _, c := range n.table.Take() {
		if err := n.dp.Services().Apply(c); err != nil {
			errs = append(errs, err)
			n.table.Retry(c.Frontend)
		}
	}
	errs = append(errs, n.health.sync(n.table.HealthChecks()))
	err := errors.Join(errs...)
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil && n.sick == nil {
		n.opts.Log.Error("cannot update services; trying again", "err", err)
	} else if err == nil && n.sick != nil {
		n.opts.Log.Info("services are up to date again")
	}
	n.sick = err
	return err
}

// onNode passes on the prefixes of the node, one of each family.
func (n *Network) onNode(out chan []netip.Prefix) func(*corev1.Node) {
	var last []netip.Prefix
	return func(node *corev1.Node) {
		prefixes := podPrefixes(node)
		if len(prefixes) == 0 || slices.Equal(prefixes, last) {
			return
		}
		last = prefixes
		select {
		case <-out: // newer ones replace what nobody took
		default:
		}
		out <- prefixes
	}
}

// podPrefixes are the prefixes of a node's pods, one of each family.
func podPrefixes(node *corev1.Node) (out []netip.Prefix) {
	cidrs := node.Spec.PodCIDRs
	if len(cidrs) == 0 && node.Spec.PodCIDR != "" {
		cidrs = []string{node.Spec.PodCIDR}
	}
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		taken := slices.ContainsFunc(out, func(q netip.Prefix) bool { return q.Addr().Is4() == p.Addr().Is4() })
		if err == nil && !taken {
			out = append(out, p.Masked())
		}
	}
	return out
}

// inform calls set and gone for all objects of a kind, as they are and as they
// change. Objects are trimmed first, because all of them stay in memory.
func inform[T runtime.Object, L runtime.Object](ctx context.Context, client any,
	list func(context.Context, metav1.ListOptions) (L, error),
	watchFn func(context.Context, metav1.ListOptions) (watch.Interface, error),
	kind T, tweak func(*metav1.ListOptions), trim func(T), set, gone func(T),
) cache.InformerSynced {
	_, ctl := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				tweak(&o)
				return list(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				tweak(&o)
				return watchFn(ctx, o)
			},
		}, client),
		ObjectType: kind,
		Transform: func(o any) (any, error) {
			if obj, ok := o.(T); ok {
				trim(obj)
			}
			return o, nil
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { set(o.(T)) },
			UpdateFunc: func(_, o any) { set(o.(T)) },
			DeleteFunc: func(o any) {
				if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = d.Obj
				}
				if obj, ok := o.(T); ok {
					gone(obj)
				}
			},
		},
	})
	go ctl.RunWithContext(ctx)
	return ctl.HasSynced
}

func trimMeta(m *metav1.ObjectMeta, labels ...string) {
	kept := metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion}
	for _, l := range labels {
		if v, ok := m.Labels[l]; ok {
			if kept.Labels == nil {
				kept.Labels = map[string]string{}
			}
			kept.Labels[l] = v
		}
	}
	*m = kept
}

func trimNode(n *corev1.Node) {
	labels := n.Labels
	trimMeta(&n.ObjectMeta)
	n.Labels = labels
	n.Spec = corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs}
	n.Status = corev1.NodeStatus{Addresses: n.Status.Addresses}
}

func trimService(s *corev1.Service) {
	trimMeta(&s.ObjectMeta)
	s.Spec.Selector = nil
	s.Status.Conditions = nil
}

func trimSlice(s *discoveryv1.EndpointSlice) {
	trimMeta(&s.ObjectMeta, discoveryv1.LabelServiceName)
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		ep.Hostname, ep.TargetRef, ep.DeprecatedTopology, ep.Zone = nil, nil, nil, nil
	}
	s.Endpoints = slices.Clip(s.Endpoints)
}
