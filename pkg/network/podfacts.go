package network

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kombi-k8s/kombi/pkg/network/policy"
)

// podFacts is what policies can tell of a pod.
func podFacts(p *corev1.Pod, nodeName string) policy.Pod {
	facts := policy.Pod{
		Namespace: p.Namespace, Name: p.Name, Labels: p.Labels,
		HostNetwork: p.Spec.HostNetwork,
		Finished:    p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed,
		Local:       p.Spec.NodeName == nodeName,
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			facts.Addrs = append(facts.Addrs, a.Unmap())
		}
	}
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		for _, port := range c.Ports {
			if proto, ok := protocolNumber(port.Protocol); ok && port.Name != "" {
				facts.Ports = append(facts.Ports, policy.NamedPort{Name: port.Name, Proto: proto, Port: uint16(port.ContainerPort)})
			}
		}
	}
	return facts
}

func protocolNumber(p corev1.Protocol) (uint8, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return policy.TCP, true
	case corev1.ProtocolUDP:
		return policy.UDP, true
	case corev1.ProtocolSCTP:
		return policy.SCTP, true
	}
	return 0, false
}

// trimPod keeps what podFacts reads.
func trimPod(p *corev1.Pod) {
	labels := p.Labels
	trimMeta(&p.ObjectMeta)
	p.Labels = labels
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork,
		InitContainers: trimContainers(p.Spec.InitContainers), Containers: trimContainers(p.Spec.Containers),
	}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs}
}

func trimContainers(in []corev1.Container) (out []corev1.Container) {
	for _, c := range in {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name != "" }) {
			out = append(out, corev1.Container{Ports: c.Ports})
		}
	}
	return out
}

// union returns all addresses of both, each once.
func union(a, b []netip.Addr) []netip.Addr {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

// nodeAddrs are the addresses at which a node is known.
func nodeAddrs(n *corev1.Node) []netip.Addr {
	return addrsOf(n, func(corev1.NodeAddressType) bool { return true })
}

// internalAddrs are those at which other nodes reach it.
func internalAddrs(n *corev1.Node) []netip.Addr {
	return addrsOf(n, func(t corev1.NodeAddressType) bool { return t == corev1.NodeInternalIP })
}

// externalAddrs are those under which clients outside know it.
func externalAddrs(n *corev1.Node) []netip.Addr {
	return addrsOf(n, func(t corev1.NodeAddressType) bool { return t == corev1.NodeExternalIP })
}

func addrsOf(n *corev1.Node, wanted func(corev1.NodeAddressType) bool) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && wanted(a.Type) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}
