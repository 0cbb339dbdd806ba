package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const cutOff = "pods cannot reach anything outside of their node"

func isOne(v int) bool { return v == 1 }

// ensureForwarding lets the host forward packets of the families that pods have.
func ensureForwarding(cluster []netip.Prefix) error {
	for _, p := range cluster {
		var err error
		if p.Addr().Is4() {
			err = ensureSysctl("net/ipv4/ip_forward", "1", isOne, cutOff)
		} else {
			err = ensureForwarding6()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureForwarding6 keeps what the host learns from routers, which the kernel ignores
// on hosts that forward unless it is told to listen all the same.
func ensureForwarding6() error {
	const conf = "net/ipv6/conf/"
	if v, err := readSysctl(conf + "all/forwarding"); err == nil && v == 1 {
		return nil
	} else if errors.Is(err, unix.ENOENT) {
		return errors.New("this kernel has no IPv6, but cluster-cidr has an IPv6 network: boot without ipv6.disable=1, or give an IPv4 network only")
	}
	devices, err := os.ReadDir(filepath.Join("/proc/sys", conf))
	if err != nil {
		return fmt.Errorf("cannot list the IPv6 settings of devices: %w", err)
	}
	for _, d := range devices {
		name := conf + d.Name() + "/accept_ra"
		if v, err := readSysctl(name); err == nil && v == 1 {
			if err := ensureSysctl(name, "2", func(int) bool { return false }, "the node would forget its routers"); err != nil {
				return err
			}
		}
	}
	return ensureSysctl(conf+"all/forwarding", "1", isOne, cutOff)
}

// enableIPv6 switches IPv6 on for a device of a pod, where new namespaces have it off.
func enableIPv6(netnsPath, dev string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends in the pod's namespace
		ns, err := netns.GetFromPath(netnsPath)
		if err == nil {
			err = netns.Set(ns)
			_ = ns.Close()
		}
		if err == nil {
			err = os.WriteFile("/proc/sys/net/ipv6/conf/"+dev+"/disable_ipv6", []byte("0"), 0)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("cannot switch on IPv6 in the pod: %w", err)
	}
	return nil
}

// deviceSysctls prepares the host's side of a pair. The reverse path filter must
// be loose: answers from services leave a pod under the service's address.
func deviceSysctls(dev string, addrs []netip.Addr) error {
	conf := "net/ipv4/conf/" + dev + "/"
	if err := ensureSysctl(conf+"forwarding", "1", isOne, "the pod would be cut off"); err != nil {
		return err
	}
	// The kernel uses the larger of this value and that for all devices.
	all, _ := readSysctl("net/ipv4/conf/all/rp_filter")
	if err := ensureSysctl(conf+"rp_filter", "2", func(v int) bool { return v == 2 || v == 0 && all != 1 },
		"answers from services would be lost"); err != nil {
		return err
	}
	conf = "net/ipv6/conf/" + dev + "/"
	if !slices.ContainsFunc(addrs, netip.Addr.Is6) {
		// Nobody speaks it there, and the announcements only wake up machines.
		_ = ensureSysctl(conf+"disable_ipv6", "1", isOne, "")
		return nil
	}
	// No address of the kernel's making, no routers: the pod is all there is.
	for name, want := range map[string]int{"addr_gen_mode": addrGenNone, "accept_ra": 0, "disable_ipv6": 0} {
		if err := ensureSysctl(conf+name, strconv.Itoa(want), func(v int) bool { return v == want }, "the pod would have no IPv6"); err != nil {
			return err
		}
	}
	return ensureSysctl(conf+"forwarding", "1", isOne, "the pod would be cut off")
}

// ensureSysctl writes a kernel setting unless it is right already; without it follows.
func ensureSysctl(name, want string, fine func(int) bool, without string) error {
	if v, err := readSysctl(name); err == nil && fine(v) {
		return nil
	}
	err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(want), 0)
	if err == nil {
		return nil
	}
	dotted := strings.ReplaceAll(name, "/", ".")
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("cannot set %s=%s: /proc/sys is read-only; remount it writable (mount -o remount,rw /proc/sys) or set it from outside, or %s",
			dotted, want, without)
	}
	return fmt.Errorf("cannot set %s=%s: %w; without it %s", dotted, want, err, without)
}

func readSysctl(name string) (int, error) {
	raw, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(raw)))
}
