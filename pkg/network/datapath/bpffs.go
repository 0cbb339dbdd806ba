package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const defaultBPFFS = "/sys/fs/bpf"

// EnsureBPFFS makes dir on a bpf file system, mounting the usual one if it is not there.
func EnsureBPFFS(dir string) error {
	parent := dir
	for {
		var st unix.Statfs_t
		err := unix.Statfs(parent, &st)
		if err == nil && st.Type == unix.BPF_FS_MAGIC {
			break
		}
		if err == nil || !errors.Is(err, unix.ENOENT) {
			if strings.HasPrefix(dir+"/", defaultBPFFS+"/") && onlyBelow(parent) {
				if err := unix.Mount("bpf", defaultBPFFS, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
					return fmt.Errorf("cannot mount the bpf file system at %s: %w; mount it before starting Kombi", defaultBPFFS, err)
				}
				break
			}
			return fmt.Errorf("%s is not on a bpf file system; mount one there or choose a directory below %s", dir, defaultBPFFS)
		}
		parent = filepath.Dir(parent)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot write to the bpf file system: %w; remount it writable", err)
	}
	return nil
}

// onlyBelow tells whether path is where the bpf file system belongs, or above it.
func onlyBelow(path string) bool {
	return strings.HasPrefix(defaultBPFFS+"/", strings.TrimSuffix(path, "/")+"/")
}
