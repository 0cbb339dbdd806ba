package policy

import "slices"

// row are the entries of one set and class. It begins with the entry of DepthClass.
type row []rowEntry

type rowEntry struct {
	proto   uint8
	port    uint16
	depth   uint8
	verdict Verdict
}

func (r row) rules(set, class uint32, out []Rule) []Rule {
	for _, e := range r {
		out = append(out, Rule{RuleKey{set, class, e.proto, e.port, e.depth}, e.verdict})
	}
	return out
}

func (r row) keys(set, class uint32, out []RuleKey) []RuleKey {
	for _, e := range r {
		out = append(out, RuleKey{set, class, e.proto, e.port, e.depth})
	}
	return out
}

// project returns those of the traits that the set asks for.
func (s *set) project(traits []*trait) (out []*trait) {
	for _, t := range traits {
		if s.asks(t) {
			out = append(out, t)
		}
	}
	return out
}

// row returns the row of peers with these traits.
func (s *set) row(traits []*trait) row {
	has := s.project(traits)
	key := traitsKey(has)
	r, ok := s.memo[key]
	if !ok {
		r = s.evaluate(has)
		s.memo[key] = r
	}
	return r
}

// differs returns the row of c, or nil if it is that of class 0.
func (s *set) differs(c *class) row {
	if r := s.row(c.traits); !slices.Equal(r, s.base) {
		return r
	}
	return nil
}

// narrowed is a rule whose peers match already.
type narrowed struct {
	action  action
	anyPort bool
	ports   []portMatch
	reason  uint32
}

func (n *narrowed) matches(proto uint8, port uint16) bool {
	return n.anyPort || slices.ContainsFunc(n.ports, func(m portMatch) bool {
		return m.proto == proto && m.lo <= port && port <= m.hi
	})
}

func (s *set) evaluate(has []*trait) row {
	var tiers [3][]narrowed
	for t, rules := range s.rules {
		for i := range rules {
			if n, ok := rules[i].narrow(has); ok {
				tiers[t] = append(tiers[t], n)
			}
		}
	}
	// Protocol 0 stands for all that have no ports.
	rest := s.decide(&tiers, 0, 0)
	out := row{{depth: DepthClass, verdict: rest}}
	for _, proto := range []uint8{TCP, UDP, SCTP} {
		out = append(out, prefixes(proto, s.spans(&tiers, proto), rest)...)
	}
	return out
}

// narrow returns the rule for a peer that has these traits, if it can match at all.
func (r *rule) narrow(has []*trait) (narrowed, bool) {
	n := narrowed{action: r.action, anyPort: r.anyPort, reason: r.reason}
	if !r.anyPeer && !slices.ContainsFunc(r.peers, func(t *trait) bool { return slices.Contains(has, t) }) {
		return n, false
	}
	for _, m := range r.ports {
		if m.name == "" {
			n.ports = append(n.ports, m)
			continue
		}
		for _, t := range has {
			if t.name != nil && m.names(t.port) {
				n.ports = append(n.ports, portMatch{proto: t.port.Proto, lo: t.port.Port, hi: t.port.Port})
			}
		}
	}
	return n, n.anyPort || len(n.ports) > 0
}

// decide goes through the tiers.
func (s *set) decide(tiers *[3][]narrowed, proto uint8, port uint16) Verdict {
	for t, rules := range tiers {
		for i := range rules {
			if r := &rules[i]; r.matches(proto, port) {
				if r.action == pass {
					break
				}
				return Verdict{r.action == accept, r.reason}
			}
		}
		if tier(t) == networkTier && s.isolated {
			return Verdict{false, s.denied}
		}
	}
	return Verdict{true, s.unmatched}
}

// spans decides for every port of a protocol: verdicts change only where some range
// begins or has ended.
func (s *set) spans(tiers *[3][]narrowed, proto uint8) (out []span) {
	starts := []uint32{0}
	for _, rules := range tiers {
		for _, r := range rules {
			for _, m := range r.ports {
				if m.proto == proto {
					starts = append(starts, uint32(m.lo), uint32(m.hi)+1)
				}
			}
		}
	}
	slices.Sort(starts)
	for _, first := range slices.Compact(starts) {
		if first > 65535 {
			break
		}
		if v := s.decide(tiers, proto, uint16(first)); len(out) == 0 || out[len(out)-1].verdict != v {
			out = append(out, span{first, v})
		}
	}
	return out
}
