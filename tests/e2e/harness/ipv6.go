package harness

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The addresses of IPv6 on the wire. The outside always has its own; the machine
// has one while a test wants it.
const (
	MachineIP6 = "fd00:200::2"
	OutsideIP6 = "fd00:200::1"
)

// AddIPv6 gives the machine an IPv6 address and a default route until the end of
// the test.
func AddIPv6(t testing.TB) {
	t.Helper()
	wire := wireOf(t)
	addr, route := onWire(MachineIP6), &netlink.Route{LinkIndex: wire.Attrs().Index, Gw: net.ParseIP(OutsideIP6)}
	if err := netlink.AddrAdd(wire, addr); err != nil {
		t.Fatalf("address %s: %v", MachineIP6, err)
	}
	if err := netlink.RouteAdd(route); err != nil {
		t.Fatalf("IPv6 default route: %v", err)
	}
	t.Cleanup(func() {
		_ = netlink.RouteDel(route)
		_ = netlink.AddrDel(wire, addr)
	})
}

// RemoveIPv4 takes the machine's IPv4 address and default route away until the
// end of the test. Its resolver is then the outside's IPv6 address.
func RemoveIPv4(t testing.TB) {
	t.Helper()
	wire := wireOf(t)
	useResolver(t, OutsideIP6)
	if err := netlink.AddrDel(wire, onWire(MachineIP)); err != nil { // takes the routes along
		t.Fatalf("address %s: %v", MachineIP, err)
	}
	t.Cleanup(func() {
		useResolver(t, OutsideIP)
		if err := netlink.AddrAdd(wire, onWire(MachineIP)); err != nil {
			t.Errorf("address %s: %v", MachineIP, err)
		}
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(OutsideIP)}); err != nil {
			t.Errorf("default route: %v", err)
		}
	})
}

func wireOf(t testing.TB) netlink.Link {
	t.Helper()
	wire, err := netlink.LinkByName("eth0")
	if err != nil {
		t.Fatalf("eth0: %v", err)
	}
	return wire
}

// onWire is the address with the length of the wire's network. It is used at
// once: nobody else is on the wire who could have it.
func onWire(ip string) *netlink.Addr {
	parsed := net.ParseIP(ip)
	if parsed.To4() != nil {
		return &netlink.Addr{IPNet: &net.IPNet{IP: parsed, Mask: net.CIDRMask(24, 32)}}
	}
	return &netlink.Addr{IPNet: &net.IPNet{IP: parsed, Mask: net.CIDRMask(64, 128)}, Flags: unix.IFA_F_NODAD}
}

// useResolver writes the file that is the machine's resolv.conf.
func useResolver(t testing.TB, ip string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(Dir(), "resolv.conf"), []byte("nameserver "+ip+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
