package network

import (
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
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
				{"source ranges of load balancers", sourceRanges},
				{"health check ports", healthChecks},
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
	b.delete(e)
	for who, from := range map[string]place{"pod": a.place, "host": e.host} {
		if r := from.call(t, "tcp", b.addr+":80"); r.Err != "EHOSTUNREACH" {
			t.Errorf("%s to a pod that is gone: got %+v, want EHOSTUNREACH", who, r)
		}
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
