package node

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestOurSettingsWinOverDefaultsAndArgumentsOverOurs(t *testing.T) {
	k := NewKubelet(KubeletOptions{NodeName: "n1", CgroupRoot: "/kombi", ClusterDNS: []netip.Addr{netip.MustParseAddr("10.43.0.10")}, Port: 10250, MaxPods: 110,
		Args: []string{"max-pods=20", "--eviction-hard=memory.available<50Mi"}})
	server, err := k.server()
	if err != nil {
		t.Fatal(err)
	}
	c := server.KubeletConfiguration
	if c.MaxPods != 20 || c.EvictionHard["memory.available"] != "50Mi" {
		t.Errorf("arguments are lost: %d %v", c.MaxPods, c.EvictionHard)
	}
	if c.FailCgroupV1 || c.CgroupRoot != "/kombi" || c.ReadOnlyPort != 0 || c.Authentication.Anonymous.Enabled || !c.SeccompDefault {
		t.Errorf("our settings are lost: %+v", c)
	}
	k.opts.Args = []string{"max-podz=20"}
	if _, err := k.server(); err == nil || !strings.Contains(err.Error(), `no setting "max-podz"`) {
		t.Errorf("got %v", err)
	}
}

func TestNodeAddressesOfEachFamily(t *testing.T) {
	a4, a6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	d4, d6 := netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("fd43::a")
	for _, tc := range []struct {
		node, dns                []netip.Addr
		nodeIP, listen, resolver string
	}{
		{[]netip.Addr{a4}, []netip.Addr{d4}, "192.0.2.2", "0.0.0.0", "[10.43.0.10]"},
		{[]netip.Addr{a4, a6}, []netip.Addr{d4, d6}, "192.0.2.2,2001:db8::2", "::", "[10.43.0.10 fd43::a]"},
		{[]netip.Addr{a6, a4}, []netip.Addr{d6, d4}, "2001:db8::2,192.0.2.2", "::", "[fd43::a 10.43.0.10]"},
		{[]netip.Addr{a6}, []netip.Addr{d6}, "2001:db8::2", "::", "[fd43::a]"},
		{nil, nil, "", "0.0.0.0", "[]"},
	} {
		server, err := NewKubelet(KubeletOptions{NodeName: "n1", NodeIPs: tc.node, ClusterDNS: tc.dns}).server()
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(server.NodeIP, server.Address, server.ClusterDNS); got != fmt.Sprint(tc.nodeIP, tc.listen, tc.resolver) {
			t.Errorf("%v: %s", tc.node, got)
		}
	}
}

func TestFamilyThatANodeHasNoRangeOf(t *testing.T) {
	a4, a6 := netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")
	for _, tc := range []struct {
		ranges []string
		nodes  []netip.Addr
		want   string
	}{
		{nil, []netip.Addr{a4, a6}, ""},
		{[]string{"10.42.0.0/24"}, []netip.Addr{a4}, ""},
		{[]string{"10.42.0.0/24"}, []netip.Addr{a4, a6}, "IPv6"},
		{[]string{"fd42::/64"}, []netip.Addr{a6, a4}, "IPv4"},
		{[]string{"10.42.0.0/24", "fd42::/64"}, []netip.Addr{a6, a4}, ""},
	} {
		if got := missingFamily(tc.ranges, tc.nodes); got != tc.want {
			t.Errorf("%v, %v: %q, want %q", tc.ranges, tc.nodes, got, tc.want)
		}
	}
}
