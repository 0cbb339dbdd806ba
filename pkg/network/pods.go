package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
	"github.com/kombi-k8s/kombi/pkg/network/ipam"
	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// pods attaches pods to the node and detaches them.
type pods struct {
	opts    Options
	dp      *datapath.Datapath
	store   *ipam.Store
	table   *services.Table
	devices *devices
	// flush brings the table's changes into the maps.
	flush func() error

	mu      sync.Mutex // one change at a time: each takes a few milliseconds
	records map[string]*ipam.Record
	pool    *ipam.Pool
	ready   chan struct{} // closed when pods may be attached
	opened  bool
}

func newPods(opts Options, dp *datapath.Datapath, store *ipam.Store, table *services.Table, dev *devices) *pods {
	p := &pods{
		opts: opts, dp: dp, store: store, table: table, devices: dev,
		flush:   func() error { return nil },
		records: map[string]*ipam.Record{},
		ready:   make(chan struct{}),
	}
	dev.lost = p.reconnect
	return p
}

// setPrefix makes addresses of prefix available.
func (p *pods) setPrefix(prefix netip.Prefix) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pool != nil && p.pool.Prefix() == prefix {
		return nil
	}
	pool, err := ipam.NewPool(prefix, p.store.Last())
	if err != nil {
		return err
	}
	for _, r := range p.records {
		pool.Reserve(r.Addr)
	}
	// Traffic to a pod that is gone must fail at once, not wander off by the default route.
	if err := netlink.RouteReplace(unreachable(prefix)); err != nil {
		return fmt.Errorf("cannot add the route for addresses without a pod: %w", err)
	}
	if p.pool != nil {
		_ = netlink.RouteDel(unreachable(p.pool.Prefix()))
	}
	p.pool = pool
	return nil
}

// open lets pods be attached from now on.
func (p *pods) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.opened {
		p.opened = true
		close(p.ready)
	}
}

// attachment is what a runtime asks for.
type attachment struct {
	containerID, ifName, netns string
	namespace, pod             string
	ports                      []services.HostPort // without the pod's address
}

// add attaches a pod. When it returns, the pod's traffic passes the programs.
func (p *pods) add(a attachment) (rec *ipam.Record, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := ipam.Key(a.containerID, a.ifName)
	if old := p.records[key]; old != nil {
		// A request that was cut off by a crash is made again.
		if err := p.remove(old); err != nil {
			return nil, err
		}
	}
	addr, err := p.pool.Allocate()
	if err != nil {
		return nil, err
	}
	device, mac, hostMAC := deviceNames(key)
	rec = &ipam.Record{
		ContainerID: a.containerID, IfName: a.ifName, Netns: a.netns, Namespace: a.namespace, Pod: a.pod,
		Addr: addr, HostDevice: device, MAC: mac.String(), HostMAC: hostMAC.String(), MTU: p.devices.MTU(),
	}
	for _, hp := range a.ports {
		hp.Pod = netip.AddrPortFrom(addr, hp.Pod.Port())
		rec.HostPorts = append(rec.HostPorts, hp)
	}
	p.records[key] = rec
	defer func() {
		if err != nil {
			err = errors.Join(err, p.remove(rec))
			rec = nil
		}
	}()
	if err := p.store.Put(rec); err != nil {
		return rec, err
	}
	p.store.SetLast(addr)
	if err := deletePair(device); err != nil {
		return rec, err
	}
	dev, err := createPair(rec, p.opts.alias())
	if err != nil {
		return rec, err
	}
	if err := p.announce(rec, dev); err != nil {
		return rec, err
	}
	if err := p.dp.AttachPod(dev); err != nil {
		return rec, err
	}
	if err := connectPair(dev, rec, p.opts.NodeIP); err != nil {
		return rec, err
	}
	if err := configurePod(rec); err != nil {
		return rec, err
	}
	if err := waitActive(device); err != nil {
		return rec, err
	}
	if len(rec.HostPorts) > 0 {
		return rec, p.flush()
	}
	return rec, nil
}

// announce makes the pod known to the programs and to the services.
func (p *pods) announce(rec *ipam.Record, dev netlink.Link) error {
	mac, err1 := net.ParseMAC(rec.MAC)
	hostMAC, err2 := net.ParseMAC(rec.HostMAC)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	p.table.SetHostPorts(rec.Key(), rec.HostPorts)
	return p.dp.SetEndpoint(rec.Addr, datapath.Endpoint{Ifindex: dev.Attrs().Index, MAC: mac, HostMAC: hostMAC})
}

// del detaches a pod; one that is not attached is fine.
func (p *pods) del(containerID, ifName string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := p.records[ipam.Key(containerID, ifName)]
	if rec == nil {
		return nil
	}
	return p.remove(rec)
}

// remove undoes add as far as it got. The record goes last, so that a crash leaves it to be removed again.
func (p *pods) remove(rec *ipam.Record) error {
	hadPorts := len(rec.HostPorts) > 0
	p.table.SetHostPorts(rec.Key(), nil)
	if err := errors.Join(
		deletePair(rec.HostDevice),
		p.dp.DetachPod(rec.HostDevice),
		p.dp.DeleteEndpoint(rec.Addr),
		p.store.Delete(rec.Key()),
	); err != nil {
		return err
	}
	delete(p.records, rec.Key())
	if p.pool != nil {
		p.pool.Release(rec.Addr)
	}
	if hadPorts {
		return p.flush()
	}
	return nil
}

// check returns why an attached pod would not have a working network.
func (p *pods) check(containerID, ifName string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	rec := p.records[ipam.Key(containerID, ifName)]
	if rec == nil {
		return fmt.Errorf("container %s is not attached", containerID)
	}
	dev, err := netlink.LinkByName(rec.HostDevice)
	if err != nil {
		return fmt.Errorf("the device %s of pod %s/%s is gone: %w", rec.HostDevice, rec.Namespace, rec.Pod, err)
	}
	if got := p.dp.EndpointIfindex(rec.Addr); got != dev.Attrs().Index {
		return fmt.Errorf("the programs know pod %s/%s at device %d instead of %d", rec.Namespace, rec.Pod, got, dev.Attrs().Index)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: hostNet(rec.Addr)}, netlink.RT_FILTER_DST)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == dev.Attrs().Index }) {
		return fmt.Errorf("the route to pod %s/%s (%s) is gone", rec.Namespace, rec.Pod, rec.Addr)
	}
	return nil
}

// gc detaches all pods but the valid ones, given as keys.
func (p *pods) gc(valid map[string]bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for key, rec := range p.records {
		if !valid[key] {
			errs = append(errs, p.remove(rec))
		}
	}
	return errors.Join(errs...)
}

// count returns the number of attached pods.
func (p *pods) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.records)
}
