package network

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
)

// Backends of [Options].
const (
	// BackendAuto sends packets as they are to nodes of the same network, and through
	// VXLAN to the others.
	BackendAuto = "auto"
	// BackendNative never uses an overlay, BackendVXLAN always.
	BackendNative = "native"
	BackendVXLAN  = "vxlan"
)

// peers keeps the ways to the pods of the other nodes: a route to the node where it is
// a neighbour, and else the overlay.
type peers struct {
	opts    Options
	dp      *datapath.Datapath
	devices *devices
	overlay overlay

	mu    sync.Mutex
	own   []netip.Prefix // of this node's pods
	nodes map[string]peer
	ways  map[netip.Prefix]way // those that are in place
}

// peer is another node.
type peer struct {
	addrs    []netip.Addr
	prefixes []netip.Prefix
}

// way is how packets get to a prefix.
type way struct {
	node    netip.Addr
	overlay bool
}

func newPeers(opts Options, dp *datapath.Datapath, dev *devices) *peers {
	return &peers{opts: opts, dp: dp, devices: dev, overlay: overlay{opts, dp}, nodes: map[string]peer{}, ways: map[netip.Prefix]way{}}
}

// setOwn tells the prefixes of this node, without which there is no overlay.
func (p *peers) setOwn(prefixes []netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own = prefixes
	p.update()
}

// set adds or replaces a node.
func (p *peers) set(name string, node peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old, ok := p.nodes[name]; ok && slices.Equal(old.addrs, node.addrs) && slices.Equal(old.prefixes, node.prefixes) {
		return
	}
	p.nodes[name] = node
	p.update()
}

// remove forgets a node.
func (p *peers) remove(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, name)
	p.update()
}

// refresh looks at everything anew, when the node's own devices changed.
func (p *peers) refresh() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.ways) // somebody may have removed them
	p.update()
}

// sweep removes routes to nodes that went while nobody looked. All nodes are known by now.
func (p *peers) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Protocol: routeProtocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		p.opts.Log.Warn("routes to nodes that are gone cannot be looked for", "error", err)
		return
	}
	for _, r := range routes {
		if r.Dst == nil || r.Type == unix.RTN_UNREACHABLE {
			continue
		}
		at, _ := netip.AddrFromSlice(r.Dst.IP)
		ones, _ := r.Dst.Mask.Size()
		prefix := netip.PrefixFrom(at.Unmap(), ones)
		if _, known := p.ways[prefix]; !known && p.inCluster(prefix) {
			_ = netlink.RouteDel(&r)
		}
	}
}

// want is how the prefixes of all nodes should be reached.
func (p *peers) want() map[netip.Prefix]way {
	out := map[netip.Prefix]way{}
	for _, n := range p.nodes {
		for _, prefix := range n.prefixes {
			if len(n.addrs) == 0 || !p.inCluster(prefix) {
				continue
			}
			i := slices.IndexFunc(n.addrs, func(a netip.Addr) bool { return a.Is4() == prefix.Addr().Is4() })
			switch {
			case p.opts.Backend == BackendVXLAN, i < 0, p.opts.Backend != BackendNative && !neighbour(n.addrs[i]):
				out[prefix] = way{n.addrs[0], true}
			default:
				out[prefix] = way{n.addrs[i], false}
			}
		}
	}
	return out
}

// neighbour tells whether the address is on a network of this machine.
func neighbour(a netip.Addr) bool {
	routes, err := netlink.RouteGet(a.AsSlice())
	return err == nil && len(routes) > 0 && routes[0].Gw == nil && routes[0].Via == nil
}

// update brings routes and overlay in line with the nodes.
func (p *peers) update() {
	if len(p.own) == 0 {
		return // not a node with pods yet
	}
	want := p.want()
	device, err := p.updateOverlay(want)
	if err != nil {
		p.opts.Log.Error("pods of other nodes cannot be reached through the overlay", "error", err)
	}
	for prefix, w := range p.ways {
		if want[prefix] == w {
			continue
		}
		if _, again := want[prefix]; !again {
			r := &netlink.Route{Dst: ipNet(prefix), Protocol: routeProtocol}
			if err := netlink.RouteDel(r); err != nil && !errors.Is(err, unix.ESRCH) {
				p.opts.Log.Warn("the route to the pods of a node that is gone cannot be removed", "prefix", prefix, "error", err)
			}
		}
		delete(p.ways, prefix)
	}
	for prefix, w := range want {
		if p.ways[prefix] == w || w.overlay && device == nil {
			continue
		}
		if err := netlink.RouteReplace(p.route(prefix, w, device)); err != nil {
			p.opts.Log.Warn("the pods of another node cannot be reached", "prefix", prefix, "node", w.node, "error", explainRoute(err))
			continue
		}
		p.ways[prefix] = w
	}
}

// updateOverlay makes the overlay know the nodes that are reached through it, and
// returns its device, or nil if there is none.
func (p *peers) updateOverlay(want map[netip.Prefix]way) (netlink.Link, error) {
	through := maps.Clone(want)
	maps.DeleteFunc(through, func(_ netip.Prefix, w way) bool { return !w.overlay })
	if len(through) == 0 {
		p.devices.setOverlay(nil, 0)
		return nil, errors.Join(p.dp.SetRemotes(nil), p.overlay.remove())
	}
	header := overlayHeader4
	for _, w := range through {
		if w.node.Is6() {
			header = overlayHeader6
		}
	}
	mtu := p.devices.underlayMTU() - header
	device, err := p.overlay.ensure(p.own, mtu)
	if err != nil {
		return nil, err
	}
	var addrs []netip.Addr
	for _, prefix := range p.own {
		addrs = append(addrs, overlayAddr(prefix))
	}
	p.devices.setOverlay(addrs, header)
	remotes := map[netip.Prefix]datapath.Remote{}
	for prefix, w := range through {
		remotes[prefix] = datapath.Remote{Node: w.node, Ifindex: device.Attrs().Index, MTU: mtu}
	}
	return device, p.dp.SetRemotes(remotes)
}

// route leads the host's own packets, and those that are left to its stack.
func (p *peers) route(prefix netip.Prefix, w way, device netlink.Link) *netlink.Route {
	r := &netlink.Route{Dst: ipNet(prefix), Protocol: routeProtocol}
	if !w.overlay {
		r.Gw = w.node.AsSlice()
		return r
	}
	r.LinkIndex, r.Scope = device.Attrs().Index, netlink.SCOPE_LINK
	for _, own := range p.own {
		if own.Addr().Is4() == prefix.Addr().Is4() {
			r.Src = overlayAddr(own).AsSlice()
		}
	}
	return r
}

// inCluster protects the machine's own routes from a Node object that claims other networks.
func (p *peers) inCluster(prefix netip.Prefix) bool {
	return slices.ContainsFunc(p.opts.ClusterCIDRs, func(c netip.Prefix) bool {
		return c.Contains(prefix.Addr()) && prefix.Bits() > c.Bits()
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// explainRoute explains the kernel's words for a next hop that is not a neighbour.
func explainRoute(err error) error {
	if errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) {
		return fmt.Errorf("%w: it is on another network than this machine; set network-backend to auto or vxlan", err)
	}
	return err
}
