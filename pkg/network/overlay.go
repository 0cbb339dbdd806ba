package network

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
)

const (
	overlayDevice = devicePrefix + "vxlan"
	// overlayPort is the one that k3s and others use, so firewalls may know it.
	overlayPort = 8472
	// overlayHeader is what VXLAN adds to a packet: Ethernet, VXLAN, UDP and the IP header.
	overlayHeader4, overlayHeader6 = 50, 70
)

// overlay is the VXLAN device, which is made when the first node needs it.
type overlay struct {
	opts Options
	dp   *datapath.Datapath
}

// overlayAddr is the node's own address in the overlay: the first of its pods'
// prefix, which no pod gets.
func overlayAddr(pods netip.Prefix) netip.Addr { return pods.Masked().Addr() }

// ensure makes the device with the node's addresses and attaches the programs. mtu is that of
// the network below.
func (o overlay) ensure(own []netip.Prefix, mtu int) (netlink.Link, error) {
	dev, err := netlink.LinkByName(overlayDevice)
	if err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = overlayDevice, mtu
		err := netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: overlayPort, Learning: false})
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("cannot make the overlay's device: %w%s", err, overlayHint(err))
		}
		if dev, err = netlink.LinkByName(overlayDevice); err != nil {
			return nil, fmt.Errorf("cannot find the overlay's device: %w", err)
		}
		if err := netlink.LinkSetAlias(dev, o.opts.alias()); err != nil {
			return nil, fmt.Errorf("cannot mark the overlay's device: %w", err)
		}
	}
	if dev.Attrs().MTU != mtu {
		if err := netlink.LinkSetMTU(dev, mtu); err != nil {
			return nil, fmt.Errorf("cannot set the overlay's MTU to %d: %w", mtu, err)
		}
	}
	var addrs []netip.Addr
	for _, p := range own {
		addrs = append(addrs, overlayAddr(p))
	}
	if err := deviceSysctls(overlayDevice, addrs); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetARPOff(dev); err != nil {
		return nil, fmt.Errorf("cannot prepare the overlay's device: %w", err)
	}
	for _, a := range addrs {
		if err := netlink.AddrReplace(dev, podAddr(a)); err != nil {
			return nil, fmt.Errorf("cannot give this node its address in the overlay: %w", err)
		}
	}
	if err := o.dp.AttachOverlay(dev); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(dev); err != nil {
		return nil, fmt.Errorf("cannot bring up the overlay's device: %w", err)
	}
	return dev, nil
}

// remove takes the device away when no node needs it any more.
func (o overlay) remove() error {
	return errors.Join(deletePair(overlayDevice), o.dp.DetachOverlay(overlayDevice))
}

func overlayHint(err error) string {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return "; this kernel has no VXLAN: load the module vxlan, or connect all nodes to one network and set network-backend: native"
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Sprintf("; something else uses UDP port %d: stop it", overlayPort)
	}
	return ""
}
