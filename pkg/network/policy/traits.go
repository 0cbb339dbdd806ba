package policy

import "k8s.io/apimachinery/pkg/labels"

// trait is a thing that sets in use ask of a peer's address: a peer of some rule, or
// a named port of the pod at that address. It lives as long as a set needs it.
type trait struct {
	id   uint32
	key  string
	peer peer // unset for ports
	// port and name are set for named ports only.
	port NamedPort
	name *portName
	// group is set for pods in selected namespaces.
	group *group

	sets    map[*set]struct{} // that ask for it; for ports see name
	classes map[*class]struct{}
	dead    bool
}

// group are the traits with one namespace selector, so that it is matched only once
// for each namespace.
type group struct {
	key     string
	sel     labels.Selector
	traits  map[*trait]struct{}
	matched map[string]bool // by namespace
}

// portName is a named port that rules ask of their peers.
type portName struct {
	sets map[*set]struct{}
	// open are those of the sets that ask it of every peer. For the others it matters
	// only for peers that have another trait that they ask for.
	open   map[*set]struct{}
	traits map[NamedPort]*trait
}

// asks reports whether the set's verdicts may depend on the trait.
func (s *set) asks(t *trait) bool {
	sets := t.sets
	if t.name != nil {
		sets = t.name.sets
	}
	_, ok := sets[s]
	return ok
}

// acquire makes s ask for the peer.
func (e *Engine) acquire(s *set, p peer) *trait {
	x := e.peers
	key := p.key()
	t := x.traits[key]
	if t == nil {
		e.lastTrait++
		t = &trait{id: e.lastTrait, key: key, peer: p, sets: map[*set]struct{}{}, classes: map[*class]struct{}{}}
		x.traits[key] = t
		x.index(t)
		x.fresh = append(x.fresh, t)
	}
	t.sets[s] = struct{}{}
	s.traits[t] = struct{}{}
	return t
}

// acquireName makes s ask for the named port of its peers.
func (e *Engine) acquireName(s *set, name string, anyPeer bool) {
	x := e.peers
	n := x.names[name]
	if n == nil {
		n = &portName{sets: map[*set]struct{}{}, open: map[*set]struct{}{}, traits: map[NamedPort]*trait{}}
		x.names[name] = n
		x.freshNames[name] = struct{}{}
	}
	n.sets[s] = struct{}{}
	if anyPeer {
		n.open[s] = struct{}{}
	}
	s.names[name] = n
}

// release ends what s asks for.
func (x *peers) release(s *set) {
	for t := range s.traits {
		if delete(t.sets, s); len(t.sets) == 0 {
			t.dead, x.anyDead = true, true
			delete(x.traits, t.key)
			x.unindex(t)
		}
	}
	for name, n := range s.names {
		delete(n.open, s)
		if delete(n.sets, s); len(n.sets) == 0 {
			delete(x.names, name)
			for _, t := range n.traits {
				t.dead, x.anyDead = true, true
			}
		}
	}
}

// index makes the trait found by those that may have it.
func (x *peers) index(t *trait) {
	switch p := t.peer; {
	case p.block != nil:
		x.addBlock(t, 1)
	case p.nodes != nil:
		x.nodeTraits[t] = struct{}{}
	case p.pods.nsSel == nil:
		if x.fixed[p.pods.namespace] == nil {
			x.fixed[p.pods.namespace] = map[*trait]struct{}{}
		}
		x.fixed[p.pods.namespace][t] = struct{}{}
	default:
		key := p.pods.nsSel.String()
		if t.group = x.groups[key]; t.group == nil {
			t.group = &group{key: key, sel: p.pods.nsSel, traits: map[*trait]struct{}{}, matched: map[string]bool{}}
			x.groups[key] = t.group
		}
		t.group.traits[t] = struct{}{}
	}
}

func (x *peers) unindex(t *trait) {
	switch p := t.peer; {
	case p.block != nil:
		x.addBlock(t, -1)
	case p.nodes != nil:
		delete(x.nodeTraits, t)
	case p.pods.nsSel == nil:
		if delete(x.fixed[p.pods.namespace], t); len(x.fixed[p.pods.namespace]) == 0 {
			delete(x.fixed, p.pods.namespace)
		}
	default:
		if delete(t.group.traits, t); len(t.group.traits) == 0 {
			delete(x.groups, t.group.key)
		}
	}
}
