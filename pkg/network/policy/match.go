package policy

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
)

func (g *group) selects(p *pod) bool {
	m, ok := g.matched[p.Namespace]
	if !ok {
		m = g.sel.Matches(p.ns.labels)
		g.matched[p.Namespace] = m
	}
	return m
}

// forgetNamespace drops what is known of a namespace's labels.
func (x *peers) forgetNamespace(name string) {
	for _, g := range x.groups {
		delete(g.matched, name)
	}
}

// portTraits returns the named ports of p that rules ask for.
func (e *Engine) portTraits(p *pod, out []*trait, wanted func(name string) bool) []*trait {
	for _, port := range p.Ports {
		n := e.peers.names[port.Name]
		if n == nil || !wanted(port.Name) {
			continue
		}
		t := n.traits[port]
		if t == nil {
			e.lastTrait++
			t = &trait{id: e.lastTrait, port: port, name: n, classes: map[*class]struct{}{}}
			n.traits[port] = t
		}
		out = append(out, t)
	}
	return out
}

// podTraits matches the pod from scratch.
func (e *Engine) podTraits(p *pod) (out []*trait) {
	x := e.peers
	lbls := labels.Set(p.Labels)
	for t := range x.fixed[p.Namespace] {
		if t.peer.pods.sel.Matches(lbls) {
			out = append(out, t)
		}
	}
	for _, g := range x.groups {
		if !g.selects(p) {
			continue
		}
		for t := range g.traits {
			if t.peer.pods.sel.Matches(lbls) {
				out = append(out, t)
			}
		}
	}
	return e.portTraits(p, out, func(string) bool { return true })
}

// refreshTraits brings the traits of pods and nodes up to date with the sets' needs
// and with their own changes.
func (e *Engine) refreshTraits() {
	x := e.peers
	if x.anyDead {
		for _, p := range e.pods {
			if n := len(p.traits); n > 0 {
				if p.traits = slices.DeleteFunc(p.traits, func(t *trait) bool { return t.dead }); len(p.traits) < n {
					x.touch(p.Addrs)
				}
			}
		}
		for _, n := range e.nodes {
			if had := len(n.traits); had > 0 {
				if n.traits = slices.DeleteFunc(n.traits, func(t *trait) bool { return t.dead }); len(n.traits) < had {
					x.touch(n.addrs)
				}
			}
		}
	}
	for _, t := range x.fresh {
		if !t.dead {
			e.spread(t)
		}
	}
	if len(x.freshNames) > 0 {
		for _, p := range e.pods {
			if had := len(p.traits); p.isPeer() && !x.isStale(p) {
				p.traits = e.portTraits(p, p.traits, func(name string) bool { _, ok := x.freshNames[name]; return ok })
				if len(p.traits) > had {
					x.touch(p.Addrs)
				}
			}
		}
	}
	for p := range x.stalePods {
		p.traits = nil
		if p.isPeer() {
			p.traits = e.podTraits(p)
			x.touch(p.Addrs)
		}
	}
	for n := range x.staleNodes {
		n.traits = nil
		for t := range x.nodeTraits {
			if t.peer.nodes.Matches(n.labels) {
				n.traits = append(n.traits, t)
			}
		}
		x.touch(n.addrs)
	}
	x.fresh, x.anyDead = nil, false
	clear(x.freshNames)
	clear(x.stalePods)
	clear(x.staleNodes)
}

func (x *peers) isStale(p *pod) bool { _, ok := x.stalePods[p]; return ok }

// spread gives a new trait to the pods or nodes that have it, except for stale ones,
// which are matched from scratch.
func (e *Engine) spread(t *trait) {
	x := e.peers
	if sel := t.peer.nodes; sel != nil {
		for _, n := range e.nodes {
			if _, stale := x.staleNodes[n]; !stale && sel.Matches(n.labels) {
				n.traits = append(n.traits, t)
				x.touch(n.addrs)
			}
		}
	}
	if t.peer.pods == nil {
		return
	}
	try := func(pods map[string]*pod) {
		for _, p := range pods {
			if p.isPeer() && !x.isStale(p) && t.peer.pods.sel.Matches(labels.Set(p.Labels)) {
				p.traits = append(p.traits, t)
				x.touch(p.Addrs)
			}
		}
	}
	if t.group == nil {
		if ns := e.namespaces[t.peer.pods.namespace]; ns != nil {
			try(ns.pods)
		}
		return
	}
	for _, ns := range e.namespaces {
		for _, p := range ns.pods { // any pod tells whether the namespace is selected
			if t.group.selects(p) {
				try(ns.pods)
			}
			break
		}
	}
}

// touch makes the classes of the addresses be found anew.
func (x *peers) touch(addrs []netip.Addr) {
	for _, a := range addrs {
		if en := x.entries[host(a)]; en != nil {
			x.stale[en] = struct{}{}
		}
	}
}
