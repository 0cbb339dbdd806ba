package dns

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A cluster with both families is asked on both addresses and answers for both.
func TestDualStack(t *testing.T) {
	yes, tcp, port, web := true, corev1.ProtocolTCP, int32(80), "web"
	ports := []corev1.ServicePort{{Name: "web", Port: 80, Protocol: tcp}}
	endpoints := func(service, suffix string, family discoveryv1.AddressType, addr string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: family, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}},
			Ports: []discoveryv1.EndpointPort{{Name: &web, Protocol: &tcp, Port: &port}},
		}
	}
	service := func(name string, addrs ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: corev1.ServiceSpec{ClusterIP: addrs[0], ClusterIPs: addrs, Ports: ports}}
	}
	api := newFakeAPI(t, append(shop(),
		service("both", "10.43.1.6", "fd43::16"), endpoints("both", "-4", discoveryv1.AddressTypeIPv4, "10.42.0.6"), endpoints("both", "-6", discoveryv1.AddressTypeIPv6, "fd42::6"),
		service("six", "fd43::17"), endpoints("six", "-6", discoveryv1.AddressTypeIPv6, "fd42::7"),
		service("pods", "None"), endpoints("pods", "-4", discoveryv1.AddressTypeIPv4, "10.42.0.11"), endpoints("pods", "-6", discoveryv1.AddressTypeIPv6, "fd42::b"),
	)...)
	var other netip.AddrPort
	r := start(t, api, func(o *Options) {
		other = netip.AddrPortFrom(netip.IPv6Loopback(), o.Listen[0].Port())
		o.Listen = append(o.Listen, other)
		o.ClusterCIDRs = append(o.ClusterCIDRs, netip.MustParsePrefix("fd42::/56"))
		o.ServiceCIDRs = append(o.ServiceCIDRs, netip.MustParsePrefix("fd43::/112"))
	}).awaitReady()
	// reverse is the name under which an address of these networks is looked up.
	reverse := func(addr string) string {
		name, err := dns.ReverseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, tc := range []struct {
		what, name string
		qtype      uint16
		rcode      string
		want       []string
	}{
		{"both, IPv4", "both.shop.svc.cluster.local", dns.TypeA, "NOERROR", []string{"A 10.43.1.6"}},
		{"both, IPv6", "both.shop.svc.cluster.local", dns.TypeAAAA, "NOERROR", []string{"AAAA fd43::16"}},
		{"IPv6 only, IPv4", "six.shop.svc.cluster.local", dns.TypeA, "NOERROR", nil},
		{"IPv6 only, IPv6", "six.shop.svc.cluster.local", dns.TypeAAAA, "NOERROR", []string{"AAAA fd43::17"}},
		{"headless, IPv6", "pods.shop.svc.cluster.local", dns.TypeAAAA, "NOERROR", []string{"AAAA fd42::b"}},
		{"pod by address", "fd42--7.shop.pod.cluster.local", dns.TypeAAAA, "NOERROR", []string{"AAAA fd42::7"}},
		{"address of a service", reverse("fd43::16"), dns.TypePTR, "NOERROR", []string{"PTR both.shop.svc.cluster.local."}},
		{"address of a pod of a headless service", reverse("fd42::b"), dns.TypePTR, "NOERROR", []string{"PTR fd42--b.pods.shop.svc.cluster.local."}},
		{"address of no service", reverse("fd43::99"), dns.TypePTR, "NXDOMAIN", nil},
		{"address of no pod", reverse("fd42:0:0:1::99"), dns.TypePTR, "NXDOMAIN", nil},
		{"address of a node", reverse("fd00::9:1"), dns.TypePTR, "NOERROR", []string{"PTR edge-1."}},
	} {
		for _, server := range []netip.AddrPort{r.addr, other} {
			for _, network := range []string{"udp", "tcp"} {
				rcode, got, err := query(network, server.String(), tc.name, tc.qtype)
				if err != nil || rcode != tc.rcode || !slices.Equal(got, tc.want) {
					t.Errorf("%s, %s of %s: %s %q, want %s %q (%v)", tc.what, network, server, rcode, got, tc.rcode, tc.want, err)
				}
			}
		}
	}
	if err := r.Healthy(); err != nil {
		t.Errorf("unhealthy: %v", err)
	}
}
