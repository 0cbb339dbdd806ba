package policy

import (
	"encoding/binary"
	"net/netip"
	"slices"
)

// classOf finds the class of an entry from scratch.
func (e *Engine) classOf(en *entry) *class {
	x := e.peers
	var has []*trait
	for _, p := range en.pods {
		has = append(has, p.traits...)
	}
	for _, n := range en.nodes {
		has = append(has, n.traits...)
	}
	has = x.blocksOf(en.prefix, has)
	if len(has) == 0 {
		return x.none
	}
	slices.SortFunc(has, func(a, b *trait) int { return int(a.id) - int(b.id) })
	has = slices.Compact(has)
	key := traitsKey(has)
	c := x.classes[key]
	if c == nil {
		c = &class{id: e.newID(), key: key, traits: has}
		x.classes[key] = c
		for _, t := range has {
			t.classes[c] = struct{}{}
		}
		x.newClasses = append(x.newClasses, c)
	}
	return c
}

func traitsKey(ts []*trait) string {
	b := make([]byte, 0, 4*len(ts))
	for _, t := range ts {
		b = binary.BigEndian.AppendUint32(b, t.id)
	}
	return string(b)
}

// drop forgets a class that no address has.
func (x *peers) drop(c *class) {
	delete(x.classes, c.key)
	for _, t := range c.traits {
		delete(t.classes, c)
	}
}

// tableChange is a prefix whose entry in the table changes; nil is none.
type tableChange struct {
	prefix   netip.Prefix
	old, new *class
}

// refreshClasses finds the classes of stale entries and returns how the table changes.
func (e *Engine) refreshClasses() []tableChange {
	x := e.peers
	x.spreadBlocks()
	order := make([]*entry, 0, len(x.stale))
	for en := range x.stale {
		order = append(order, en)
	}
	// A fixed order makes ids reproducible.
	slices.SortFunc(order, func(a, b *entry) int { return a.prefix.Compare(b.prefix) })
	for _, en := range order {
		c := x.none
		if len(en.pods) == 0 && len(en.nodes) == 0 && en.edges == 0 {
			delete(x.entries, en.prefix)
		} else {
			c = e.classOf(en)
		}
		if c != en.class {
			c.refs++
			if en.class.refs--; en.class != x.none {
				x.oldClasses[en.class] = struct{}{}
			}
			en.class = c
		}
	}
	var out []tableChange
	check := func(en *entry) {
		want := en.class
		// Without traits an entry is needed only to hide that of a block around it.
		if _, there := x.entries[en.prefix]; !there || want == x.none && x.around(en.prefix) == x.none {
			want = nil
		}
		if had := x.table[en.prefix]; had != want {
			out = append(out, tableChange{en.prefix, had, want})
		}
	}
	for _, en := range order {
		check(en)
	}
	if x.changedEdges {
		for _, en := range x.entries {
			if _, done := x.stale[en]; !done {
				check(en)
			}
		}
	}
	clear(x.stale)
	x.changedEdges = false
	return out
}

// spreadBlocks makes the entries in changed blocks be looked at.
func (x *peers) spreadBlocks() {
	const many = 32 // from which on looking at everything is cheaper
	if len(x.staleBlocks) >= many {
		for _, en := range x.entries {
			x.stale[en] = struct{}{}
		}
	} else {
		for _, b := range x.staleBlocks {
			for _, en := range x.entries {
				if covers(b, en.prefix) {
					x.stale[en] = struct{}{}
				}
			}
		}
	}
	x.staleBlocks = nil
}
