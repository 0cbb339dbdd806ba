package storage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func newDir(t *testing.T) *volumeDir {
	t.Helper()
	d := &volumeDir{root: filepath.Join(t.TempDir(), "storage")}
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestCreateIsOpenToAllAndRepeatable(t *testing.T) {
	d := newDir(t)
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	for range 2 {
		path, err := d.create("pvc-1", "shop", "data")
		if err != nil {
			t.Fatal(err)
		}
		if want := filepath.Join(d.root, "pvc-1_shop_data"); path != want {
			t.Errorf("path %s, want %s", path, want)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o777 {
			t.Errorf("mode %v, error %v", info.Mode(), err)
		}
	}
	if info, _ := os.Stat(d.root); info.Mode().Perm() != 0o700 {
		t.Errorf("everyone may look into the folder of all volumes: %v", info.Mode())
	}
}

func TestNamesFit(t *testing.T) {
	long := strings.Repeat("c", 253)
	a, b := directoryName("pvc-1", strings.Repeat("n", 63), long), directoryName("pvc-1", strings.Repeat("n", 63), long[:252]+"d")
	if len(a) > maxName || a == b || !strings.HasPrefix(a, "pvc-1_nnn") {
		t.Errorf("names %q and %q", a, b)
	}
}

// fill makes a tree with links out of it, odd names and deep folders.
func fill(t *testing.T, path, outside string) {
	t.Helper()
	deep := filepath.Join(path, "a", "b\nc", "d")
	must(t, os.MkdirAll(deep, 0o000|0o700))
	for i := range 1200 {
		must(t, os.WriteFile(filepath.Join(deep, fmt.Sprint(i)), nil, 0o400))
	}
	must(t, os.Symlink(outside, filepath.Join(path, "out")))
	must(t, os.Symlink("nowhere", filepath.Join(path, "dangling")))
	must(t, os.WriteFile(filepath.Join(path, ".hidden"), []byte("x"), 0o000))
	must(t, unix.Mkfifo(filepath.Join(path, "pipe"), 0o600))
	must(t, os.Mkdir(filepath.Join(path, "closed"), 0o000))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRemove(t *testing.T) {
	d := newDir(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), []byte("x"), 0o600))
	path, err := d.create("pvc-1", "shop", "data")
	must(t, err)
	fill(t, path, outside)
	must(t, d.remove(t.Context(), path, "pvc-1"))
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the directory is there: %v", err)
	}
	if left, _ := os.ReadDir(d.trash()); len(left) > 0 {
		t.Errorf("the trash holds %v", left)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	// Once more: nothing to do is no error.
	must(t, d.remove(t.Context(), path, "pvc-1"))
}

func TestRemoveIsResumed(t *testing.T) {
	d := newDir(t)
	path, err := d.create("pvc-1", "shop", "data")
	must(t, err)
	fill(t, path, t.TempDir())
	// As after a crash in the middle.
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.remove(cancelled, path, "pvc-1"); err == nil {
		t.Fatal("no error")
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Error("a volume that is being deleted is in its place")
	}
	must(t, d.emptyTrash(t.Context()))
	if left, _ := os.ReadDir(d.trash()); len(left) > 0 {
		t.Errorf("the trash holds %v", left)
	}
}

func TestRemoveTouchesNothingElse(t *testing.T) {
	d := newDir(t)
	other := t.TempDir()
	path, err := d.create("pvc-1", "shop", "data")
	must(t, err)
	for _, c := range []struct{ path, volume string }{
		{other, "pvc-1"},
		{"/", "pvc-1"},
		{d.root, "pvc-1"},
		{d.trash(), "pvc-1"},
		{path, "pvc-2"},
		{path, ""},
		{path + "/../../" + filepath.Base(other), "pvc-1"},
		{filepath.Join(path, "sub"), "pvc-1"},
	} {
		if err := d.remove(t.Context(), c.path, c.volume); err == nil {
			t.Errorf("%s may be removed for %q", c.path, c.volume)
		}
	}
	for _, p := range []string{other, path} {
		if _, err := os.Stat(p); err != nil {
			t.Error(err)
		}
	}
}

func TestRemoveStopsAtMountPoints(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	d := newDir(t)
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "keep"), []byte("x"), 0o600))
	path, err := d.create("pvc-1", "shop", "data")
	must(t, err)
	at := filepath.Join(path, "mounted here")
	must(t, os.Mkdir(at, 0o700))
	if err := unix.Mount(outside, at, "", unix.MS_BIND, ""); err != nil {
		t.Skip("bind mounts are not possible here: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	err = d.remove(t.Context(), path, "pvc-1")
	if err == nil || !strings.Contains(err.Error(), at) {
		t.Errorf("error %v", err)
	}

	// The same below the trash, where the first check does not look.
	dir, err := openDir(unix.AT_FDCWD, d.root)
	must(t, err)
	defer dir.Close()
	if err := removeAt(t.Context(), dir, filepath.Base(path), d.root); err == nil || !strings.Contains(err.Error(), "something is mounted at") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error(err)
	}
	must(t, unix.Unmount(at, 0))
	must(t, d.remove(t.Context(), path, "pvc-1"))
}

func TestFree(t *testing.T) {
	d := newDir(t)
	if free, err := d.free(); err != nil || free <= 0 {
		t.Errorf("%d, %v", free, err)
	}
	must(t, os.RemoveAll(d.root))
	if _, err := d.free(); err == nil {
		t.Error("no error without a folder")
	}
}
