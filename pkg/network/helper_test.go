package network

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Clients and servers of the tests are processes of their own, because socket
// programs act by cgroup and routing by network namespace.
const (
	helperEnv = "KOMBI_TEST_HELPER"
	hastyEnv  = "KOMBI_TEST_HASTY"
)

// reply is one line of a client's output.
type reply struct {
	Answer string // what the server said: its name and the address it saw
	Peer   string // what the client's socket calls the server
	Len    int    // of the answer
	Err    string
}

func (r reply) name() string { n, _, _ := strings.Cut(r.Answer, " "); return n }
func (r reply) seen() string {
	_, a, _ := strings.Cut(r.Answer, " ")
	host, _, _ := net.SplitHostPort(a)
	return host
}

func helper(args []string) int {
	var err error
	switch args[0] {
	case "serve":
		go exitWithParent()
		err = helperServe(args[1], args[2], args[3])
	case "node":
		go exitWithParent()
		err = helperNode(args[1])
	case "call":
		err = helperCall(args[1], args[2], args[3])
	case "ping":
		err = helperPing(args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// exitWithParent ends the process when the test that started it is gone. (A death
// signal would come when the thread that started it ends, which may be any time.)
func exitWithParent() {
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// ipNetwork is tcp4 or udp4, or for an IPv6 address in brackets tcp6 or udp6.
func ipNetwork(proto, addr string) string {
	if strings.HasPrefix(addr, "[") {
		return proto + "6"
	}
	return proto + "4"
}

// helperServe answers each line or datagram with its name and the client's address.
func helperServe(proto, addr, name string) error {
	if strings.HasPrefix(proto, "udp") {
		a, err := net.ResolveUDPAddr(ipNetwork("udp", addr), addr)
		if err != nil {
			return err
		}
		c, err := net.ListenUDP(ipNetwork("udp", addr), a)
		if err != nil {
			return err
		}
		fmt.Println("ready")
		buf := make([]byte, 65536)
		for {
			n, from, err := c.ReadFromUDP(buf)
			if err != nil {
				return err
			}
			answer := fmt.Sprintf("%s %s", name, from)
			if n > 100 { // a large question gets a large answer
				answer += strings.Repeat(" ", n-len(answer))
			}
			_, _ = c.WriteToUDP([]byte(answer), from)
		}
	}
	ln, err := net.Listen(ipNetwork("tcp", addr), addr)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			r := bufio.NewReader(c)
			for {
				line, err := r.ReadString('\n')
				if err != nil {
					return
				}
				answer := fmt.Sprintf("%s %s", name, c.RemoteAddr())
				if len(line) > 100 { // a large question gets a large answer
					answer += strings.Repeat(" ", len(line)-len(answer)-1)
				}
				fmt.Fprintf(c, "%s\n", answer)
			}
		}()
	}
}

// helperCall connects, and for each line of input sends one and prints a reply.
// The protocol "udp" sends from an unconnected socket, "udpc" from a connected one.
func helperCall(proto, local, addr string) error {
	out := json.NewEncoder(os.Stdout)
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 8<<20)
	fail := func(err error) { _ = out.Encode(reply{Err: errText(err)}) }

	var send func(line string) (reply, error)
	switch proto {
	case "udp", "udp6":
		network := ipNetwork("udp", addr)
		if proto == "udp6" {
			network = "udp" // an IPv6 socket that can speak to IPv4 addresses
		}
		la, _ := net.ResolveUDPAddr(network, local)
		c, err := net.ListenUDP(network, la)
		if err != nil {
			fail(err)
			return nil
		}
		to, _ := net.ResolveUDPAddr(ipNetwork("udp", addr), addr)
		send = func(line string) (reply, error) {
			buf := make([]byte, 65536)
			_ = c.SetDeadline(time.Now().Add(patience(line)))
			if _, err := c.WriteToUDP([]byte(line), to); err != nil {
				return reply{}, err
			}
			n, from, err := c.ReadFromUDP(buf)
			if err != nil {
				return reply{}, err
			}
			return reply{Answer: strings.TrimSpace(string(buf[:n])), Len: n, Peer: from.String()}, nil
		}
	default:
		d := net.Dialer{Timeout: 3 * time.Second}
		if os.Getenv(hastyEnv) != "" {
			d.Timeout = patience("")
		}
		network := ipNetwork("tcp", addr)
		if proto == "udpc" {
			network = ipNetwork("udp", addr)
			d.LocalAddr, _ = net.ResolveUDPAddr(network, local)
		} else if local != "" {
			d.LocalAddr, _ = net.ResolveTCPAddr(network, local)
			d.Control = func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
			}
		}
		if proto == "udpc" && local == "" {
			d.LocalAddr = nil
		}
		dial := func() (net.Conn, error) { return d.Dial(network, addr) }
		if proto == "tcp6" {
			dial = func() (net.Conn, error) { return dialMapped(addr) }
		}
		c, err := dial()
		if err != nil {
			fail(err)
			return nil
		}
		send = func(line string) (reply, error) {
			_ = c.SetDeadline(time.Now().Add(patience(line)))
			if _, err := c.Write([]byte(line + "\n")); err != nil {
				return reply{}, err
			}
			var answer []byte
			for datagrams := strings.HasPrefix(network, "udp"); datagrams || !bytes.HasSuffix(answer, []byte("\n")); {
				buf := make([]byte, 1<<16)
				n, err := c.Read(buf)
				if err != nil {
					return reply{}, err
				}
				if answer = append(answer, buf[:n]...); datagrams {
					break
				}
			}
			return reply{Answer: strings.TrimSpace(string(answer)), Len: len(answer), Peer: c.RemoteAddr().String()}, nil
		}
	}
	for in.Scan() {
		r, err := send(in.Text())
		if err != nil {
			r.Err = errText(err)
		}
		_ = out.Encode(r)
	}
	return nil
}

// patience is how long an answer may take: silence is expected after small questions only.
func patience(line string) time.Duration {
	switch {
	case len(line) > 100:
		return 20 * time.Second
	case os.Getenv(hastyEnv) != "":
		return 400 * time.Millisecond
	}
	return 2 * time.Second
}

// dialMapped connects an IPv6 socket to an IPv4 address, as some languages always do.
func dialMapped(addr string) (net.Conn, error) {
	to := netip.MustParseAddrPort(addr)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), addr)
	defer f.Close()
	if err := unix.Connect(fd, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}); err != nil {
		return nil, err
	}
	return net.FileConn(f)
}

// errText keeps of an error what the tests compare.
func errText(err error) string {
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		return unix.ErrnoName(no)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "timeout"
	}
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return "timeout"
	}
	return err.Error()
}

// helperPing sends an ICMP echo request and waits for the reply.
func helperPing(addr string) error {
	if a := netip.MustParseAddr(addr); a.Is6() {
		return helperPing6(a)
	}
	_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
	if err != nil {
		return err
	}
	tv := unix.NsecToTimeval(int64(2 * time.Second))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	to := &unix.SockaddrInet4{}
	copy(to.Addr[:], net.ParseIP(addr).To4())
	if err := unix.Sendto(fd, []byte{8, 0, 0, 0, 0, 0, 0, 1, 'k', 'o', 'm', 'b', 'i'}, 0, to); err != nil {
		return err
	}
	buf := make([]byte, 100)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < 13 || buf[0] != 0 || string(buf[8:13]) != "kombi" {
		return fmt.Errorf("unexpected reply % x", buf[:n])
	}
	return nil
}

func helperPing6(addr netip.Addr) error {
	_ = os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6)
	if err != nil {
		return err
	}
	tv := unix.NsecToTimeval(int64(2 * time.Second))
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	if err := unix.Sendto(fd, []byte{128, 0, 0, 0, 0, 0, 0, 1, 'k', 'o', 'm', 'b', 'i'}, 0, &unix.SockaddrInet6{Addr: addr.As16()}); err != nil {
		return err
	}
	buf := make([]byte, 100)
	n, _, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if n < 13 || buf[0] != 129 || string(buf[8:13]) != "kombi" {
		return fmt.Errorf("unexpected reply % x", buf[:n])
	}
	return nil
}
