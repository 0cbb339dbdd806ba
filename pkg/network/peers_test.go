package network

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	peerPod    = "10.42.7.5"
	peerPod6   = "fd42:0:0:7::5"
	peerPods   = "10.42.7.0/24"
	peerPods6  = "fd42:0:0:7::/64"
	nodePods   = "10.42.0.0/24"
	nodePods6  = "fd42::/64"
	strangeSrc = "10.42.9.9"
)

// trustedBetweenNeighbours is checked in the overlay only: the network between
// neighbours is trusted.
const trustedBetweenNeighbours = "nobody pretends to be a pod"

// peerCases are what works in whatever way packets get to the other node.
var peerCases = []struct {
	name string
	run  func(*testing.T, *env)
}{
	{"pods reach each other", peerPodsReach},
	{"services with backends on another node", peerServices},
	{"node ports with backends on another node", peerNodePorts},
	{"policy", peerPolicy},
	{"large transfers", peerLarge},
	{"a restart", peerRestart},
	{trustedBetweenNeighbours, peerSpoofs},
	{"a node goes", peerGoes},
}

// Another node is played by the outside host, which has an overlay of its own or routes.
func TestPeers(t *testing.T) {
	for _, m := range []mode{
		{name: "vxlan, sockets and tcx", sockets: true, backend: BackendVXLAN, dual: true},
		{name: "vxlan, packets and tc", noTCX: true, backend: BackendVXLAN, dual: true},
		{name: "neighbours", sockets: true, backend: BackendAuto, dual: true},
		{name: "neighbours, packets and tc", noTCX: true, backend: BackendAuto, dual: true},
	} {
		t.Run(m.name, func(t *testing.T) {
			e, parent := newEnv(t, m), t
			e.addPeer()
			for _, c := range peerCases {
				if c.name == trustedBetweenNeighbours && m.backend != BackendVXLAN {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					e.t = t
					defer func() { e.t = parent }()
					c.run(t, e)
				})
			}
		})
	}
}

// addPeer makes the outside host a node.
func (e *env) addPeer() {
	e.t.Helper()
	out := func(args ...string) { e.run(e.outside, append([]string{"ip"}, args...)...) }
	out("addr", "add", peerPod+"/32", "dev", "lo")
	out("addr", "add", peerPod6+"/128", "dev", "lo", "nodad")
	if e.mode.backend == BackendVXLAN {
		out("link", "add", "vx", "address", "02:6b:6d:62:69:01", "mtu", "1450", "type", "vxlan", "id", "1", "remote", nodeAddr, "dstport", "8472", "dev", "eth0")
		out("link", "set", "vx", "arp", "off", "up")
		out("addr", "add", "10.42.7.0/32", "dev", "vx")
		out("route", "add", nodePods, "dev", "vx", "src", peerPod)
		out("route", "add", nodePods6, "dev", "vx", "src", peerPod6)
	} else {
		out("route", "add", nodePods, "via", nodeAddr, "src", peerPod)
		out("route", "add", nodePods6, "via", nodeAddr6, "src", peerPod6)
	}
	_, err := e.client.CoreV1().Nodes().Create(e.t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "peer"}, Spec: corev1.NodeSpec{PodCIDRs: []string{peerPods, peerPods6}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: outsideAddr}, {Type: corev1.NodeInternalIP, Address: outsideAddr6},
		}},
	}, metav1.CreateOptions{})
	e.must(err)
	e.eventually("the peer is known", func() bool {
		e.net.peers.mu.Lock()
		defer e.net.peers.mu.Unlock()
		return len(e.net.peers.ways) == 2
	})
}

func peerPodsReach(t *testing.T, e *env) {
	a := e.addPod()
	for _, proto := range []string{"tcp", "udp"} {
		a.serve(t, proto, ":80", "a")
		a.serve(t, proto, "[::]:80", "a")
		e.outside.serve(t, proto, peerPod+":80", "peer")
		e.outside.serve(t, proto, at(peerPod6, "80"), "peer")
		expect(t, proto, a.call(t, proto, peerPod+":80"), "peer", a.addr)
		expect(t, proto+" by IPv6", a.call(t, proto, at(peerPod6, "80")), "peer", a.addr6)
		expect(t, proto+" back", e.outside.call(t, proto, a.addr+":80"), "a", peerPod)
		expect(t, proto+" back by IPv6", e.outside.call(t, proto, at(a.addr6, "80")), "a", peerPod6)
		from := nodeAddr
		if e.mode.backend == BackendVXLAN {
			from = "10.42.0.0"
		}
		expect(t, proto+" from the node", e.host.call(t, proto, peerPod+":80"), "peer", from)
	}
	if err := a.ping(t, peerPod); err != nil {
		t.Errorf("ping: %v", err)
	}
	if err := a.ping(t, peerPod6); err != nil {
		t.Errorf("ping by IPv6: %v", err)
	}
}

func (e *env) peerService(t *testing.T, name, ip string, nodePort int32) {
	t.Helper()
	backend := peerPod
	if netip.MustParseAddr(ip).Is6() {
		backend = peerPod6
	}
	e.service(svc{name: name, ip: ip, backends: []string{backend}, nodeOfEP: "peer", ports: []corev1.ServicePort{
		port("x", corev1.ProtocolTCP, 80, 80, nodePort), port("y", corev1.ProtocolUDP, 80, 80, nodePort),
	}})
}

func peerServices(t *testing.T, e *env) {
	a := e.addPod()
	for _, proto := range []string{"tcp", "udp"} {
		e.outside.serve(t, proto, peerPod+":80", "peer")
		e.outside.serve(t, proto, at(peerPod6, "80"), "peer")
	}
	e.peerService(t, "far", "10.43.1.70", 0)
	e.peerService(t, "far6", "fd43::70", 0)
	for _, proto := range []string{"tcp", "udp"} {
		expect(t, proto, a.call(t, proto, "10.43.1.70:80"), "peer", a.addr)
		expect(t, proto+" by IPv6", a.call(t, proto, at("fd43::70", "80")), "peer", a.addr6)
		if e.mode.sockets {
			expect(t, proto+" from the node", e.host.call(t, proto, "10.43.1.70:80"), "peer", "")
		}
	}
}

// The other node must answer through this one, whose address the client asked.
func peerNodePorts(t *testing.T, e *env) {
	for _, proto := range []string{"tcp", "udp"} {
		e.outside.serve(t, proto, peerPod+":80", "peer")
		e.outside.serve(t, proto, at(peerPod6, "80"), "peer")
	}
	e.peerService(t, "farport", "10.43.1.71", 30171)
	e.peerService(t, "farport6", "fd43::71", 30172)
	seen, seen6 := nodeAddr, nodeAddr6
	if e.mode.backend == BackendVXLAN {
		seen, seen6 = "10.42.0.0", "fd42::"
	}
	for _, proto := range []string{"tcp", "udp", "udpc"} {
		r := e.outside.call(t, proto, nodeAddr+":30171")
		expect(t, proto, r, "peer", seen)
		if r.Peer != nodeAddr+":30171" {
			t.Errorf("%s: the answer comes from %s", proto, r.Peer)
		}
		expect(t, proto+" by IPv6", e.outside.call(t, proto, at(nodeAddr6, "30172")), "peer", seen6)
	}
}

func peerPolicy(t *testing.T, e *env) {
	web := e.addLabeled(labels("app", "near"))
	web.serve(t, "tcp", ":80", "web")
	e.outside.serve(t, "tcp", peerPod+":80", "peer")
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "far", Labels: labels("app", "far")}}
	obj.Spec.NodeName = "peer"
	obj.Status.PodIPs = []corev1.PodIP{{IP: peerPod}}
	api := e.client.CoreV1().Pods("default")
	_, err := api.Create(t.Context(), obj, metav1.CreateOptions{})
	e.must(err)
	e.policy("near", networkingv1.NetworkPolicySpec{PodSelector: *selector("app", "near"), PolicyTypes: append(onlyIngress, onlyEgress...),
		Ingress: from(podPeer("app", "far"))})
	expect(t, "allowed", e.outside.call(t, "tcp", web.addr+":80"), "web", peerPod)
	denied(t, "not allowed", web.brief().call(t, "tcp", peerPod+":80"))
	obj.Labels = labels("app", "other")
	_, err = api.Update(t.Context(), obj, metav1.UpdateOptions{})
	e.must(err)
	e.eventually("the other label closes", func() bool { return e.outside.brief().call(t, "tcp", web.addr+":80").Err == "timeout" })
}

func peerLarge(t *testing.T, e *env) {
	a := e.addPod()
	for _, proto := range []string{"tcp", "udp"} {
		e.outside.serve(t, proto, peerPod+":80", "peer")
	}
	megabyte := make([]byte, 1<<20)
	for i := range megabyte {
		megabyte[i] = 'x'
	}
	c := a.dial(t, "tcp", "", peerPod+":80")
	if r := c.say(string(megabyte)); r.Len != len(megabyte)+1 {
		t.Errorf("tcp: %d bytes, %s", r.Len, r.Err)
	}
	u := a.dial(t, "udp", "", peerPod+":80")
	if r := u.say(string(megabyte[:20000])); r.Len != 20000 {
		t.Errorf("udp in fragments: %d bytes, %s", r.Len, r.Err)
	}
}

func peerRestart(t *testing.T, e *env) {
	a := e.addPod()
	e.outside.serve(t, "tcp", peerPod+":80", "peer")
	live := a.dial(t, "tcp", "", peerPod+":80")
	expect(t, "before", live.say("x"), "peer", "")
	e.stop()
	expect(t, "stopped", live.say("x"), "peer", "")
	expect(t, "stopped, anew", a.call(t, "tcp", peerPod+":80"), "peer", "")
	e.start()
	expect(t, "after", live.say("x"), "peer", "")
	expect(t, "after, anew", a.call(t, "tcp", peerPod+":80"), "peer", "")
}

func peerSpoofs(t *testing.T, e *env) {
	a := e.addPod()
	a.serve(t, "udp", ":80", "a")
	e.run(e.outside, "ip", "addr", "add", strangeSrc+"/32", "dev", "lo")
	before := e.drops("spoofed_source")
	c := e.outside.brief().dial(t, "udp", strangeSrc+":0", a.addr+":80")
	denied(t, "another node's address", c.say("hello"))
	if e.drops("spoofed_source") == before {
		t.Error("nothing was counted")
	}
}

func peerGoes(t *testing.T, e *env) {
	a := e.addPod()
	e.must(e.client.CoreV1().Nodes().Delete(t.Context(), "peer", metav1.DeleteOptions{}))
	e.eventually("the peer is forgotten", func() bool {
		e.net.peers.mu.Lock()
		defer e.net.peers.mu.Unlock()
		return len(e.net.peers.ways) == 0
	})
	if r := a.brief().call(t, "tcp", peerPod+":80"); r.Err == "" {
		t.Errorf("a pod of a node that is gone answers: %+v", r)
	}
}
