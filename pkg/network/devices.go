package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
)

// devices follows the host's own devices and addresses: where traffic leaves the
// node, under which address, and where node ports are served.
type devices struct {
	opts Options
	dp   *datapath.Datapath
	// lost is told of a pod's route that somebody else removed.
	lost func(ifindex int)
	// changed is told that addresses, routes or devices are others now.
	changed func()

	mu       sync.Mutex
	hold     bool           // leave the programs of an older layout attached
	attached map[string]int // name to index
	current  map[int]datapath.Masquerade
	mtu      int // the smallest of the devices
	overlay  []netip.Addr
	header   int // what the overlay adds to a packet
}

func newDevices(opts Options, dp *datapath.Datapath) *devices {
	return &devices{opts: opts, dp: dp, attached: map[string]int{}, lost: func(int) {}, changed: func() {}}
}

// MTU returns the size that pods' packets may have.
func (d *devices) MTU() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.opts.MTU > 0:
		return d.opts.MTU
	case d.mtu > 0:
		return d.mtu - d.header
	}
	return 1500 - d.header
}

// underlayMTU is what packets between nodes may have.
func (d *devices) underlayMTU() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mtu > 0 {
		return d.mtu
	}
	return 1500
}

// setOverlay tells the node's addresses in the overlay, and what it adds to each packet.
func (d *devices) setOverlay(addrs []netip.Addr, header int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Equal(d.overlay, addrs) && d.header == header {
		return
	}
	d.overlay, d.header = addrs, header
	if err := d.update(); err != nil {
		d.opts.Log.Warn("cannot follow the node's devices; trying again", "error", err)
	}
}

// setHold says whether programs must stay as they are.
func (d *devices) setHold(hold bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hold = hold
}

// refresh reads the host's state and brings maps and programs in line with it.
func (d *devices) refresh() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.update()
}

// update is refresh under the lock.
func (d *devices) update() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("cannot list network devices: %w", err)
	}
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("cannot list addresses: %w", err)
	}
	locals := map[netip.Addr]datapath.LocalKind{}
	for _, a := range d.opts.NodeIPs {
		locals[a] = datapath.NodeAddr
	}
	byLink := map[int][]netlink.Addr{}
	for _, a := range addrs {
		byLink[a.LinkIndex] = append(byLink[a.LinkIndex], a)
		if ip := addrOf(a); ip.IsValid() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			locals[ip] = datapath.NodeAddr
		}
	}
	for _, a := range d.opts.NodeLocalAddrs {
		locals[a.Unmap()] = datapath.ServiceAddr
	}
	if err := d.dp.SetLocals(locals); err != nil {
		return err
	}

	out, err := d.outgoing(links, byLink)
	if err != nil {
		return err
	}
	masquerade := map[int]datapath.Masquerade{}
	d.mtu = 0
	for _, l := range out {
		a := l.Attrs()
		m := datapath.Masquerade{
			IPv4: d.sourceAddr(byLink[a.Index], netip.Addr.Is4), IPv6: d.sourceAddr(byLink[a.Index], netip.Addr.Is6),
		}
		for _, own := range d.overlay {
			if own.Is4() {
				m.Overlay4 = own
			} else {
				m.Overlay6 = own
			}
		}
		masquerade[a.Index] = m
		if d.mtu == 0 || a.MTU < d.mtu {
			d.mtu = a.MTU
		}
	}
	if err := d.dp.SetDevices(masquerade); err != nil {
		return err
	}
	d.current = masquerade
	if d.hold {
		return nil
	}
	return d.attachTo(out)
}

func (d *devices) attachTo(out []netlink.Link) error {
	var errs []error
	want := map[string]int{}
	for _, l := range out {
		a := l.Attrs()
		want[a.Name] = a.Index
		if d.attached[a.Name] == a.Index {
			continue
		}
		if err := d.dp.AttachDevice(l); err != nil {
			errs = append(errs, err)
			continue
		}
		d.attached[a.Name] = a.Index
		d.opts.Log.Info("serving the node's device", "device", a.Name, "address", d.current[a.Index].IPv4, "address6", d.current[a.Index].IPv6)
	}
	for name := range maps.Clone(d.attached) {
		if _, ok := want[name]; !ok {
			errs = append(errs, d.dp.DetachDevice(name))
			delete(d.attached, name)
			d.opts.Log.Info("no longer serving the device", "device", name)
		}
	}
	return errors.Join(errs...)
}

// outgoing returns the devices at which traffic leaves the node.
func (d *devices) outgoing(links []netlink.Link, addrs map[int][]netlink.Addr) ([]netlink.Link, error) {
	index := map[int]bool{}
	if len(d.opts.Devices) == 0 {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("cannot list routes: %w", err)
		}
		for _, r := range routes {
			if r.Dst != nil && r.Dst.IP != nil {
				if ones, _ := r.Dst.Mask.Size(); ones != 0 {
					continue
				}
			}
			index[r.LinkIndex] = true
			for _, hop := range r.MultiPath {
				index[hop.LinkIndex] = true
			}
		}
	}
	var out []netlink.Link
	for _, l := range links {
		a := l.Attrs()
		if a.Name == "lo" || strings.HasPrefix(a.Name, devicePrefix) {
			continue
		}
		wanted := index[a.Index] || slices.Contains(d.opts.Devices, a.Name)
		if len(d.opts.Devices) == 0 {
			for _, ad := range addrs[a.Index] {
				wanted = wanted || slices.Contains(d.opts.NodeIPs, addrOf(ad))
			}
		}
		if !wanted {
			continue
		}
		if a.EncapType != "ether" {
			d.opts.Log.Warn("the device does not carry Ethernet frames, so pods' traffic there is not masqueraded",
				"device", a.Name, "kind", a.EncapType)
			continue
		}
		out = append(out, l)
	}
	return out, nil
}

// sourceAddr chooses the address of a family that pods' traffic gets at a device.
func (d *devices) sourceAddr(addrs []netlink.Addr, family func(netip.Addr) bool) netip.Addr {
	// Addresses that the kernel made to be given up soon are no use for long connections.
	const passing = unix.IFA_F_SECONDARY | unix.IFA_F_DEPRECATED | unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	var first netip.Addr
	for _, a := range addrs {
		ip := addrOf(a)
		if !ip.IsValid() || !family(ip) || a.Scope != int(netlink.SCOPE_UNIVERSE) {
			continue
		}
		if slices.Contains(d.opts.NodeIPs, ip) {
			return ip
		}
		if !first.IsValid() && a.Flags&passing == 0 {
			first = ip
		}
	}
	return first
}

func addrOf(a netlink.Addr) netip.Addr {
	ip, _ := netip.AddrFromSlice(a.IP)
	return ip.Unmap()
}

// follow refreshes whenever addresses, routes or devices change.
func (d *devices) follow(ctx context.Context) error {
	for {
		err := d.followOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		// The kernel gives up on a listener that cannot keep up. Listening again begins with a look at everything.
		d.opts.Log.Debug("following network changes anew", "err", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (d *devices) followOnce(ctx context.Context) error {
	done := make(chan struct{})
	defer close(done)
	addrs := make(chan netlink.AddrUpdate, 64)
	routes := make(chan netlink.RouteUpdate, 64)
	links := make(chan netlink.LinkUpdate, 64)
	if err := errors.Join(
		netlink.AddrSubscribe(addrs, done),
		netlink.RouteSubscribe(routes, done),
		netlink.LinkSubscribe(links, done),
	); err != nil {
		return fmt.Errorf("cannot follow network changes: %w", err)
	}
	var due <-chan time.Time
	soon := func() {
		if due == nil {
			due = time.After(200 * time.Millisecond) // changes come in bursts
		}
	}
	soon() // for what happened before we listened
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-addrs:
			if !ok {
				return errors.New("the kernel stopped reporting address changes")
			}
			soon()
		case u, ok := <-routes:
			if !ok {
				return errors.New("the kernel stopped reporting route changes")
			}
			if u.Protocol == routeProtocol {
				continue // ours
			}
			if isHost(u.Dst) {
				if u.Type == unix.RTM_DELROUTE {
					d.lost(u.LinkIndex)
				}
				continue // a pod comes or goes
			}
			soon()
		case u, ok := <-links:
			if !ok {
				return errors.New("the kernel stopped reporting device changes")
			}
			if strings.HasPrefix(u.Link.Attrs().Name, devicePrefix) {
				continue
			}
			soon()
		case <-due:
			due = nil
			if err := d.refresh(); err != nil {
				d.opts.Log.Warn("cannot follow the node's devices; trying again", "err", err)
				due = time.After(5 * time.Second)
			}
			d.changed()
		}
	}
}

// isHost tells whether a route leads to one address only, as those to pods do.
func isHost(n *net.IPNet) bool {
	if n == nil {
		return false
	}
	ones, bits := n.Mask.Size()
	return ones == bits
}
