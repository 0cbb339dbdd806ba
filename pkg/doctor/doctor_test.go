package doctor

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/pkg/host"
)

// healthy is a machine on which nothing is wrong.
func healthy() *host.Facts {
	return &host.Facts{
		Root: true, Kernel: host.ParseKernel("6.6.1"), Capabilities: ^host.Capabilities(0),
		Memory: host.Memory{Total: 4 << 30, Available: 2 << 30},
		Cgroups: host.Cgroups{Mode: host.CgroupV2, Unified: "/sys/fs/cgroup",
			Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"}},
	}
}

func TestFindingsFromFacts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*host.Facts)
		want   string // "" is nothing
	}{
		{"healthy", func(*host.Facts) {}, ""},
		{"not root", func(f *host.Facts) { f.Root = false }, "error: Kombi needs root to run containers; run it with sudo.\n"},
		{"old kernel", func(f *host.Facts) { f.Kernel = host.ParseKernel("4.19.0-26-amd64") },
			"error: the kernel 4.19.0-26-amd64 is too old for the network's eBPF programs; install a kernel of version 5.10 or newer.\n"},
		{"no cgroups", func(f *host.Facts) { f.Cgroups = host.Cgroups{Mode: host.CgroupNone} },
			"error: no control groups are mounted at /sys/fs/cgroup, so pods cannot be run; mount them: mount -t cgroup2 cgroup2 /sys/fs/cgroup.\n"},
		{"no memory controller", func(f *host.Facts) { f.Cgroups.Controllers = []string{"cpu", "pids"} },
			"error: the control group controllers memory are missing, which the kubelet needs; enable them on the kernel's command line, for example: cgroup_enable=memory cgroup_memory=1.\n"},
		{"cgroups read-only in a container", func(f *host.Facts) { f.Cgroups.ReadOnly, f.Container = true, "docker" },
			"error: the control groups in /sys/fs/cgroup are mounted read-only; start the container with its control groups, for example --cgroupns private and a writable /sys/fs/cgroup.\n"},
		{"v1 without cgroup2", func(f *host.Facts) {
			f.Cgroups = host.Cgroups{Mode: host.CgroupV1, Controllers: []string{"cpu", "cpuacct", "devices", "memory", "pids"}}
		}, "warning: there is no cgroup2 mount, so service addresses are translated for pods only and not for this machine itself; mount one: mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified.\n"},
		{"capabilities in a container", func(f *host.Facts) { f.Capabilities &^= 1 << 21; f.Container = "docker" },
			"error: this process lacks CAP_SYS_ADMIN; start the container with --privileged, or --cap-add ALL.\n"},
		{"little memory", func(f *host.Facts) { f.Memory.Available = 100 << 20 },
			"warning: only 100 MiB of memory are free, and a server needs about 400; stop other programs, or add memory.\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			facts := healthy()
			tc.change(facts)
			findings := Preflight(t.Context(), Options{DataDir: t.TempDir(), NeedBytes: 1, Facts: facts})
			var out bytes.Buffer
			if err := Print(&out, findings); err != nil {
				t.Fatal(err)
			}
			if out.String() != tc.want {
				t.Errorf("got  %swant %s", out.String(), tc.want)
			}
			if wantErr := strings.HasPrefix(tc.want, "error"); (Err(findings) != nil) != wantErr {
				t.Errorf("Err = %v", Err(findings))
			}
		})
	}
}

func TestClock(t *testing.T) {
	for year, want := range map[int]string{1970: "the clock says 1970-01-01, which is in the past", 2030: "", 2200: "the clock says 2200-01-01, which cannot be right"} {
		o := Options{DataDir: t.TempDir(), NeedBytes: 1, Facts: healthy(),
			Now: func() time.Time { return time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC) }}
		got := ""
		if f := Preflight(t.Context(), o); len(f) > 0 {
			got = f[0].Sentence
		}
		if got != want {
			t.Errorf("%d: %q, want %q", year, got, want)
		}
	}
}

func TestPortInUseNamesTheProcess(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := int(netip.MustParseAddrPort(l.Addr().String()).Port())
	f := Preflight(t.Context(), Options{DataDir: t.TempDir(), NeedBytes: 1, Facts: healthy(),
		Ports: []Port{{Key: "https-listen-port", Address: "127.0.0.1", Number: port}, {Key: "kubelet-port", Address: "127.0.0.1", Number: 0}}})
	comm, _ := os.ReadFile("/proc/self/comm")
	want := "port " + strconv.Itoa(port) + " is in use by " + strings.TrimSpace(string(comm)) + " (process " + strconv.Itoa(os.Getpid()) +
		"); stop it, or choose another port with --https-listen-port"
	if len(f) != 1 || f[0].String() != want || f[0].Severity != Error {
		t.Errorf("got %v, want %s", f, want)
	}
}

func TestAddressOfAnotherMachine(t *testing.T) {
	f := Preflight(t.Context(), Options{DataDir: t.TempDir(), NeedBytes: 1, Facts: healthy(),
		Ports: []Port{{Key: "https-listen-port", Address: "198.51.100.7", Number: 6443}}})
	if len(f) != 1 || f[0].String() != "the address 198.51.100.7 does not belong to this machine; give an address of this machine" {
		t.Errorf("got %v", f)
	}
}

func TestAnotherServerIsNamed(t *testing.T) {
	dir := t.TempDir()
	lock := filepath.Join(dir, "kombi.lock")
	o := Options{DataDir: dir, NeedBytes: 1, Facts: healthy(), Lock: lock}
	if f := Preflight(t.Context(), o); len(f) != 0 {
		t.Errorf("without a lock file: %v", f)
	}
	file, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	_, _ = file.WriteString("4242\n")
	if f := Preflight(t.Context(), o); len(f) != 0 {
		t.Errorf("a lock file that nobody holds: %v", f)
	}
	flock(t, file)
	want := "another Kombi (process 4242) is running with the data directory " + dir + "; stop it with: kombi stop --data-dir " + dir + ", or give this one another --data-dir"
	if f := Preflight(t.Context(), o); len(f) != 1 || f[0].String() != want {
		t.Errorf("got %v", f)
	}
}

func TestDataDir(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ path, want string }{
		{filepath.Join(dir, "not", "yet"), ""},
		{file, "the data directory " + file + " is not a folder; move it away, or choose another place with --data-dir"},
		{file + "/x", "the data directory " + file + "/x cannot be made: " + file + " is not a folder; move it away, or choose another place with --data-dir"},
	} {
		got := ""
		if f := Preflight(t.Context(), Options{DataDir: tc.path, NeedBytes: 1, Facts: healthy()}); len(f) > 0 {
			got = f[0].String()
		}
		if got != tc.want {
			t.Errorf("%s: %q", tc.path, got)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("the checks left %v", left)
	}
}

func TestResolvConf(t *testing.T) {
	for text, want := range map[string]string{
		"nameserver 192.0.2.53\n": "", "nameserver 127.0.0.1\nnameserver 192.0.2.53": "",
		"search x\n":             " names no name server, so names outside the cluster cannot be looked up",
		"nameserver 127.0.0.1\n": " names only this machine itself, so names outside the cluster can be looked up only while its own resolver runs",
	} {
		file := filepath.Join(t.TempDir(), "resolv.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		if f := Preflight(t.Context(), Options{DataDir: t.TempDir(), NeedBytes: 1, Facts: healthy(), ResolvConf: file}); len(f) > 0 {
			got = strings.TrimPrefix(f[0].Sentence, file)
		}
		if strings.Contains(want, "only this machine") && fileExists("/run/systemd/resolve/resolv.conf") {
			continue
		}
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestUFW(t *testing.T) {
	if !ufwEnabled("# x\nENABLED=yes\n") || ufwEnabled("ENABLED=no\n") || ufwEnabled("") {
		t.Error("ufw.conf is misread")
	}
}

func TestACancelledContextStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := Preflight(ctx, Options{DataDir: "/nonexistent", Facts: &host.Facts{}}); len(f) != 0 {
		t.Errorf("got %v", f)
	}
}

func TestAdviceForEachPodNetwork(t *testing.T) {
	o := Options{PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("fd42::/56")}}
	if got := o.forPods(" --add-source="); got != " --add-source=10.42.0.0/16 --add-source=fd42::/56" {
		t.Error(got)
	}
	if got := (&Options{}).forPods(" --add-source="); got != " --add-source=<cluster-cidr>" {
		t.Error(got)
	}
}
