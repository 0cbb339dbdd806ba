package policy

import (
	"fmt"
	"net/netip"
)

// kernel does with the tables what the eBPF programs do.
type kernel struct {
	peers     map[peerKey]uint32
	peerLens  [129]int
	endpoints map[string]EndpointSets
	rules     map[RuleKey]Verdict
}

// peerKey is a prefix of 128 bits.
type peerKey struct {
	addr [16]byte
	bits int
}

func newKernel() *kernel {
	return &kernel{peers: map[peerKey]uint32{}, endpoints: map[string]EndpointSets{}, rules: map[RuleKey]Verdict{}}
}

func maskTo(addr [16]byte, bits int) peerKey {
	for i := range addr {
		if keep := bits - 8*i; keep <= 0 {
			addr[i] = 0
		} else if keep < 8 {
			addr[i] &= 0xff << (8 - keep)
		}
	}
	return peerKey{addr, bits}
}

func keyOf(p netip.Prefix) peerKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return maskTo(p.Addr().As16(), bits)
}

// apply makes the writes of u, with a look at the tables after each of them.
func (k *kernel) apply(u *Update, look func(write string)) {
	for _, r := range u.AddRules {
		if _, ok := k.rules[r.RuleKey]; ok {
			panic(fmt.Sprintf("rule %v is there already", r))
		}
		k.rules[r.RuleKey] = r.Verdict
		look("") // nothing refers to it yet
	}
	for _, c := range u.Peers {
		k.peer(c)
		look(fmt.Sprintf("peer %v", c))
	}
	for _, c := range u.Endpoints {
		if c.Delete {
			delete(k.endpoints, c.Pod)
		} else {
			k.endpoints[c.Pod] = c.Sets
		}
		look(fmt.Sprintf("endpoint %v", c))
	}
	for _, c := range u.Settle {
		k.peer(c)
		look(fmt.Sprintf("settled peer %v", c))
	}
	for _, r := range u.DeleteRules {
		if _, ok := k.rules[r]; !ok {
			panic(fmt.Sprintf("rule %v is not there", r))
		}
		delete(k.rules, r)
		look("deleted rule")
	}
}

func (k *kernel) peer(c PeerChange) {
	key := keyOf(c.Prefix)
	_, had := k.peers[key]
	if had {
		k.peerLens[key.bits]--
	}
	if c.Delete {
		if !had {
			panic(fmt.Sprintf("peer %v is not there", c))
		}
		delete(k.peers, key)
		return
	}
	k.peers[key] = c.Class
	k.peerLens[key.bits]++
}

func (k *kernel) class(a netip.Addr) uint32 {
	addr := a.As16()
	for bits := 128; bits >= 0; bits-- {
		if k.peerLens[bits] > 0 {
			if c, ok := k.peers[maskTo(addr, bits)]; ok {
				return c
			}
		}
	}
	return 0
}

func (k *kernel) rule(set, class uint32, proto uint8, port uint16) (Verdict, bool) {
	for n := int(DepthPort - DepthProto); n >= 0; n-- {
		masked := port &^ uint16(1<<(16-n)-1)
		if v, ok := k.rules[RuleKey{set, class, proto, masked, DepthProto + uint8(n)}]; ok {
			return v, true
		}
	}
	v, ok := k.rules[RuleKey{Set: set, Class: class, Depth: DepthClass}]
	return v, ok
}

// judge is the lookup of the package comment.
func (k *kernel) judge(pod string, d Direction, peer netip.Addr, proto uint8, port uint16) (Verdict, error) {
	sets, ok := k.endpoints[pod]
	if !ok {
		return Verdict{}, fmt.Errorf("no endpoint")
	}
	set := sets.Ingress
	if d == Egress {
		set = sets.Egress
	}
	if set == 0 {
		return Verdict{Allow: true}, nil
	}
	if v, ok := k.rule(set, k.class(peer), proto, port); ok {
		return v, nil
	}
	if v, ok := k.rule(set, 0, proto, port); ok {
		return v, nil
	}
	return Verdict{}, fmt.Errorf("set %d has no rule for class 0", set)
}
