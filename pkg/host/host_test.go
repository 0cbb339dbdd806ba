package host

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func mounts(t *testing.T, lines ...string) Mounts {
	t.Helper()
	ms, err := ParseMounts(strings.NewReader(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return ms
}

const (
	rootfs  = "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw"
	sys     = "22 21 0:20 / /sys rw - sysfs sysfs rw"
	v2      = "30 22 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw"
	v2ro    = "30 22 0:25 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw"
	cgTmpfs = "30 22 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755"
	v1cpu   = "31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
	v1mem   = "32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
	v1pids  = "33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids"
	v1dev   = "34 30 0:30 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices"
	v1named = "35 30 0:31 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd"
	unified = "36 30 0:32 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
)

func TestFindCgroups(t *testing.T) {
	const covered = 99 // number of a file system that cannot be reached
	read := func(string) ([]byte, error) { return []byte("cpuset cpu io memory pids\n"), nil }
	for _, tc := range []struct {
		name        string
		lines       []string
		mode        CgroupMode
		controllers string
		unified     string
		readOnly    bool
		missing     string
	}{
		{"v2", []string{rootfs, sys, v2}, CgroupV2, "cpu cpuset io memory pids", "/sys/fs/cgroup", false, ""},
		{"v2 read-only", []string{rootfs, sys, v2ro}, CgroupV2, "cpu cpuset io memory pids", "/sys/fs/cgroup", true, ""},
		{"v1", []string{rootfs, sys, cgTmpfs, v1cpu, v1mem, v1pids, v1dev, v1named}, CgroupV1, "cpu cpuacct devices memory pids", "", false, ""},
		{"hybrid", []string{rootfs, sys, cgTmpfs, v1cpu, v1mem, v1pids, v1dev, v1named, unified}, CgroupHybrid, "cpu cpuacct devices memory pids", "/sys/fs/cgroup/unified", false, ""},
		{"v1 without memory", []string{rootfs, sys, cgTmpfs, v1cpu, v1pids, v1dev}, CgroupV1, "cpu cpuacct devices pids", "", false, "memory"},
		{"none", []string{rootfs, sys}, CgroupNone, "", "", false, "cpu memory pids cpuacct devices"},
		{"covered by an empty tmpfs", []string{rootfs, sys, strings.Replace(v2, "0:25", "0:99", 1), "40 30 0:40 / /sys/fs/cgroup rw - tmpfs tmpfs rw"}, CgroupNone, "", "", false, "cpu memory pids cpuacct devices"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := FindCgroups(mounts(t, tc.lines...), func(m Mount) bool { return m.Device != covered }, read)
			if c.Mode != tc.mode || strings.Join(c.Controllers, " ") != tc.controllers || c.Unified != tc.unified || c.ReadOnly != tc.readOnly {
				t.Errorf("got %+v", c)
			}
			if got := strings.Join(c.Missing(), " "); got != tc.missing {
				t.Errorf("missing %q, want %q", got, tc.missing)
			}
		})
	}
}

func TestMountOfPath(t *testing.T) {
	ms := mounts(t, rootfs, "40 21 8:2 / /var rw,noexec - xfs /dev/sdb1 rw", `41 40 8:3 / /var/my\040data ro - ext4 /dev/sdc1 rw`)
	for path, want := range map[string]string{"/var/lib/kombi": "/var", "/etc": "/", "/var/my data/x": "/var/my data", "/variable": "/"} {
		if got := ms.Of(path).Point; got != want {
			t.Errorf("Of(%s) = %s, want %s", path, got, want)
		}
	}
	if !ms.Of("/var/x").Has("noexec") || ms.Of("/etc").Has("noexec") {
		t.Error("noexec is not seen where it is")
	}
}

func TestParseKernel(t *testing.T) {
	for release, want := range map[string][2]int{"6.1.0-18-amd64": {6, 1}, "5.10.0": {5, 10}, "4.19": {4, 19}, "6.6-rc1": {6, 6}, "odd": {0, 0}} {
		if k := ParseKernel(release); k.Major != want[0] || k.Minor != want[1] {
			t.Errorf("%s: %+v", release, k)
		}
	}
	if !ParseKernel("5.10.1").AtLeast(5, 10) || ParseKernel("5.9.9").AtLeast(5, 10) || !ParseKernel("6.0").AtLeast(5, 10) {
		t.Error("AtLeast")
	}
}

func TestCapabilities(t *testing.T) {
	c := parseCapabilities("Name:\tx\nCapEff:\t000001fffeffffff\n")
	if c.SysResource() || !c.Has(unix.CAP_SYS_ADMIN) || len(c.Missing()) != 0 {
		t.Errorf("%x: %v", c, c.Missing())
	}
	if got := parseCapabilities("CapEff:\t00000000a80425fb\n").Missing(); !reflect.DeepEqual(got, []string{"CAP_SYS_ADMIN", "CAP_NET_ADMIN"}) {
		t.Errorf("a plain container misses %v", got)
	}
}

func TestFindContainer(t *testing.T) {
	files := func(m map[string]string) func(string) ([]byte, error) {
		return func(p string) ([]byte, error) {
			if s, ok := m[p]; ok {
				return []byte(s), nil
			}
			return nil, os.ErrNotExist
		}
	}
	none := func(string) string { return "" }
	for want, m := range map[string]map[string]string{
		"":               {},
		"podman":         {"/run/.containerenv": ""},
		"lxc":            {"/proc/1/environ": "A=b\x00container=lxc\x00"},
		"systemd-nspawn": {"/run/systemd/container": "systemd-nspawn\n"},
	} {
		if got := findContainer(nil, files(m), none); got != want {
			t.Errorf("%v: %q, want %q", m, got, want)
		}
	}
	docker := files(map[string]string{"/.dockerenv": ""})
	if got := findContainer(mounts(t, rootfs, "50 21 8:1 /x /etc/hosts rw - ext4 /dev/sda1 rw"), docker, none); got != "docker" {
		t.Errorf("in Docker: %q", got)
	}
	if got := findContainer(mounts(t, rootfs), docker, none); got != "" {
		t.Errorf("in an image that was once a container: %q", got)
	}
}

func TestMemory(t *testing.T) {
	m := parseMemory("MemTotal:       1000 kB\nMemAvailable:    500 kB\nSwapTotal: 0 kB\n")
	if m != (Memory{Total: 1024000, Available: 512000}) {
		t.Errorf("%+v", m)
	}
}

func TestListenersNameTheProcess(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("%s: %v", address, err)
			continue
		}
		port := l.Addr().(*net.TCPAddr).Port
		got, err := Listeners("/proc", port)
		if err != nil || len(got) != 1 {
			t.Fatalf("%v %v", got, err)
		}
		if got[0].PID != os.Getpid() || got[0].Command == "" || got[0].Address != netip.MustParseAddrPort(l.Addr().String()) {
			t.Errorf("got %+v", got[0])
		}
		_ = l.Close()
		if got, _ := Listeners("/proc", port); len(got) != 0 {
			t.Errorf("closed, and still there: %v", got)
		}
	}
}

func TestGatherOnThisMachine(t *testing.T) {
	f := Gather()
	if f.Kernel.Major == 0 || f.Memory.Total == 0 || len(f.Mounts) == 0 || f.Hostname == "" {
		t.Errorf("%+v", f)
	}
	t.Logf("cgroups %+v, container %q, route %+v, missing capabilities %v, sys_resource %v, apparmor %v",
		f.Cgroups, f.Container, f.Route, f.Capabilities.Missing(), f.Capabilities.SysResource(), f.AppArmor)
	if r, err := DefaultRoute(); err == nil && !r.Address.IsValid() {
		t.Errorf("route without address: %+v", r)
	} else if err != nil && !errors.Is(err, ErrNoRoute) {
		t.Error(err)
	}
}
