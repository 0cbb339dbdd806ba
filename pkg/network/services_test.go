package network

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

func sourceRanges(t *testing.T, e *env) {
	a := e.addPod()
	a.serve(t, "tcp", ":80", "a")
	e.service(svc{name: "ranged", ip: "10.43.1.60", backends: []string{a.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 8060, 80, 30160)},
		modify: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.LoadBalancerSourceRanges = []string{worldAddr + "/32"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: nodeAddr}}
		}})
	in := e.outside.dial(t, "tcp", worldAddr+":0", nodeAddr+":8060")
	expect(t, "a client of the range", in.say("hello"), "a", worldAddr)
	denied(t, "another client", e.outside.brief().call(t, "tcp", nodeAddr+":8060"))
	if e.drops("source_range") == 0 {
		t.Error("nothing was counted")
	}
	expect(t, "the node port is for everybody", e.outside.call(t, "tcp", nodeAddr+":30160"), "a", outsideAddr)
}

// Load balancers outside ask each node whether it has endpoints.
func healthChecks(t *testing.T, e *env) {
	a := e.addPod()
	s := svc{name: "asked", ip: "10.43.1.61", backends: []string{a.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30161)},
		modify: func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
			s.Spec.HealthCheckNodePort = 30261
		}}
	e.service(s)
	status := func() int {
		answer, err := http.Get("http://" + nodeAddr + ":30261/healthz")
		if err != nil {
			return 0
		}
		defer answer.Body.Close()
		return answer.StatusCode
	}
	e.eventually("the node has an endpoint", func() bool { return status() == http.StatusOK })
	s.nodeOfEP = "elsewhere"
	e.endpoints(s)
	e.eventually("the node has none", func() bool { return status() == http.StatusServiceUnavailable })
	e.must(e.client.CoreV1().Services("default").Delete(t.Context(), "asked", metav1.DeleteOptions{}))
	e.eventually("nobody listens", func() bool { return status() == 0 })
}

// What is remembered of a service that is gone must not be taken for another one's.
func TestServiceNumbersAreNotUsedAgain(t *testing.T) {
	e := newEnv(t, modes[0])
	numbers := func() (out []uint32) {
		ids, err := e.net.dp.Services().IDs()
		e.must(err)
		return ids
	}
	s := svc{name: "first", ip: "10.43.1.90", ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 0)}}
	e.service(s)
	before := numbers()
	e.must(e.client.CoreV1().Services("default").Delete(t.Context(), "first", metav1.DeleteOptions{}))
	e.eventually("the service is gone", func() bool { return len(numbers()) < len(before) })
	e.stop()
	e.start()
	e.service(svc{name: "second", ip: "10.43.1.91", ports: s.ports})
	for _, id := range numbers() {
		if slices.Contains(before, id) {
			t.Errorf("the number %d is used again", id)
		}
	}
}
