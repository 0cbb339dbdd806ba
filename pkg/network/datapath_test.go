package network

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Each behaviour is tested with every way of attaching the programs.
func TestDataPath(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			e, parent := newEnv(t, m), t
			for _, c := range []struct {
				name string
				run  func(*testing.T, *env)
			}{
				{"pods reach each other", podsReachEachOther},
				{"pods and node reach each other", podsAndNode},
				{"pods reach the outside under the node's address", masquerades},
				{"cluster addresses", clusterIP},
				{"node ports", nodePorts},
				{"services of the host", hostBackends},
				{"a pod reaches itself through its service", hairpin},
				{"services without endpoints refuse", refuses},
				{"unknown service addresses refuse", refusesUnknown},
				{"clients stay with their backend", affinity},
				{"live connections survive endpoint changes", endpointChanges},
				{"terminating endpoints serve when nothing else does", terminating},
				{"traffic policies", trafficPolicies},
				{"host ports", hostPortsWork},
				{"node-local addresses", nodeLocal},
				{"errors about translated packets arrive", icmpErrors},
				{"fragments", fragmentsPass},
				{"large transfers", largeTransfers},
				{"a narrow path beyond the node", narrowPath},
				{"foreign source addresses are dropped", spoofing},
				{"a firewall that drops forwarded packets does not matter", forwardDrop},
				{"a restart keeps connections", restart},
			} {
				t.Run(c.name, func(t *testing.T) {
					e.t = t
					defer func() { e.t = parent }()
					c.run(t, e)
				})
			}
		})
	}
}

func expect(t *testing.T, what string, r reply, name, seen string) {
	t.Helper()
	if r.Err != "" || r.name() != name || seen != "" && r.seen() != seen {
		t.Errorf("%s: got %+v; want the answer of %s, which sees %s", what, r, name, seen)
	}
}

func podsReachEachOther(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	b.serve(t, "udp", ":80", "b")
	expect(t, "tcp", a.call(t, "tcp", b.addr+":80"), "b", a.addr)
	expect(t, "udp", a.call(t, "udp", b.addr+":80"), "b", a.addr)
	if err := a.ping(t, b.addr); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func podsAndNode(t *testing.T, e *env) {
	a := e.addPod()
	a.serve(t, "tcp", ":80", "a")
	e.host.serve(t, "tcp", nodeAddr+":8000", "node")
	expect(t, "pod to node", a.call(t, "tcp", nodeAddr+":8000"), "node", a.addr)
	expect(t, "node to pod", e.host.call(t, "tcp", a.addr+":80"), "a", nodeAddr)
	if err := a.ping(t, nodeAddr); err != nil {
		t.Errorf("ping: %v", err)
	}
}

func masquerades(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	e.outside.serve(t, "udp", worldAddr+":53", "world")
	expect(t, "tcp", a.call(t, "tcp", worldAddr+":80"), "world", nodeAddr)
	expect(t, "udp", a.call(t, "udp", worldAddr+":53"), "world", nodeAddr)
	expect(t, "connected udp", a.call(t, "udpc", worldAddr+":53"), "world", nodeAddr)
	expect(t, "node tcp", e.host.call(t, "tcp", worldAddr+":80"), "world", nodeAddr)
	if err := a.ping(t, worldAddr); err != nil {
		t.Errorf("ping: %v", err)
	}
	// The same source port everywhere.
	c1 := a.dial(t, "tcp", "0.0.0.0:40000", worldAddr+":80")
	c2 := b.dial(t, "tcp", "0.0.0.0:40000", worldAddr+":80")
	c3 := e.host.dial(t, "tcp", nodeAddr+":40000", worldAddr+":80")
	for range 3 {
		expect(t, "first pod with the port", c1.say("x"), "world", nodeAddr)
		expect(t, "second pod with the port", c2.say("x"), "world", nodeAddr)
		expect(t, "node with the port", c3.say("x"), "world", nodeAddr)
	}
}

func clusterIP(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":8080", "b")
	b.serve(t, "tcp", ":9090", "b-metrics")
	b.serve(t, "udp", ":5353", "b-dns")
	e.service(svc{name: "web", ip: "10.43.1.1", backends: []string{b.addr}, ports: []corev1.ServicePort{
		port("http", corev1.ProtocolTCP, 80, 8080, 0),
		port("metrics", corev1.ProtocolTCP, 90, 9090, 0),
		port("dns", corev1.ProtocolUDP, 53, 5353, 0),
	}})
	expect(t, "http", a.call(t, "tcp", "10.43.1.1:80"), "b", a.addr)
	expect(t, "metrics", a.call(t, "tcp", "10.43.1.1:90"), "b-metrics", a.addr)
	expect(t, "dns", a.call(t, "udp", "10.43.1.1:53"), "b-dns", a.addr)
	expect(t, "http by an IPv6 socket", a.call(t, "tcp6", "10.43.1.1:80"), "b", a.addr)
	expect(t, "dns by an IPv6 socket", a.call(t, "udp6", "10.43.1.1:53"), "b-dns", a.addr)
	expect(t, "connected dns", a.call(t, "udpc", "10.43.1.1:53"), "b-dns", a.addr)
	if e.mode.sockets {
		for _, proto := range []string{"tcp", "tcp6", "udp", "udpc", "udp6"} {
			addr := "10.43.1.1:80"
			if strings.HasPrefix(proto, "udp") {
				addr = "10.43.1.1:53"
			}
			r := e.host.call(t, proto, addr)
			if r.Err != "" || r.seen() != nodeAddr || r.Peer != addr {
				t.Errorf("host by %s: %+v", proto, r)
			}
		}
	}
}

func nodePorts(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":8080", "b")
	b.serve(t, "udp", ":5353", "b")
	e.service(svc{name: "web", ip: "10.43.1.2", backends: []string{b.addr}, ports: []corev1.ServicePort{
		port("http", corev1.ProtocolTCP, 80, 8080, 30080), port("dns", corev1.ProtocolUDP, 53, 5353, 30053),
	}})
	expect(t, "outside by tcp", e.outside.call(t, "tcp", nodeAddr+":30080"), "b", outsideAddr)
	expect(t, "outside by udp", e.outside.call(t, "udp", nodeAddr+":30053"), "b", outsideAddr)
	expect(t, "pod by tcp", a.call(t, "tcp", nodeAddr+":30080"), "b", a.addr)
	expect(t, "pod by udp", a.call(t, "udp", nodeAddr+":30053"), "b", a.addr)
	expect(t, "pod itself", b.call(t, "tcp", nodeAddr+":30080"), "b", "")
	if e.mode.sockets {
		expect(t, "host by its address", e.host.call(t, "tcp", nodeAddr+":30080"), "b", nodeAddr)
		expect(t, "host by loopback", e.host.call(t, "tcp", "127.0.0.1:30080"), "b", nodeAddr)
		expect(t, "host by loopback and udp", e.host.call(t, "udp", "127.0.0.1:30053"), "b", nodeAddr)
		if r := a.call(t, "tcp", "127.0.0.1:30080"); r.Err != "ECONNREFUSED" {
			t.Errorf("a pod's loopback is not the host's: %+v", r)
		}
	}
}

func hostBackends(t *testing.T, e *env) {
	a := e.addPod()
	e.host.serve(t, "tcp", nodeAddr+":6443", "api")
	e.host.serve(t, "udp", nodeAddr+":6443", "api")
	e.service(svc{name: "kubernetes", ip: "10.43.0.1", backends: []string{nodeAddr}, ports: []corev1.ServicePort{
		port("https", corev1.ProtocolTCP, 443, 6443, 30443), port("quic", corev1.ProtocolUDP, 443, 6443, 30443),
	}})
	expect(t, "pod by tcp", a.call(t, "tcp", "10.43.0.1:443"), "api", a.addr)
	expect(t, "pod by udp", a.call(t, "udp", "10.43.0.1:443"), "api", a.addr)
	expect(t, "pod by node port", a.call(t, "tcp", nodeAddr+":30443"), "api", a.addr)
	expect(t, "outside by tcp", e.outside.call(t, "tcp", nodeAddr+":30443"), "api", outsideAddr)
	expect(t, "outside by udp", e.outside.call(t, "udp", nodeAddr+":30443"), "api", outsideAddr)
	if e.mode.sockets {
		expect(t, "host by tcp", e.host.call(t, "tcp", "10.43.0.1:443"), "api", nodeAddr)
		expect(t, "host by udp", e.host.call(t, "udp", "10.43.0.1:443"), "api", nodeAddr)
		expect(t, "host by connected udp", e.host.call(t, "udpc", "10.43.0.1:443"), "api", nodeAddr)
	}
}

func hairpin(t *testing.T, e *env) {
	a := e.addPod()
	a.serve(t, "tcp", ":8080", "a")
	a.serve(t, "udp", ":8080", "a")
	for i, ip := range []string{"10.43.1.3", "10.43.1.4"} {
		e.service(svc{name: fmt.Sprint("self", i), ip: ip, backends: []string{a.addr}, ports: []corev1.ServicePort{
			port("tcp", corev1.ProtocolTCP, 80, 8080, 0), port("udp", corev1.ProtocolUDP, 80, 8080, 0),
		}})
	}
	expect(t, "tcp", a.call(t, "tcp", "10.43.1.3:80"), "a", "")
	expect(t, "udp", a.call(t, "udp", "10.43.1.3:80"), "a", "")
	// Two services lead to the same backend, and the client uses one port for both.
	one := a.dial(t, "tcp", "0.0.0.0:40001", "10.43.1.3:80")
	two := a.dial(t, "udp", "0.0.0.0:40001", "10.43.1.4:80")
	expect(t, "one", one.say("x"), "a", "")
	expect(t, "two", two.say("x"), "a", "")
	if !e.mode.sockets {
		three := a.dial(t, "tcp", "0.0.0.0:40001", "10.43.1.4:80")
		expect(t, "three", three.say("x"), "a", "")
		expect(t, "one again", one.say("x"), "a", "")
	}
}

func refuses(t *testing.T, e *env) {
	a := e.addPod()
	e.service(svc{name: "empty", ip: "10.43.1.5", ports: []corev1.ServicePort{
		port("tcp", corev1.ProtocolTCP, 80, 8080, 30081), port("udp", corev1.ProtocolUDP, 80, 8080, 30081),
	}})
	for what, r := range map[string]reply{
		"pod by tcp":       a.call(t, "tcp", "10.43.1.5:80"),
		"pod by udp":       a.call(t, "udpc", "10.43.1.5:80"),
		"pod by node port": a.call(t, "tcp", nodeAddr+":30081"),
		"outside by tcp":   e.outside.call(t, "tcp", nodeAddr+":30081"),
		"outside by udp":   e.outside.call(t, "udpc", nodeAddr+":30081"),
	} {
		if r.Err != "ECONNREFUSED" {
			t.Errorf("%s: got %+v, want ECONNREFUSED", what, r)
		}
	}
	if e.mode.sockets {
		for _, proto := range []string{"tcp", "udp", "udpc"} {
			if r := e.host.call(t, proto, "10.43.1.5:80"); r.Err != "ECONNREFUSED" {
				t.Errorf("host by %s: got %+v, want ECONNREFUSED", proto, r)
			}
		}
	}
}

func refusesUnknown(t *testing.T, e *env) {
	a := e.addPod()
	for what, r := range map[string]reply{
		"tcp": a.call(t, "tcp", "10.43.99.99:80"),
		"udp": a.call(t, "udpc", "10.43.99.99:80"),
	} {
		if r.Err != "ECONNREFUSED" {
			t.Errorf("%s: got %+v, want ECONNREFUSED", what, r)
		}
	}
}

func affinity(t *testing.T, e *env) {
	a, b, c := e.addPod(), e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	c.serve(t, "tcp", ":80", "c")
	s := svc{name: "sticky", ip: "10.43.1.6", backends: []string{b.addr, c.addr},
		ports: []corev1.ServicePort{port("http", corev1.ProtocolTCP, 80, 80, 30082)},
		modify: func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			seconds := int32(600)
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		}}
	e.service(s)
	for who, from := range map[string]place{"pod": a.place, "outside": e.outside} {
		addr := "10.43.1.6:80"
		if who == "outside" {
			addr = nodeAddr + ":30082"
		}
		first := from.call(t, "tcp", addr).name()
		for range 8 {
			expect(t, who, from.call(t, "tcp", addr), first, "")
		}
	}
	// When its backend goes, a client gets another one and stays with that.
	stays := a.call(t, "tcp", "10.43.1.6:80").name()
	s.backends, stays = []string{c.addr}, map[string]string{"b": "c", "c": "b"}[stays]
	if stays == "b" {
		s.backends = []string{b.addr}
	}
	e.endpoints(s)
	expect(t, "after the backend went", a.call(t, "tcp", "10.43.1.6:80"), stays, "")
	s.backends = []string{b.addr, c.addr}
	e.endpoints(s)
	for range 8 {
		expect(t, "after it came back", a.call(t, "tcp", "10.43.1.6:80"), stays, "")
	}
}

func endpointChanges(t *testing.T, e *env) {
	a, b, c := e.addPod(), e.addPod(), e.addPod()
	for p, name := range map[*pod]string{&b: "b", &c: "c"} {
		p.serve(t, "tcp", ":80", name)
		p.serve(t, "udp", ":80", name)
	}
	s := svc{name: "moving", ip: "10.43.1.7", backends: []string{b.addr}, ports: []corev1.ServicePort{
		port("tcp", corev1.ProtocolTCP, 80, 80, 30083), port("udp", corev1.ProtocolUDP, 80, 80, 30083),
	}}
	e.service(s)
	from := map[string]*client{
		"pod by tcp":           a.dial(t, "tcp", "", "10.43.1.7:80"),
		"outside by tcp":       e.outside.dial(t, "tcp", "", nodeAddr+":30083"),
		"pod by udp":           a.dial(t, "udp", "", "10.43.1.7:80"),
		"pod by connected udp": a.dial(t, "udpc", "", "10.43.1.7:80"),
		"outside by udp":       e.outside.dial(t, "udp", "", nodeAddr+":30083"),
	}
	if e.mode.sockets {
		from["host by tcp"] = e.host.dial(t, "tcp", "", "10.43.1.7:80")
		from["host by udp"] = e.host.dial(t, "udp", "", "10.43.1.7:80")
	}
	for what, cl := range from {
		expect(t, what, cl.say("x"), "b", "")
	}
	s.backends = []string{c.addr}
	e.endpoints(s)
	for what, cl := range from {
		want := "c"
		if strings.HasSuffix(what, "tcp") {
			want = "b"
		}
		for range 3 {
			expect(t, what+" afterwards", cl.say("x"), want, "")
		}
	}
	expect(t, "a new connection", a.call(t, "tcp", "10.43.1.7:80"), "c", "")
	expect(t, "a new connection from outside", e.outside.call(t, "tcp", nodeAddr+":30083"), "c", "")
}

func terminating(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	e.service(svc{name: "leaving", ip: "10.43.1.8", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("http", corev1.ProtocolTCP, 80, 80, 0)},
		modifySlices: func(s *discoveryv1.EndpointSlice) {
			no, yes := false, true
			s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		}})
	e.eventually("it is served", func() bool { return a.call(t, "tcp", "10.43.1.8:80").name() == "b" })
}

func trafficPolicies(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	local := func(s *corev1.Service) {
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	e.service(svc{name: "here", ip: "10.43.1.9", backends: []string{b.addr}, modify: local,
		ports: []corev1.ServicePort{port("http", corev1.ProtocolTCP, 80, 80, 30084)}})
	expect(t, "outside to a node with an endpoint", e.outside.call(t, "tcp", nodeAddr+":30084"), "b", outsideAddr)
	e.service(svc{name: "elsewhere", ip: "10.43.1.10", backends: []string{b.addr}, nodeOfEP: "other", modify: local,
		ports: []corev1.ServicePort{port("http", corev1.ProtocolTCP, 80, 80, 30085)}})
	if r := e.outside.call(t, "tcp", nodeAddr+":30085"); r.Err != "timeout" {
		t.Errorf("outside to a node without an endpoint: got %+v, want a timeout", r)
	}
	expect(t, "pod to a node without an endpoint", a.call(t, "tcp", nodeAddr+":30085"), "b", "")
}

func hostPortsWork(t *testing.T, e *env) {
	a := e.addPod()
	b := e.addPod(`{"hostPort":9000,"containerPort":80,"protocol":"tcp"}`,
		`{"hostPort":9000,"containerPort":80,"protocol":"udp","hostIP":"`+nodeAddr+`"}`)
	b.serve(t, "tcp", ":80", "b")
	b.serve(t, "udp", ":80", "b")
	expect(t, "outside by tcp", e.outside.call(t, "tcp", nodeAddr+":9000"), "b", outsideAddr)
	expect(t, "outside by udp", e.outside.call(t, "udp", nodeAddr+":9000"), "b", outsideAddr)
	expect(t, "pod", a.call(t, "tcp", nodeAddr+":9000"), "b", a.addr)
	if e.mode.sockets {
		expect(t, "host", e.host.call(t, "tcp", nodeAddr+":9000"), "b", nodeAddr)
		expect(t, "host by loopback", e.host.call(t, "tcp", "127.0.0.1:9000"), "b", nodeAddr)
	}
	b.delete(e)
	if r := e.outside.call(t, "tcp", nodeAddr+":9000"); r.Err != "ECONNREFUSED" {
		t.Errorf("after the pod went: got %+v, want ECONNREFUSED", r)
	}
}

func nodeLocal(t *testing.T, e *env) {
	a := e.addPod()
	e.host.serve(t, "udp", dnsAddr+":53", "dns")
	e.host.serve(t, "tcp", dnsAddr+":53", "dns")
	e.service(svc{name: "kube-dns", ip: "10.43.1.11", backends: []string{a.addr},
		ports:  []corev1.ServicePort{port("dns", corev1.ProtocolUDP, 53, 53, 0)},
		modify: func(s *corev1.Service) { s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, dnsAddr) }})
	for _, proto := range []string{"tcp", "udp", "udpc"} {
		expect(t, "pod by "+proto, a.call(t, proto, dnsAddr+":53"), "dns", a.addr)
		expect(t, "host by "+proto, e.host.call(t, proto, dnsAddr+":53"), "dns", dnsAddr)
	}
	e.run(e.outside, "ip", "route", "add", dnsAddr+"/32", "via", nodeAddr)
	if r := e.outside.call(t, "udp", dnsAddr+":53"); r.Err != "timeout" {
		t.Errorf("outside must not be answered: %+v", r)
	}
	e.run(e.outside, "ip", "route", "del", dnsAddr+"/32")
}

func icmpErrors(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	if r := a.call(t, "udpc", worldAddr+":9"); r.Err != "ECONNREFUSED" {
		t.Errorf("closed port outside: got %+v, want ECONNREFUSED", r)
	}
	e.service(svc{name: "closed", ip: "10.43.1.12", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolUDP, 9, 9, 30086)}})
	if r := a.call(t, "udpc", "10.43.1.12:9"); r.Err != "ECONNREFUSED" {
		t.Errorf("closed port behind a service: got %+v, want ECONNREFUSED", r)
	}
	if r := e.outside.call(t, "udpc", nodeAddr+":30086"); r.Err != "ECONNREFUSED" {
		t.Errorf("closed port behind a node port: got %+v, want ECONNREFUSED", r)
	}
	e.service(svc{name: "closed-host", ip: "10.43.1.13", backends: []string{nodeAddr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolUDP, 9, 9, 30087)}})
	if r := a.call(t, "udpc", "10.43.1.13:9"); r.Err != "ECONNREFUSED" {
		t.Errorf("closed port of the host behind a service: got %+v, want ECONNREFUSED", r)
	}
	if r := e.outside.call(t, "udpc", nodeAddr+":30087"); r.Err != "ECONNREFUSED" {
		t.Errorf("closed port of the host behind a node port: got %+v, want ECONNREFUSED", r)
	}
}

func fragmentsPass(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "udp", ":53", "b")
	e.outside.serve(t, "udp", worldAddr+":53", "world")
	e.service(svc{name: "large", ip: "10.43.1.14", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolUDP, 53, 53, 30088)}})
	large := strings.Repeat("x", 5000)
	for what, c := range map[string]*client{
		"pod to pod":     a.dial(t, "udp", "", b.addr+":53"),
		"pod to service": a.dial(t, "udp", "", "10.43.1.14:53"),
		"pod to outside": a.dial(t, "udp", "", worldAddr+":53"),
		"outside to pod": e.outside.dial(t, "udp", "", nodeAddr+":30088"),
	} {
		if r := c.say(large); r.Err != "" || r.Len != len(large) {
			t.Errorf("%s: %d bytes, %q; want %d", what, r.Len, r.Err, len(large))
		}
	}
}

func largeTransfers(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	e.host.serve(t, "tcp", nodeAddr+":8080", "host")
	e.service(svc{name: "bulk", ip: "10.43.1.15", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30089)}})
	large := strings.Repeat("x", 4<<20)
	for what, c := range map[string]*client{
		"pod to pod":     a.dial(t, "tcp", "", b.addr+":80"),
		"pod to service": a.dial(t, "tcp", "", "10.43.1.15:80"),
		"pod to outside": a.dial(t, "tcp", "", worldAddr+":80"),
		"pod to host":    a.dial(t, "tcp", "", nodeAddr+":8080"),
		"outside to pod": e.outside.dial(t, "tcp", "", nodeAddr+":30089"),
		"host to pod":    e.host.dial(t, "tcp", "", b.addr+":80"),
	} {
		if r := c.say(large); r.Err != "" || r.Len != len(large)+1 {
			t.Errorf("%s: %d bytes, %q; want %d", what, r.Len, r.Err, len(large)+1)
		}
	}
}

func spoofing(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "udp", ":80", "b")
	before := e.drops("spoofed_source")
	e.run(a.place, "ip", "addr", "add", "10.42.0.250/32", "dev", "eth0")
	c := a.dial(t, "udp", "10.42.0.250:1234", b.addr+":80")
	if r := c.say("x"); r.Err != "timeout" {
		t.Errorf("got %+v, want a timeout", r)
	}
	if e.drops("spoofed_source") == before {
		t.Error("the drop was not counted")
	}
}

func forwardDrop(t *testing.T, e *env) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("no iptables to build a firewall with")
	}
	e.run(place{}, "iptables", "-P", "FORWARD", "DROP")
	defer e.run(place{}, "iptables", "-P", "FORWARD", "ACCEPT")
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	e.service(svc{name: "behind", ip: "10.43.1.16", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30090)}})
	expect(t, "pod to pod", a.call(t, "tcp", b.addr+":80"), "b", a.addr)
	expect(t, "pod to service", a.call(t, "tcp", "10.43.1.16:80"), "b", a.addr)
	expect(t, "pod to outside", a.call(t, "tcp", worldAddr+":80"), "world", nodeAddr)
	expect(t, "outside to pod", e.outside.call(t, "tcp", nodeAddr+":30090"), "b", outsideAddr)
}

func restart(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod(`{"hostPort":9001,"containerPort":80,"protocol":"tcp"}`)
	b.serve(t, "tcp", ":80", "b")
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	e.service(svc{name: "lasting", ip: "10.43.1.17", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30091)}})
	live := map[string]*client{
		"pod to service": a.dial(t, "tcp", "", "10.43.1.17:80"),
		"pod to outside": a.dial(t, "tcp", "", worldAddr+":80"),
		"outside to pod": e.outside.dial(t, "tcp", "", nodeAddr+":30091"),
		"host port":      e.outside.dial(t, "tcp", "", nodeAddr+":9001"),
	}
	check := func(when string) {
		t.Helper()
		for what, c := range live {
			if r := c.say("x"); r.Err != "" {
				t.Errorf("%s, %s: %+v", what, when, r)
			}
		}
		expect(t, when+", a new connection to the service", a.call(t, "tcp", "10.43.1.17:80"), "b", "")
		expect(t, when+", a new connection to the host port", e.outside.call(t, "tcp", nodeAddr+":9001"), "b", "")
	}
	check("before")
	e.stop()
	check("while stopped")
	e.start()
	check("after")
	c := e.addPod()
	if c.addr == a.addr || c.addr == b.addr {
		t.Errorf("address %s was given away twice", c.addr)
	}
	expect(t, "a new pod", c.call(t, "tcp", b.addr+":80"), "b", c.addr)
	b.delete(e) // what the process before attached
	if r := e.outside.call(t, "tcp", nodeAddr+":9001"); r.Err != "ECONNREFUSED" {
		t.Errorf("host port after its pod went: %+v", r)
	}
}

// Routers report packets that are too large. The report must reach the pod that
// sent them, whether it asked or answered.
func narrowPath(t *testing.T, e *env) {
	const farAddr = "203.0.113.77"
	far := place{netns: newNetns(t)}
	e.pair(e.outside, "far", far, "eth0")
	e.run(e.outside, "ip", "link", "set", "far", "up", "mtu", "1000")
	e.run(e.outside, "ip", "addr", "add", "192.0.2.1/24", "dev", "far")
	e.run(e.outside, "ip", "route", "add", farAddr, "via", "192.0.2.2")
	e.run(e.outside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	e.run(far, "ip", "link", "set", "lo", "up")
	e.run(far, "ip", "link", "set", "eth0", "up") // takes large packets, as a far host would
	e.run(far, "ip", "addr", "add", "192.0.2.2/24", "dev", "eth0")
	e.run(far, "ip", "addr", "add", farAddr, "dev", "lo")
	e.run(far, "ip", "route", "add", "default", "via", "192.0.2.1", "src", farAddr)
	e.run(far, "ip", "route", "add", nodeAddr, "via", "192.0.2.1", "src", farAddr, "advmss", "1400")

	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	far.serve(t, "tcp", farAddr+":80", "far")
	e.service(svc{name: "narrow", ip: "10.43.1.18", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30092)}})
	large := strings.Repeat("x", 1<<18)
	for what, c := range map[string]*client{
		"pod asks":    a.dial(t, "tcp", "", farAddr+":80"),
		"pod answers": far.dial(t, "tcp", "", nodeAddr+":30092"),
	} {
		if r := c.say(large); r.Err != "" || r.Len != len(large)+1 {
			t.Errorf("%s: %d bytes, %q; want %d", what, r.Len, r.Err, len(large)+1)
		}
	}
}
