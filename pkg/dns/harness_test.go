package dns

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

var testListen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5353")}

// within is how long anything in these tests may take: a disk that writes back what a
// compiler left may hold up one write for many seconds.
const within = 90 * time.Second

// running is a DNS component that a test started.
type running struct {
	*DNS
	t      *testing.T
	addr   netip.AddrPort
	log    *syncBuffer
	ready  chan struct{}
	cancel context.CancelFunc
	ended  chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// start runs a component on a free port of a loopback address.
func start(t *testing.T, api *fakeAPI, change func(*Options)) *running {
	t.Helper()
	r := &running{t: t, addr: freePort(t), log: &syncBuffer{}, ready: make(chan struct{}), ended: make(chan error, 1)}
	opts := Options{
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Kube: api.config(), Listen: []netip.AddrPort{r.addr},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		ResolvConf:   writeTemp(t, "resolv.conf", ""), StateDir: filepath.Join(t.TempDir(), "dns"),
	}
	if change != nil {
		change(&opts)
	}
	var err error
	if r.DNS, err = New(opts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.ended <- r.Run(ctx, func() { close(r.ready) }) }()
	t.Cleanup(r.stop)
	return r
}

func (r *running) stop() {
	r.cancel()
	select {
	case err := <-r.ended:
		r.ended <- err
	case <-time.After(within):
		r.t.Error("the component does not stop")
	}
}

func (r *running) awaitReady() *running {
	r.t.Helper()
	select {
	case <-r.ready:
	case err := <-r.ended:
		r.ended <- err
		r.t.Fatalf("ended instead of becoming ready: %v", err)
	case <-time.After(within):
		r.t.Fatalf("not ready; log:\n%s", r.log)
	}
	return r
}

// ask returns the rcode and the answers, without TTL and class, in order.
func (r *running) ask(network, name string, qtype uint16) (string, []string) {
	r.t.Helper()
	rcode, answers, err := query(network, r.addr.String(), name, qtype)
	if err != nil {
		r.t.Fatalf("%s %s: %v", name, dns.TypeToString[qtype], err)
	}
	return rcode, answers
}

func query(network, server, name string, qtype uint16) (string, []string, error) {
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), qtype)
	m.SetEdns0(4096, false)
	reply, _, err := (&dns.Client{Net: network, Timeout: 5 * time.Second}).Exchange(m, server)
	if err != nil {
		return "", nil, err
	}
	answers := []string{}
	for _, rr := range reply.Answer {
		text := strings.TrimPrefix(rr.String(), rr.Header().String())
		answers = append(answers, fmt.Sprintf("%s %s", dns.TypeToString[rr.Header().Rrtype], text))
	}
	slices.Sort(answers)
	return dns.RcodeToString[reply.Rcode], answers, nil
}

// eventually repeats check until it returns "".
func eventually(t *testing.T, check func() string) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		problem := check()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(problem)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func freePort(t *testing.T) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// upstream is a resolver on port 53 of a loopback address that answers every A
// query with 192.0.2.80 and counts what it is asked.
type upstream struct {
	addr string
	mu   sync.Mutex
	seen []string
}

func newUpstream(t *testing.T, addr string) *upstream {
	t.Helper()
	u := &upstream{addr: addr}
	conn, err := net.ListenPacket("udp", addr+":53")
	if err != nil {
		t.Skipf("needs port 53 of %s for a test resolver: %v", addr, err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, r *dns.Msg) {
		u.mu.Lock()
		u.seen = append(u.seen, r.Question[0].Name)
		u.mu.Unlock()
		m := new(dns.Msg).SetReply(r)
		if r.Question[0].Qtype == dns.TypeA {
			rr, _ := dns.NewRR(r.Question[0].Name + " 60 IN A 192.0.2.80")
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m)
	})}
	go func() { _ = server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = server.Shutdown() })
	return u
}

func (u *upstream) asked() []string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.seen)
}

func shop() []apiruntime.Object {
	name, tcp, port := "web", corev1.ProtocolTCP, int32(80)
	yes := true
	host := func(s string) *string { return &s }
	meta := func(ns, n string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: ns, Name: n} }
	slice := func(service, suffix string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: service + "-" + suffix, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
			Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &tcp, Port: &port}},
		}
	}
	endpoint := func(ip string, hostname *string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{ip}, Hostname: hostname, Conditions: discoveryv1.EndpointConditions{Ready: &yes}}
	}
	ports := []corev1.ServicePort{{Name: "web", Port: 80, Protocol: tcp}}
	return []apiruntime.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.Service{ObjectMeta: meta("shop", "front"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.1.1", ClusterIPs: []string{"10.43.1.1"}, Ports: ports}},
		slice("front", "a", endpoint("10.42.0.5", nil)),
		&corev1.Service{ObjectMeta: meta("shop", "db"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: ports}},
		slice("db", "a", endpoint("10.42.0.7", host("db-0")), endpoint("10.42.0.8", host("db-1"))),
		slice("db", "b", endpoint("10.42.0.9", nil)),
		&corev1.Service{ObjectMeta: meta("shop", "ext"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "www.example.org"}},
		&corev1.Service{ObjectMeta: meta("shop", "agent"), Spec: corev1.ServiceSpec{ClusterIP: "None", ClusterIPs: []string{"None"}, Ports: ports}},
		slice("agent", "a", endpoint("192.168.9.4", host("node-a"))), // on the host network
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "Edge-1"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.9.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::9:1"}, {Type: corev1.NodeHostName, Address: "edge-1"},
		}}},
	}
}
