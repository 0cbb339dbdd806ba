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
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
)

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
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Error(err)
	}
	counted := 0.0
	for _, f := range families {
		if f.GetName() == "coredns_dns_requests_total" {
			for _, m := range f.Metric {
				counted += m.GetCounter().GetValue()
			}
		}
	}
	if counted < 40 {
		t.Errorf("the metrics of the process count %v queries", counted)
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
