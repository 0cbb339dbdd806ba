package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ensureForwarding lets the host forward IPv4 packets.
func ensureForwarding() error {
	return ensureSysctl("net/ipv4/ip_forward", "1", func(v int) bool { return v == 1 },
		"pods cannot reach anything outside of their node")
}

// deviceSysctls prepares the host's side of a pair. The reverse path filter must
// be loose: answers from services leave a pod under the service's address.
func deviceSysctls(dev string) error {
	conf := "net/ipv4/conf/" + dev + "/"
	if err := ensureSysctl(conf+"forwarding", "1", func(v int) bool { return v == 1 }, "the pod would be cut off"); err != nil {
		return err
	}
	// The kernel uses the larger of this value and that for all devices.
	all, _ := readSysctl("net/ipv4/conf/all/rp_filter")
	if err := ensureSysctl(conf+"rp_filter", "2", func(v int) bool { return v == 2 || v == 0 && all != 1 },
		"answers from services would be lost"); err != nil {
		return err
	}
	// Nobody speaks IPv6 there yet, and the announcements only wake up machines.
	_ = ensureSysctl("net/ipv6/conf/"+dev+"/disable_ipv6", "1", func(v int) bool { return v == 1 }, "")
	return nil
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
