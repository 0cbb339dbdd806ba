package network

import (
	"errors"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
)

// restore takes over the pods of a process before: those whose device is there are
// made known to the programs, those whose namespace is gone too are forgotten.
func (p *pods) restore(attach bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	records, err := p.store.Load()
	if err != nil && records == nil {
		return err
	}
	if err != nil {
		p.opts.Log.Warn("some pods' addresses are not known any more", "err", err)
	}
	known := map[string]bool{}
	keep := map[netip.Addr]bool{}
	for _, rec := range records {
		dev, err := netlink.LinkByName(rec.HostDevice)
		if err != nil {
			if _, err := os.Stat(rec.Netns); err != nil {
				if err := p.store.Delete(rec.Key()); err != nil {
					return err
				}
				continue
			}
			// The runtime still has the sandbox and will ask for its removal; until then the address stays taken.
			p.records[rec.Key()] = rec
			known[rec.HostDevice] = true
			continue
		}
		p.records[rec.Key()] = rec
		known[rec.HostDevice] = true
		for _, a := range rec.Addrs {
			keep[a] = true
		}
		p.policy.adopt(rec.Namespace, rec.Pod, rec.Addrs)
		err = p.announce(rec, dev)
		if err == nil && attach {
			err = p.dp.AttachPod(dev)
		}
		if err == nil {
			err = connectPair(dev, rec, p.opts.NodeIPs)
		}
		if err != nil { // one pod's trouble must not hold back the node
			p.opts.Log.Error("cannot take over a running pod", "namespace", rec.Namespace, "pod", rec.Pod, "err", err)
		}
	}
	if err := p.dp.KeepEndpoints(keep); err != nil {
		return err
	}
	if len(keep) > 0 {
		p.opts.Log.Info("took over running pods", "pods", len(p.records))
	}
	return p.removeOrphans(known)
}

// attachAll gives all pods' devices the current programs.
func (p *pods) attachAll() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, rec := range p.records {
		if dev, err := netlink.LinkByName(rec.HostDevice); err == nil {
			errs = append(errs, p.dp.AttachPod(dev))
		}
	}
	return errors.Join(errs...)
}

// removeOrphans removes devices of ours that no record speaks of.
func (p *pods) removeOrphans(known map[string]bool) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, l := range links {
		a := l.Attrs()
		if a.Alias == p.opts.alias() && a.Name != overlayDevice && !known[a.Name] {
			if err := errors.Join(p.dp.DetachPod(a.Name), deletePair(a.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// reconnect restores the route of a pod that some other program removed.
func (p *pods) reconnect(ifindex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dev, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return
	}
	for _, rec := range p.records {
		if rec.HostDevice != dev.Attrs().Name {
			continue
		}
		if err := connectPair(dev, rec, p.opts.NodeIPs); err != nil {
			p.opts.Log.Warn("somebody removed the route to a pod, and it cannot be restored", "pod", rec.Pod, "err", err)
		}
	}
}
