package network

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/vishvananda/netlink"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
	"github.com/kombi-k8s/kombi/pkg/network/ipam"
)

// helperNode runs the component in a process that a test may kill. Its argument
// is the directory of everything but the pins.
func helperNode(dir string) error {
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}},
	})
	n := New(killOptions(dir))
	n.client, n.policyClient = client, policyfake.NewSimpleClientset()
	return n.Run(context.Background(), func() { fmt.Println("ready") })
}

func killOptions(dir string) Options {
	return Options{
		Log: slog.New(slog.DiscardHandler), NodeName: nodeName, NodeIPs: []netip.Addr{netip.MustParseAddr(nodeAddr)},
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		StateDir:     filepath.Join(dir, "state"), SocketPath: filepath.Join(dir, "cni.sock"),
		CNIConfDir: filepath.Join(dir, "cni"), PinDir: "/sys/fs/bpf/kombi-kill",
	}
}

// Whatever the moment at which Kombi is killed: pods that were attached keep their
// address and their connections, and no address is ever given to two.
func TestKilled(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	opts := killOptions(dir)
	t.Cleanup(func() {
		if err := Cleanup(opts); err != nil {
			t.Error(err)
		}
	})
	e := &env{t: t, outside: place{netns: newNetns(t)}}
	e.wire()

	type attached struct {
		place
		addr, id string
	}
	var pods []attached
	var alive *client
	add := func(id, ns string) (string, error) {
		resp, err := cniapi.Call(opts.SocketPath, &cniapi.Request{
			Command: "ADD", ContainerID: id, Netns: ns, IfName: "eth0", Config: json.RawMessage(`{"cniVersion":"1.0.0"}`),
		}, 20*time.Second)
		if err != nil {
			return "", err
		}
		if resp.Error != nil {
			return "", resp.Error
		}
		var r struct {
			IPs []struct{ Address netip.Prefix }
		}
		if err := json.Unmarshal(resp.Result, &r); err != nil {
			return "", err
		}
		return r.IPs[0].Address.Addr().String(), nil
	}
	for round := range 8 {
		kill := startReady(t, (place{}).command(t, "node", dir), "node")
		done := make(chan struct{})
		die := func(within int) {
			defer close(done)
			time.Sleep(time.Duration(rand.IntN(within)) * time.Millisecond)
			kill()
		}
		if round%2 == 0 { // some while it starts, some while it works
			go die(60)
		}
		for i := 0; ; i++ {
			p := attached{place: place{netns: newNetns(t)}, id: fmt.Sprintf("round%d-%d", round, i)}
			addr, err := add(p.id, p.netns)
			if i == 0 && round%2 == 1 {
				go die(60)
			}
			if err != nil {
				break // killed
			}
			p.addr = addr
			pods = append(pods, p)
		}
		<-done
	}
	if len(pods) < 2 {
		t.Fatalf("only %d pods were attached", len(pods))
	}
	kill := startReady(t, (place{}).command(t, "node", dir), "node")
	pods[0].serve(t, "tcp", ":80", "first")
	alive = pods[1].dial(t, "tcp", "", pods[0].addr+":80")
	expect(t, "before", alive.say("x"), "first", pods[1].addr)
	kill()
	expect(t, "while dead", alive.say("x"), "first", pods[1].addr)
	startReady(t, (place{}).command(t, "node", dir), "node")
	expect(t, "after", alive.say("x"), "first", pods[1].addr)

	seen := map[string]string{}
	for _, p := range pods {
		if other, twice := seen[p.addr]; twice {
			t.Errorf("address %s belongs to %s and %s", p.addr, other, p.id)
		}
		seen[p.addr] = p.id
		resp, err := cniapi.Call(opts.SocketPath, &cniapi.Request{Command: "CHECK", ContainerID: p.id, IfName: "eth0"}, 5*time.Second)
		if err != nil || resp.Error != nil {
			t.Errorf("CHECK of %s: %v %v", p.id, err, resp)
		}
	}
	// The runtime knows only the first two; everything else is garbage.
	conf := fmt.Sprintf(`{"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":%q,"ifname":"eth0"}]}`, pods[0].id, pods[1].id)
	resp, err := cniapi.Call(opts.SocketPath, &cniapi.Request{Command: "GC", Config: json.RawMessage(conf)}, 20*time.Second)
	if err != nil || resp.Error != nil {
		t.Fatalf("GC: %v %v", err, resp)
	}
	if n := len(ourDevices(t)); n != 2 {
		t.Errorf("%d devices are left, want 2", n)
	}
	store, err := ipam.OpenStore(opts.podsDir())
	if err != nil {
		t.Fatal(err)
	}
	if records, err := store.Load(); err != nil || len(records) != 2 {
		t.Errorf("%d records are left, want 2; %v", len(records), err)
	}
	expect(t, "after the collection", alive.say("x"), "first", pods[1].addr)
}

func ourDevices(t *testing.T) (out []string) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, devicePrefix) {
			out = append(out, l.Attrs().Name)
		}
	}
	return out
}

// Cleanup leaves nothing, whether the component runs or not, and however often.
func TestCleanup(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			e := newEnv(t, m)
			e.addPod()
			e.stop()
			for range 2 {
				e.must(Cleanup(e.opts))
			}
			if left := ourDevices(t); len(left) > 0 {
				t.Errorf("devices are left: %v", left)
			}
			for _, path := range []string{e.opts.PinDir, e.opts.StateDir, e.opts.SocketPath, e.opts.confFile()} {
				if _, err := os.Stat(path); !os.IsNotExist(err) {
					t.Errorf("%s is left (%v)", path, err)
				}
			}
			out, _ := exec.Command("sh", "-c", "ip addr show lo; ip route; tc filter show dev eth0 ingress; tc filter show dev eth0 egress; bpftool net 2>/dev/null").CombinedOutput()
			for _, trace := range []string{dnsAddr, "10.42.", "kombi_", "from_outside"} {
				if strings.Contains(string(out), trace) {
					t.Errorf("%q is left:\n%s", trace, out)
				}
			}
			e.start() // and it can begin again, for the cleanup of the test too
		})
	}
}

// A new layout of the maps must not interrupt services: the old programs serve
// until the new maps are filled.
func TestSchemaChange(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { schemaChange(t, newEnv(t, m)) })
	}
}

func schemaChange(t *testing.T, e *env) {
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	e.service(svc{name: "web", ip: "10.43.1.1", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30080)}})
	e.stop()
	e.must(os.Rename(e.net.dp.MapDir(), filepath.Join(e.opts.PinDir, "maps-v0")))
	expect(t, "while stopped", a.call(t, "tcp", "10.43.1.1:80"), "b", a.addr)
	e.start()
	if _, err := os.Stat(filepath.Join(e.opts.PinDir, "maps-v0")); !os.IsNotExist(err) {
		t.Errorf("the old maps are left: %v", err)
	}
	expect(t, "with new maps", a.call(t, "tcp", "10.43.1.1:80"), "b", a.addr)
	expect(t, "from outside", e.outside.call(t, "tcp", nodeAddr+":30080"), "b", outsideAddr)
	before := e.drops("refused")
	_ = a.call(t, "tcp", "10.43.99.99:80")
	if e.drops("refused") == before {
		t.Error("pods still run the old programs")
	}
}

// The node's addresses and routes may change at any time, by whomever.
func TestFollowsTheHost(t *testing.T) {
	e := newEnv(t, modes[1])
	a, b := e.addPod(), e.addPod()
	b.serve(t, "tcp", ":80", "b")
	e.outside.serve(t, "tcp", worldAddr+":80", "world")
	e.service(svc{name: "web", ip: "10.43.1.1", backends: []string{b.addr},
		ports: []corev1.ServicePort{port("x", corev1.ProtocolTCP, 80, 80, 30080)}})

	e.run(place{}, "ip", "addr", "add", "198.51.100.77/24", "dev", "eth0")
	e.eventually("node ports are served at a new address", func() bool {
		return e.outside.call(t, "tcp", "198.51.100.77:30080").name() == "b"
	})
	e.run(place{}, "ip", "addr", "del", "198.51.100.1/24", "dev", "eth0")
	e.run(place{}, "ip", "addr", "replace", "198.51.100.77/24", "dev", "eth0")
	e.run(place{}, "ip", "route", "replace", "default", "via", outsideAddr)
	e.eventually("pods leave under the new address", func() bool {
		return a.call(t, "tcp", worldAddr+":80").seen() == "198.51.100.77"
	})
	e.run(place{}, "ip", "route", "del", a.addr+"/32")
	e.eventually("a pod's route that somebody removed is back", func() bool {
		out, _ := exec.Command("ip", "route", "show", a.addr).CombinedOutput()
		return strings.Contains(string(out), devicePrefix)
	})
}
