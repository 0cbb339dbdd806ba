package uninstall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// marks are entries that a Kombi makes in its data directory before others.
var marks = []string{"bin", "server", "kubelet", "containerd", "node", "kombi.lock"}

// guard refuses data and runtime directories that cannot be Kombi's alone: a
// wrong --data-dir must not delete a system or a home.
func guard(o Options) error {
	for _, dir := range []string{o.DataDir, o.RunDir} {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("%q is not an absolute path: name the data directory with --data-dir", dir)
		}
		if err := shared(dir); err != nil {
			return err
		}
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			if err := shared(real); err != nil {
				return err
			}
		}
	}
	entries, err := os.ReadDir(o.DataDir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the data directory: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(marks, e.Name()) {
			return nil
		}
	}
	return fmt.Errorf("%s does not look like the data directory of a Kombi: nothing was removed; name the right one with --data-dir", o.DataDir)
}

func shared(dir string) error {
	refuse := fmt.Errorf("%s is not a directory of Kombi alone: nothing was removed; name the right one with --data-dir", dir)
	// A folder directly below / is accepted when it is none of the system's.
	system := []string{"/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root",
		"/run", "/sbin", "/srv", "/sys", "/tmp", "/usr", "/usr/local", "/usr/local/bin", "/var", "/var/lib", "/var/log", "/var/run", "/var/tmp"}
	if dir == "/" || slices.Contains(system, dir) {
		return refuse
	}
	for _, prefix := range []string{"/proc/", "/sys/", "/dev/", "/bin/", "/sbin/", "/lib/", "/usr/bin/", "/usr/lib/"} {
		if strings.HasPrefix(dir, prefix) {
			return refuse
		}
	}
	passwd, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(passwd)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 5 && f[5] == dir {
			return refuse
		}
	}
	return nil
}
