package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// disk is a small ext4 file system in a file. Its loop device goes away with
// the last mount of it, so with the namespace of the tests.
type disk struct {
	image string
	dir   string // where it is mounted
}

// newDisk makes a file system of some MB and mounts it at dir. It is called
// before newServer, so that the server is removed before the disk is.
func newDisk(t *testing.T, name, dir string, megabytes int64) *disk {
	t.Helper()
	if _, err := exec.LookPath("mkfs.ext4"); err != nil {
		t.Skip("mkfs.ext4 is not there: install e2fsprogs")
	}
	d := &disk{image: filepath.Join(harness.Dir(), name+".img"), dir: dir}
	if err := os.WriteFile(d.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(d.image, megabytes<<20); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Without space reserved for root, without lazy work that changes it later.
	run(t, "mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.image)
	d.mount(t)
	t.Cleanup(func() {
		_ = unix.Unmount(d.dir, unix.MNT_DETACH)
		_ = os.Remove(d.image)
	})
	return d
}

func (d *disk) mount(t *testing.T) {
	t.Helper()
	run(t, "mount", "-o", "loop", d.image, d.dir)
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// fill takes all space of the disk with one file.
func (d *disk) fill(t *testing.T) (ballast string) {
	t.Helper()
	ballast = filepath.Join(d.dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var at int64
	for chunk := int64(16 << 20); chunk >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, chunk); err != nil {
			chunk /= 2
			continue
		}
		at += chunk
	}
	return ballast
}

// pause stops a process where it is and returns once none of its threads runs
// or writes any more.
func pause(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if running := threadsNotStopped(pid); running == 0 {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("%d threads of process %d do not stop", running, pid)
		}
		time.Sleep(time.Millisecond)
	}
}

func threadsNotStopped(pid int) (n int) {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		text := string(data[strings.LastIndexByte(string(data), ')')+1:])
		if !strings.HasPrefix(text, " T") {
			n++
		}
	}
	return n
}
