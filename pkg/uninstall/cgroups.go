package uninstall

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupDirs returns the folders of a cgroup and of those below it in all
// mounted hierarchies, parents first. An empty root has none.
func cgroupDirs(root string) []string {
	root = filepath.Clean("/" + root)
	if root == "/" {
		return nil
	}
	list, err := mounts()
	if err != nil {
		return nil
	}
	var dirs []string
	seen := make(map[string]bool)
	for _, m := range list {
		top := m.point + root
		if m.fs != "cgroup" && m.fs != "cgroup2" || seen[top] {
			continue
		}
		seen[top] = true
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
	}
	return dirs
}

// thaw lets frozen processes run, in either version of cgroups.
func thaw(root string) {
	for _, dir := range cgroupDirs(root) {
		for file, value := range map[string]string{"cgroup.freeze": "0", "freezer.state": "THAWED"} {
			path := filepath.Join(dir, file)
			if _, err := os.Stat(path); err == nil {
				_ = os.WriteFile(path, []byte(value), 0)
			}
		}
	}
}

// removeCgroups removes a cgroup and those below it. A cgroup is busy for a
// moment after its last process has ended, so it tries for some seconds.
func removeCgroups(ctx context.Context, root string) error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		var errs []error
		dirs := cgroupDirs(root)
		for i := len(dirs) - 1; i >= 0; i-- {
			if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("cannot remove the cgroup %s: %w", dirs[i], err))
			}
		}
		if len(errs) == 0 {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errs[0]
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}
