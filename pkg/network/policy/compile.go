package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Compile brings the tables up to date with all that was told and returns how to get
// there from the Compile before, nil if nothing changes. Ids of sets and classes that
// go out of use do not come back.
func (e *Engine) Compile() *Update {
	x := e.peers
	if len(e.staleEndpoints) == 0 && len(x.stale) == 0 && len(x.stalePods) == 0 && len(x.staleNodes) == 0 {
		return nil
	}
	moves := e.refreshEndpoints()
	// What the sets that went out of use with the last Compile asked for was still
	// part of the classes then, because these sets were in use until its end. The
	// sets that go out of use now are retired, and released the next time.
	for _, s := range e.retired {
		x.release(s)
	}
	e.refreshTraits()
	changes := e.refreshClasses()

	t := e.newTransition(moves, changes)
	u := &Update{}
	e.retired = nil
	u.Endpoints = e.applyMoves(t.moves)
	e.addRules(u)
	t.write(u)
	e.deleteRules(u)
	x.newClasses = nil
	clear(x.oldClasses)
	if len(u.AddRules) == 0 && len(u.Peers) == 0 && len(u.Endpoints) == 0 && len(u.Settle) == 0 && len(u.DeleteRules) == 0 {
		return nil
	}
	return u
}

// Tables returns the complete tables as of the last Compile.
func (e *Engine) Tables() Tables {
	t := Tables{
		Peers:     make(map[netip.Prefix]uint32, len(e.peers.table)),
		Endpoints: make(map[string]EndpointSets, len(e.endpoints)),
		Rules:     map[RuleKey]Verdict{},
	}
	for p, c := range e.peers.table {
		t.Peers[p] = c.id
	}
	for key, ep := range e.endpoints {
		t.Endpoints[key] = ep.ids()
	}
	var rules []Rule
	for _, s := range e.sets {
		rules = s.base.rules(s.id, 0, rules)
		for c, r := range s.rows {
			rules = r.rules(s.id, c.id, rules)
		}
	}
	for _, r := range rules {
		t.Rules[r.RuleKey] = r.Verdict
	}
	return t
}

// move is an endpoint whose sets change; a nil from or to is a pod that comes or goes.
type move struct {
	pod      string
	from, to *endpoint
}

// refreshEndpoints finds the sets of stale endpoints.
func (e *Engine) refreshEndpoints() (out []*move) {
	for _, key := range slices.Sorted(maps.Keys(e.staleEndpoints)) {
		m := &move{pod: key, from: e.endpoints[key]}
		if p := e.pods[key]; p != nil && p.isEndpoint() {
			m.to = &endpoint{[2]*set{e.setFor(p, Ingress), e.setFor(p, Egress)}}
		}
		if m.from == nil && m.to == nil || m.from != nil && m.to != nil && *m.from == *m.to {
			continue
		}
		out = append(out, m)
	}
	clear(e.staleEndpoints)
	return out
}

// applyMoves records the moves as done and finds the sets that they leave without endpoints.
func (e *Engine) applyMoves(moves []*move) (out []EndpointChange) {
	for _, m := range moves {
		if m.to != nil {
			m.to.count(1)
			e.endpoints[m.pod] = m.to
			out = append(out, EndpointChange{Pod: m.pod, Sets: m.to.ids()})
		} else {
			delete(e.endpoints, m.pod)
			out = append(out, EndpointChange{Pod: m.pod, Delete: true})
		}
		if m.from != nil {
			m.from.count(-1)
		}
	}
	for _, m := range moves {
		if m.from == nil {
			continue
		}
		for _, s := range m.from.sets {
			if s != nil && s.refs == 0 && !slices.Contains(e.retired, s) {
				e.retired = append(e.retired, s)
				if e.sets[s.key] == s { // not renewed
					delete(e.sets, s.key)
				}
			}
		}
	}
	return out
}

func (ep *endpoint) count(n int) {
	for _, s := range ep.sets {
		if s != nil {
			s.refs += n
		}
	}
}

// addRules adds the rules of new sets with all classes and of all sets, also retired
// ones, with new classes.
func (e *Engine) addRules(u *Update) {
	add := func(s *set, c *class) {
		if _, done := s.rows[c]; done || c.refs == 0 {
			return
		}
		if r := s.differs(c); r != nil {
			s.rows[c] = r
			u.AddRules = r.rules(s.id, c.id, u.AddRules)
		}
	}
	for _, s := range e.sets {
		if !s.written {
			s.written = true
			s.base = s.row(nil)
			u.AddRules = s.base.rules(s.id, 0, u.AddRules)
			e.classesFor(s, func(c *class) { add(s, c) })
		}
	}
	for _, c := range e.peers.newClasses {
		e.setsFor(func(s *set) { add(s, c) }, c)
	}
}

// deleteRules removes the rules of classes that no address has any more and of
// retired sets.
func (e *Engine) deleteRules(u *Update) {
	for c := range e.peers.oldClasses {
		if c.refs > 0 {
			continue
		}
		e.setsFor(func(s *set) {
			if r, ok := s.rows[c]; ok {
				u.DeleteRules = r.keys(s.id, c.id, u.DeleteRules)
				delete(s.rows, c)
			}
		}, c)
		e.peers.drop(c)
	}
	for _, s := range e.retired {
		u.DeleteRules = s.base.keys(s.id, 0, u.DeleteRules)
		for c, r := range s.rows {
			u.DeleteRules = r.keys(s.id, c.id, u.DeleteRules)
		}
		s.rows, s.memo = nil, nil
	}
}

// classesFor calls visit once with each class that may differ from class 0 in the set.
func (e *Engine) classesFor(s *set, visit func(*class)) {
	e.round++
	round := e.round
	try := func(t *trait) {
		for c := range t.classes {
			if c.round != round {
				c.round = round
				visit(c)
			}
		}
	}
	for t := range s.traits {
		try(t)
	}
	for _, n := range s.names {
		if _, open := n.open[s]; !open {
			continue
		}
		for _, t := range n.traits {
			try(t)
		}
	}
}

// setsFor calls visit once with each set in which one of the classes may differ from class 0.
func (e *Engine) setsFor(visit func(*set), classes ...*class) {
	e.round++
	round := e.round
	for _, c := range classes {
		for _, t := range c.traits {
			sets := t.sets
			if t.name != nil {
				sets = t.name.open
			}
			for s := range sets {
				if s.round != round {
					s.round = round
					visit(s)
				}
			}
		}
	}
}
