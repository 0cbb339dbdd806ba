// Package loadbalancer gives Services of type LoadBalancer the addresses of the
// cluster's nodes, which all answer for them in their data planes: there are no pods and
// no host ports. It owns the status of those Services and nothing else.
package loadbalancer

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Class is the loadBalancerClass of Services that want nodes' addresses; those
// without a class want them too.
const Class = "kombi.dev/nodes"

// ours tells whether the Service is for us.
func ours(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		(s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// conflict returns a port of the Service that the nodes need themselves, or 0: the
// data plane would take it from them.
func conflict(s *corev1.Service, taken []int32) int32 {
	for _, p := range s.Spec.Ports {
		if (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") && slices.Contains(taken, p.Port) {
			return p.Port
		}
	}
	return 0
}

// assign returns the addresses of a Service: of each usable node one for each of the
// Service's families. With the traffic policy Local only nodes with an endpoint answer,
// as serving tells.
func assign(s *corev1.Service, nodes []*corev1.Node, serving func(node string) bool) (out []corev1.LoadBalancerIngress) {
	local := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	mode := corev1.LoadBalancerIPModeVIP
	for _, n := range nodes {
		if !usable(n) || local && !serving(n.Name) {
			continue
		}
		for _, family := range s.Spec.IPFamilies {
			if a, ok := nodeAddress(n, family); ok {
				out = append(out, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
			}
		}
	}
	slices.SortFunc(out, func(a, b corev1.LoadBalancerIngress) int {
		x, y := netip.MustParseAddr(a.IP), netip.MustParseAddr(b.IP)
		if x.Is4() != y.Is4() && len(s.Spec.IPFamilies) > 0 { // the Service's first family first
			if x.Is4() == (s.Spec.IPFamilies[0] == corev1.IPv4Protocol) {
				return -1
			}
			return 1
		}
		return x.Compare(y)
	})
	return slices.CompactFunc(out, func(a, b corev1.LoadBalancerIngress) bool { return a.IP == b.IP })
}

func usable(n *corev1.Node) bool {
	if _, excluded := n.Labels[corev1.LabelNodeExcludeBalancers]; excluded {
		return false
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// nodeAddress is the address of a node for clients outside: an external one if it has any.
func nodeAddress(n *corev1.Node, family corev1.IPFamily) (netip.Addr, bool) {
	for _, kind := range []corev1.NodeAddressType{corev1.NodeExternalIP, corev1.NodeInternalIP} {
		for _, a := range n.Status.Addresses {
			ip, err := netip.ParseAddr(a.Address)
			if err == nil && a.Type == kind && ip.Is4() == (family == corev1.IPv4Protocol) {
				return ip, true
			}
		}
	}
	return netip.Addr{}, false
}
