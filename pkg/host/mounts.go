package host

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Mount is one mounted file system.
type Mount struct {
	Point   string
	FSType  string
	Source  string
	Options []string // of the mount point: ro, noexec, …
	Super   []string // of the file system: controllers of a cgroup, ro, …
	Device  uint64   // number of the file system, as in stat
}

// Has reports whether the mount point or its file system has the option.
func (m Mount) Has(option string) bool {
	for _, list := range [][]string{m.Options, m.Super} {
		for _, o := range list {
			if o == option {
				return true
			}
		}
	}
	return false
}

// Visible reports whether the mount is what its path leads to, and not covered by a later one.
func (m Mount) Visible() bool {
	var st unix.Stat_t
	return unix.Stat(m.Point, &st) == nil && st.Dev == m.Device
}

// Mounts are the mounted file systems of this mount namespace in the order in which they were mounted.
type Mounts []Mount

// ReadMounts reads the mounts of this process.
func ReadMounts() (Mounts, error) {
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ParseMounts(f)
}

// ParseMounts reads the format of /proc/self/mountinfo.
func ParseMounts(r io.Reader) (Mounts, error) {
	infos, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, err
	}
	out := make(Mounts, 0, len(infos))
	for _, i := range infos {
		out = append(out, Mount{Point: i.Mountpoint, FSType: i.FSType, Source: i.Source,
			Options: strings.Split(i.Options, ","), Super: strings.Split(i.VFSOptions, ","),
			Device: unix.Mkdev(uint32(i.Major), uint32(i.Minor))})
	}
	return out, nil
}

// At is what is mounted exactly at the path; a later mount covers an earlier one.
func (ms Mounts) At(path string) (Mount, bool) {
	for i := len(ms) - 1; i >= 0; i-- {
		if ms[i].Point == path {
			return ms[i], true
		}
	}
	return Mount{}, false
}

// Of is the mount that holds the path, which need not exist.
func (ms Mounts) Of(path string) Mount {
	for p := filepath.Clean(path); ; p = filepath.Dir(p) {
		if m, ok := ms.At(p); ok {
			return m
		}
		if p == "/" || p == "." {
			return Mount{Point: "/"}
		}
	}
}

// Existing is the nearest ancestor of the path, or itself, that exists.
func Existing(path string) string {
	for p := filepath.Clean(path); ; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); err == nil || p == "/" || p == "." {
			return p
		}
	}
}
