package services

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// state prints the desired state, one frontend a line.
func state(m map[Frontend]Entry) string {
	var lines []string
	for f, e := range m {
		l := f.String() + " ->"
		for _, b := range e.Backends {
			l += " " + b.String()
		}
		if e.Affinity > 0 {
			l += fmt.Sprintf(" sticky %s", e.Affinity)
		}
		if e.DropIfEmpty {
			l += " drop"
		}
		if len(e.Sources) > 0 {
			l += fmt.Sprintf(" for %v", e.Sources)
		}
		lines = append(lines, l)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

type ep struct {
	addr                      string
	notReady, serving, ending bool
	elsewhere                 bool
}

func slice(name string, eps ...ep) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, p := range []struct {
		name  string
		port  int32
		proto corev1.Protocol
	}{{"http", 8080, corev1.ProtocolTCP}, {"dns", 5353, corev1.ProtocolUDP}} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &p.port, Protocol: &p.proto})
	}
	for _, e := range eps {
		ready, serving, node := !e.notReady, !e.notReady || e.serving, "here"
		if e.elsewhere {
			node = "elsewhere"
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.addr}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &e.ending}})
	}
	return s
}

func web(change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.43.0.5", ClusterIPs: []string{"10.43.0.5"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func TestDesiredState(t *testing.T) {
	two := slice("a", ep{addr: "10.42.0.3"}, ep{addr: "10.42.0.2", elsewhere: true})
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name   string
		svc    *corev1.Service
		slices []*discoveryv1.EndpointSlice
		want   string
	}{
		{"cluster address", web(), []*discoveryv1.EndpointSlice{two}, "10.43.0.5:80/TCP -> 10.42.0.2:8080 10.42.0.3:8080"},
		{"no endpoints", web(), nil, "10.43.0.5:80/TCP ->"},
		{"endpoints in several slices, some twice", web(),
			[]*discoveryv1.EndpointSlice{two, slice("b", ep{addr: "10.42.0.3"}, ep{addr: "10.42.0.4"})},
			"10.43.0.5:80/TCP -> 10.42.0.2:8080 10.42.0.3:8080 10.42.0.4:8080"},
		{"several ports", web(func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP})
		}), []*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.3"})},
			"10.43.0.5:53/UDP -> 10.42.0.3:5353\n10.43.0.5:80/TCP -> 10.42.0.3:8080"},
		{"only ready endpoints", web(), []*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.2", notReady: true}, ep{addr: "10.42.0.3"})},
			"10.43.0.5:80/TCP -> 10.42.0.3:8080"},
		{"terminating endpoints when none is ready", web(),
			[]*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.2", notReady: true, serving: true, ending: true}, ep{addr: "10.42.0.3", notReady: true})},
			"10.43.0.5:80/TCP -> 10.42.0.2:8080"},
		{"no terminating endpoints when one is ready", web(),
			[]*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.2", notReady: true, serving: true, ending: true}, ep{addr: "10.42.0.3"})},
			"10.43.0.5:80/TCP -> 10.42.0.3:8080"},
		{"headless", web(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }), []*discoveryv1.EndpointSlice{two}, ""},
		{"external name", web(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }), []*discoveryv1.EndpointSlice{two}, ""},
		{"the node's own address is not translated", web(func(s *corev1.Service) { s.Spec.ClusterIPs = []string{"10.43.0.10"} }), []*discoveryv1.EndpointSlice{two}, ""},
		{"affinity", web(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }), []*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.3"})},
			"10.43.0.5:80/TCP -> 10.42.0.3:8080 sticky 3h0m0s"},
		{"node port", web(func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 }), []*discoveryv1.EndpointSlice{two},
			"0.0.0.0:30080/TCP -> 10.42.0.2:8080 10.42.0.3:8080\n" +
				"0.0.0.0:30080/TCP from outside -> 10.42.0.2:8080 10.42.0.3:8080\n" +
				"10.43.0.5:80/TCP -> 10.42.0.2:8080 10.42.0.3:8080"},
		{"node port for local endpoints", web(func(s *corev1.Service) {
			s.Spec.Ports[0].NodePort = 30080
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}), []*discoveryv1.EndpointSlice{two},
			"0.0.0.0:30080/TCP -> 10.42.0.2:8080 10.42.0.3:8080\n" +
				"0.0.0.0:30080/TCP from outside -> 10.42.0.3:8080 drop\n" +
				"10.43.0.5:80/TCP -> 10.42.0.2:8080 10.42.0.3:8080"},
		{"cluster address for local endpoints, none here", web(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }),
			[]*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.2", elsewhere: true})}, "10.43.0.5:80/TCP -> drop"},
		{"external and balancer addresses", web(func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
			proxy := corev1.LoadBalancerIPModeProxy
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.2"}, {IP: "192.0.2.3", IPMode: &proxy}, {Hostname: "x"}}
		}), []*discoveryv1.EndpointSlice{slice("a", ep{addr: "10.42.0.3"})},
			"10.43.0.5:80/TCP -> 10.42.0.3:8080\n" +
				"192.0.2.1:80/TCP -> 10.42.0.3:8080\n192.0.2.1:80/TCP from outside -> 10.42.0.3:8080\n" +
				"192.0.2.2:80/TCP -> 10.42.0.3:8080\n192.0.2.2:80/TCP from outside -> 10.42.0.3:8080"},
		{"other protocols are not served", web(func(s *corev1.Service) { s.Spec.Ports[0].Protocol = corev1.ProtocolSCTP }), []*discoveryv1.EndpointSlice{two}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			table := NewTable(Config{NodeName: "here", Untouched: []netip.Addr{netip.MustParseAddr("10.43.0.10")}})
			table.SetService(c.svc)
			for _, s := range c.slices {
				table.SetSlice(s)
			}
			if got := state(table.All()); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Whatever the order of events, following the changes leads to the whole state.
func TestChangesLeadToTheState(t *testing.T) {
	table := NewTable(Config{NodeName: "here"})
	have := map[Frontend]Entry{}
	follow := func() {
		for _, c := range table.Take() {
			if c.Entry == nil {
				delete(have, c.Frontend)
			} else {
				have[c.Frontend] = *c.Entry
			}
		}
	}
	external := func(name string) *corev1.Service {
		s := web(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })
		s.Name = name
		return s
	}
	pod := netip.MustParseAddrPort("10.42.0.9:80")
	steps := []func(){
		func() { table.SetSlice(slice("a", ep{addr: "10.42.0.2"})) },
		func() { table.SetService(external("web")) },
		func() { table.SetService(external("rival")) }, // wants the same address
		func() { table.SetSlice(slice("b", ep{addr: "10.42.0.3"})) },
		func() { table.SetHostPorts("pod", []HostPort{{HostPort: 80, Proto: TCP, Pod: pod}}) },
		func() { table.DeleteSlice(slice("a")) },
		func() { table.DeleteService("ns", "web") }, // the rival takes over
		func() { table.SetHostPorts("pod", nil) },
		func() { table.SetService(web(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })) },
		func() { table.DeleteService("ns", "rival") },
		func() { table.DeleteService("ns", "web") },
	}
	for i, step := range steps {
		step()
		follow()
		// All would also take the changes, so look at the same state another way.
		if got, want := state(have), state(maps.Clone(table.All())); got != want {
			t.Errorf("after step %d:\n%s\nwant\n%s", i, got, want)
		}
	}
	if len(have) != 0 {
		t.Errorf("left: %s", state(have))
	}
}
