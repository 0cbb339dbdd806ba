package uninstall

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup makes a cgroup below the node's root in the first hierarchy that lets
// processes in, and returns its folder.
func (n *node) cgroup(name string) string {
	n.t.Helper()
	list, err := mounts()
	n.must(err)
	for _, m := range list {
		dir := m.point + n.CgroupRoot + "/" + name
		if (m.fs == "cgroup" || m.fs == "cgroup2") && !strings.Contains(m.point, "cpuset") && os.MkdirAll(dir, 0o755) == nil {
			return dir
		}
	}
	n.t.Skip("no cgroup can be made here")
	return ""
}

func TestStopPodsEndsThePodsOfThisDataDirOnly(t *testing.T) {
	n := newNode(t)
	rootfs := filepath.Join(n.RunDir, "containerd", "rootfs")
	polite, stubborn, pause := n.program(rootfs, "web"), n.program(rootfs, "stubborn"), n.program(rootfs, "pause")
	address := []string{"-namespace", "k8s.io", "-address", filepath.Join(n.RunDir, "containerd", "containerd.sock")}

	// One shim that runs from the data directory, one known by its address.
	a, inA := n.startShim(n.program(filepath.Join(n.DataDir, "bin", "0123"), shimName), nil, "polite="+polite, "stubborn="+stubborn, "stubborn="+pause)
	elsewhere := n.program(t.TempDir(), shimName)
	b, inB := n.startShim(elsewhere, address, "polite="+polite, "stubborn="+pause)
	// A shim of another containerd on this machine.
	other, inOther := n.startShim(elsewhere, []string{"-address", n.RunDir + "-of-another/containerd/containerd.sock"}, "polite="+polite)
	// A container whose shim is dead.
	lost, err := startRole("stubborn", stubborn)
	n.must(err)
	n.pids = append(n.pids, lost)
	n.must(os.WriteFile(filepath.Join(n.cgroup("kubepods/pod1"), "cgroup.procs"), []byte(strconv.Itoa(lost)), 0))
	n.must(unix.Mount("tmpfs", filepath.Join(n.RunDir, "containerd"), "tmpfs", 0, "size=1m"))
	n.must(os.Mkdir(filepath.Join(n.RunDir, "containerd", "shm"), 0o755))
	n.must(unix.Mount("tmpfs", filepath.Join(n.RunDir, "containerd", "shm"), "tmpfs", 0, "size=1m"))

	began := time.Now()
	stopped, err := StopPods(t.Context(), n.Options)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	// web and stubborn of a, web of b, and the lost one; two ignored SIGTERM.
	if want := (Stopped{Pods: 2, Containers: 4, Killed: 2}); stopped != want {
		t.Errorf("stopped %+v, want %+v", stopped, want)
	}
	var ws unix.WaitStatus // the test is the parent of the lost one
	_, _ = unix.Wait4(lost, &ws, unix.WNOHANG, nil)
	for _, pid := range slices.Concat([]int{a.Process.Pid, b.Process.Pid, lost}, inA, inB) {
		if alive(pid) {
			t.Errorf("process %d is alive", pid)
		}
	}
	for _, pid := range append(inOther, other.Process.Pid) {
		if !alive(pid) {
			t.Errorf("process %d of another containerd was ended", pid)
		}
	}
	if points := mountPoints(); points[filepath.Join(n.RunDir, "containerd", "shm")] {
		t.Error("a mount of a pod is left")
	}
	again, err := StopPods(t.Context(), n.Options)
	if err != nil || again != (Stopped{}) {
		t.Errorf("a second run stopped %+v (%v)", again, err)
	}
}

func TestStopPodsThawsFrozenPods(t *testing.T) {
	n := newNode(t)
	list, err := mounts()
	n.must(err)
	var dir, file, value string
	for _, m := range list {
		try := m.point + n.CgroupRoot
		if m.fs != "cgroup" && m.fs != "cgroup2" || os.MkdirAll(try, 0o755) != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(try, "freezer.state")); err == nil {
			dir, file, value = try, "freezer.state", "FROZEN"
		} else if _, err := os.Stat(filepath.Join(try, "cgroup.freeze")); err == nil {
			dir, file, value = try, "cgroup.freeze", "1"
		}
	}
	if dir == "" {
		t.Skip("this machine has no freezer")
	}
	pid, err := startRole("polite", n.program(n.RunDir, "web"))
	n.must(err)
	n.pids = append(n.pids, pid)
	n.must(os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
	n.must(os.WriteFile(filepath.Join(dir, file), []byte(value), 0))

	stopped, err := StopPods(t.Context(), n.Options)
	if err != nil || stopped.Containers != 1 || stopped.Killed != 0 {
		t.Errorf("stopped %+v (%v)", stopped, err)
	}
	if alive(pid) {
		t.Error("the frozen process is alive")
	}
}
