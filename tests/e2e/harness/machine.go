package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses of the wire between the machine and the outside.
const (
	MachineIP = "10.200.0.2"
	OutsideIP = "10.200.0.1"
	HostName  = "e2e"

	outsideNS = "outside"
)

// prepareMachine makes the new namespaces look like a fresh machine with one
// network interface.
func prepareMachine() error {
	if err := unix.Sethostname([]byte(HostName)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	cgroups, err := enterCgroups(filepath.Base(Dir()))
	if err != nil {
		return err
	}
	if err := mounts(Dir()); err != nil {
		return err
	}
	if err := mountCgroups(cgroups); err != nil {
		return err
	}
	if err := network(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	return nil
}

func mounts(dir string) error {
	resolv := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+OutsideIP+"\n"), 0o644); err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		return err
	}
	const sane = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
	}{
		{"none", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", sane},
		{resolv, real, "", unix.MS_BIND},
		{"sysfs", "/sys", "sysfs", sane}, // shows the new network
		// eBPF objects pinned here end with the namespace.
		{"bpf", "/sys/fs/bpf", "bpf", sane},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
		// What the kubelet mounts has to reach pods; shared, but not with the
		// machine around.
		{dir, dir, "", unix.MS_BIND},
		{"none", dir, "", unix.MS_SHARED},
		{"none", "/run", "", unix.MS_SHARED},
	} {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return nil
}

// network makes the namespace "outside" and a wire to it.
func network() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer func() { _ = here.Close() }()
	out, err := netns.NewNamed(outsideNS) // also enters it
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	if err := netns.Set(here); err != nil {
		return err
	}
	wire := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: "eth0"},
		PeerName:      "eth0",
		PeerNamespace: netlink.NsFd(int(out)),
	}
	if err := netlink.LinkAdd(wire); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	if err := address(MachineIP); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(OutsideIP)}); err != nil {
		return fmt.Errorf("default route: %w", err)
	}
	if err := netns.Set(out); err != nil {
		return err
	}
	return errors.Join(address(OutsideIP, OutsideIP6), netns.Set(here))
}

// address brings lo and eth0 of the current namespace up.
func address(ips ...string) error {
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, ip := range ips {
			if name != "eth0" {
				continue
			}
			if err := netlink.AddrAdd(link, onWire(ip)); err != nil {
				return fmt.Errorf("%s: address %s: %w", name, ip, err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("%s up: %w", name, err)
		}
	}
	return nil
}
