package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// sizes is what a network of one family must be like.
type sizes struct {
	example  string
	min, max int // prefix length
}

// The sizes of networks, by family. Upstream bounds them for IPv6: each node gets a /64, and the controller manager
// counts at most 2^16 of them; services are at most 2^20.
func podSizes() map[string]sizes {
	return map[string]sizes{"IPv4": {"10.42.0.0/16", 8, 24}, "IPv6": {"fd42::/56", 48, 64}}
}

func serviceSizes() map[string]sizes {
	return map[string]sizes{"IPv4": {"10.43.0.0/16", 12, 27}, "IPv6": {"fd43::/112", 108, 123}}
}

// networks judges the networks of the cluster and the addresses that depend on them.
func (v *checker) networks(o LoadOptions) {
	c := v.c
	own := slices.Concat(o.NodeAddresses, c.NodeIPs, []netip.Addr{c.AdvertiseAddress})
	pods := v.oneKey("cluster-cidr", c.ClusterCIDRs, podSizes(), own)
	services := v.oneKey("service-cidr", c.ServiceCIDRs, serviceSizes(), own)
	known := pods && services && v.sameFamilies()
	if known {
		v.apart()
		v.dns()
	}
	v.machine(known && o.Role == Server)
	if known && o.Role == Server {
		v.api()
	}
}

// oneKey judges the networks of one key, and reports whether they can be compared with others.
func (v *checker) oneKey(key string, nets []netip.Prefix, want map[string]sizes, own []netip.Addr) bool {
	if !v.ok(key) {
		return false
	}
	if len(nets) == 0 {
		v.refuse(key, 0, "give a network such as "+want["IPv4"].example+", or remove the key", "there is no network")
		return false
	}
	addrs := make([]netip.Addr, len(nets))
	for i, n := range nets {
		addrs[i] = n.Addr()
	}
	if !v.oneOfEach(key, "network", addrs) {
		return false
	}
	for i, n := range nets {
		v.oneNetwork(key, i, n, want[family(n.Addr())], own)
	}
	return true
}

// oneOfEach refuses more than one value of a family.
func (v *checker) oneOfEach(key, what string, addrs []netip.Addr) bool {
	seen := map[string]bool{}
	for i, a := range addrs {
		f := family(a)
		if seen[f] {
			v.refuse(key, i, "give one, or one of IPv4 and one of IPv6", "there is more than one %s %s", f, what)
			return false
		}
		seen[f] = true
	}
	return true
}

func (v *checker) oneNetwork(key string, i int, n netip.Prefix, want sizes, own []netip.Addr) {
	if n.Bits() < want.min || n.Bits() > want.max {
		v.refuse(key, i, fmt.Sprintf("choose a prefix length from /%d to /%d", want.min, want.max), "%s has an unusable size", n)
		return
	}
	for _, reserved := range []struct{ net, name string }{
		{"0.0.0.0/8", "this network"}, {"127.0.0.0/8", "loopback"}, {"169.254.0.0/16", "link-local"}, {"224.0.0.0/3", "multicast"},
		{"::/8", "loopback, translated and other special addresses"}, {"fe80::/10", "link-local"}, {"ff00::/8", "multicast"},
	} {
		if p := netip.MustParsePrefix(reserved.net); p.Overlaps(n) {
			v.refuse(key, i, "choose a private network such as "+want.example, "%s overlaps %s, which is reserved (%s)", n, p, reserved.name)
			return
		}
	}
	for _, a := range own {
		if !a.IsLoopback() && n.Contains(a) {
			v.refuse(key, i, "choose a network that the machine does not use", "%s contains this machine's own address %s", n, a)
			return
		}
	}
}

func (v *checker) sameFamilies() bool {
	pods, services := families(v.c.ClusterCIDRs), families(v.c.ServiceCIDRs)
	if slices.Equal(pods, services) {
		return true
	}
	var examples [2][]string
	for _, f := range pods {
		examples[0] = append(examples[0], podSizes()[f].example)
		examples[1] = append(examples[1], serviceSizes()[f].example)
	}
	v.refuse(v.blame("service-cidr", "cluster-cidr"), 0,
		fmt.Sprintf("give both the same families in the same order, such as %s and %s", strings.Join(examples[0], ","), strings.Join(examples[1], ",")),
		"cluster-cidr is %s, and service-cidr is %s", strings.Join(pods, " and "), strings.Join(services, " and "))
	return false
}

func families(nets []netip.Prefix) (out []string) {
	for _, n := range nets {
		out = append(out, family(n.Addr()))
	}
	return out
}

// apart refuses networks that overlap.
func (v *checker) apart() {
	for i, pods := range v.c.ClusterCIDRs {
		if services := v.c.ServiceCIDRs[i]; pods.Overlaps(services) {
			v.refuse(v.blame("cluster-cidr", "service-cidr"), i, "choose two networks that do not overlap",
				"cluster-cidr %s and service-cidr %s overlap", pods, services)
		}
	}
}

// dns judges the DNS addresses that were given.
func (v *checker) dns() {
	c := v.c
	if !v.ok("cluster-dns") || !v.oneOfEach("cluster-dns", "address", c.ClusterDNS) {
		return
	}
	for i, a := range c.ClusterDNS {
		of := slices.Index(families(c.ServiceCIDRs), family(a))
		if of < 0 {
			v.foreignFamily("cluster-dns", i, a)
			continue
		}
		n := c.ServiceCIDRs[of]
		next := "choose an address such as " + nthAddr(n, 10).String()
		switch {
		case !n.Contains(a):
			v.refuse(v.blame("cluster-dns", "service-cidr"), i, next, "cluster-dns %s is outside service-cidr %s", a, n)
		case a == n.Addr() || a == nthAddr(n, 1):
			v.refuse("cluster-dns", i, next, "cluster-dns %s is taken: the first addresses of service-cidr belong to the network and to the API", a)
		}
	}
}

func (v *checker) foreignFamily(key string, i int, a netip.Addr) {
	v.refuse(key, i, fmt.Sprintf("remove it, or add an %s network to cluster-cidr and to service-cidr", family(a)),
		"%s is an %s address, and the cluster has no %[2]s network", a, family(a))
}

// machine judges the addresses of this machine; the families of an agent's cluster are not known to it.
func (v *checker) machine(familiesKnown bool) {
	c := v.c
	unusable := func(key string, i int, a netip.Addr) bool {
		bad := a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() || a.IsLinkLocalUnicast()
		if bad {
			v.refuse(key, i, "give an address that other machines can reach", "%s is not the address of a machine", a)
		}
		return bad
	}
	if c.AdvertiseAddress.IsValid() {
		unusable("advertise-address", 0, c.AdvertiseAddress)
	}
	if !v.ok("node-ip") || !v.oneOfEach("node-ip", "address", c.NodeIPs) {
		return
	}
	for i, a := range c.NodeIPs {
		if !unusable("node-ip", i, a) && familiesKnown && !slices.Contains(families(c.ClusterCIDRs), family(a)) {
			v.foreignFamily("node-ip", i, a)
		}
	}
}

// api judges where the API is reached: its Service has the first family of the cluster only.
func (v *checker) api() {
	first := family(v.c.ServiceCIDRs[0].Addr())
	for _, a := range []struct {
		key  string
		addr netip.Addr
	}{{"bind-address", v.c.BindAddress}, {"advertise-address", v.c.AdvertiseAddress}} {
		if a.addr.IsValid() && !a.addr.IsUnspecified() && family(a.addr) != first {
			v.refuse(a.key, 0, fmt.Sprintf("give an %s address, or put the %s networks first", first, family(a.addr)),
				"%s is an %s address, and the cluster's services, with the API's, are %s first", a.addr, family(a.addr), first)
		}
	}
}
