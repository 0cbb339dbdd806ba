package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const runPrefix = "/tmp/ke2e-" // short: sockets live below, and their paths are limited to 107 bytes

// newRunDir makes the folder of a run, with a note of who owns it.
func newRunDir() (string, error) {
	dir, err := os.MkdirTemp(filepath.Dir(runPrefix), filepath.Base(runPrefix))
	if err != nil {
		return "", err
	}
	owner := fmt.Sprintf("%d %s", os.Getpid(), startTime(os.Getpid()))
	return dir, os.WriteFile(filepath.Join(dir, "owner"), []byte(owner), 0o600)
}

// startTime identifies a process together with its id.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in parentheses, may hold blanks; field 22 is the start time.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 {
		return ""
	}
	return fields[19]
}

// removeLeftovers removes the folders of runs whose owner is gone. Their
// processes, mounts and interfaces went with their namespaces.
func removeLeftovers() {
	dirs, _ := filepath.Glob(runPrefix + "*")
	for _, dir := range dirs {
		owner, err := os.ReadFile(filepath.Join(dir, "owner"))
		if err != nil {
			continue // not ours, or just being made
		}
		pid, start, _ := strings.Cut(string(owner), " ")
		if n, err := strconv.Atoi(pid); err == nil && start != "" && startTime(n) == start {
			continue
		}
		removeRun(dir)
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
