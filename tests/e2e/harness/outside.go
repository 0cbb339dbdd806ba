package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netns"
)

// stageOutside is the rest of the world: a process of its own, in the outside
// namespace and in no server's cgroup. On its address of each family it serves HTTP
// on port 80, which answers with the address of the client, and DNS on port 53,
// which knows outside.test (IPv4) and outside6.test (IPv6) and nothing else; and it
// opens connections for tests.
const stageOutside = "outside"

func outsideSocket() string { return filepath.Join(Dir(), "outside.sock") }

// startOutside starts the process in its namespace.
func startOutside() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	out, err := netns.GetFromName(outsideNS)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := netns.Set(out); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = stageEnv(stageOutside)
	cmd.Stderr = os.Stderr
	return errors.Join(cmd.Start(), netns.Set(here))
}

// runOutside is the process; it ends with the namespaces.
func runOutside() error {
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintln(w, host)
	})}
	for _, ip := range []string{OutsideIP, OutsideIP6} {
		web, err := net.Listen("tcp", net.JoinHostPort(ip, "80"))
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", net.JoinHostPort(ip, "53"))
		if err != nil {
			return err
		}
		tcp, err := net.Listen("tcp", net.JoinHostPort(ip, "53"))
		if err != nil {
			return err
		}
		handler := dns.HandlerFunc(answerOutside)
		for _, s := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
			go func() { _ = s.ActivateAndServe() }()
		}
		go func() { _ = srv.Serve(web) }()
	}
	dialer, err := net.Listen("unix", outsideSocket())
	if err != nil {
		return err
	}
	for {
		conn, err := dialer.Accept()
		if err != nil {
			return err
		}
		go connect(conn)
	}
}

// connect opens the connection that a test asks for in one line, answers "ok"
// or the reason, and passes bytes on.
func connect(conn net.Conn) {
	defer conn.Close()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return
	}
	network, addr, _ := strings.Cut(strings.TrimSpace(line), " ")
	far, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		fmt.Fprintf(conn, "%v\n", err)
		return
	}
	defer far.Close()
	if _, err := io.WriteString(conn, "ok\n"); err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	go func() {
		_, _ = io.Copy(far, r)
		if half, ok := far.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		ended <- struct{}{}
	}()
	go func() { _, _ = io.Copy(conn, far); _ = conn.Close(); ended <- struct{}{} }()
	<-ended
	<-ended
}

func dialOutside(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", outsideSocket())
	if err != nil {
		return nil, fmt.Errorf("process outside: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintf(conn, "%s %s\n", network, addr); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// One byte at a time: what follows the line belongs to the connection.
	var line []byte
	for one := make([]byte, 1); ; {
		if _, err := conn.Read(one); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		if one[0] == '\n' {
			break
		}
		line = append(line, one[0])
	}
	if string(line) != "ok" {
		return nil, errors.Join(errors.New(string(line)), conn.Close())
	}
	return conn, nil
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

// ServeOutside waits until the rest of the world is there.
func ServeOutside(t testing.TB) {
	t.Helper()
	Eventually(t, 20*time.Second, "the outside", func(context.Context) error {
		answer, err := Get(OutsideClient(), "http://"+OutsideIP+"/")
		if err == nil && answer != OutsideIP+"\n" {
			err = fmt.Errorf("it answers %q", answer)
		}
		return err
	})
}

// answerOutside knows one name for each family: what a pod without IPv6 asks for
// has no IPv6 address.
func answerOutside(w dns.ResponseWriter, req *dns.Msg) {
	resp := new(dns.Msg)
	resp.SetReply(req)
	q := req.Question[0]
	header := dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: 5}
	name := strings.ToLower(q.Name)
	switch {
	case name != "outside.test." && name != "outside6.test.":
		resp.Rcode = dns.RcodeNameError
	case q.Qtype == dns.TypeA && name == "outside.test.":
		resp.Answer = []dns.RR{&dns.A{Hdr: header, A: net.ParseIP(OutsideIP)}}
	case q.Qtype == dns.TypeAAAA && name == "outside6.test.":
		resp.Answer = []dns.RR{&dns.AAAA{Hdr: header, AAAA: net.ParseIP(OutsideIP6)}}
	}
	_ = w.WriteMsg(resp)
}
