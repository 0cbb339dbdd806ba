package network

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// What the data path does in IPv4 it does in IPv6, beside it.
func TestDualStack(t *testing.T) {
	for _, m := range []mode{{name: "sockets and tcx", sockets: true, dual: true}, {name: "packets and tc", noTCX: true, dual: true}} {
		t.Run(m.name, func(t *testing.T) {
			e, parent := newEnv(t, m), t
			for _, c := range []struct {
				name string
				run  func(*testing.T, *env)
			}{
				{"pods, node and outside reach each other", reach6},
				{"cluster addresses and node ports", services6},
				{"a pod reaches itself through its service", hairpin6},
				{"services without endpoints refuse", refuses6},
				{"host ports", hostPorts6},
				{"policy", policy6},
				{"large transfers", large6},
				{"IPv4 goes on", podsReachEachOther},
				{"a restart keeps connections", restart6},
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

func at(addr, port string) string { return "[" + addr + "]:" + port }

func reach6(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	for _, proto := range []string{"tcp", "udp"} {
		b.serve(t, proto, "[::]:80", "b")
		e.host.serve(t, proto, at(nodeAddr6, "8000"), "node")
		e.outside.serve(t, proto, at(worldAddr6, "80"), "world")
		e.host.serve(t, proto, at(dnsAddr6, "53"), "dns")
		expect(t, proto+" to a pod", a.call(t, proto, at(b.addr6, "80")), "b", a.addr6)
		expect(t, proto+" to the node", a.call(t, proto, at(nodeAddr6, "8000")), "node", a.addr6)
		expect(t, proto+" from the node", e.host.call(t, proto, at(b.addr6, "80")), "b", nodeAddr6)
		expect(t, proto+" to the outside", a.call(t, proto, at(worldAddr6, "80")), "world", nodeAddr6)
		expect(t, proto+" to the node-local address", a.call(t, proto, at(dnsAddr6, "53")), "dns", a.addr6)
	}
	for what, addr := range map[string]string{"a pod": b.addr6, "the node": nodeAddr6, "the outside": worldAddr6} {
		if err := a.ping(t, addr); err != nil {
			t.Errorf("ping %s: %v", what, err)
		}
	}
	b.delete(e)
	if r := a.call(t, "tcp", at(b.addr6, "80")); r.Err != "EHOSTUNREACH" && r.Err != "ENETUNREACH" {
		t.Errorf("to a pod that is gone: %+v", r)
	}
}

func services6(t *testing.T, e *env) {
	a, b, c := e.addPod(), e.addPod(), e.addPod()
	for name, p := range map[string]pod{"b": b, "c": c} {
		p.serve(t, "tcp", "[::]:80", name)
		p.serve(t, "udp", "[::]:80", name)
	}
	s := svc{name: "six", ip: "fd43::40", backends: []string{b.addr6}, ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 30160), port("y", corev1.ProtocolUDP, 80, 80, 30160),
	}}
	e.service(s)
	for _, proto := range []string{"tcp", "udp", "udpc"} {
		expect(t, proto+" from a pod", a.call(t, proto, at("fd43::40", "80")), "b", a.addr6)
		expect(t, proto+" to a node port", a.call(t, proto, at(nodeAddr6, "30160")), "b", a.addr6)
		expect(t, proto+" from outside", e.outside.call(t, proto, at(nodeAddr6, "30160")), "b", outsideAddr6)
		if e.mode.sockets {
			expect(t, proto+" from the host", e.host.call(t, proto, at("fd43::40", "80")), "b", "")
			expect(t, proto+" from the host to a node port of its own", e.host.call(t, proto, at("::1", "30160")), "b", "")
		}
	}
	// Live connections stay where they are.
	live := a.dial(t, "tcp", "", at("fd43::40", "80"))
	expect(t, "before", live.say("x"), "b", "")
	s.backends = []string{c.addr6}
	e.endpoints(s)
	expect(t, "a connection that was open", live.say("x"), "b", "")
	expect(t, "a new one", a.call(t, "tcp", at("fd43::40", "80")), "c", "")
	expect(t, "a datagram", a.call(t, "udp", at("fd43::40", "80")), "c", "")
}

func hairpin6(t *testing.T, e *env) {
	a := e.addPod()
	a.serve(t, "tcp", "[::]:80", "a")
	a.serve(t, "udp", "[::]:80", "a")
	e.service(svc{name: "self6", ip: "fd43::41", backends: []string{a.addr6}, ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 0), port("y", corev1.ProtocolUDP, 80, 80, 0),
	}})
	expect(t, "tcp", a.call(t, "tcp", at("fd43::41", "80")), "a", "")
	expect(t, "udp", a.call(t, "udp", at("fd43::41", "80")), "a", "")
}

func refuses6(t *testing.T, e *env) {
	a := e.addPod()
	e.service(svc{name: "empty6", ip: "fd43::42", ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 30162), port("y", corev1.ProtocolUDP, 80, 80, 30162),
	}})
	for what, r := range map[string]reply{
		"tcp": a.call(t, "tcp", at("fd43::42", "80")), "udp": a.call(t, "udpc", at("fd43::42", "80")),
		"from outside":       e.outside.call(t, "tcp", at(nodeAddr6, "30162")),
		"from outside, udp":  e.outside.call(t, "udpc", at(nodeAddr6, "30162")),
		"an unknown service": a.call(t, "tcp", at("fd43::4242", "80")),
	} {
		if r.Err != "ECONNREFUSED" {
			t.Errorf("%s: got %+v, want ECONNREFUSED", what, r)
		}
	}
}

func hostPorts6(t *testing.T, e *env) {
	a := e.addPod(`{"hostPort":9006,"containerPort":80,"protocol":"tcp"}`, `{"hostPort":9007,"containerPort":80,"protocol":"tcp","hostIP":"`+nodeAddr6+`"}`)
	a.serve(t, "tcp", "[::]:80", "a")
	expect(t, "all addresses", e.outside.call(t, "tcp", at(nodeAddr6, "9006")), "a", outsideAddr6)
	expect(t, "one address", e.outside.call(t, "tcp", at(nodeAddr6, "9007")), "a", outsideAddr6)
	if r := e.outside.call(t, "tcp", nodeAddr+":9007"); r.Err != "ECONNREFUSED" {
		t.Errorf("another address: %+v", r)
	}
}

func policy6(t *testing.T, e *env) {
	web, friend, other := e.addLabeled(labels("app", "web6")), e.addLabeled(labels("app", "friend")), e.addLabeled(nil)
	web.serve(t, "tcp", "[::]:80", "web")
	web.serve(t, "udp", "[::]:80", "web")
	e.policy("web6", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "web6"), PolicyTypes: onlyIngress,
		Ingress: from(podPeer("app", "friend"), networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "fd98::/64", Except: []string{"fd98::3/128"}}})})
	for _, proto := range []string{"tcp", "udp"} {
		expect(t, proto+" of a friend", friend.call(t, proto, at(web.addr6, "80")), "web", friend.addr6)
		denied(t, proto+" of another", other.brief().call(t, proto, at(web.addr6, "80")))
	}
	e.run(e.outside, "ip", "route", "replace", "fd42::/56", "via", nodeAddr6)
	expect(t, "a block", e.outside.call(t, "tcp", at(web.addr6, "80")), "web", outsideAddr6)
	denied(t, "IPv4 of another", other.brief().call(t, "tcp", web.addr+":80"))
}

func large6(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	for _, proto := range []string{"tcp", "udp"} {
		b.serve(t, proto, "[::]:80", "b")
		e.outside.serve(t, proto, at(worldAddr6, "80"), "world")
	}
	e.service(svc{name: "large6", ip: "fd43::43", backends: []string{b.addr6}, ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 0), port("y", corev1.ProtocolUDP, 80, 80, 0),
	}})
	megabyte, datagram := make([]byte, 1<<20), make([]byte, 20000)
	for i := range megabyte {
		megabyte[i] = 'x'
	}
	copy(datagram, megabyte)
	for what, addr := range map[string]string{"a service": at("fd43::43", "80"), "the outside": at(worldAddr6, "80")} {
		c := a.dial(t, "tcp", "", addr)
		if r := c.say(string(megabyte)); r.Len != len(megabyte)+1 {
			t.Errorf("tcp to %s: %d bytes, %s", what, r.Len, r.Err)
		}
		u := a.dial(t, "udp", "", addr) // in fragments
		if r := u.say(string(datagram)); r.Len != len(datagram) {
			t.Errorf("udp to %s: %d bytes, %s", what, r.Len, r.Err)
		}
	}
}

func restart6(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", "[::]:80", "b")
	e.outside.serve(t, "tcp", at(worldAddr6, "80"), "world")
	e.service(svc{name: "lasting6", ip: "fd43::44", backends: []string{b.addr6}, ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, 30164),
	}})
	live := map[string]*client{
		"to a service": a.dial(t, "tcp", "", at("fd43::44", "80")), "to the outside": a.dial(t, "tcp", "", at(worldAddr6, "80")),
		"from outside": e.outside.dial(t, "tcp", "", at(nodeAddr6, "30164")),
	}
	for _, when := range []string{"before", "stopped", "after"} {
		for what, c := range live {
			if r := c.say("x"); r.Err != "" {
				t.Errorf("%s, %s: %+v", what, when, r)
			}
		}
		expect(t, when, a.call(t, "tcp", at("fd43::44", "80")), "b", "")
		switch when {
		case "before":
			e.stop()
		case "stopped":
			e.start()
		}
	}
}
