package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/ipam"
)

// The next hops of every pod. They exist only as permanent neighbour entries in the
// pod, so all nodes and pods may use the same.
var (
	gateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	gateway6 = netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1})
)

func gatewayOf(a netip.Addr) netip.Addr {
	if a.Is4() {
		return gateway4
	}
	return gateway6
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// devicePrefix starts the names of the host's sides of all pairs.
const devicePrefix = "kmb"

// deviceNames derives the host device's name and both hardware addresses from the
// attachment, so that a repeated ADD makes the same pair.
func deviceNames(key string) (device string, mac, hostMAC net.HardwareAddr) {
	sum := sha256.Sum256([]byte(key))
	device = devicePrefix + hex.EncodeToString(sum[:6])[:11]
	local := func(b []byte) net.HardwareAddr {
		m := append(net.HardwareAddr(nil), b...)
		m[0] = m[0]&0xfe | 0x02 // unicast, locally administered
		return m
	}
	return device, local(sum[6:12]), local(sum[12:18])
}

// alias marks the devices of this node; another Kombi on the machine has another state directory.
func (o Options) alias() string { return "kombi " + o.StateDir }

// createPair makes the pair. Both sides stay down.
func createPair(rec *ipam.Record, alias string) (host netlink.Link, err error) {
	ns, err := netns.GetFromPath(rec.Netns)
	if err != nil {
		return nil, fmt.Errorf("cannot open the pod's network namespace %s: %w", rec.Netns, err)
	}
	defer func() { _ = ns.Close() }()
	mac, err1 := net.ParseMAC(rec.MAC)
	hostMAC, err2 := net.ParseMAC(rec.HostMAC)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = rec.HostDevice, rec.MTU, hostMAC
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = rec.IfName, mac, uint32(rec.MTU)
	veth.PeerNamespace = netlink.NsFd(int(ns))
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("cannot create the device pair %s: %w", rec.HostDevice, err)
	}
	host, err = netlink.LinkByName(rec.HostDevice)
	if err != nil {
		return nil, fmt.Errorf("cannot find the device %s just made: %w", rec.HostDevice, err)
	}
	if err := netlink.LinkSetAlias(host, alias); err != nil {
		return nil, fmt.Errorf("cannot mark the device %s: %w", rec.HostDevice, err)
	}
	return host, nil
}

// configurePod gives the pod its address, and a default route whose next hop is
// the host's side. That must be up already, see waitActive.
func configurePod(rec *ipam.Record) error {
	ns, err := netns.GetFromPath(rec.Netns)
	if err != nil {
		return fmt.Errorf("cannot open the pod's network namespace %s: %w", rec.Netns, err)
	}
	defer func() { _ = ns.Close() }()
	hostMAC, err := net.ParseMAC(rec.HostMAC)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("cannot enter the pod's network namespace: %w", err)
	}
	defer h.Close()
	if lo, err := h.LinkByName("lo"); err == nil {
		if err := h.LinkSetUp(lo); err != nil {
			return fmt.Errorf("cannot bring up the pod's loopback device: %w", err)
		}
	}
	eth, err := h.LinkByName(rec.IfName)
	if err != nil {
		return fmt.Errorf("cannot find the pod's device %s: %w", rec.IfName, err)
	}
	if slices.ContainsFunc(rec.Addrs, netip.Addr.Is6) {
		// The pod needs no address of its own making, and its neighbour is known.
		_ = h.LinkSetIP6AddrGenMode(eth, addrGenNone)
	}
	for _, a := range rec.Addrs {
		err := h.AddrAdd(eth, podAddr(a))
		if errors.Is(err, unix.EACCES) && a.Is6() { // switched off in new namespaces
			if err = enableIPv6(rec.Netns, rec.IfName); err == nil {
				err = h.AddrAdd(eth, podAddr(a))
			}
		}
		if err != nil {
			return fmt.Errorf("cannot give the pod its address %s: %w", a, err)
		}
	}
	if err := h.LinkSetUp(eth); err != nil {
		return fmt.Errorf("cannot bring up the pod's device: %w", err)
	}
	index := eth.Attrs().Index
	for _, a := range rec.Addrs {
		gw := gatewayOf(a)
		steps := []error{
			h.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: gw.AsSlice(), HardwareAddr: hostMAC}),
			h.RouteReplace(&netlink.Route{LinkIndex: index, Dst: hostNet(gw), Scope: netlink.SCOPE_LINK}),
			h.RouteReplace(&netlink.Route{LinkIndex: index, Gw: gw.AsSlice(), Dst: wholeNet(a)}),
		}
		if err := errors.Join(steps...); err != nil {
			return fmt.Errorf("cannot set the pod's routes: %w", err)
		}
	}
	return nil
}

// addrGenNone keeps the kernel from making a link-local address (IN6_ADDR_GEN_MODE_NONE).
const addrGenNone = 1

// podAddr is usable at once: nobody else can have it, so the kernel need not ask.
func podAddr(a netip.Addr) *netlink.Addr {
	out := &netlink.Addr{IPNet: hostNet(a)}
	if a.Is6() {
		out.Flags = unix.IFA_F_NODAD
	}
	return out
}

// wholeNet is the destination of a default route in the family of a.
func wholeNet(a netip.Addr) *net.IPNet {
	n := a.BitLen()
	return &net.IPNet{IP: make(net.IP, n/8), Mask: net.CIDRMask(0, n)}
}

// waitActive waits until the host's side carries packets.
//
// The side of a pair that comes up first has no carrier yet, and the kernel makes
// it usable a little later, from a work queue; until then it silently drops. The
// pod's side comes up second, and so at once.
func waitActive(device string) error {
	const patience = 2 * time.Second
	for start := time.Now(); time.Since(start) < patience; time.Sleep(time.Millisecond) {
		dev, err := netlink.LinkByName(device)
		if err != nil {
			return fmt.Errorf("the device %s is gone: %w", device, err)
		}
		if dev.Attrs().OperState == netlink.OperUp {
			return nil
		}
	}
	return fmt.Errorf("the device %s does not become active within %s; is its other side gone?", device, patience)
}

// connectPair makes the host's side usable: settings, neighbour and route. It may be repeated.
func connectPair(host netlink.Link, rec *ipam.Record, nodeIPs []netip.Addr) error {
	mac, err := net.ParseMAC(rec.MAC)
	if err != nil {
		return err
	}
	if err := deviceSysctls(rec.HostDevice, rec.Addrs); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(host); err != nil {
		return fmt.Errorf("cannot bring up %s: %w", rec.HostDevice, err)
	}
	for _, a := range rec.Addrs {
		if err := connectAddr(host.Attrs().Index, a, mac, nodeIPs); err != nil {
			return err
		}
	}
	return nil
}

func connectAddr(index int, a netip.Addr, mac net.HardwareAddr, nodeIPs []netip.Addr) error {
	if err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac,
	}); err != nil {
		return fmt.Errorf("cannot add the neighbour %s: %w", a, err)
	}
	route := &netlink.Route{LinkIndex: index, Dst: hostNet(a), Scope: netlink.SCOPE_LINK}
	for _, own := range nodeIPs {
		if own.Is4() == a.Is4() {
			route.Src = own.AsSlice()
		}
	}
	err := netlink.RouteReplace(route)
	if errors.Is(err, unix.EINVAL) && route.Src != nil {
		route.Src = nil // the node's address is not on this machine (yet)
		err = netlink.RouteReplace(route)
	}
	if err != nil {
		return fmt.Errorf("cannot add the route to %s: %w", a, err)
	}
	return nil
}

// deletePair removes a pair by its host's side; one that is not there is fine.
func deletePair(device string) error {
	dev, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkDel(dev)
	}
	var missing netlink.LinkNotFoundError
	if err == nil || errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("cannot remove the device %s: %w", device, err)
}

// routeProtocol marks routes that are not tied to a device of ours.
const routeProtocol = 75

// unreachable is the route that refuses traffic to addresses without a pod.
func unreachable(p netip.Prefix) *netlink.Route {
	return &netlink.Route{
		Dst:  ipNet(p),
		Type: unix.RTN_UNREACHABLE, Protocol: routeProtocol,
	}
}

// removeRoutes removes routes of ours that lead into the cluster's prefixes.
func removeRoutes(cluster []netip.Prefix) error {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("cannot list routes: %w", err)
	}
	var errs []error
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		at, _ := netip.AddrFromSlice(r.Dst.IP)
		if slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Contains(at.Unmap()) }) {
			errs = append(errs, netlink.RouteDel(&r))
		}
	}
	return errors.Join(errs...)
}

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}
