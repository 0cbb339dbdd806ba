package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
)

var testListen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5353")}

// within is how long anything in these tests may take.
const within = 15 * time.Second

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

func TestAnswers(t *testing.T) {
	up := newUpstream(t, "127.53.0.1")
	r := start(t, newFakeAPI(t, shop()...), func(o *Options) { o.ResolvConf = writeTemp(t, "resolv.conf", "nameserver 127.53.0.1\n") }).awaitReady()
	eventually(t, func() string {
		if _, a := r.ask("udp", "edge-1", dns.TypeA); len(a) == 0 {
			return "nodes are not known"
		}
		return ""
	})
	const A, AAAA, SRV, PTR, TXT, CNAME = dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeTXT, dns.TypeCNAME
	for _, tc := range []struct {
		what, name string
		qtype      uint16
		rcode      string
		want       []string
	}{
		{"service", "front.shop.svc.cluster.local", A, "NOERROR", []string{"A 10.43.1.1"}},
		{"service in capitals", "Front.Shop.SVC.Cluster.Local", A, "NOERROR", []string{"A 10.43.1.1"}},
		{"service has no IPv6", "front.shop.svc.cluster.local", AAAA, "NOERROR", nil},
		{"service port", "_web._tcp.front.shop.svc.cluster.local", SRV, "NOERROR", []string{"SRV 0 100 80 front.shop.svc.cluster.local."}},
		{"other service", "back.shop.svc.cluster.local", A, "NXDOMAIN", nil},
		{"other namespace", "front.other.svc.cluster.local", A, "NXDOMAIN", nil},
		{"first try of a search list", "www.example.org.shop.svc.cluster.local", A, "NXDOMAIN", nil},
		{"headless", "db.shop.svc.cluster.local", A, "NOERROR", []string{"A 10.42.0.7", "A 10.42.0.8", "A 10.42.0.9"}},
		{"headless by hostname", "db-1.db.shop.svc.cluster.local", A, "NOERROR", []string{"A 10.42.0.8"}},
		{"headless by address", "10-42-0-9.db.shop.svc.cluster.local", A, "NOERROR", []string{"A 10.42.0.9"}},
		{"headless port", "_web._tcp.db.shop.svc.cluster.local", SRV, "NOERROR", []string{
			"SRV 0 33 80 10-42-0-9.db.shop.svc.cluster.local.", "SRV 0 33 80 db-0.db.shop.svc.cluster.local.", "SRV 0 33 80 db-1.db.shop.svc.cluster.local.",
		}},
		{"ExternalName", "ext.shop.svc.cluster.local", A, "NOERROR", []string{"A 192.0.2.80", "CNAME www.example.org."}},
		{"ExternalName, the alias", "ext.shop.svc.cluster.local", CNAME, "NOERROR", []string{"CNAME www.example.org."}},
		{"pod by address", "10-42-0-77.shop.pod.cluster.local", A, "NOERROR", []string{"A 10.42.0.77"}},
		{"version of the schema", "dns-version.cluster.local", TXT, "NOERROR", []string{`TXT "1.1.0"`}},
		{"address of a service", "1.1.43.10.in-addr.arpa", PTR, "NOERROR", []string{"PTR front.shop.svc.cluster.local."}},
		{"address of a pod of a headless service", "8.0.42.10.in-addr.arpa", PTR, "NOERROR", []string{"PTR db-1.db.shop.svc.cluster.local."}},
		{"address of a pod on the host network", "4.9.168.192.in-addr.arpa", PTR, "NOERROR", []string{"PTR node-a.agent.shop.svc.cluster.local."}},
		{"address of nobody in the cluster", "200.0.42.10.in-addr.arpa", PTR, "NXDOMAIN", nil},
		{"node", "edge-1", A, "NOERROR", []string{"A 192.168.9.1"}},
		{"node, IPv6", "EDGE-1", AAAA, "NOERROR", []string{"AAAA fd00::9:1"}},
		{"address of a node", "1.9.168.192.in-addr.arpa", PTR, "NOERROR", []string{"PTR edge-1."}},
		{"outside", "www.example.org", A, "NOERROR", []string{"A 192.0.2.80"}},
	} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(tc.what+" over "+network, func(t *testing.T) {
				rcode, answers := r.ask(network, tc.name, tc.qtype)
				if rcode != tc.rcode || !slices.Equal(answers, tc.want) && len(answers)+len(tc.want) > 0 {
					t.Errorf("%s %s: got %s %q, want %s %q", tc.name, dns.TypeToString[tc.qtype], rcode, answers, tc.rcode, tc.want)
				}
			})
		}
	}
	for _, name := range up.asked() {
		if strings.HasSuffix(name, "cluster.local.") || strings.HasSuffix(name, ".10.in-addr.arpa.") {
			t.Errorf("%s was asked of the node's resolver", name)
		}
	}
	if err := r.Healthy(); err != nil {
		t.Errorf("unhealthy: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(r.stateDir, "Corefile"))
	if err != nil || !bytes.Contains(text, []byte("forward . 127.53.0.1")) {
		t.Errorf("the configuration in use is %q, %v", text, err)
	}
}

func TestFollowsTheCluster(t *testing.T) {
	api := newFakeAPI(t, shop()...)
	r := start(t, api, nil).awaitReady()
	late := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "late"}, Spec: corev1.ServiceSpec{ClusterIP: "10.43.1.9", ClusterIPs: []string{"10.43.1.9"}, Ports: []corev1.ServicePort{{Port: 80}}}}
	if rcode, _ := r.ask("udp", "late.shop.svc.cluster.local", dns.TypeA); rcode != "NXDOMAIN" {
		t.Fatalf("before: %s", rcode)
	}
	api.put(late)
	began := time.Now()
	eventually(t, func() string {
		if _, a := r.ask("udp", "late.shop.svc.cluster.local", dns.TypeA); !slices.Equal(a, []string{"A 10.43.1.9"}) {
			return fmt.Sprintf("a new service is answered with %q", a)
		}
		return ""
	})
	// A cached denial would take its TTL of five seconds.
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("a new service took %s to appear", took)
	}
	api.remove(late)
	eventually(t, func() string {
		if rcode, _ := r.ask("udp", "late.shop.svc.cluster.local", dns.TypeA); rcode != "NXDOMAIN" {
			return "a deleted service stays"
		}
		return ""
	})
}

func TestBeforeTheAPIAnswers(t *testing.T) {
	newUpstream(t, "127.53.0.2")
	api := newFakeAPI(t, shop()...)
	api.setDown(true)
	r := start(t, api, func(o *Options) { o.ResolvConf = writeTemp(t, "resolv.conf", "nameserver 127.53.0.2\n") })
	eventually(t, func() string {
		rcode, a, err := query("udp", r.addr.String(), "www.example.org", dns.TypeA)
		if err != nil || !slices.Equal(a, []string{"A 192.0.2.80"}) {
			return fmt.Sprintf("a name outside: %s %q %v", rcode, a, err)
		}
		return ""
	})
	// SERVFAIL and not NXDOMAIN: resolvers must not remember it.
	for _, name := range []string{"front.shop.svc.cluster.local", "1.1.43.10.in-addr.arpa"} {
		if rcode, _ := r.ask("udp", name, dns.TypeA); rcode != "SERVFAIL" {
			t.Errorf("%s: %s", name, rcode)
		}
	}
	select {
	case <-r.ready:
		t.Error("ready without knowing the services")
	default:
	}
	api.setDown(false)
	r.awaitReady()
	if _, a := r.ask("udp", "front.shop.svc.cluster.local", dns.TypeA); !slices.Equal(a, []string{"A 10.43.1.1"}) {
		t.Errorf("once ready: %q", a)
	}
}

func TestWithoutResolvers(t *testing.T) {
	r := start(t, newFakeAPI(t, shop()...), func(o *Options) { o.ResolvConf = writeTemp(t, "resolv.conf", "nameserver 10.43.0.10\n") }).awaitReady()
	began := time.Now()
	rcode, answers := r.ask("udp", "www.example.org", dns.TypeA)
	if rcode != "SERVFAIL" || len(answers) != 0 {
		t.Errorf("got %s %q", rcode, answers)
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("took %s", took)
	}
	if !strings.Contains(r.log.String(), "10.43.0.10 (this cluster)") {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
}

func TestFollowsResolvConf(t *testing.T) {
	newUpstream(t, "127.53.0.3")
	dir := t.TempDir()
	file, link := filepath.Join(dir, "real"), filepath.Join(dir, "resolv.conf")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	r := start(t, newFakeAPI(t, shop()...), func(o *Options) { o.ResolvConf = link }).awaitReady()
	expect := func(step, want string) {
		t.Helper()
		eventually(t, func() string {
			if rcode, _ := r.ask("udp", "www.example.org", dns.TypeA); rcode != want {
				return step + ": " + rcode + ", want " + want
			}
			return ""
		})
	}
	expect("no resolver", "SERVFAIL")
	if err := os.WriteFile(file, []byte("nameserver 127.53.0.3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("written", "NOERROR")
	if err := errors.Join(os.WriteFile(file+".new", nil, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
	// Answers may be cached, so another name.
	eventually(t, func() string {
		if rcode, _ := r.ask("udp", fmt.Sprintf("n%d.example.org", time.Now().UnixNano()), dns.TypeA); rcode != "SERVFAIL" {
			return "replaced: " + rcode
		}
		return ""
	})
	other := filepath.Join(dir, "other")
	if err := errors.Join(os.WriteFile(other, []byte("nameserver 127.53.0.3\n"), 0o600), os.Symlink(other, link+".new"), os.Rename(link+".new", link)); err != nil {
		t.Fatal(err)
	}
	expect("link leads elsewhere", "NOERROR")
}

func custom(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: customNamespace, Name: customName}, Data: data}
}

func overExample(addr string) string {
	return "template IN A over.example {\n  answer \"{{ .Name }} 60 IN A " + addr + "\"\n}"
}

func TestCustomConfiguration(t *testing.T) {
	api := newFakeAPI(t, append(shop(), custom(map[string]string{
		"a.override": overExample("192.0.2.1"),
	}))...)
	r := start(t, api, nil).awaitReady()
	expect := func(step, name string, want ...string) {
		t.Helper()
		eventually(t, func() string {
			if rcode, a := r.ask("udp", name, dns.TypeA); !slices.Equal(a, want) {
				return fmt.Sprintf("%s: %s is %s %q, want %q; log:\n%s", step, name, rcode, a, want, r.log)
			}
			return ""
		})
	}
	expect("present at start", "over.example", "A 192.0.2.1")

	api.put(custom(map[string]string{
		"a.override": overExample("192.0.2.2"),
		"b.server":   "corp.example {\n  hosts {\n    192.0.2.3 wiki.corp.example\n  }\n}",
	}))
	expect("changed", "over.example", "A 192.0.2.2")
	expect("server block", "wiki.corp.example", "A 192.0.2.3")

	// One bad key: the good one beside it comes into use, the bad one stays as it was.
	api.put(custom(map[string]string{
		"a.override": "template IN A over.example {\n answer\n}",
		"b.server":   "corp.example {\n  hosts {\n    192.0.2.4 wiki.corp.example\n  }\n}",
	}))
	expect("good beside bad", "wiki.corp.example", "A 192.0.2.4")
	expect("bad keeps the last good", "over.example", "A 192.0.2.2")
	eventually(t, func() string {
		for _, e := range api.seenEvents() {
			if e.InvolvedObject.Name == customName && e.Reason == "DNSConfigurationRefused" && strings.Contains(e.Message, "a.override") && strings.Contains(e.Message, "last good") {
				return ""
			}
		}
		return fmt.Sprintf("no Event says why; there are %v", api.seenEvents())
	})

	// Good each, but not together.
	api.put(custom(map[string]string{
		"b.server": "corp.example {\n whoami\n}", "c.server": "corp.example {\n whoami\n}",
	}))
	eventually(t, func() string {
		for _, e := range api.seenEvents() {
			if strings.Contains(e.Message, "already defined") {
				return ""
			}
		}
		return "no Event about a zone that is defined twice"
	})
	expect("the configuration before", "wiki.corp.example", "A 192.0.2.4")

	api.remove(custom(nil))
	expect("deleted", "over.example")
	expect("the cluster is still there", "front.shop.svc.cluster.local", "A 10.43.1.1")
}

func TestReloadLosesNoQuery(t *testing.T) {
	api := newFakeAPI(t, shop()...)
	r := start(t, api, nil).awaitReady()
	var asked atomic.Int64
	failed := make(chan string, 100)
	done := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		network := []string{"udp", "tcp"}[i%2]
		clients.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				rcode, a, err := query(network, r.addr.String(), "front.shop.svc.cluster.local", dns.TypeA)
				asked.Add(1)
				if err != nil || !slices.Equal(a, []string{"A 10.43.1.1"}) {
					select {
					case failed <- fmt.Sprintf("over %s: %s %q %v", network, rcode, a, err):
					default:
					}
				}
			}
		})
	}
	for i := range 20 {
		want := fmt.Sprintf("192.0.2.%d", i)
		api.put(custom(map[string]string{"a.override": overExample(want)}))
		eventually(t, func() string {
			if _, a := r.ask("udp", "over.example", dns.TypeA); !slices.Equal(a, []string{"A " + want}) {
				return fmt.Sprintf("reload %d: %q", i, a)
			}
			return ""
		})
	}
	close(done)
	clients.Wait()
	close(failed)
	for f := range failed {
		t.Error(f)
	}
	t.Logf("%d queries during 20 reloads", asked.Load())
}

func TestPortInUse(t *testing.T) {
	for _, network := range []string{"udp", "tcp"} {
		t.Run(network, func(t *testing.T) {
			addr := freePort(t)
			if network == "udp" {
				c, err := net.ListenPacket("udp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
			} else {
				l, err := net.Listen("tcp", addr.String())
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
			}
			r := start(t, newFakeAPI(t), func(o *Options) { o.Listen = []netip.AddrPort{addr} })
			err := <-r.ended
			r.ended <- err
			comm, _ := os.ReadFile("/proc/self/comm")
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(comm)), os.Getpid())) {
				t.Errorf("error %v does not name this process", err)
			}
		})
	}
}

func TestAddressMissing(t *testing.T) {
	err := checkFree(netip.MustParseAddrPort("192.0.2.53:53"))
	if err == nil || !strings.Contains(err.Error(), "does not have the address") {
		t.Errorf("error %v", err)
	}
}

func TestStopsCleanlyAndRunsAgain(t *testing.T) {
	api := newFakeAPI(t, shop()...)
	r := start(t, api, nil).awaitReady()
	r.stop()
	if err := <-r.ended; err != nil {
		t.Fatalf("ended with %v", err)
	}
	if err := checkFree(r.addr); err != nil {
		t.Fatalf("after the end: %v", err)
	}
	if err := r.Healthy(); err != nil {
		t.Errorf("a stopped component is no unhealthy one: %v", err)
	}
	before := runtime.NumGoroutine()
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ready := make(chan struct{})
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-ended:
			t.Fatalf("second run: %v", err)
		case <-time.After(within):
			t.Fatal("second run is not ready")
		}
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
	r.ended <- nil
	eventually(t, func() string {
		if now := runtime.NumGoroutine(); now > before+5 {
			return fmt.Sprintf("%d goroutines became %d", before, now)
		}
		return ""
	})
}

func TestNewRefuses(t *testing.T) {
	good := Options{Log: slog.Default(), Kube: newFakeAPI(t).config(), Listen: testListen}
	for name, change := range map[string]func(*Options){
		"no log":        func(o *Options) { o.Log = nil },
		"no API":        func(o *Options) { o.Kube = nil },
		"no address":    func(o *Options) { o.Listen = nil },
		"all addresses": func(o *Options) { o.Listen = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:53")} },
		"no port":       func(o *Options) { o.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")} },
		"bad domain":    func(o *Options) { o.ClusterDomain = "a b {" },
	} {
		t.Run(name, func(t *testing.T) {
			opts := good
			change(&opts)
			if _, err := New(opts); err == nil {
				t.Error("accepted")
			}
		})
	}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
}
