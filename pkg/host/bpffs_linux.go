package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BPFFS is where the BPF file system is mounted by convention.
const BPFFS = "/sys/fs/bpf"

// EnsureBPFFS makes sure that a writable BPF file system is mounted at path (normally BPFFS), where maps and
// programs are pinned so that they live through a restart. It mounts one when nothing is there.
func EnsureBPFFS(path string) error {
	mounted, err := isBPFFS(path)
	if errors.Is(err, os.ErrNotExist) {
		// Below /sys this fails unless the kernel has eBPF; elsewhere it makes the folder.
		err = os.MkdirAll(path, 0o755)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; the kernel needs CONFIG_BPF_SYSCALL", path, err)
	}
	if !mounted {
		if err := unix.Mount("bpf", path, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700"); err != nil {
			return fmt.Errorf("the BPF file system cannot be mounted at %s: %w; run: mount -t bpf bpf %s", path, err, path)
		}
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%s is mounted read-only, so the network cannot pin its maps; run: mount -o remount,rw %s", path, path)
	}
	return nil
}

func isBPFFS(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Type == unix.BPF_FS_MAGIC, nil
}
