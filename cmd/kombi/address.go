package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/host"
)

// nodeAddresses are the addresses of this node, one for each family of the
// cluster in its order: those that are configured, or else the machine's own.
func nodeAddresses(c *config.Config) ([]netip.Addr, error) {
	here := host.Addresses()
	var all []netip.Addr
	for _, pods := range c.ClusterCIDRs {
		same := func(a netip.Addr) bool { return a.Is4() == pods.Addr().Is4() }
		if i := slices.IndexFunc(c.NodeIPs, same); i >= 0 {
			if a := c.NodeIPs[i]; !slices.Contains(here, a) {
				return nil, fmt.Errorf("the address %s does not belong to this machine: give an address of this machine with --node-ip", a)
			}
			all = append(all, c.NodeIPs[i])
			continue
		}
		a := primaryAddress(pods.Addr().Is4())
		if !a.IsValid() {
			return nil, noAddress(pods.Addr().Is4())
		}
		all = append(all, a)
	}
	return all, nil
}

// primaryAddress is the address from which this machine talks to others in one
// family: the source of its default route, or else its first address that is not
// local. It is invalid when there is none.
func primaryAddress(ipv4 bool) netip.Addr {
	network, somewhere := "udp4", "192.0.2.1:9"
	if !ipv4 {
		network, somewhere = "udp6", "[2001:db8::1]:9"
	}
	// Nothing is sent: connecting a datagram socket only asks for the route.
	if conn, err := (&net.Dialer{Control: preferPublic}).Dial(network, somewhere); err == nil {
		defer func() { _ = conn.Close() }()
		if a, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil && a.Addr().IsGlobalUnicast() {
			return a.Addr()
		}
	}
	for _, a := range ownAddresses() {
		if a.Is4() == ipv4 && a.IsGlobalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

// preferPublic keeps the temporary addresses of RFC 8981, which change every
// day, from being the source of an IPv6 socket.
func preferPublic(network, _ string, conn syscall.RawConn) error {
	if network != "udp6" {
		return nil
	}
	const preferSourcePublic = 0x2 // IPV6_PREFER_SRC_PUBLIC in linux/in6.h
	return conn.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_ADDR_PREFERENCES, preferSourcePublic)
	})
}

func noAddress(ipv4 bool) error {
	missing, other := "IPv4", "IPv6"
	if !ipv4 {
		missing, other = other, missing
	}
	if primaryAddress(!ipv4).IsValid() {
		return fmt.Errorf("this machine has no %s address, which the %[1]s networks of the cluster need: give it one and name it with --node-ip, or choose %s networks only with --cluster-cidr and --service-cidr", missing, other)
	}
	return errors.New("this machine has neither a default route nor an address of its own: bring a network interface up, or name an address with --node-ip")
}

// ownAddresses are the addresses of this machine's interfaces, without those of
// the loopback device: an earlier run put the address of the DNS service there.
func ownAddresses() []netip.Addr {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil
	}
	var out []netip.Addr
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		found, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range found {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out = append(out, p.Addr().Unmap())
			}
		}
	}
	return out
}
