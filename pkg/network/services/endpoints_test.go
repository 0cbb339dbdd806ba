package services

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// hinted is a slice whose endpoints are meant for nodes or zones.
func hinted(hints map[string]discoveryv1.EndpointHints) *discoveryv1.EndpointSlice {
	var eps []ep
	for _, addr := range slices.Sorted(maps.Keys(hints)) {
		eps = append(eps, ep{addr: addr, elsewhere: true})
	}
	s := slice("a", eps...)
	for i := range s.Endpoints {
		h := hints[s.Endpoints[i].Addresses[0]]
		s.Endpoints[i].Hints = &h
	}
	return s
}

func zones(names ...string) (h discoveryv1.EndpointHints) {
	for _, n := range names {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: n})
	}
	return h
}

func nodes(zone string, names ...string) discoveryv1.EndpointHints {
	h := zones(zone)
	for _, n := range names {
		h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: n})
	}
	return h
}

func TestHints(t *testing.T) {
	for _, c := range []struct {
		name  string
		hints map[string]discoveryv1.EndpointHints
		want  []string
	}{
		{"for this zone", map[string]discoveryv1.EndpointHints{"10.42.0.2": zones("east"), "10.42.0.3": zones("west")}, []string{"10.42.0.2"}},
		{"for no node of this zone", map[string]discoveryv1.EndpointHints{"10.42.0.2": zones("north"), "10.42.0.3": zones("west")}, []string{"10.42.0.2", "10.42.0.3"}},
		{"one without hints", map[string]discoveryv1.EndpointHints{"10.42.0.2": zones("east"), "10.42.0.3": {}}, []string{"10.42.0.2", "10.42.0.3"}},
		{"for this node", map[string]discoveryv1.EndpointHints{"10.42.0.2": nodes("east", "here"), "10.42.0.3": nodes("east", "there")}, []string{"10.42.0.2"}},
		{"for other nodes, but this zone", map[string]discoveryv1.EndpointHints{"10.42.0.2": nodes("east", "there"), "10.42.0.3": nodes("west", "far")}, []string{"10.42.0.2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(Config{NodeName: "here"})
			table.SetService(web())
			table.SetSlice(hinted(c.hints))
			table.SetNode(Node{Zone: "east"})
			entry := table.All()[Frontend{netip.MustParseAddr("10.43.0.5"), 80, TCP, Inside}]
			var got []string
			for _, b := range entry.Backends {
				got = append(got, b.Addr().String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestSourceRanges(t *testing.T) {
	balanced := func(ranges ...string) func(*corev1.Service) {
		return func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = ranges
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.80"}}
		}
	}
	lb := netip.MustParseAddr("192.0.2.80")
	for _, c := range []struct {
		name   string
		ranges []string
		want   []netip.Prefix
	}{
		{"none is everybody", nil, nil},
		{"some", []string{"203.0.113.0/24", " 198.51.100.7/32"}, []netip.Prefix{netip.MustParsePrefix("198.51.100.7/32"), netip.MustParsePrefix("203.0.113.0/24")}},
		{"only of the other family", []string{"2001:db8::/32"}, []netip.Prefix{netip.MustParsePrefix("192.0.2.80/32")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(Config{NodeName: "here"})
			table.SetSlice(slice("a", ep{addr: "10.42.0.2"}))
			table.SetService(web(balanced(c.ranges...)))
			all := table.All()
			if got := all[Frontend{lb, 80, TCP, Outside}].Sources; !slices.Equal(got, c.want) {
				t.Errorf("from outside: %v, want %v", got, c.want)
			}
			if got := all[Frontend{lb, 80, TCP, Inside}].Sources; got != nil {
				t.Errorf("from inside: %v", got)
			}
		})
	}
}

// A cloud may know a node by an address that its router turns into the node's own.
func TestAddressesThatAreRewrittenOnTheWay(t *testing.T) {
	public, own, other := netip.MustParseAddr("203.0.113.7"), netip.MustParseAddr("10.0.0.7"), netip.MustParseAddr("203.0.113.8")
	table := NewTable(Config{NodeName: "here"})
	table.SetNode(Node{Internal: []netip.Addr{own, netip.MustParseAddr("fd00::7")}, External: []netip.Addr{public}})
	table.SetSlice(slice("a", ep{addr: "10.42.0.2"}))
	table.SetService(web(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: public.String()}, {IP: other.String()}}
	}))
	all := table.All()
	for _, a := range []netip.Addr{public, own, other} {
		if len(all[Frontend{a, 80, TCP, Outside}].Backends) != 1 {
			t.Errorf("%s is not served", a)
		}
	}
	if _, ok := all[Frontend{netip.MustParseAddr("fd00::7"), 80, TCP, Outside}]; ok {
		t.Error("an address of the other family is served")
	}
}
