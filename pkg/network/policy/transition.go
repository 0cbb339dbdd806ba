package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// transition orders the writes of one Update. See the package comment.
type transition struct {
	e       *Engine
	moves   []*move
	changes []peerMove
	// left are the sets that some endpoint moves away from, asked and askedNames what
	// they ask for.
	left       map[*set]struct{}
	asked      map[*trait]struct{}
	askedNames map[*portName]struct{}
	// passing are the classes by the pair that they pass between, nil for pairs that
	// the sets that are left do not tell apart.
	passing map[[2]*class]*passing
	anyPass bool
}

// peerMove is a change of the table of peers with what it means for the addresses.
type peerMove struct {
	tableChange
	// before and after are the classes of the addresses that are in no longer prefix.
	before, after *class
	passing       *passing // nil: the peer may take its new class at once
}

// passing is the class of peers that go from one class to another while endpoints move.
type passing struct {
	id       uint32
	old, new *class
}

// newTransition decides which peers need passing classes.
func (e *Engine) newTransition(moves []*move, changes []tableChange) *transition {
	x := e.peers
	t := &transition{
		e: e, moves: moves,
		left: map[*set]struct{}{}, asked: map[*trait]struct{}{}, askedNames: map[*portName]struct{}{},
		passing: map[[2]*class]*passing{},
	}
	for _, m := range moves {
		if m.from == nil || m.to == nil {
			continue
		}
		for d, s := range m.from.sets {
			if s != nil && s != m.to.sets[d] {
				t.leave(s)
			}
		}
	}
	for _, c := range changes {
		t.changes = append(t.changes, peerMove{tableChange: c, before: x.lookup(c.prefix)})
	}
	for _, c := range changes {
		x.apply(c)
	}
	for i := range t.changes {
		c := &t.changes[i]
		c.after = x.lookup(c.prefix)
		c.passing = t.pass(c.before, c.after)
	}
	if t.anyPass {
		t.renewEntered()
	}
	return t
}

func (t *transition) leave(s *set) {
	t.left[s] = struct{}{}
	maps.Copy(t.asked, s.traits)
	for _, n := range s.names {
		t.askedNames[n] = struct{}{}
	}
}

// pass returns the passing class between two, nil if there is no need for one.
func (t *transition) pass(before, after *class) *passing {
	if before == after || len(t.left) == 0 {
		return nil
	}
	pair := [2]*class{before, after}
	p, known := t.passing[pair]
	if !known {
		if !slices.Equal(t.leftSee(before), t.leftSee(after)) {
			p = &passing{t.e.newID(), before, after}
			t.anyPass = true
		}
		t.passing[pair] = p
	}
	return p
}

// leftSee returns the traits of c that sets that are left ask for.
func (t *transition) leftSee(c *class) (out []*trait) {
	for _, tr := range c.traits {
		_, ok := t.asked[tr]
		if tr.name != nil {
			_, ok = t.askedNames[tr.name]
		}
		if ok {
			out = append(out, tr)
		}
	}
	return out
}

// renewEntered moves all endpoints of a set that some leave and others enter to a copy
// of it with another id: those that leave need it to see the class before, those that
// enter the class after.
func (t *transition) renewEntered() {
	renewed := map[*set]*set{}
	moved := map[string]bool{}
	for _, m := range t.moves {
		moved[m.pod] = true
		if m.to == nil {
			continue
		}
		for d, s := range m.to.sets {
			_, left := t.left[s]
			if left && (m.from == nil || m.from.sets[d] != s) && renewed[s] == nil {
				renewed[s] = t.e.renew(s)
			}
		}
	}
	if len(renewed) == 0 {
		return
	}
	for _, m := range t.moves {
		if m.to != nil {
			m.to.replace(renewed)
		}
	}
	for key, ep := range t.e.endpoints {
		to := *ep
		if to.replace(renewed); to != *ep && !moved[key] {
			t.moves = append(t.moves, &move{key, ep, &to})
		}
	}
}

func (ep *endpoint) replace(by map[*set]*set) {
	for d, s := range ep.sets {
		if n := by[s]; n != nil {
			ep.sets[d] = n
		}
	}
}

// write adds the writes to peers, and the rules of passing classes.
func (t *transition) write(u *Update) {
	// Longest first: a prefix is written when all longer ones in it are right
	// already, so it changes only addresses that are to have its class.
	slices.SortFunc(t.changes, func(a, b peerMove) int { return comparePrefixes(b.prefix, a.prefix) })
	var deletes []PeerChange
	for _, c := range t.changes {
		if c.new == nil {
			deletes = append(deletes, PeerChange{Prefix: c.prefix, Delete: true})
		}
	}
	// Deletes the other way round: what a prefix gives way to has to be right before.
	slices.Reverse(deletes)
	if !t.anyPass {
		for _, c := range t.changes {
			if c.new != nil {
				u.Peers = append(u.Peers, PeerChange{Prefix: c.prefix, Class: c.new.id})
			}
		}
		u.Peers = append(u.Peers, deletes...)
		return
	}
	t.writeRules(u)
	for _, c := range t.changes {
		// Until all is settled every prefix has an entry, also one that goes: what is
		// around it may have a passing class that is not its own.
		now := PeerChange{Prefix: c.prefix, Class: c.after.id}
		if c.passing != nil {
			now.Class = c.passing.id
			if c.new != nil {
				u.Settle = append(u.Settle, PeerChange{Prefix: c.prefix, Class: c.new.id})
			}
		}
		u.Peers = append(u.Peers, now)
	}
	u.Settle = append(u.Settle, deletes...)
}

func (t *transition) writeRules(u *Update) {
	for _, p := range t.passing {
		if p == nil {
			continue
		}
		t.e.setsFor(func(s *set) {
			c := p.new
			if _, left := t.left[s]; left {
				c = p.old
			}
			if r := s.differs(c); r != nil {
				u.AddRules = r.rules(s.id, p.id, u.AddRules)
				u.DeleteRules = r.keys(s.id, p.id, u.DeleteRules)
			}
		}, p.old, p.new)
	}
}

// comparePrefixes orders by the length in the table.
func comparePrefixes(a, b netip.Prefix) int {
	if d := depth(a) - depth(b); d != 0 {
		return d
	}
	return a.Compare(b)
}
