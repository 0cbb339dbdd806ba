package dns

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// checkFree returns an error, with the cause and what to do, when addr cannot be
// listened on. CoreDNS's own sockets would not notice another server on the same
// address: they share it on purpose, and each would get a part of the queries.
func checkFree(addr netip.AddrPort) error {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return explainListen("udp", addr, err)
	}
	defer func() { _ = udp.Close() }()
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return explainListen("tcp", addr, err)
	}
	return tcp.Close()
}

func explainListen(network string, addr netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		who := portOwner("/proc", network, addr)
		if who == "" {
			who = "another process"
		}
		return fmt.Errorf("DNS cannot listen on %s/%s: %s uses it; stop that or have it listen on its own addresses only: %w", addr, network, who, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("DNS cannot listen on %s/%s: this machine does not have the address, which the network component puts on the loopback interface; look at its log: %w", addr, network, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("DNS cannot listen on %s/%s: ports below 1024 need root or CAP_NET_BIND_SERVICE: %w", addr, network, err)
	}
	return fmt.Errorf("DNS cannot listen on %s/%s: %w", addr, network, err)
}

// portOwner names the process that listens on addr, or on its port of all
// addresses, or returns "".
func portOwner(proc, network string, addr netip.AddrPort) string {
	inodes := map[string]bool{}
	for _, table := range []string{network, network + "6"} {
		f, err := os.Open(filepath.Join(proc, "self/net", table))
		if err != nil {
			continue
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			const local, state, inode = 1, 3, 9 // columns, see proc_net_tcp(5)
			if len(fields) <= inode || (network == "tcp" && fields[state] != "0A") {
				continue
			}
			if a, ok := parseProcAddr(fields[local]); ok && a.Port() == addr.Port() && (a.Addr().IsUnspecified() || a.Addr() == addr.Addr()) {
				inodes["socket:["+fields[inode]+"]"] = true
			}
		}
		f.Close()
	}
	if len(inodes) == 0 {
		return ""
	}
	links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*"))
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || !inodes[target] {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		name, _ := os.ReadFile(filepath.Join(process, "comm"))
		return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), filepath.Base(process))
	}
	return ""
}

// parseProcAddr reads an address as in /proc/net/tcp: the words of the address in
// the machine's byte order, then the port. Only little-endian machines are built
// for.
func parseProcAddr(s string) (netip.AddrPort, bool) {
	host, port, ok := strings.Cut(s, ":")
	if !ok {
		return netip.AddrPort{}, false
	}
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	addr, ok := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(number)), true
}
