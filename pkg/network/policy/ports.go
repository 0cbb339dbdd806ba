package policy

import "slices"

// span is a run of ports with one verdict, from first up to the next span.
type span struct {
	first   uint32
	verdict Verdict
}

// cover is a node of the binary tree of ports: the ports that start with its bits.
type cover struct {
	port        uint16
	bits        uint8
	choices     []Verdict // the verdicts that lead to the fewest entries below
	left, right *cover
}

// prefixes turns spans, which begin at port 0 and reach to the last, into the fewest
// longest-prefix entries that say the same, given what holds without any entry. The
// algorithm is ORTC: R. Draves et al., "Constructing optimal IP routing tables", 1999.
func prefixes(proto uint8, spans []span, inherited Verdict) row {
	return newCover(0, 0, spans).emit(proto, inherited, nil)
}

func newCover(port uint16, bits uint8, spans []span) *cover {
	c := &cover{port: port, bits: bits}
	size := uint32(1) << (16 - bits)
	// The span that the first of the ports is in is the last one that starts at or before it.
	at, found := slices.BinarySearchFunc(spans, uint32(port), func(s span, p uint32) int { return int(s.first) - int(p) })
	if !found {
		at--
	}
	if at+1 == len(spans) || spans[at+1].first >= uint32(port)+size {
		c.choices = []Verdict{spans[at].verdict}
		return c
	}
	c.left = newCover(port, bits+1, spans)
	c.right = newCover(port+uint16(size/2), bits+1, spans)
	for _, v := range c.left.choices {
		if slices.Contains(c.right.choices, v) {
			c.choices = append(c.choices, v)
		}
	}
	if c.choices == nil {
		c.choices = slices.Concat(c.left.choices, c.right.choices)
	}
	return c
}

func (c *cover) emit(proto uint8, inherited Verdict, out row) row {
	if !slices.Contains(c.choices, inherited) {
		inherited = c.choices[0]
		out = append(out, rowEntry{proto, c.port, DepthProto + c.bits, inherited})
	}
	if c.left != nil {
		out = c.left.emit(proto, inherited, out)
		out = c.right.emit(proto, inherited, out)
	}
	return out
}
