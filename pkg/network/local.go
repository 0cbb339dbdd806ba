package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addNodeLocal puts the addresses on the loopback device, so that servers can listen on them.
func addNodeLocal(addrs []netip.Addr) error {
	if len(addrs) == 0 {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("cannot find the loopback device: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("cannot bring up the loopback device: %w", err)
	}
	for _, a := range addrs {
		// Scope host keeps the kernel from using it as a source towards others.
		err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: hostNet(a), Scope: int(netlink.SCOPE_HOST)})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("cannot put the node-local address %s on the loopback device: %w", a, err)
		}
	}
	return nil
}

func removeNodeLocal(addrs []netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return nil
	}
	var errs []error
	for _, a := range addrs {
		err := netlink.AddrDel(lo, &netlink.Addr{IPNet: hostNet(a)})
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			errs = append(errs, fmt.Errorf("cannot remove the node-local address %s: %w", a, err))
		}
	}
	return errors.Join(errs...)
}
