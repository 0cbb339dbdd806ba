package host

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Route is the IPv4 default route.
type Route struct {
	Interface string
	Address   netip.Addr // this machine's own address on it
	Gateway   netip.Addr
}

// ErrNoRoute is returned on a machine without a default route.
var ErrNoRoute = errors.New("there is no default route")

// DefaultRoute finds the default route with the lowest metric and the address that the machine uses on it.
func DefaultRoute() (Route, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return Route{}, fmt.Errorf("list routes: %w", err)
	}
	var best *netlink.Route
	for i, r := range routes {
		isDefault := r.Dst == nil || r.Dst.IP.IsUnspecified() && isZero(r.Dst.Mask)
		if isDefault && r.LinkIndex > 0 && (best == nil || r.Priority < best.Priority) {
			best = &routes[i]
		}
	}
	if best == nil {
		return Route{}, ErrNoRoute
	}
	link, err := netlink.LinkByIndex(best.LinkIndex)
	if err != nil {
		return Route{}, fmt.Errorf("interface of the default route: %w", err)
	}
	out := Route{Interface: link.Attrs().Name}
	out.Gateway, _ = netip.AddrFromSlice(best.Gw.To4())
	if src, ok := netip.AddrFromSlice(best.Src.To4()); ok {
		out.Address = src
		return out, nil
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return Route{}, fmt.Errorf("addresses of %s: %w", out.Interface, err)
	}
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP.To4())
		if !ok || ip.IsLoopback() {
			continue
		}
		// The address in the gateway's network is the one that the kernel picks.
		if !out.Address.IsValid() || out.Gateway.IsValid() && a.Contains(best.Gw) {
			out.Address = ip
		}
	}
	if !out.Address.IsValid() {
		return out, fmt.Errorf("%s, the interface of the default route, has no IPv4 address", out.Interface)
	}
	return out, nil
}

func isZero(mask []byte) bool {
	for _, b := range mask {
		if b != 0 {
			return false
		}
	}
	return true
}
