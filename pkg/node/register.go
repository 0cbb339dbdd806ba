package node

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// registerNode makes the Node object, if it is not there, before the kubelet
// starts. The kubelet would do it by itself, but not before it has looked at
// the whole machine, while other parts of it already ask for the object and, on
// a slow machine, wait up to twenty seconds until they ask again. It also gives
// the controller manager time to choose the node's range of pod addresses.
func registerNode(ctx context.Context, o KubeletOptions) error {
	client, err := kubernetes.NewForConfig(o.Client)
	if err != nil {
		return err
	}
	labels := map[string]string{
		corev1.LabelHostname:   o.NodeName,
		corev1.LabelOSStable:   runtime.GOOS,
		corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, o.Labels)
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: o.NodeName, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: o.Taints},
	}
	_, err = client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = client.CoreV1().Nodes().Get(ctx, o.NodeName, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("the node %s cannot be read: %w", o.NodeName, err)
		}
		if missing := missingFamily(node.Spec.PodCIDRs, o.NodeIPs); missing != "" {
			o.Log.Warn("pods of this node get no "+missing+" addresses, because the node was registered before the cluster had them and its ranges never change",
				"ranges", node.Spec.PodCIDRs, "next", "kubectl delete node "+o.NodeName+", then restart Kombi; the pods are made again")
		}
	}
	if err != nil {
		return fmt.Errorf("the node %s cannot be registered: %w", o.NodeName, err)
	}
	return nil
}

// missingFamily is the family that the node has an address of, but no range for
// pods, or "". A node without any range is going to get them.
func missingFamily(ranges []string, nodeIPs []netip.Addr) string {
	if len(ranges) == 0 {
		return ""
	}
	for _, a := range nodeIPs {
		same := func(r string) bool {
			p, err := netip.ParsePrefix(r)
			return err == nil && p.Addr().Is4() == a.Is4()
		}
		switch {
		case slices.ContainsFunc(ranges, same):
		case a.Is4():
			return "IPv4"
		default:
			return "IPv6"
		}
	}
	return ""
}

// waitNodeReady returns nil as soon as the Node says that it is Ready since the
// given time: what an earlier run reported does not count.
func waitNodeReady(ctx context.Context, config *rest.Config, name string, since time.Time) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err == nil && readySince(node, since) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func readySince(node *corev1.Node, since time.Time) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			// Heartbeats have a resolution of one second.
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
		}
	}
	return false
}
