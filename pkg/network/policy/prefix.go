package policy

import (
	"fmt"
	"net/netip"
)

// lengths counts the prefixes of each length in a table, so that a search for what
// contains an address tries only lengths that occur.
type lengths struct {
	v4 [33]int
	v6 [129]int
}

func (l *lengths) add(p netip.Prefix, n int) {
	if p.Addr().Is4() {
		l.v4[p.Bits()] += n
	} else {
		l.v6[p.Bits()] += n
	}
}

// within calls visit with each prefix of l's lengths that contains p, or is p, the
// longest first, until visit returns true. IPv6 prefixes contain the IPv4 ones that
// they contain when mapped, as in the table of peers; unless visit stops before, it
// sees these too.
func (l *lengths) within(p netip.Prefix, visit func(netip.Prefix) bool) {
	addr, bits := p.Addr(), p.Bits()
	if addr.Is4() {
		for n := bits; n >= 0; n-- {
			if l.v4[n] > 0 && visit(netip.PrefixFrom(addr, n).Masked()) {
				return
			}
		}
		addr, bits = netip.AddrFrom16(addr.As16()), mappedBits-1
	}
	for n := bits; n >= 0; n-- {
		if l.v6[n] > 0 && visit(netip.PrefixFrom(addr, n).Masked()) {
			return
		}
	}
}

// mappedBits is the length of ::ffff:0:0/96, under which the table of peers has IPv4.
const mappedBits = 96

var (
	allIPv4    = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	mappedIPv4 = netip.AddrFrom16(netip.IPv4Unspecified().As16())
)

// depth returns the length of a prefix in the table of peers.
func depth(p netip.Prefix) int {
	if p.Addr().Is4() {
		return mappedBits + p.Bits()
	}
	return p.Bits()
}

// covers reports whether all of inner is in outer; both are of one family.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// host returns the prefix of one address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// plain returns the address without a zone and not mapped into IPv6.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// parseCIDR reads a block of addresses as policies have it. Host bits are ignored,
// as Kubernetes always did.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a block of addresses", s)
	}
	if p.Addr().Is4In6() && p.Bits() >= mappedBits {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mappedBits)
	}
	return p.Masked(), nil
}
