package policy

import (
	"net/netip"
	"slices"
)

// peers is the model behind the table of peers.
type peers struct {
	// What sets ask for, and indexes to find who has it.
	traits     map[string]*trait
	names      map[string]*portName
	fixed      map[string]map[*trait]struct{} // by namespace
	groups     map[string]*group
	nodeTraits map[*trait]struct{}
	blocks     map[netip.Prefix][]*trait // by cidr
	blockLens  lengths

	// entries are the addresses of pods and nodes and the edges of blocks.
	entries map[netip.Prefix]*entry
	edges   lengths // of the edges of blocks
	classes map[string]*class
	none    *class

	// table is the table itself as of the last Compile.
	table     map[netip.Prefix]*class
	tableLens lengths

	// What changed since.
	fresh        []*trait
	freshNames   map[string]struct{}
	anyDead      bool
	stalePods    map[*pod]struct{}
	staleNodes   map[*node]struct{}
	stale        map[*entry]struct{}
	staleBlocks  []netip.Prefix
	changedEdges bool
	newClasses   []*class
	oldClasses   map[*class]struct{} // that lost an entry
}

// entry is a prefix that may have to be in the table: all addresses in it that are in
// no longer one have the same class.
type entry struct {
	prefix netip.Prefix
	pods   []*pod
	nodes  []*node
	edges  int // how many blocks begin or end with it
	class  *class
}

// class is what addresses have that no set can tell apart.
type class struct {
	id     uint32
	key    string
	traits []*trait // by id
	refs   int      // entries

	round uint64 // see Engine
}

func newPeers() *peers {
	return &peers{
		traits:     map[string]*trait{},
		names:      map[string]*portName{},
		fixed:      map[string]map[*trait]struct{}{},
		groups:     map[string]*group{},
		nodeTraits: map[*trait]struct{}{},
		blocks:     map[netip.Prefix][]*trait{},
		entries:    map[netip.Prefix]*entry{},
		classes:    map[string]*class{},
		none:       &class{},
		table:      map[netip.Prefix]*class{},
		freshNames: map[string]struct{}{},
		stalePods:  map[*pod]struct{}{},
		staleNodes: map[*node]struct{}{},
		stale:      map[*entry]struct{}{},
		oldClasses: map[*class]struct{}{},
	}
}

// entry returns the entry of a prefix, which is looked at again by the next Compile.
func (x *peers) entry(p netip.Prefix) *entry {
	en := x.entries[p]
	if en == nil {
		en = &entry{prefix: p, class: x.none}
		x.entries[p] = en
	}
	x.stale[en] = struct{}{}
	return en
}

func (x *peers) attach(p *pod) {
	x.stalePods[p] = struct{}{}
	if p.isPeer() {
		for _, a := range p.Addrs {
			en := x.entry(host(a))
			en.pods = append(en.pods, p)
		}
	}
}

func (x *peers) detach(p *pod) {
	delete(x.stalePods, p)
	if p.isPeer() {
		for _, a := range p.Addrs {
			en := x.entry(host(a))
			en.pods = slices.DeleteFunc(en.pods, func(o *pod) bool { return o == p })
		}
	}
}

func (x *peers) attachNode(n *node) {
	x.staleNodes[n] = struct{}{}
	for _, a := range n.addrs {
		en := x.entry(host(a))
		en.nodes = append(en.nodes, n)
	}
}

func (x *peers) detachNode(n *node) {
	delete(x.staleNodes, n)
	for _, a := range n.addrs {
		en := x.entry(host(a))
		en.nodes = slices.DeleteFunc(en.nodes, func(o *node) bool { return o == n })
	}
}

// addBlock makes a block known, or with n of -1 forgotten.
func (x *peers) addBlock(t *trait, n int) {
	b := t.peer.block
	if n > 0 {
		x.blocks[b.cidr] = append(x.blocks[b.cidr], t)
	} else if x.blocks[b.cidr] = slices.DeleteFunc(x.blocks[b.cidr], func(o *trait) bool { return o == t }); len(x.blocks[b.cidr]) == 0 {
		delete(x.blocks, b.cidr)
	}
	x.blockLens.add(b.cidr, n)
	x.addEdge(b.cidr, n)
	for _, p := range b.except {
		x.addEdge(p, n)
	}
	x.staleBlocks = append(x.staleBlocks, b.cidr)
	x.changedEdges = true
}

func (x *peers) addEdge(p netip.Prefix, n int) {
	x.entry(p).edges += n
	x.edges.add(p, n)
	if p.Addr().Is6() && p.Contains(mappedIPv4) {
		// In the table this IPv6 block has IPv4 in it; the entry for all of IPv4
		// keeps it out.
		x.addEdge(allIPv4, n)
	}
}

// blocksOf returns the blocks that p is in.
func (x *peers) blocksOf(p netip.Prefix, out []*trait) []*trait {
	x.blockLens.within(p, func(q netip.Prefix) bool {
		for _, t := range x.blocks[q] {
			if t.peer.block.contains(p) {
				out = append(out, t)
			}
		}
		return false
	})
	return out
}

// around returns the class of the smallest block edge around p.
func (x *peers) around(p netip.Prefix) *class {
	out := x.none
	x.edges.within(p, func(q netip.Prefix) bool {
		if en := x.entries[q]; q != p && en != nil && en.edges > 0 {
			out = en.class
			return true
		}
		return false
	})
	return out
}

// lookup returns the class of p's addresses that are in no longer prefix of the table.
func (x *peers) lookup(p netip.Prefix) *class {
	out := x.none
	x.tableLens.within(p, func(q netip.Prefix) bool {
		c, ok := x.table[q]
		if ok {
			out = c
		}
		return ok
	})
	return out
}

// apply records the change as done.
func (x *peers) apply(c tableChange) {
	if c.old != nil {
		x.tableLens.add(c.prefix, -1)
		delete(x.table, c.prefix)
	}
	if c.new != nil {
		x.tableLens.add(c.prefix, 1)
		x.table[c.prefix] = c.new
	}
}
