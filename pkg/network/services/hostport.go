package services

import "net/netip"

// HostPort makes a port of a pod reachable under an address of its node.
type HostPort struct {
	// HostAddr restricts the port to one address of the node; the zero value is all of them.
	HostAddr netip.Addr `json:"hostAddr,omitzero"`
	HostPort uint16     `json:"hostPort"`
	Proto    Protocol   `json:"protocol"`
	// Pod is the address and port in the pod.
	Pod netip.AddrPort `json:"pod"`
}

func hostPorts(ports []HostPort) map[Frontend]Entry {
	out := map[Frontend]Entry{}
	for _, p := range ports {
		addr := p.HostAddr
		if !addr.IsValid() || addr.IsUnspecified() {
			addr = netip.IPv4Unspecified()
			if p.Pod.Addr().Is6() {
				addr = netip.IPv6Unspecified()
			}
		}
		e := Entry{Backends: []netip.AddrPort{p.Pod}}
		out[Frontend{addr, p.HostPort, p.Proto, Inside}] = e
		out[Frontend{addr, p.HostPort, p.Proto, Outside}] = e
	}
	return out
}
