package host

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Kernel is the version of the running kernel.
type Kernel struct {
	Release      string // as in uname -r
	Major, Minor int
}

// ReadKernel asks the kernel for its version.
func ReadKernel() Kernel {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Kernel{}
	}
	return ParseKernel(unix.ByteSliceToString(u.Release[:]))
}

// ParseKernel takes the version out of a release such as 6.1.0-18-amd64. Versions that cannot be read are 0.0.
func ParseKernel(release string) Kernel {
	k := Kernel{Release: release}
	if n, _ := fmt.Sscanf(release, "%d.%d", &k.Major, &k.Minor); n < 2 {
		k.Major, k.Minor = 0, 0
	}
	return k
}

// AtLeast reports whether the kernel is that version or newer.
func (k Kernel) AtLeast(major, minor int) bool {
	return k.Major > major || k.Major == major && k.Minor >= minor
}
