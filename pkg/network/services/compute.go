package services

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// compute returns the frontends of one Service.
//
// Rules, as in the Service documentation of Kubernetes: ready endpoints serve; if
// there is none, those that are serving while they terminate. A traffic policy of Local keeps
// only the endpoints of this node, for clients outside; clients on the node itself
// always reach the whole service through its external addresses. Ranges of sources
// are for the addresses of load balancers.
func compute(cfg Config, s *corev1.Service, sl map[string]*discoveryv1.EndpointSlice) map[Frontend]Entry {
	if s.Spec.Type == corev1.ServiceTypeExternalName || s.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	out := map[Frontend]Entry{}
	var affinity time.Duration
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		affinity = time.Duration(corev1.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	insideLocal := s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	outsideLocal := s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal

	clusterIPs := addrs(cfg, s.Spec.ClusterIPs)
	if len(s.Spec.ClusterIPs) == 0 {
		clusterIPs = addrs(cfg, []string{s.Spec.ClusterIP})
	}
	external := addrs(cfg, s.Spec.ExternalIPs)
	balanced := map[netip.Addr]bool{}
	for _, in := range s.Status.LoadBalancer.Ingress {
		if in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP {
			for _, a := range arriving(cfg, addrs(cfg, []string{in.IP})) {
				external = append(external, a)
				balanced[a] = true
			}
		}
	}

	for _, port := range s.Spec.Ports {
		proto, ok := protocol(port.Protocol)
		if !ok {
			continue
		}
		for _, fam := range families(clusterIPs) {
			endpoints := collect(cfg, sl, port, fam)
			all, local := usable(closest(cfg, endpoints)), usable(onNode(endpoints))
			inside := Entry{Backends: all, Affinity: affinity}
			if insideLocal {
				inside = Entry{Backends: local, Affinity: affinity, DropIfEmpty: len(all) > 0}
			}
			outside := Entry{Backends: all, Affinity: affinity}
			if outsideLocal {
				outside = Entry{Backends: local, Affinity: affinity, DropIfEmpty: len(all) > 0}
			}
			whole := Entry{Backends: all, Affinity: affinity}

			for _, a := range clusterIPs {
				if a.Is4() == fam.Is4() {
					out[Frontend{a, uint16(port.Port), proto, Inside}] = inside
				}
			}
			for _, a := range external {
				if a.Is4() == fam.Is4() {
					from := outside
					if balanced[a] {
						from.Sources = sourceRanges(s, a)
					}
					out[Frontend{a, uint16(port.Port), proto, Inside}] = whole
					out[Frontend{a, uint16(port.Port), proto, Outside}] = from
				}
			}
			if port.NodePort != 0 {
				out[Frontend{fam, uint16(port.NodePort), proto, Inside}] = whole
				out[Frontend{fam, uint16(port.NodePort), proto, Outside}] = outside
			}
		}
	}
	return out
}

// families returns the unspecified address of each family that occurs.
func families(in []netip.Addr) (out []netip.Addr) {
	for _, a := range in {
		u := netip.IPv4Unspecified()
		if a.Is6() {
			u = netip.IPv6Unspecified()
		}
		if !slices.Contains(out, u) {
			out = append(out, u)
		}
	}
	return out
}

func addrs(cfg Config, in []string) (out []netip.Addr) {
	for _, s := range in {
		a, err := netip.ParseAddr(s)
		if err != nil {
			continue
		}
		if a = a.Unmap(); !slices.Contains(cfg.Untouched, a) {
			out = append(out, a)
		}
	}
	return out
}

func protocol(p corev1.Protocol) (Protocol, bool) {
	switch protocolOrTCP(p) {
	case corev1.ProtocolTCP:
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	}
	return 0, false
}

func protocolOrTCP(p corev1.Protocol) corev1.Protocol {
	if p == "" {
		return corev1.ProtocolTCP
	}
	return p
}

func value(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// arriving adds to an address of this node as others know it those that packets to it
// have when they arrive.
func arriving(cfg Config, in []netip.Addr) []netip.Addr {
	out := in
	for _, a := range in {
		if !slices.Contains(cfg.Node.External, a) {
			continue
		}
		for _, own := range cfg.Node.Internal {
			if own.Is4() == a.Is4() {
				out = append(out, own)
			}
		}
	}
	return out
}

// sourceRanges are the clients that may use a load balancer's address. Without any of
// the address's family nobody of that family may, as the list is meant.
func sourceRanges(s *corev1.Service, a netip.Addr) (out []netip.Prefix) {
	for _, r := range s.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(r))
		if err == nil && p.Addr().Is4() == a.Is4() {
			out = append(out, p.Masked())
		}
	}
	if len(out) == 0 && len(s.Spec.LoadBalancerSourceRanges) > 0 {
		out = []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}
	}
	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })
	return slices.Compact(out)
}
