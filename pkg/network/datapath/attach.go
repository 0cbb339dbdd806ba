package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AttachPod attaches the programs to the host's side of a pod's pair, or gives new programs
// to what is attached already.
func (d *Datapath) AttachPod(dev netlink.Link) error {
	return d.attach(dev, "pod", d.objs.FromPod, d.objs.ToPod)
}

// AttachDevice does the same at a device that leads out of the node.
func (d *Datapath) AttachDevice(dev netlink.Link) error {
	return d.attach(dev, "dev", d.objs.FromOutside, d.objs.ToOutside)
}

// AttachOverlay does it at the overlay's device.
func (d *Datapath) AttachOverlay(dev netlink.Link) error {
	return d.attach(dev, "overlay", d.objs.FromOverlay, d.objs.ToOverlay)
}

// DetachOverlay removes what AttachOverlay did. It works with the device gone.
func (d *Datapath) DetachOverlay(name string) error { return d.detach(name, "overlay") }

// DetachPod removes what AttachPod did. It works with the device gone.
func (d *Datapath) DetachPod(name string) error { return d.detach(name, "pod") }

// DetachDevice removes what AttachDevice did. It works with the device gone.
func (d *Datapath) DetachDevice(name string) error { return d.detach(name, "dev") }

func (d *Datapath) attach(dev netlink.Link, kind string, in, out *ebpf.Program) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := dev.Attrs()
	if d.tcx {
		err := d.ensureTCX(linkName(kind, a.Name, "in"), a.Index, in, ebpf.AttachTCXIngress)
		if err == nil {
			err = d.ensureTCX(linkName(kind, a.Name, "out"), a.Index, out, ebpf.AttachTCXEgress)
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("cannot attach network programs to %s: %w", a.Name, err)
		}
		d.log.Info("the kernel has no tcx; using tc clsact")
		d.tcx = false
	}
	err := ensureFilter(a.Index, netlink.HANDLE_MIN_INGRESS, "kombi_"+kind+"_in", in)
	if err == nil {
		err = ensureFilter(a.Index, netlink.HANDLE_MIN_EGRESS, "kombi_"+kind+"_out", out)
	}
	if err != nil {
		return fmt.Errorf("cannot attach network programs to %s: %w", a.Name, err)
	}
	return nil
}

func (d *Datapath) detach(name, kind string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, dir := range []string{"in", "out"} {
		errs = append(errs, d.dropLink(linkName(kind, name, dir)))
	}
	if !d.tcx {
		if dev, err := netlink.LinkByName(name); err == nil {
			errs = append(errs, removeFilters(dev.Attrs().Index))
		}
	}
	return errors.Join(errs...)
}

func linkName(kind, dev, dir string) string { return kind + "_" + dev + "_" + dir }

// ensureTCX updates the link of that name if it is at the right device, or makes it anew.
func (d *Datapath) ensureTCX(name string, ifindex int, prog *ebpf.Program, at ebpf.AttachType) error {
	return d.ensureLink(name, prog,
		func(i *link.Info) bool { t := i.TCX(); return t != nil && int(t.Ifindex) == ifindex },
		func() (link.Link, error) {
			// Ours runs first: it must see the packet before anybody else may change it.
			return link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: prog, Attach: at, Anchor: link.Head()})
		})
}

func (d *Datapath) ensureLink(name string, prog *ebpf.Program, fits func(*link.Info) bool, make func() (link.Link, error)) error {
	l := d.links[name]
	if l == nil && d.pinDir != "" {
		var err error
		l, err = link.LoadPinnedLink(filepath.Join(d.linkDir(), name), nil)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if l != nil {
		info, err := l.Info()
		if err == nil && fits(info) {
			err = l.Update(prog)
			if d.links[name] == nil {
				_ = l.Close()
			}
			return err
		}
		// Its device or cgroup is gone; the pin only holds an empty shell.
		_ = l.Unpin()
		_ = l.Close()
		delete(d.links, name)
	}
	l, err := make()
	if err != nil {
		return err
	}
	if d.pinDir == "" {
		d.links[name] = l
		return nil
	}
	if err := l.Pin(filepath.Join(d.linkDir(), name)); err != nil {
		if errors.Is(err, ebpf.ErrNotSupported) {
			d.links[name] = l
			return nil
		}
		_ = l.Close()
		return err
	}
	return l.Close()
}

func (d *Datapath) dropLink(name string) error {
	if l := d.links[name]; l != nil {
		delete(d.links, name)
		return l.Close()
	}
	if d.pinDir == "" {
		return nil
	}
	err := os.Remove(filepath.Join(d.linkDir(), name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// filterPriority is one that other software is unlikely to use.
const filterPriority = 75

// ensureFilter replaces our clsact filter at one direction of a device.
func ensureFilter(ifindex int, parent uint32, name string, prog *ebpf.Program) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: ifindex, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := netlink.QdiscAdd(qdisc); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add clsact qdisc: %w", err)
	}
	return netlink.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: ifindex, Parent: parent, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: filterPriority,
		},
		Fd: prog.FD(), Name: name, DirectAction: true,
	})
}

// removeFilters removes our clsact filters, and leaves the qdisc, which others may use.
func removeFilters(ifindex int) error {
	dev := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: ifindex}}
	var errs []error
	for _, parent := range []uint32{netlink.HANDLE_MIN_INGRESS, netlink.HANDLE_MIN_EGRESS} {
		filters, err := netlink.FilterList(dev, parent)
		if err != nil {
			continue // no clsact there
		}
		for _, f := range filters {
			if b, ok := f.(*netlink.BpfFilter); ok && len(b.Name) > 6 && b.Name[:6] == "kombi_" {
				errs = append(errs, netlink.FilterDel(f))
			}
		}
	}
	return errors.Join(errs...)
}
