package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup file system.
type hierarchy struct {
	mount   string // such as /sys/fs/cgroup/memory
	kind    string // cgroup or cgroup2
	options string // the controllers of a version 1 hierarchy
}

// hierarchies lists what is mounted below /sys/fs/cgroup.
func hierarchies() ([]hierarchy, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var found []hierarchy
	for _, line := range strings.Split(string(data), "\n") {
		before, after, ok := strings.Cut(line, " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 3 || !strings.HasPrefix(fields[4], "/sys/fs/cgroup") {
			continue
		}
		switch h := (hierarchy{mount: fields[4], kind: rest[0]}); h.kind {
		case "cgroup":
			for _, o := range strings.Split(rest[2], ",") {
				if o != "rw" && o != "ro" {
					h.options += "," + o
				}
			}
			h.options = strings.TrimPrefix(h.options, ",")
			found = append(found, h)
		case "cgroup2":
			found = append(found, h)
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no cgroups are mounted at /sys/fs/cgroup")
	}
	return found, nil
}

// enterCgroups moves this process into a cgroup named after the run, in every
// hierarchy, and makes that the root of a new cgroup namespace for this thread
// and what it starts. One folder in each hierarchy holds all that a run makes.
func enterCgroups(name string) ([]hierarchy, error) {
	all, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range all {
		dir := filepath.Join(h.mount, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		// A new cpuset is empty, and an empty one takes no process.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if data, err := os.ReadFile(filepath.Join(h.mount, file)); err == nil && h.kind == "cgroup" {
				if err := os.WriteFile(filepath.Join(dir, file), data, 0); err != nil {
					return nil, err
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			return nil, err
		}
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return nil, fmt.Errorf("cgroup namespace: %w", err)
	}
	return all, nil
}

// mountCgroups mounts the hierarchies again as the new namespace sees them,
// below a tmpfs where the machine has several.
func mountCgroups(all []hierarchy) error {
	const sane = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if len(all) > 1 || all[0].mount != "/sys/fs/cgroup" {
		if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", sane, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := os.MkdirAll(h.mount, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(h.kind, h.mount, h.kind, sane, h.options); err != nil {
			return fmt.Errorf("mount %s: %w", h.mount, err)
		}
	}
	if len(all) > 1 || all[0].kind != "cgroup2" {
		return nil
	}
	// With version 2 alone a cgroup that gives controllers to others may hold
	// no processes: make the root of the namespace like that of a machine.
	leaf := "/sys/fs/cgroup/harness"
	if err := os.MkdirAll(leaf, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	controllers, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(controllers)) {
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+"+c), 0); err != nil {
			return fmt.Errorf("controller %s: %w", c, err)
		}
	}
	return nil
}

// removeCgroups removes the cgroup name with everything below it from every
// hierarchy. It holds no processes any more.
func removeCgroups(name string) {
	for _, base := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		tops, _ := filepath.Glob(filepath.Join(base, name))
		for _, top := range tops {
			var dirs []string
			_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for i := len(dirs) - 1; i >= 0; i-- {
				_ = syscall.Rmdir(dirs[i])
			}
		}
	}
}
