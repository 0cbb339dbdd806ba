package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestNetworksOfEitherFamilyOrBoth(t *testing.T) {
	const dual = "--cluster-cidr=10.42.0.0/16,fd42::/56"
	for _, tc := range []struct {
		name string
		fixture
		want string // cluster-cidr, service-cidr, cluster-dns, node-ip
	}{
		{"flags of k3s", fixture{flags: []string{dual, "--service-cidr=10.43.0.0/16,fd43::/112"}},
			"[10.42.0.0/16 fd42::/56] [10.43.0.0/16 fd43::/112] [10.43.0.10 fd43::a] []"},
		{"flags twice", fixture{flags: []string{dual, "--service-cidr=10.43.0.0/16", "--service-cidr=fd43::/112"}},
			"[10.42.0.0/16 fd42::/56] [10.43.0.0/16 fd43::/112] [10.43.0.10 fd43::a] []"},
		{"IPv6 first", fixture{flags: []string{"--cluster-cidr=fd42::/48,10.42.0.0/16", "--service-cidr=fd43::/108,10.96.0.0/12", "--node-ip=192.0.2.2,2001:db8::2"}},
			"[fd42::/48 10.42.0.0/16] [fd43::/108 10.96.0.0/12] [fd43::a 10.96.0.10] [192.0.2.2 2001:db8::2]"},
		{"IPv6 only", fixture{file: "cluster-cidr: fd42::/64\nservice-cidr: fd43::/112\nbind-address: 2001:db8::2\n"},
			"[fd42::/64] [fd43::/112] [fd43::a] []"},
		{"YAML list and text with a comma", fixture{file: "cluster-cidr: [10.42.0.0/16, fd42::/56]\nservice-cidr: 10.43.0.0/16, fd43::/112\ncluster-dns:\n- fd43::53\n- 10.43.0.53\n"},
			"[10.42.0.0/16 fd42::/56] [10.43.0.0/16 fd43::/112] [10.43.0.53 fd43::53] []"},
		{"one DNS address of two", fixture{flags: []string{dual, "--service-cidr=10.43.0.0/16,fd43::/112", "--cluster-dns=fd43::53"}},
			"[10.42.0.0/16 fd42::/56] [10.43.0.0/16 fd43::/112] [10.43.0.10 fd43::53] []"},
		{"environment", fixture{env: []string{"KOMBI_CLUSTER_CIDR=10.1.0.0/16,fd01::/56", "KOMBI_SERVICE_CIDR=10.2.0.0/16,fd02::/112", "KOMBI_NODE_IP=192.0.2.2"}},
			"[10.1.0.0/16 fd01::/56] [10.2.0.0/16 fd02::/112] [10.2.0.10 fd02::a] [192.0.2.2]"},
		{"appended to the defaults", fixture{file: "cluster-cidr+: fd42::/56\nservice-cidr+: fd43::/112\n"},
			"[10.42.0.0/16 fd42::/56] [10.43.0.0/16 fd43::/112] [10.43.0.10 fd43::a] []"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := tc.load(t, LoadOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(c.ClusterCIDRs, c.ServiceCIDRs, c.ClusterDNS, c.NodeIPs); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestEachNetworkHasItsOwnOrigin(t *testing.T) {
	c, err := fixture{file: "cluster-cidr+: fd42::/56\nservice-cidr:\n- 10.43.0.0/16\n- fd43::/112\n"}.load(t, LoadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string][]string{"cluster-cidr": {"default", "config.yaml:1"}, "service-cidr": {"config.yaml:3", "config.yaml:4"}} {
		got := c.Origins(key)
		if !slices.EqualFunc(got, want, func(o Origin, w string) bool { return strings.HasSuffix(o.String(), w) }) {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
}

// TestNetworksRefused lists what is refused of networks and addresses; want is the beginning of the only problem.
func TestNetworksRefused(t *testing.T) {
	const dual, dualServices = "--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112"
	flags := func(args ...string) fixture { return fixture{flags: args} }
	for _, tc := range []struct {
		name string
		fixture
		want string
	}{
		{"no network", fixture{file: "cluster-cidr: []\n"}, "config.yaml:1: cluster-cidr: there is no network; give a network such as 10.42.0.0/16, or remove the key"},
		{"empty text", flags("--service-cidr="), "flag --service-cidr: there is no network; give a network such as 10.43.0.0/16, or remove the key"},
		{"not a network", flags(dual, "--service-cidr=10.43.0.0/16,fd43::"), `flag --service-cidr: "fd43::" is not a network in CIDR form; give a network such as`},
		{"host bits", flags("--cluster-cidr=10.42.0.0/16,fd42::1/56", dualServices), "flag --cluster-cidr: fd42::1/56 is an address inside a network, not a network; write fd42::/56"},
		{"IPv4 as IPv6", flags("--cluster-cidr=::ffff:10.42.0.0/112"), "flag --cluster-cidr: ::ffff:10.42.0.0/112 is an IPv4 network in the form of IPv6; write it as IPv4"},
		{"two of one family", flags("--cluster-cidr=10.42.0.0/16,10.44.0.0/16"), "flag --cluster-cidr: there is more than one IPv4 network; give one, or one of IPv4 and one of IPv6"},
		{"three", fixture{file: "cluster-cidr:\n- 10.42.0.0/16\n- fd42::/56\n- fd44::/56\n"}, "config.yaml:4: cluster-cidr: there is more than one IPv6 network; give one"},
		{"services of one family", flags(dual), "flag --cluster-cidr: cluster-cidr is IPv4 and IPv6, and service-cidr is IPv4; give both the same families in the same order, such as 10.42.0.0/16,fd42::/56 and 10.43.0.0/16,fd43::/112"},
		{"pods of one family", fixture{file: "service-cidr: fd43::/112\n"}, "config.yaml:1: service-cidr: cluster-cidr is IPv4, and service-cidr is IPv6; give both the same families"},
		{"another order", flags("--cluster-cidr=fd42::/56,10.42.0.0/16", dualServices), "flag --service-cidr: cluster-cidr is IPv6 and IPv4, and service-cidr is IPv4 and IPv6; give both the same families in the same order, such as fd42::/56,10.42.0.0/16 and fd43::/112,10.43.0.0/16"},
		{"pods with more nodes than can be counted", flags("--cluster-cidr=fd42::/40", "--service-cidr=fd43::/112"), "flag --cluster-cidr: fd42::/40 has an unusable size; choose a prefix length from /48 to /64"},
		{"pods without room for a node", flags("--cluster-cidr=10.42.0.0/16,fd42::/72", dualServices), "flag --cluster-cidr: fd42::/72 has an unusable size; choose a prefix length from /48 to /64"},
		{"too many services", flags(dual, "--service-cidr=10.43.0.0/16,fd43::/96"), "flag --service-cidr: fd43::/96 has an unusable size; choose a prefix length from /108 to /123"},
		{"too few services", flags(dual, "--service-cidr=10.43.0.0/16,fd43::/124"), "flag --service-cidr: fd43::/124 has an unusable size; choose a prefix length from /108 to /123"},
		{"overlap", flags("--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd42:0:0:ff::/112"), "flag --cluster-cidr: cluster-cidr fd42::/56 and service-cidr fd42:0:0:ff::/112 overlap; choose two networks that do not overlap"},
		{"link-local", flags("--cluster-cidr=10.42.0.0/16,fe80::/56", dualServices), "flag --cluster-cidr: fe80::/56 overlaps fe80::/10, which is reserved (link-local); choose a private network such as fd42::/56"},
		{"multicast", flags("--cluster-cidr=10.42.0.0/16,ff05::/56", dualServices), "flag --cluster-cidr: ff05::/56 overlaps ff00::/8, which is reserved (multicast); choose"},
		{"loopback", flags(dual, "--service-cidr=10.43.0.0/16,::/112"), "flag --service-cidr: ::/112 overlaps ::/8, which is reserved (loopback, translated and other special addresses); choose a private network such as fd43::/112"},
		{"NAT64", flags("--cluster-cidr=10.42.0.0/16,64:ff9b::/56", dualServices), "flag --cluster-cidr: 64:ff9b::/56 overlaps ::/8, which is reserved"},
		{"own address", flags("--cluster-cidr=10.42.0.0/16,2001:db8::/56", dualServices), "flag --cluster-cidr: 2001:db8::/56 contains this machine's own address 2001:db8::2; choose a network that the machine does not use"},
		{"own address by node-ip", flags(dual, dualServices, "--node-ip=fd42::2"), "flag --cluster-cidr: fd42::/56 contains this machine's own address fd42::2; choose"},
		{"DNS outside", flags(dual, dualServices, "--cluster-dns=10.43.0.10,fd44::a"), "flag --cluster-dns: cluster-dns fd44::a is outside service-cidr fd43::/112; choose an address such as fd43::a"},
		{"DNS taken", flags(dual, dualServices, "--cluster-dns=fd43::1"), "flag --cluster-dns: cluster-dns fd43::1 is taken: the first addresses of service-cidr belong to the network and to the API; choose an address such as fd43::a"},
		{"DNS of a family without services", flags("--cluster-dns=fd43::a"), "flag --cluster-dns: fd43::a is an IPv6 address, and the cluster has no IPv6 network; remove it, or add an IPv6 network to cluster-cidr and to service-cidr"},
		{"two DNS addresses of one family", flags("--cluster-dns=10.43.0.10,10.43.0.11"), "flag --cluster-dns: there is more than one IPv4 address; give one"},
		{"node-ip of another family", flags("--node-ip=192.0.2.2,2001:db8::2"), "flag --node-ip: 2001:db8::2 is an IPv6 address, and the cluster has no IPv6 network; remove it"},
		{"two node-ips of one family", flags(dual, dualServices, "--node-ip=2001:db8::2,2001:db8::3"), "flag --node-ip: there is more than one IPv6 address; give one"},
		{"node-ip that is none", flags("--node-ip=fe80"), `flag --node-ip: "fe80" is not an address; give an address such as 192.0.2.10 or 2001:db8::10`},
		{"node-ip of one interface", flags("--node-ip=fe80::1%eth0"), "flag --node-ip: fe80::1%eth0 is an address of one interface, eth0, only; give an address that holds on every interface"},
		{"link-local node-ip", flags(dual, dualServices, "--node-ip=fe80::1"), "flag --node-ip: fe80::1 is not the address of a machine; give an address that other machines can reach"},
		{"loopback node-ip", flags(dual, dualServices, "--node-ip=::1"), "flag --node-ip: ::1 is not the address of a machine; give"},
		{"loopback advertise-address", flags("--advertise-address=127.0.0.1"), "flag --advertise-address: 127.0.0.1 is not the address of a machine; give an address that other machines can reach"},
		{"advertise-address of the second family", flags(dual, dualServices, "--advertise-address=2001:db8::2"), "flag --advertise-address: 2001:db8::2 is an IPv6 address, and the cluster's services, with the API's, are IPv4 first; give an IPv4 address, or put the IPv6 networks first"},
		{"bind-address of the second family", flags("--cluster-cidr=fd42::/56,10.42.0.0/16", "--service-cidr=fd43::/112,10.43.0.0/16", "--bind-address=192.0.2.2"), "flag --bind-address: 192.0.2.2 is an IPv4 address, and the cluster's services, with the API's, are IPv6 first; give an IPv6 address, or put the IPv4 networks first"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			own := []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}
			_, err := tc.load(t, LoadOptions{NodeAddresses: own})
			if err == nil {
				t.Fatal("accepted")
			}
			if got := err.Error(); !strings.HasPrefix(got, tc.want) || strings.Contains(got, "\n") {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestDNSAddressesAreCompleteEvenIfOtherSettingsAreWrong(t *testing.T) {
	c, err := fixture{flags: []string{"--service-cidr=fd43::/112", "--max-pods=0"}}.load(t, LoadOptions{})
	if got := fmt.Sprint(c.ClusterDNS); err == nil || got != "[fd43::a]" {
		t.Errorf("%s, %v", got, err)
	}
}
