// Package host finds out what the machine is like: control groups, capabilities, kernel, mounts, memory, default
// route. It only looks, with three exceptions that say so: EnsureBPFFS may mount the BPF file system, and the
// overlay and write probes make and remove a folder. Nothing is guessed from a version where it can be tried.
package host

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Facts are what the checks before start and the node's set-up decide on.
type Facts struct {
	Hostname string
	Root     bool // effective user 0 in the initial or any user namespace
	Kernel   Kernel
	Cgroups  Cgroups
	// Container names what this process runs in (docker, podman, lxc, …); empty on a machine of its own.
	Container    string
	Capabilities Capabilities
	AppArmor     bool
	Memory       Memory
	Mounts       Mounts
	// Route is the IPv4 default route; its zero value means there is none.
	Route Route
}

// Gather reads all facts. What cannot be read is left at its zero value, which the checks report.
func Gather() Facts {
	name, _ := os.Hostname()
	mounts, _ := ReadMounts()
	route, _ := DefaultRoute()
	return Facts{
		Hostname:     name,
		Root:         os.Geteuid() == 0,
		Kernel:       ReadKernel(),
		Cgroups:      FindCgroups(mounts, Mount.Visible, os.ReadFile),
		Container:    findContainer(mounts, os.ReadFile, os.Getenv),
		Capabilities: ReadCapabilities(),
		AppArmor:     readWord("/sys/module/apparmor/parameters/enabled") == "Y",
		Memory:       ReadMemory(),
		Mounts:       mounts,
		Route:        route,
	}
}

// readWord returns the first line of a small file without white space, or "".
func readWord(path string) string {
	data, _ := os.ReadFile(path)
	first, _, _ := strings.Cut(string(data), "\n")
	return strings.TrimSpace(first)
}

// Flags are the mount flags (unix.ST_RDONLY, unix.ST_NOEXEC, …) that hold at the path.
func Flags(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0
	}
	return st.Flags
}

// Free is the space and the number of files that root may still use on the file system of path.
func Free(path string) (bytes, files uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, err
	}
	files = st.Ffree
	if st.Files == 0 { // file systems that make inodes as needed (btrfs) report none
		files = ^uint64(0)
	}
	return st.Bavail * uint64(st.Bsize), files, nil
}
