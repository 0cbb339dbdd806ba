package uninstall

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func (n *node) write(path, content string) {
	n.t.Helper()
	n.must(os.MkdirAll(filepath.Dir(path), 0o755))
	n.must(os.WriteFile(path, []byte(content), 0o644))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// furnish gives the node a systemd unit, links, configuration and logs.
func (n *node) furnish() {
	n.write(filepath.Join(n.Root, "/etc/systemd/system/kombi.service"), "[Service]\nExecStart=/usr/local/bin/kombi \\\n\tserver \\\n\t'--data-dir' \\\n\t'"+n.DataDir+"'\n")
	n.write(filepath.Join(n.Root, "/etc/systemd/system/kombi.service.env"), "KOMBI_TOKEN=x\n")
	n.write(filepath.Join(n.BinDir, "kombi"), "program")
	n.must(os.Symlink("kombi", filepath.Join(n.BinDir, "kubectl")))
	n.must(os.Symlink(filepath.Join(n.BinDir, "kombi"), filepath.Join(n.BinDir, "ctr")))
	n.must(os.Symlink("/usr/bin/crictl", filepath.Join(n.BinDir, "crictl")))
	n.write(filepath.Join(n.ConfigDir, "config.yaml"), "")
	n.write(filepath.Join(n.DataDir, "server", "db", "state.db"), "rows")
	n.write(filepath.Join(n.DataDir, "kubelet", "pods", "uid-1", "etc-hosts"), "")
	n.write(filepath.Join(n.PodLogs, "default_web_uid-1", "web", "0.log"), "")
	n.write(filepath.Join(n.PodLogs, "default_other_uid-2", "web", "0.log"), "")
	n.write(filepath.Join(n.LogDir, "containers", "keep"), "")
	n.must(os.Symlink(filepath.Join(n.PodLogs, "default_web_uid-1", "web", "0.log"), filepath.Join(n.LogDir, "containers", "web.log")))
	n.must(os.Symlink(filepath.Join(n.PodLogs, "default_other_uid-2", "web", "0.log"), filepath.Join(n.LogDir, "containers", "other.log")))
}

func TestRunRemovesEverythingAndOnlyThat(t *testing.T) {
	n := newNode(t)
	n.furnish()
	_, pods := n.startShim(n.program(filepath.Join(n.DataDir, "bin", "0123"), shimName), nil, "polite="+n.program(n.RunDir, "web"))
	n.cgroup("kubepods/pod1/container")

	foreign := t.TempDir() // the user's own disk, mounted into a volume
	n.write(filepath.Join(foreign, "photo"), "precious")
	mountedDir := filepath.Join(n.DataDir, "storage", "pvc-1")
	n.must(os.MkdirAll(mountedDir, 0o755))
	n.must(unix.Mount(foreign, mountedDir, "", unix.MS_BIND, ""))
	mountedFile := filepath.Join(n.DataDir, "server", "token")
	n.write(mountedFile, "")
	n.must(unix.Mount(filepath.Join(foreign, "photo"), mountedFile, "", unix.MS_BIND, ""))
	stacked := filepath.Join(n.DataDir, "kubelet", "a b", "stacked")
	n.must(os.MkdirAll(stacked, 0o755))
	for range 2 {
		n.must(unix.Mount("tmpfs", stacked, "tmpfs", 0, "size=1m"))
		n.must(os.WriteFile(filepath.Join(stacked, "secret"), nil, 0o600))
	}
	busy, err := os.Open(filepath.Join(stacked, "secret")) // keeps an ordinary unmount from working
	n.must(err)
	defer busy.Close()
	outside := filepath.Join(t.TempDir(), "outside")
	n.write(outside, "x")
	n.must(os.Symlink(filepath.Dir(outside), filepath.Join(n.DataDir, "link")))

	cleaned := 0
	n.NetworkCleanup = func(context.Context) error {
		cleaned++
		for _, pid := range pods {
			if alive(pid) {
				t.Error("the network was removed before the pods")
			}
		}
		return nil
	}
	if err := Run(t.Context(), n.Options); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{n.DataDir, n.RunDir, n.ConfigDir,
		filepath.Join(n.BinDir, "kombi"), filepath.Join(n.BinDir, "kubectl"), filepath.Join(n.BinDir, "ctr"),
		filepath.Join(n.Root, "/etc/systemd/system/kombi.service"), filepath.Join(n.Root, "/etc/systemd/system/kombi.service.env"),
		filepath.Join(n.PodLogs, "default_web_uid-1"), filepath.Join(n.LogDir, "containers", "web.log")} {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	for _, path := range []string{filepath.Join(foreign, "photo"), outside, filepath.Join(n.BinDir, "crictl"),
		filepath.Join(n.PodLogs, "default_other_uid-2"), filepath.Join(n.LogDir, "containers", "other.log")} {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	if len(cgroupDirs(n.CgroupRoot)) != 0 {
		t.Errorf("cgroups are left: %v", cgroupDirs(n.CgroupRoot))
	}
	if err := Run(t.Context(), n.Options); err != nil || cleaned != 2 {
		t.Errorf("a second run: %v", err)
	}
}

func TestRunEndsTheServerButNotItself(t *testing.T) {
	n := newNode(t)
	server, err := startRole("polite", n.program(filepath.Join(n.DataDir, "bin", "0123"), "kombi"))
	n.must(err)
	byFlag, err := startRole("polite", n.program(t.TempDir(), "kombi"), "server", "--data-dir", n.DataDir)
	n.must(err)
	other, err := startRole("polite", n.program(t.TempDir(), "kombi"), "server", "--data-dir", n.DataDir+"2")
	n.must(err)
	n.pids = append(n.pids, server, byFlag, other)
	if err := Run(t.Context(), n.Options); err != nil {
		t.Fatal(err)
	}
	if alive(server) || alive(byFlag) {
		t.Error("the server is alive")
	}
	if !alive(other) {
		t.Error("another server was ended")
	}
}

func TestUnmountingARecursiveBindDoesNotUnmountTheOriginal(t *testing.T) {
	n := newNode(t)
	machine := t.TempDir() // plays /, which is shared under systemd
	n.must(unix.Mount("tmpfs", machine, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { _ = unix.Unmount(machine, unix.MNT_DETACH) })
	n.must(unix.Mount("", machine, "", unix.MS_SHARED, ""))
	proc := filepath.Join(machine, "proc")
	n.must(os.Mkdir(proc, 0o755))
	n.must(unix.Mount("tmpfs", proc, "tmpfs", 0, "size=1m"))
	hostPath := filepath.Join(n.RunDir, "containerd", "rootfs-host")
	n.must(os.MkdirAll(hostPath, 0o755))
	n.must(unix.Mount(machine, hostPath, "", unix.MS_BIND|unix.MS_REC, ""))

	if count, err := unmountBelow(n.RunDir); err != nil || count == 0 {
		t.Fatalf("unmounted %d (%v)", count, err)
	}
	points := mountPoints()
	if points[hostPath] || points[filepath.Join(hostPath, "proc")] {
		t.Error("a mount below the run directory is left")
	}
	if !points[proc] {
		t.Error("the machine's own mount was unmounted")
	}
}

func TestRemoveTreeStopsAtMountPoints(t *testing.T) {
	for _, old := range []bool{false, true} {
		name := "openat2"
		if old {
			name = "without openat2"
		}
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			foreign := t.TempDir()
			n.write(filepath.Join(foreign, "photo"), "precious")
			point := filepath.Join(n.DataDir, "storage", "pvc-1")
			n.must(os.MkdirAll(point, 0o755))
			n.must(unix.Mount(foreign, point, "", unix.MS_BIND, "")) // the same device: only the mount differs
			n.write(filepath.Join(n.DataDir, "storage", "pvc-2", "file"), "")
			var kept []string
			if old {
				r := remover{mounts: map[string]bool{}}
				storage, err := unix.Open(filepath.Dir(point), unix.O_PATH|unix.O_DIRECTORY, 0)
				n.must(err)
				defer unix.Close(storage)
				if fd, err := r.openOld(storage, "pvc-1", point); !errors.Is(err, unix.EXDEV) {
					t.Errorf("opened %d (%v), want EXDEV", fd, err)
				}
				fd, err := r.openOld(storage, "pvc-2", filepath.Join(filepath.Dir(point), "pvc-2"))
				n.must(err)
				r.empty(fd, "pvc-2")
				if exists(filepath.Join(n.DataDir, "storage", "pvc-2", "file")) {
					t.Error("a file is left")
				}
				return
			}
			kept, err := removeTree(n.DataDir)
			if err != nil || len(kept) != 1 || kept[0] != point {
				t.Errorf("kept %v (%v), want %s", kept, err, point)
			}
			if !exists(filepath.Join(foreign, "photo")) {
				t.Error("a file behind the mount point is gone")
			}
			if exists(filepath.Join(n.DataDir, "storage", "pvc-2")) || exists(filepath.Join(n.DataDir, "server")) {
				t.Error("something that is not behind the mount point is left")
			}
		})
	}
}

func TestADataDirThatIsAMountPointIsEmptied(t *testing.T) {
	n := newNode(t)
	n.must(unix.Mount("tmpfs", n.DataDir, "tmpfs", 0, "size=1m"))
	n.write(filepath.Join(n.DataDir, "server", "token"), "x")
	if err := Run(t.Context(), n.Options); err != nil {
		t.Fatal(err)
	}
	if !mountPoints()[n.DataDir] {
		t.Error("the user's mount is gone")
	}
	if left, _ := os.ReadDir(n.DataDir); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestADataDirBehindALinkIsRemovedWithTheLink(t *testing.T) {
	n := newNode(t)
	disk := filepath.Join(t.TempDir(), "disk", "kombi")
	n.must(os.MkdirAll(filepath.Join(disk, "server"), 0o755))
	n.must(os.RemoveAll(n.DataDir))
	n.must(os.Symlink(disk, n.DataDir))
	if err := Run(t.Context(), n.Options); err != nil {
		t.Fatal(err)
	}
	if exists(disk) || exists(n.DataDir) || !exists(filepath.Dir(disk)) {
		t.Error("the folder or the link is left, or the disk is gone")
	}
}

func TestAnotherKombiOnTheMachineKeepsTheSharedFiles(t *testing.T) {
	n := newNode(t)
	n.furnish()
	unit := filepath.Join(n.Root, "/etc/systemd/system/kombi-two.service")
	n.write(unit, "[Service]\nExecStart=/usr/local/bin/kombi server -d /srv/two\n")
	if err := Run(t.Context(), n.Options); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{unit, n.ConfigDir, filepath.Join(n.BinDir, "kombi"), filepath.Join(n.BinDir, "kubectl")} {
		if !exists(path) {
			t.Errorf("%s is gone", path)
		}
	}
	for _, path := range []string{n.DataDir, filepath.Join(n.Root, "/etc/systemd/system/kombi.service")} {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	n := newNode(t)
	foreign := t.TempDir()
	n.write(filepath.Join(foreign, "letter"), "")
	link := filepath.Join(t.TempDir(), "link")
	n.must(os.Symlink("/usr", link))
	for _, dir := range []string{"/", "/usr", "/var/lib", "/home", "/root", "/etc/..", "relative", "", "/proc/1", foreign, link} {
		o := n.Options
		o.DataDir = dir
		err := Run(t.Context(), o)
		if err == nil || !strings.Contains(err.Error(), "--data-dir") {
			t.Errorf("data directory %q: error %v", dir, err)
		}
	}
	if !exists(filepath.Join(foreign, "letter")) {
		t.Error("a foreign file is gone")
	}
}

func TestRunAsksFirst(t *testing.T) {
	n := newNode(t)
	n.Yes = false
	for _, answer := range []string{"", "\n", "no\n", "yess\n"} {
		n.In = strings.NewReader(answer)
		if err := Run(t.Context(), n.Options); !errors.Is(err, ErrNotConfirmed) || !exists(n.DataDir) {
			t.Errorf("answer %q: %v", answer, err)
		}
	}
	n.In = strings.NewReader("yes\n")
	if err := Run(t.Context(), n.Options); err != nil || exists(n.DataDir) {
		t.Errorf("answer yes: %v", err)
	}
}

func TestAFailureNamesWhatIsLeftAndTheRestIsRemoved(t *testing.T) {
	n := newNode(t)
	n.furnish()
	n.NetworkCleanup = func(context.Context) error { return errors.New("link kombi0: device or resource busy") }
	err := Run(t.Context(), n.Options)
	if err == nil || !strings.Contains(err.Error(), "kombi0") || !strings.Contains(err.Error(), "run it again") {
		t.Errorf("error %v", err)
	}
	if exists(n.DataDir) {
		t.Error("the data directory is left")
	}
}

func TestWords(t *testing.T) {
	for in, want := range map[string]string{
		`a b`:                       "a|b",
		`'a b' "c d"`:               "a b|c d",
		`a\ b`:                      "a b",
		`--x='y z'w ""`:             "--x=y zw|",
		"  /usr/bin/kombi \tserver": "/usr/bin/kombi|server",
	} {
		if got := strings.Join(words(in), "|"); got != want {
			t.Errorf("words(%s) = %s, want %s", in, got, want)
		}
	}
}
