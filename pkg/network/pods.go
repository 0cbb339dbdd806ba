package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
	"github.com/kombi-k8s/kombi/pkg/network/ipam"
	"github.com/kombi-k8s/kombi/pkg/network/policy"
	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// pods attaches pods to the node and detaches them.
type pods struct {
	opts    Options
	dp      *datapath.Datapath
	store   *ipam.Store
	table   *services.Table
	devices *devices
	policy  *enforcer
	// flush brings the table's changes into the maps.
	flush func() error

	mu      sync.Mutex // one change at a time: each takes a few milliseconds
	records map[string]*ipam.Record
	pools   []*ipam.Pool  // one for each family, in the order of the node's prefixes
	ready   chan struct{} // closed when pods may be attached
	opened  bool
	before  bool // a run before this one opened the node for pods
}

func newPods(opts Options, dp *datapath.Datapath, store *ipam.Store, table *services.Table, dev *devices, policy *enforcer) *pods {
	p := &pods{
		opts: opts, dp: dp, store: store, table: table, devices: dev, policy: policy,
		flush:   func() error { return nil },
		records: map[string]*ipam.Record{},
		ready:   make(chan struct{}),
	}
	_, err := os.Stat(opts.confFile())
	p.before = err == nil
	dev.lost = p.reconnect
	return p
}

// setPrefixes makes addresses of the prefixes, one of each family, available.
func (p *pods) setPrefixes(prefixes []netip.Prefix) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.EqualFunc(p.pools, prefixes, func(pool *ipam.Pool, prefix netip.Prefix) bool { return pool.Prefix() == prefix }) {
		return nil
	}
	var pools []*ipam.Pool
	for _, prefix := range prefixes {
		pool, err := ipam.NewPool(prefix, p.store.Last())
		if err != nil {
			return err
		}
		for _, r := range p.records {
			for _, a := range r.Addrs {
				pool.Reserve(a)
			}
		}
		// Traffic to a pod that is gone must fail at once, not wander off by the default route.
		if err := netlink.RouteReplace(unreachable(prefix)); err != nil {
			return fmt.Errorf("cannot add the route for addresses without a pod: %w", err)
		}
		pools = append(pools, pool)
	}
	for _, old := range p.pools {
		if !slices.Contains(prefixes, old.Prefix()) {
			_ = netlink.RouteDel(unreachable(old.Prefix()))
		}
	}
	p.pools = pools
	return nil
}

// allocate takes one address of each family.
func (p *pods) allocate() (addrs []netip.Addr, err error) {
	for _, pool := range p.pools {
		a, err := pool.Allocate()
		if err != nil {
			p.release(addrs)
			return nil, err
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

func (p *pods) release(addrs []netip.Addr) {
	for _, pool := range p.pools {
		for _, a := range addrs {
			pool.Release(a)
		}
	}
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

// serving tells whether the node can have pods. While a node starts again it can: new
// ones wait for the moment that it takes, and those that run must not be taken out of
// their Services because the kubelet asks too early.
func (p *pods) serving() bool {
	select {
	case <-p.ready:
		return true
	default:
		return p.before
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
	addrs, err := p.allocate()
	if err != nil {
		return nil, err
	}
	device, mac, hostMAC := deviceNames(key)
	rec = &ipam.Record{
		ContainerID: a.containerID, IfName: a.ifName, Netns: a.netns, Namespace: a.namespace, Pod: a.pod,
		Addrs: addrs, HostDevice: device, MAC: mac.String(), HostMAC: hostMAC.String(), MTU: p.devices.MTU(),
	}
	for _, hp := range a.ports {
		for _, addr := range addrs {
			if hp.HostAddr.IsValid() && !hp.HostAddr.IsUnspecified() && hp.HostAddr.Is4() != addr.Is4() {
				continue
			}
			hp.Pod = netip.AddrPortFrom(addr, hp.Pod.Port())
			rec.HostPorts = append(rec.HostPorts, hp)
		}
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
	p.store.SetLast(addrs)
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
	if err := p.enforce(rec); err != nil {
		return rec, err
	}
	if err := p.dp.AttachPod(dev); err != nil {
		return rec, err
	}
	if err := connectPair(dev, rec, p.opts.NodeIPs); err != nil {
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
	for _, a := range rec.Addrs {
		if err := p.dp.SetEndpoint(a, datapath.Endpoint{Ifindex: dev.Attrs().Index, MAC: mac, HostMAC: hostMAC}); err != nil {
			return err
		}
	}
	return nil
}

// enforce puts a new pod's policy in force.
func (p *pods) enforce(rec *ipam.Record) error {
	if err := p.policy.attach(rec.Namespace, rec.Pod, rec.Addrs); err != nil {
		return err
	}
	sets := p.policy.sets(rec.Namespace, rec.Pod)
	for _, a := range rec.Addrs {
		if err := p.dp.SetEndpointPolicy(a, sets); err != nil {
			return err
		}
	}
	return nil
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
	if err := errors.Join(deletePair(rec.HostDevice), p.dp.DetachPod(rec.HostDevice)); err != nil {
		return err
	}
	for _, a := range rec.Addrs {
		if err := p.forget(a); err != nil {
			return err
		}
	}
	if err := p.store.Delete(rec.Key()); err != nil {
		return err
	}
	p.policy.detach(rec.Namespace, rec.Pod, rec.Addrs)
	delete(p.records, rec.Key())
	p.release(rec.Addrs)
	if hadPorts {
		return p.flush()
	}
	return nil
}

// forget removes an address from the data plane, before somebody else gets it.
func (p *pods) forget(a netip.Addr) error {
	governed := p.dp.EndpointPolicy(a) != policy.EndpointSets{}
	if err := p.dp.DeleteEndpoint(a); err != nil || !governed {
		return err
	}
	return p.dp.ForgetConnections(a)
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
	for _, a := range rec.Addrs {
		if got := p.dp.EndpointIfindex(a); got != dev.Attrs().Index {
			return fmt.Errorf("the programs know pod %s/%s at device %d instead of %d", rec.Namespace, rec.Pod, got, dev.Attrs().Index)
		}
		routes, err := netlink.RouteListFiltered(familyOf(a), &netlink.Route{Dst: hostNet(a)}, netlink.RT_FILTER_DST)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.LinkIndex == dev.Attrs().Index }) {
			return fmt.Errorf("the route to pod %s/%s (%s) is gone", rec.Namespace, rec.Pod, a)
		}
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
