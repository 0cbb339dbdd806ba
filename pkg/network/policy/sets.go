package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// set is what governs pods in one direction. What it decides never changes.
type set struct {
	id  uint32
	key string
	// rules are in the order of evaluation, by tier.
	rules [3][]rule
	// isolated is whether NetworkPolicies end the evaluation; denied is the reason
	// that they give then.
	isolated bool
	denied   uint32
	// unmatched is the reason if no rule matches.
	unmatched uint32

	// traits and names are what it asks for.
	traits map[*trait]struct{}
	names  map[string]*portName

	refs    int  // endpoints
	written bool // base and rows are computed
	// base is the row for class 0, rows are those of classes that differ from it.
	base row
	rows map[*class]row
	memo map[string]row // by the traits that it asks for

	round uint64 // see Engine
}

// rule is a definition with what it asks for looked up, and for ingress with named
// ports resolved.
type rule struct {
	action  action
	anyPeer bool
	peers   []*trait
	anyPort bool
	ports   []portMatch
	reason  uint32
}

// governing returns the policies that govern the pod, in the order of evaluation:
// tiers, in them lower priority numbers first, then names.
func (e *Engine) governing(p *pod, d Direction) (out []*policy) {
	for _, pol := range p.ns.policies {
		if pol.governs[d] && pol.subject.matches(p) {
			out = append(out, pol)
		}
	}
	for _, pol := range e.cluster {
		if pol.governs[d] && pol.subject != nil && pol.subject.matches(p) {
			out = append(out, pol)
		}
	}
	slices.SortFunc(out, func(a, b *policy) int {
		return cmp.Or(cmp.Compare(a.tier, b.tier), cmp.Compare(a.priority, b.priority), cmp.Compare(a.name, b.name))
	})
	return out
}

// setFor returns the set that governs the pod, nil if nothing does.
func (e *Engine) setFor(p *pod, d Direction) *set {
	policies := e.governing(p, d)
	if len(policies) == 0 {
		return nil
	}
	var key strings.Builder
	fmt.Fprintf(&key, "%d", d)
	for _, pol := range policies {
		fmt.Fprintf(&key, " %d", pol.rev)
	}
	if d == Ingress {
		for _, port := range p.Ports {
			if asksName(policies, port.Name) {
				fmt.Fprintf(&key, " %q:%d/%d", port.Name, port.Port, port.Proto)
			}
		}
	}
	if s := e.sets[key.String()]; s != nil {
		return s
	}
	s := e.newSet(key.String())
	var isolating []string
	for _, pol := range policies {
		if pol.tier == networkTier {
			isolating = append(isolating, pol.name)
		}
		for _, def := range pol.rules[d] {
			s.rules[pol.tier] = append(s.rules[pol.tier], e.resolve(s, &def, p, d))
		}
	}
	s.unmatched = e.reason(unmatched)
	if len(isolating) > 0 {
		s.isolated, s.denied = true, e.reason(isolatedBy(isolating))
	}
	e.sets[s.key] = s
	return s
}

func asksName(policies []*policy, name string) bool {
	for _, pol := range policies {
		for _, def := range pol.rules[Ingress] {
			for _, m := range def.ports {
				if m.name == name {
					return true
				}
			}
		}
	}
	return false
}

func (e *Engine) newSet(key string) *set {
	return &set{
		id: e.newID(), key: key,
		traits: map[*trait]struct{}{}, names: map[string]*portName{},
		rows: map[*class]row{}, memo: map[string]row{},
	}
}

// resolve makes a rule of the set of a definition, for the subject p.
func (e *Engine) resolve(s *set, def *definition, p *pod, d Direction) rule {
	r := rule{action: def.action, anyPeer: def.anyPeer, anyPort: def.anyPort, reason: e.reason(def.reason)}
	for _, peer := range def.peers {
		r.peers = append(r.peers, e.acquire(s, peer))
	}
	for _, m := range def.ports {
		switch {
		case m.name == "":
			r.ports = append(r.ports, m)
		case d == Egress:
			r.ports = append(r.ports, m)
			e.acquireName(s, m.name, def.anyPeer)
		default:
			for _, port := range p.Ports {
				if m.names(port) {
					r.ports = append(r.ports, portMatch{proto: port.Proto, lo: port.Port, hi: port.Port})
				}
			}
		}
	}
	return r
}

// renew returns a set with the same content and another id.
func (e *Engine) renew(s *set) *set {
	n := e.newSet(s.key)
	n.rules, n.isolated, n.denied, n.unmatched = s.rules, s.isolated, s.denied, s.unmatched
	n.base, n.memo = s.base, s.memo
	for t := range s.traits {
		t.sets[n], n.traits[t] = struct{}{}, struct{}{}
	}
	for name, p := range s.names {
		_, open := p.open[s]
		e.acquireName(n, name, open)
	}
	e.sets[n.key] = n
	return n
}
