package network

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
)

func TestCNI(t *testing.T) {
	e := newEnv(t, modes[1])
	a := e.addPod()
	ns := newNetns(t)
	call := func(req cniapi.Request) *cniapi.Response {
		t.Helper()
		resp, err := cniapi.Call(e.opts.SocketPath, &req, 10*time.Second)
		e.must(err)
		return resp
	}
	for _, c := range []struct {
		name string
		req  cniapi.Request
		code uint   // 0: success
		say  string // part of the message
	}{
		{"check", cniapi.Request{Command: "CHECK", ContainerID: a.id, IfName: "eth0"}, 0, ""},
		{"status", cniapi.Request{Command: "STATUS"}, 0, ""},
		{"remove what is not there", cniapi.Request{Command: "DEL", ContainerID: "nobody", IfName: "eth0"}, 0, ""},
		{"remove without a namespace", cniapi.Request{Command: "DEL", ContainerID: "nobody", IfName: "eth0", Netns: "/gone"}, 0, ""},
		{"check what is not there", cniapi.Request{Command: "CHECK", ContainerID: "nobody", IfName: "eth0"}, cniapi.CodeInternal, "not attached"},
		{"add without a container", cniapi.Request{Command: "ADD", IfName: "eth0", Netns: ns}, cniapi.CodeInvalidEnv, "CNI_CONTAINERID"},
		{"add without a namespace", cniapi.Request{Command: "ADD", ContainerID: "x", IfName: "eth0"}, cniapi.CodeInvalidEnv, "CNI_NETNS"},
		{"add with a missing namespace", cniapi.Request{Command: "ADD", ContainerID: "x", IfName: "eth0", Netns: "/gone"}, cniapi.CodeInternal, "cannot open the pod's network namespace /gone"},
		{"add with a bad port", cniapi.Request{Command: "ADD", ContainerID: "x", IfName: "eth0", Netns: ns,
			Config: json.RawMessage(`{"runtimeConfig":{"portMappings":[{"hostPort":70000,"containerPort":1}]}}`)}, cniapi.CodeInvalidConfig, "out of range"},
		{"add with a bad protocol", cniapi.Request{Command: "ADD", ContainerID: "x", IfName: "eth0", Netns: ns,
			Config: json.RawMessage(`{"runtimeConfig":{"portMappings":[{"hostPort":7000,"containerPort":1,"protocol":"sctp"}]}}`)}, cniapi.CodeInvalidConfig, "use TCP or UDP"},
		{"add with an unknown version", cniapi.Request{Command: "ADD", ContainerID: "v", IfName: "eth0", Netns: ns,
			Config: json.RawMessage(`{"cniVersion":"9.9.9"}`)}, cniapi.CodeIncompatible, "9.9.9"},
		{"unknown command", cniapi.Request{Command: "DANCE"}, cniapi.CodeInvalidEnv, "DANCE"},
		{"configuration of another shape", cniapi.Request{Command: "ADD", ContainerID: "x", IfName: "eth0", Netns: ns,
			Config: json.RawMessage(`{"runtimeConfig":7}`)}, cniapi.CodeDecode, "configuration"},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := call(c.req)
			switch {
			case c.code == 0 && resp.Error != nil:
				t.Errorf("got %v", resp.Error)
			case c.code != 0 && (resp.Error == nil || resp.Error.Code != c.code || !strings.Contains(resp.Error.Msg, c.say)):
				t.Errorf("got %+v, want code %d with %q", resp.Error, c.code, c.say)
			}
		})
	}
	if n := len(ourDevices(t)); n != 1 {
		t.Errorf("%d devices, want 1: failures must leave nothing", n)
	}
	if e.net.pods.count() != 1 {
		t.Errorf("%d pods are recorded, want 1", e.net.pods.count())
	}

	t.Run("a repeated request replaces what the first made", func(t *testing.T) {
		for range 2 {
			if resp := call(cniapi.Request{Command: "ADD", ContainerID: "again", IfName: "eth0", Netns: ns}); resp.Error != nil {
				t.Fatal(resp.Error)
			}
		}
		if n := len(ourDevices(t)); n != 2 {
			t.Errorf("%d devices, want 2", n)
		}
		call(cniapi.Request{Command: "DEL", ContainerID: "again", IfName: "eth0", Netns: ns})
	})
	t.Run("nothing is left of a request whose client went away", func(t *testing.T) {
		last := e.net.pods.store.Last()
		c, err := net.Dial("unix", e.opts.SocketPath)
		e.must(err)
		e.must(json.NewEncoder(c).Encode(cniapi.Request{Command: "ADD", ContainerID: "hasty", IfName: "eth0", Netns: newNetns(t)}))
		c.Close()
		e.eventually("the pod was attached", func() bool { return !slices.Equal(e.net.pods.store.Last(), last) })
		e.eventually("and detached", func() bool { return e.net.pods.count() == 1 && len(ourDevices(t)) == 1 })
	})
	t.Run("the configuration appears when pods may come, and only root may use the socket", func(t *testing.T) {
		raw, err := os.ReadFile(filepath.Join(e.opts.CNIConfDir, "10-kombi.conflist"))
		e.must(err)
		var conf struct {
			Plugins []struct {
				Type, Socket string
				Capabilities struct{ PortMappings bool }
			}
		}
		e.must(json.Unmarshal(raw, &conf))
		if len(conf.Plugins) != 1 || conf.Plugins[0].Type != "kombi-cni" || conf.Plugins[0].Socket != e.opts.SocketPath || !conf.Plugins[0].Capabilities.PortMappings {
			t.Errorf("unexpected configuration %s", raw)
		}
		st, err := os.Stat(e.opts.SocketPath)
		e.must(err)
		if st.Mode().Perm() != 0o600 {
			t.Errorf("socket mode %v", st.Mode())
		}
	})
	t.Run("metrics", func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		for _, c := range e.net.Collectors() {
			e.must(reg.Register(c))
		}
		families, err := reg.Gather()
		e.must(err)
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.Metric {
				got[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if got["kombi_network_pods"] != 1 || len(got) != 5 {
			t.Errorf("got %v", got)
		}
	})
	t.Run("a second process is told that the first runs", func(t *testing.T) {
		_, err := listenCNI(e.opts.SocketPath, e.net.pods, e.opts.Log)
		if err == nil || !strings.Contains(err.Error(), "is Kombi running already?") {
			t.Errorf("got %v", err)
		}
	})
}

// Each failure says what failed, why, and what to do.
func TestPreloadSaysWhy(t *testing.T) {
	needRoot(t)
	good := killOptions(t.TempDir())
	sh := func(t *testing.T, script string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v %s", script, err, out)
		}
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		before string // shell commands that break something
		after  string // and those that repair it
		say    string
	}{
		{name: "no node name", change: func(o *Options) { o.NodeName = "" }, say: "NodeName is not set"},
		{name: "no node address", change: func(o *Options) { o.NodeIPs = nil }, say: "set node-ip"},
		{name: "pins on another file system", change: func(o *Options) { o.PinDir = "/tmp/kombi-not-bpf" }, say: "not on a bpf file system"},
		{name: "no such cgroup", change: func(o *Options) { o.CgroupPath = "/sys/fs/cgroup/gone" }, say: "/sys/fs/cgroup/gone"},
		{name: "cgroup of another kind", change: func(o *Options) { o.CgroupPath = "/proc" }, say: "not in a cgroup2 hierarchy"},
		{
			name:   "read-only bpf file system",
			before: "mount -o remount,ro /sys/fs/bpf", after: "mount -o remount,rw /sys/fs/bpf",
			say: "cannot write to the bpf file system: mkdir /sys/fs/bpf/kombi-kill: read-only file system; remount it writable",
		},
		{
			name:   "read-only kernel settings",
			before: "sysctl -qw net.ipv4.ip_forward=0; mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
			after:  "umount /proc/sys",
			say:    "cannot set net.ipv4.ip_forward=1: /proc/sys is read-only; remount it writable",
		},
		{
			name:   "read-only kernel settings that are right already",
			before: "sysctl -qw net.ipv4.ip_forward=1; mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys",
			after:  "umount /proc/sys",
		},
		{
			name:   "no bpf file system yet",
			before: "umount -a -t bpf", after: "umount -a -t bpf; mount -t bpf bpf /sys/fs/bpf",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good
			if c.change != nil {
				c.change(&o)
			}
			if c.before != "" {
				sh(t, c.before)
			}
			n := New(o)
			err := n.Preload(t.Context())
			if c.after != "" {
				defer sh(t, c.after)
			}
			switch {
			case c.say == "" && err != nil:
				t.Errorf("got %v", err)
			case c.say != "" && (err == nil || !strings.Contains(err.Error(), c.say)):
				t.Errorf("got %v, want %q", err, c.say)
			}
			if n.dp != nil {
				_ = n.dp.Close()
			}
			if c.after == "" {
				if err := Cleanup(good); err != nil {
					t.Error(err)
				}
			}
		})
	}
	if err := Cleanup(good); err != nil {
		t.Error(err)
	}
}
