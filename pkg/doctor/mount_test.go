package doctor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/host"
)

func flock(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
}

// TestDataDirOnBadFileSystems mounts small file systems in a mount namespace of the test's own.
func TestDataDirOnBadFileSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	for _, tc := range []struct {
		name    string
		flags   uintptr
		options string
		fill    bool
		want    string
	}{
		{"read-only", unix.MS_RDONLY, "size=1m", false, " is on a read-only file system; mount it writable, or choose another place with --data-dir"},
		{"noexec", unix.MS_NOEXEC, "size=1m", false, ", which is mounted noexec, so no program of a container could run; run: mount -o remount,exec "},
		{"small", 0, "size=16m", false, " has only 16 MB left, and a server needs 64 MB; free some space there, or choose another place with --data-dir"},
		{"full", 0, "size=64k", true, " is on a full file system; free some space there, or choose another place with --data-dir"},
		{"out of inodes", 0, "size=128m,nr_inodes=100", false, " can hold only "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			mnt := filepath.Join(dir, "data")
			if err := os.Mkdir(mnt, 0o755); err != nil {
				t.Fatal(err)
			}
			runtime.LockOSThread() // never unlocked: the thread, and its namespace, is thrown away
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				t.Skip("needs a mount namespace: ", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", mnt, "tmpfs", tc.flags, tc.options); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Unmount(mnt, unix.MNT_DETACH) }()
			if tc.fill {
				_ = os.WriteFile(filepath.Join(mnt, "fill"), make([]byte, 1<<20), 0o600)
			}
			facts := healthy()
			var err error
			if facts.Mounts, err = host.ReadMounts(); err != nil {
				t.Fatal(err)
			}
			f := Preflight(t.Context(), Options{DataDir: mnt + "/kombi", Facts: facts})
			if len(f) != 1 || !strings.Contains(f[0].String(), tc.want) {
				t.Errorf("got %v, want %q", f, tc.want)
			}
		})
	}
}
