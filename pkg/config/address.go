package config

import "net/netip"

func network(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, complain("give a network such as 10.42.0.0/16 or fd42::/56", "%q is not a network in CIDR form", s)
	case p.Addr().Is4In6():
		return p, complain("write it as IPv4, such as 10.42.0.0/16", "%s is an IPv4 network in the form of IPv6", s)
	case p != p.Masked():
		return p, complain("write "+p.Masked().String(), "%s is an address inside a network, not a network", s)
	}
	return p, nil
}

func address(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return a, complain("give an address such as 192.0.2.10 or 2001:db8::10", "%q is not an address", s)
	case a.Zone() != "":
		return a, complain("give an address that holds on every interface", "%s is an address of one interface, %s, only", s, a.Zone())
	}
	return a.Unmap(), nil
}

// family names the family of an address, as people write it.
func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
