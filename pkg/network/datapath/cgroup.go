package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// AttachSockets attaches the socket programs to a cgroup2 directory. An empty
// path detaches them.
func (d *Datapath) AttachSockets(path string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	hooks := []struct {
		name string
		prog *ebpf.Program
		at   ebpf.AttachType
	}{
		{"sock_recvmsg4", d.objs.Recvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{"sock_getpeername4", d.objs.Getpeername4, ebpf.AttachCgroupInet4GetPeername},
		{"sock_recvmsg6", d.objs.Recvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{"sock_getpeername6", d.objs.Getpeername6, ebpf.AttachCgroupInet6GetPeername},
		{"sock_sendmsg4", d.objs.Sendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{"sock_sendmsg6", d.objs.Sendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		{"sock_connect4", d.objs.Connect4, ebpf.AttachCGroupInet4Connect},
		{"sock_connect6", d.objs.Connect6, ebpf.AttachCGroupInet6Connect},
	}
	if path == "" {
		var errs []error
		for _, h := range hooks {
			errs = append(errs, d.dropLink(h.name))
		}
		return errors.Join(errs...)
	}
	id, err := cgroupID(path)
	if err != nil {
		return fmt.Errorf("cannot attach socket programs: %w", err)
	}
	for _, h := range hooks {
		err := d.ensureLink(h.name, h.prog,
			func(i *link.Info) bool { c := i.Cgroup(); return c != nil && c.CgroupId == id },
			func() (link.Link, error) {
				return link.AttachCgroup(link.CgroupOptions{Path: path, Attach: h.at, Program: h.prog})
			})
		if err != nil {
			return fmt.Errorf("cannot attach socket program %s to %s: %w", h.name, path, err)
		}
	}
	return nil
}

// cgroupID returns the number by which the kernel names a cgroup2 directory.
func cgroupID(path string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, fmt.Errorf("%s is not in a cgroup2 hierarchy", path)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return st.Ino, nil
}
