package harness

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netns"
)

// inOutside runs f on a thread in the outside namespace. Sockets that f makes
// stay there.
func inOutside(f func() error) error {
	errs := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine, in its namespace.
		runtime.LockOSThread()
		ns, err := netns.GetFromName(outsideNS)
		if err != nil {
			errs <- fmt.Errorf("namespace %s: %w", outsideNS, err)
			return
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			errs <- fmt.Errorf("enter namespace %s: %w", outsideNS, err)
			return
		}
		errs <- f()
	}()
	return <-errs
}

// OutsideClient is an HTTP client in the outside namespace that opens a new
// connection for each request.
func OutsideClient() *http.Client { return client(dialOutside) }

// MachineClient is the same on the machine itself.
func MachineClient() *http.Client { return client((&net.Dialer{}).DialContext) }

func client(dial func(context.Context, string, string) (net.Conn, error)) *http.Client {
	return &http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
	}
}

func dialOutside(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	err = inOutside(func() error {
		var err error
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// ServeOutside starts the servers of the rest of the world: HTTP on port 80,
// which answers with the address of the client, and DNS on port 53, which knows
// outside.test and nothing else.
func ServeOutside(t testing.TB) {
	t.Helper()
	var (
		web net.Listener
		udp net.PacketConn
		tcp net.Listener
	)
	err := inOutside(func() (err error) {
		if web, err = net.Listen("tcp", OutsideIP+":80"); err != nil {
			return err
		}
		if udp, err = net.ListenPacket("udp", OutsideIP+":53"); err != nil {
			return err
		}
		tcp, err = net.Listen("tcp", OutsideIP+":53")
		return err
	})
	if err != nil {
		t.Fatalf("servers in the outside namespace: %v", err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})}
	go func() { _ = srv.Serve(web) }()
	handler := dns.HandlerFunc(answerOutside)
	servers := []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}}
	for _, s := range servers {
		go func() { _ = s.ActivateAndServe() }()
	}
	t.Cleanup(func() {
		_ = srv.Close()
		for _, s := range servers {
			_ = s.Shutdown()
		}
	})
}

func answerOutside(w dns.ResponseWriter, req *dns.Msg) {
	resp := new(dns.Msg)
	resp.SetReply(req)
	q := req.Question[0]
	switch {
	case !strings.EqualFold(q.Name, "outside.test."):
		resp.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeA:
		resp.Answer = []dns.RR{&dns.A{
			Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5},
			A:   net.ParseIP(OutsideIP),
		}}
	}
	_ = w.WriteMsg(resp)
}
