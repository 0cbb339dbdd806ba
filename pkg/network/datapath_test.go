package network

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Each behaviour is tested with every way of attaching the programs.
func TestDataPath(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			e := newEnv(t, m)
			for _, c := range []struct {
				name string
				run  func(*testing.T, *env)
			}{
				{"pods reach each other", podsReachEachOther},
				{"pods and node reach each other", podsAndNode},
				{"pods reach the outside under the node's address", masquerades},
				{"cluster addresses", clusterIP},
			} {
				t.Run(c.name, func(t *testing.T) {
					sub := *e
					sub.t = t
					c.run(t, &sub)
					e.pods = sub.pods
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
	expect(t, "connected dns", a.call(t, "udpc", "10.43.1.1:53"), "b-dns", a.addr)
	if e.mode.sockets {
		for _, proto := range []string{"tcp", "udp", "udpc"} {
			addr := map[string]string{"tcp": "10.43.1.1:80", "udp": "10.43.1.1:53", "udpc": "10.43.1.1:53"}[proto]
			r := e.host.call(t, proto, addr)
			if r.Err != "" || r.seen() != nodeAddr || r.Peer != addr {
				t.Errorf("host by %s: %+v", proto, r)
			}
		}
	}
}
