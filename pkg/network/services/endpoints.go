package services

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoint is one address of a backend, with what decides whether it is used.
type endpoint struct {
	to                          netip.AddrPort
	ready, serving, terminating bool
	local                       bool // on this node
	// hinted says that clients on this node, or in its zone, are meant to use it;
	// hasHint that the EndpointSlice says who is.
	nodeHinted, hasNodeHint bool
	zoneHinted, hasZoneHint bool
}

// collect returns the endpoints of port, for the family of fam.
func collect(cfg Config, sl map[string]*discoveryv1.EndpointSlice, port corev1.ServicePort, fam netip.Addr) (out []endpoint) {
	want := discoveryv1.AddressTypeIPv4
	if fam.Is6() {
		want = discoveryv1.AddressTypeIPv6
	}
	for _, s := range sl {
		if s.AddressType != want {
			continue
		}
		for _, p := range s.Ports {
			if p.Port == nil || value(p.Name) != port.Name || (p.Protocol != nil && *p.Protocol != protocolOrTCP(port.Protocol)) {
				continue
			}
			for i := range s.Endpoints {
				e := describe(cfg, &s.Endpoints[i])
				for _, a := range s.Endpoints[i].Addresses {
					if addr, err := netip.ParseAddr(a); err == nil {
						e.to = netip.AddrPortFrom(addr.Unmap(), uint16(*p.Port))
						out = append(out, e)
					}
				}
			}
		}
	}
	return out
}

func describe(cfg Config, ep *discoveryv1.Endpoint) endpoint {
	c := ep.Conditions
	e := endpoint{
		ready: c.Ready == nil || *c.Ready, terminating: c.Terminating != nil && *c.Terminating,
		local: value(ep.NodeName) == cfg.NodeName,
	}
	e.serving = e.ready
	if c.Serving != nil {
		e.serving = *c.Serving
	}
	if h := ep.Hints; h != nil {
		e.hasNodeHint, e.hasZoneHint = len(h.ForNodes) > 0, len(h.ForZones) > 0
		e.nodeHinted = slices.ContainsFunc(h.ForNodes, func(n discoveryv1.ForNode) bool { return n.Name == cfg.NodeName })
		e.zoneHinted = cfg.Node.Zone != "" && slices.ContainsFunc(h.ForZones, func(z discoveryv1.ForZone) bool { return z.Name == cfg.Node.Zone })
	}
	return e
}

// closest keeps the endpoints that are meant for clients on this node. Hints count only
// when all ready endpoints have them and at least one is meant for this node, so that
// nobody is left without a backend.
func closest(cfg Config, in []endpoint) []endpoint {
	for _, by := range []struct{ has, meant func(endpoint) bool }{
		{func(e endpoint) bool { return e.hasNodeHint }, func(e endpoint) bool { return e.nodeHinted }},
		{func(e endpoint) bool { return e.hasZoneHint }, func(e endpoint) bool { return e.zoneHinted }},
	} {
		meant := slices.DeleteFunc(slices.Clone(in), func(e endpoint) bool { return !e.ready || !by.meant(e) })
		all := !slices.ContainsFunc(in, func(e endpoint) bool { return e.ready && !by.has(e) })
		if all && len(meant) > 0 {
			return meant
		}
	}
	return in
}

// onNode keeps the endpoints of this node.
func onNode(in []endpoint) []endpoint {
	return slices.DeleteFunc(slices.Clone(in), func(e endpoint) bool { return !e.local })
}

// usable returns the ready endpoints, or without any those that serve while they terminate.
func usable(in []endpoint) (out []netip.AddrPort) {
	for _, ok := range []func(endpoint) bool{
		func(e endpoint) bool { return e.ready },
		func(e endpoint) bool { return e.serving && e.terminating },
	} {
		for _, e := range in {
			if ok(e) {
				out = append(out, e.to)
			}
		}
		if len(out) > 0 {
			break
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
