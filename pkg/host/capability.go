package host

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Capabilities is the effective set of this process as a bit mask.
type Capabilities uint64

// ReadCapabilities reads the effective set; it is empty when /proc cannot be read.
func ReadCapabilities() Capabilities { return parseCapabilities(readAll("/proc/self/status")) }

func parseCapabilities(status string) Capabilities {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			mask, _ := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return Capabilities(mask)
		}
	}
	return 0
}

// Has reports whether a capability (unix.CAP_…) is effective.
func (c Capabilities) Has(capability int) bool { return c&(1<<uint(capability)) != 0 }

// SysResource reports whether the process may lower the OOM score of others. Without it, containerd must be told
// to leave the score alone, or no container starts.
func (c Capabilities) SysResource() bool { return c.Has(unix.CAP_SYS_RESOURCE) }

// Missing names the capabilities without which a node cannot run.
func (c Capabilities) Missing() []string {
	var out []string
	for _, need := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_CHROOT, "CAP_SYS_CHROOT"},
		{unix.CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE"}, {unix.CAP_MKNOD, "CAP_MKNOD"}, {unix.CAP_SETUID, "CAP_SETUID"},
		{unix.CAP_SETGID, "CAP_SETGID"}, {unix.CAP_KILL, "CAP_KILL"},
	} {
		if !c.Has(need.bit) {
			out = append(out, need.name)
		}
	}
	return out
}
