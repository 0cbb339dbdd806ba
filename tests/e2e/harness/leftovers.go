package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

const runPrefix = "/tmp/ke2e-" // short: sockets live below, and their paths are limited to 107 bytes

// newRunDir makes the folder of a run and locks its owner file, which has to stay
// open: the lock ends with this process, however that ends.
func newRunDir() (dir string, owner *os.File, err error) {
	if dir, err = os.MkdirTemp(filepath.Dir(runPrefix), filepath.Base(runPrefix)); err != nil {
		return "", nil, err
	}
	if owner, err = os.OpenFile(filepath.Join(dir, "owner.new"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(owner.Fd()), syscall.LOCK_EX); err != nil {
		return "", nil, err
	}
	// It gets its name when it is locked: one that is not locked is left over.
	return dir, owner, os.Rename(owner.Name(), filepath.Join(dir, ownerFile))
}

const ownerFile = "owner"

// removeLeftovers removes the folders of runs whose owner is gone. Their
// processes, mounts and interfaces went with their namespaces.
func removeLeftovers() {
	dirs, _ := filepath.Glob(runPrefix + "*")
	for _, dir := range dirs {
		owner, err := os.Open(filepath.Join(dir, ownerFile))
		if err != nil {
			continue // not ours, or just being made
		}
		if syscall.Flock(int(owner.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			removeRun(dir)
		}
		owner.Close()
	}
}

// removeRun removes a run's folder and its cgroups.
func removeRun(dir string) {
	removeCgroups(filepath.Base(dir))
	if keep := os.Getenv("KOMBI_E2E_KEEP"); keep != "" {
		fmt.Println("kept:", dir)
		return
	}
	if err := removeAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests: clean up:", err)
	}
}

// removeAll is os.RemoveAll that stays on the file system of dir.
func removeAll(dir string) error {
	var root unix.Stat_t
	if err := unix.Lstat(dir, &root); err != nil {
		return err
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err == nil && st.Dev != root.Dev {
			return fmt.Errorf("%s is still mounted", path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
