package badinput

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestMachine has rows where the configuration is right and the machine is not: kombi server says so before it
// begins, and writes nothing.
func TestMachine(t *testing.T) {
	const elsewhere = "choose another place with --data-dir"
	for _, row := range []struct {
		name   string
		setup  func(t *testing.T, dir string) // dir holds data, run and the kubeconfig
		mounts func(t *testing.T, dir string)
		args   []string
		user   uint32
		drop   []uintptr
		want   []string
	}{
		{name: "not root", user: 65534, setup: openTo(0o644), args: []string{"--config={dir}/config.yaml"}, want: []string{"Kombi needs root", "run it with sudo"}},
		{name: "configuration for root only", user: 65534, setup: openTo(0o600), args: []string{"--config={dir}/config.yaml"},
			want: []string{"/config.yaml: the file cannot be read: permission denied", "run it as root"}},
		{name: "without a capability", drop: []uintptr{unix.CAP_NET_ADMIN}, want: []string{"lacks CAP_NET_ADMIN", "start it with all capabilities"}},
		{name: "data directory on a read-only file system", mounts: onData(unix.MS_RDONLY, ""), want: []string{"is on a read-only file system", elsewhere}},
		{name: "data directory on a full file system", mounts: func(t *testing.T, dir string) {
			onData(0, "size=64k")(t, dir)
			_ = os.WriteFile(dir+"/data/fill", make([]byte, 1<<20), 0o600)
		}, want: []string{"is on a full file system", "free some space", elsewhere}},
		{name: "data directory on a small file system", mounts: onData(0, "size=20m"), want: []string{"has only 20 MB left, and a server needs", "free some space", elsewhere}},
		{name: "data directory mounted noexec", mounts: onData(unix.MS_NOEXEC, "size=200m"), want: []string{"mounted noexec", "remount,exec", elsewhere}},
		{name: "data directory out of inodes", mounts: onData(0, "size=200m,nr_inodes=50"), want: []string{"more files", "remove some files", elsewhere}},
		{name: "file in place of the data directory", setup: func(t *testing.T, dir string) { put(t, dir+"/data", "x") },
			want: []string{"is not a folder", "move it away", elsewhere}},
		{name: "file in place of a parent", setup: func(t *testing.T, dir string) { put(t, dir+"/file", "x") }, args: []string{"--data-dir={dir}/file/data"},
			want: []string{"cannot be made", "/file is not a folder", elsewhere}},
		{name: "run directory on a read-only file system", mounts: func(t *testing.T, dir string) {
			must(t, os.Mkdir(dir+"/run", 0o755))
			mount(t, "tmpfs", dir+"/run", unix.MS_RDONLY, "")
		}, args: []string{"--run-dir={dir}/run"}, want: []string{"the run directory", "read-only file system", "--run-dir"}},
		{name: "folder in place of the kubeconfig", setup: func(t *testing.T, dir string) { must(t, os.Mkdir(dir+"/kombi.yaml", 0o755)) },
			want: []string{"kombi.yaml is a folder", "--write-kubeconfig"}},
		{name: "port of the API in use", setup: func(t *testing.T, _ string) { listen(t, "127.0.0.1:16443") }, args: []string{"--https-listen-port=16443"},
			want: []string{"port 16443 is in use by " + self(t), "choose another port with --https-listen-port"}},
		{name: "port of the kubelet in use", setup: func(t *testing.T, _ string) { listen(t, "0.0.0.0:16250") }, args: []string{"--kubelet-port=16250"},
			want: []string{"port 16250 is in use by " + self(t), "choose another port with --kubelet-port"}},
		{name: "address of another machine", args: []string{"--bind-address=198.51.100.7"}, want: []string{"198.51.100.7 does not belong to this machine", "give an address of this machine"}},
		{name: "node address of another machine", args: []string{"--node-ip=198.51.100.7"}, want: []string{"198.51.100.7 does not belong to this machine", "give an address of this machine with --node-ip"}},
		{name: "IPv6 on a machine without it", args: []string{"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112"},
			want: []string{"this machine has no IPv6 address", "name it with --node-ip", "choose IPv4 networks only"}},
		{name: "read-only BPF file system", mounts: func(t *testing.T, _ string) {
			mount(t, "bpf", "/sys/fs/bpf", 0, "")
			mount(t, "", "/sys/fs/bpf", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
		}, want: []string{"/sys/fs/bpf is mounted read-only", "mount -o remount,rw /sys/fs/bpf"}},
		{name: "no control groups", mounts: func(t *testing.T, _ string) { mount(t, "tmpfs", "/sys/fs/cgroup", 0, "") },
			want: []string{"no control groups are mounted at /sys/fs/cgroup", "mount them"}},
		{name: "cgroup2 without controllers", mounts: func(t *testing.T, _ string) {
			mount(t, "tmpfs", "/sys/fs/cgroup", 0, "")
			mount(t, "cgroup2", "/sys/fs/cgroup", 0, "")
			if data, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers"); err == nil && strings.Contains(string(data), "memory") {
				t.Skip("cgroup2 has the controllers here")
			}
		}, want: []string{"the control group controllers", "memory", "are missing"}},
		{name: "data directory of a running server", setup: func(t *testing.T, dir string) {
			put(t, dir+"/data/kombi.lock", strconv.Itoa(os.Getpid()))
			f, err := os.Open(dir + "/data/kombi.lock")
			must(t, err)
			t.Cleanup(func() { _ = f.Close() })
			must(t, unix.Flock(int(f.Fd()), unix.LOCK_EX))
		}, want: []string{fmt.Sprintf("another Kombi (process %d) is running with the data directory", os.Getpid()), "kombi stop"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path, env := program(t)
			dir := shortDir(t)
			if row.setup != nil {
				row.setup(t, dir)
			}
			args := []string{"server", "--config=" + emptyFile(t), "--data-dir=" + dir + "/data", "--write-kubeconfig=" + dir + "/kombi.yaml"}
			for _, a := range row.args {
				args = append(args, strings.ReplaceAll(a, "{dir}", dir))
			}
			s := start{path: path, env: env, args: args, user: row.user, drop: row.drop}
			before := listing(t, dir)
			if row.mounts != nil {
				s.mounts = func(t *testing.T) { row.mounts(t, dir) }
			}
			run(t, s).refused(t, row.want...)
			if after := listing(t, dir); after != before {
				t.Errorf("something was written:\n%s", after)
			}
		})
	}
}

// openTo lets another user into the folders of the test, and to a configuration file with that mode.
func openTo(mode os.FileMode) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		put(t, dir+"/config.yaml", "max-pods: 50\n")
		must(t, errors.Join(os.Chmod(dir+"/config.yaml", mode), os.Chmod(dir, 0o777), os.Chmod(harness.Dir(), 0o711)))
	}
}

// onData mounts a small file system as the data directory.
func onData(flags uintptr, options string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		must(t, os.MkdirAll(dir+"/data", 0o755))
		mount(t, "tmpfs", dir+"/data", flags, options)
	}
}

// mount is undone by the end of the mount namespace of the run.
func mount(t *testing.T, kind, dir string, flags uintptr, options string) {
	t.Helper()
	must(t, unix.Mount(kind, dir, kind, flags, options))
}

func listen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
}

// self is how this test is named as the user of a port.
func self(t *testing.T) string {
	t.Helper()
	comm, err := os.ReadFile("/proc/self/comm")
	must(t, err)
	return fmt.Sprintf("%s (process %d)", strings.TrimSpace(string(comm)), os.Getpid())
}

// shortDir leaves room for the names of sockets below a data directory.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(harness.Dir(), "b")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func emptyFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	put(t, path, "")
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
		panic(err) // also ends the goroutine of a run, where FailNow may not be called
	}
}
