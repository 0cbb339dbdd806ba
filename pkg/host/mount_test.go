package host

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inOwnMounts runs the test with mounts of its own; its thread ends with it.
func inOwnMounts(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	runtime.LockOSThread() // never unlocked: the thread, and its namespace, is thrown away
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		t.Skip("needs a mount namespace: ", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
}

func tmpfs(t *testing.T, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestOverlayProbe(t *testing.T) {
	inOwnMounts(t)
	dir := t.TempDir()
	tmpfs(t, dir, "size=1m")
	if err := OverlayWorks(dir); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("the probe left %v", left)
	}
	// An overlay on an overlay is what a container's root is, and the kernel refuses it.
	for _, d := range []string{"l", "u", "w", "m"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("overlay", dir+"/m", "overlay", 0, "lowerdir="+dir+"/l,upperdir="+dir+"/u,workdir="+dir+"/w"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir+"/m", unix.MNT_DETACH) }()
	if err := OverlayWorks(dir + "/m"); err == nil {
		t.Error("an overlay on an overlay was reported to work")
	} else {
		t.Log(err)
	}
	if left, _ := os.ReadDir(dir + "/m"); len(left) != 0 {
		t.Errorf("the probe left %v", left)
	}
}

func TestEnsureBPFFS(t *testing.T) {
	inOwnMounts(t)
	dir := filepath.Join(t.TempDir(), "bpf")
	if err := EnsureBPFFS(dir); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	if ok, err := isBPFFS(dir); !ok || err != nil {
		t.Errorf("not mounted: %v", err)
	}
	if err := EnsureBPFFS(dir); err != nil {
		t.Errorf("second call: %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if err := EnsureBPFFS(dir); err == nil || !strings.Contains(err.Error(), "read-only") || !strings.Contains(err.Error(), "remount,rw") {
		t.Errorf("read-only: %v", err)
	}
}

func TestCgroupsCoveredForReal(t *testing.T) {
	inOwnMounts(t)
	if _, err := os.Stat(cgroupRoot); err != nil {
		t.Skip("no ", cgroupRoot)
	}
	tmpfs(t, cgroupRoot, "")
	ms, err := ReadMounts()
	if err != nil {
		t.Fatal(err)
	}
	if c := FindCgroups(ms, Mount.Visible, os.ReadFile); c.Mode != CgroupNone {
		t.Errorf("control groups are seen through an empty tmpfs: %+v", c)
	}
}
