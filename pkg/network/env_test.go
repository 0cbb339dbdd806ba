package network

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/kombi-k8s/kombi/pkg/network/cniapi"
)

const (
	nodeAddr    = "198.51.100.1"
	outsideAddr = "198.51.100.2"
	worldAddr   = "203.0.113.9" // beyond the outside host
	nodeName    = "node"
	dnsAddr     = "10.43.0.10"

	nodeAddr6    = "fd98::1"
	outsideAddr6 = "fd98::2"
	worldAddr6   = "2001:db8::9"
	dnsAddr6     = "fd43::a"
)

// mode is one way of attaching the programs.
type mode struct {
	name    string
	sockets bool
	noTCX   bool
	dual    bool // pods and services have IPv6 as well
	backend string
}

var modes = []mode{
	{name: "sockets and tcx", sockets: true},
	{name: "packets and tcx"},
	{name: "packets and tc", noTCX: true},
}

// env is a node with an outside world.
type env struct {
	t       *testing.T
	opts    Options
	mode    mode
	client  *fake.Clientset
	cluster *policyfake.Clientset // of ClusterNetworkPolicies
	net     *Network
	stop    func()
	host    place // the node itself
	outside place
	pods    int
}

func newEnv(t *testing.T, m mode) *env {
	t.Helper()
	needRoot(t)
	e := &env{t: t, mode: m, client: fake.NewClientset(), cluster: policyfake.NewSimpleClientset()}
	dir := t.TempDir()
	e.outside = place{netns: newNetns(t)}
	e.wire()
	e.opts = Options{
		Log:            slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug})),
		NodeName:       nodeName,
		NodeIPs:        []netip.Addr{netip.MustParseAddr(nodeAddr)},
		ClusterCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16")},
		ServiceCIDRs:   []netip.Prefix{netip.MustParsePrefix("10.43.0.0/16")},
		StateDir:       filepath.Join(dir, "state"),
		SocketPath:     filepath.Join(dir, "cni.sock"),
		CNIConfDir:     filepath.Join(dir, "cni"),
		PinDir:         "/sys/fs/bpf/kombi-test",
		NodeLocalAddrs: []netip.Addr{netip.MustParseAddr(dnsAddr)},
		noTCX:          m.noTCX,
		Backend:        m.backend,
	}
	podCIDRs := []string{"10.42.0.0/24"}
	if m.dual {
		podCIDRs = append(podCIDRs, "fd42::/64")
		e.wireIPv6()
		e.opts.NodeIPs = append(e.opts.NodeIPs, netip.MustParseAddr(nodeAddr6))
		e.opts.ClusterCIDRs = append(e.opts.ClusterCIDRs, netip.MustParsePrefix("fd42::/56"))
		e.opts.ServiceCIDRs = append(e.opts.ServiceCIDRs, netip.MustParsePrefix("fd43::/112"))
		e.opts.NodeLocalAddrs = append(e.opts.NodeLocalAddrs, netip.MustParseAddr(dnsAddr6))
	}
	if m.sockets {
		e.host.cgroup = newCgroup(t)
		e.opts.CgroupPath = e.host.cgroup.Name()
	}
	_, err := e.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs},
	}, metav1.CreateOptions{})
	e.must(err)
	for _, name := range []string{"default", "kube-system"} {
		_, err := e.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelMetadataName: name},
		}}, metav1.CreateOptions{})
		e.must(err)
	}
	e.start()
	t.Cleanup(func() {
		e.stop()
		if err := Cleanup(e.opts); err != nil {
			t.Errorf("cleanup: %v", err)
		}
	})
	return e
}

// start runs the component and waits until pods may be attached.
func (e *env) start() {
	e.t.Helper()
	e.net = New(e.opts)
	e.net.client, e.net.policyClient = e.client, e.cluster
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- e.net.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-done:
		e.t.Fatalf("network ended: %v", err)
	case <-time.After(10 * time.Second):
		e.t.Fatal("network is not ready after 10 s")
	}
	e.stop = func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Errorf("network ended: %v", err)
		}
		e.stop = func() {}
	}
	e.eventually("the node opens for pods", func() bool {
		select {
		case <-e.net.pods.ready:
			return true
		default:
			return false
		}
	})
}

// wire connects the node with the outside host, which knows nothing of pods.
func (e *env) wire() {
	e.t.Helper()
	e.pair(place{}, "eth0", e.outside, "eth0")
	e.t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "eth0").Run() })
	e.run(place{}, "ip", "link", "set", "lo", "up")
	e.run(place{}, "ip", "addr", "add", nodeAddr+"/24", "dev", "eth0")
	e.run(place{}, "ip", "link", "set", "eth0", "up")
	e.run(place{}, "ip", "route", "add", "default", "via", outsideAddr)
	e.run(e.outside, "ip", "link", "set", "lo", "up")
	e.run(e.outside, "ip", "addr", "add", outsideAddr+"/24", "dev", "eth0")
	e.run(e.outside, "ip", "addr", "add", worldAddr+"/32", "dev", "lo")
	e.run(e.outside, "ip", "link", "set", "eth0", "up")
}

// wireIPv6 adds IPv6 to what wire made.
func (e *env) wireIPv6() {
	e.t.Helper()
	e.run(place{}, "ip", "addr", "add", nodeAddr6+"/64", "dev", "eth0", "nodad")
	e.run(place{}, "ip", "route", "add", "default", "via", outsideAddr6)
	e.run(e.outside, "ip", "addr", "add", outsideAddr6+"/64", "dev", "eth0", "nodad")
	e.run(e.outside, "ip", "addr", "add", worldAddr6+"/128", "dev", "lo", "nodad")
}

// pair connects two places by a pair of devices.
func (e *env) pair(one place, oneName string, two place, twoName string) {
	e.t.Helper()
	open := func(p place) netns.NsHandle {
		path := p.netns
		if path == "" {
			path = "/proc/thread-self/ns/net" // the first thread may have become a pod
		}
		ns, err := netns.GetFromPath(path)
		e.must(err)
		return ns
	}
	ns1, ns2 := open(one), open(two)
	defer ns1.Close()
	defer ns2.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace = oneName, netlink.NsFd(int(ns1))
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = twoName, netlink.NsFd(int(ns2))
	e.must(netlink.LinkAdd(veth))
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) eventually(what string, ok func() bool) {
	e.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			e.t.Fatalf("after 5 s still not true: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// pod is an attached pod.
type pod struct {
	place
	addr, id string
	addr6    string // in dual mode
}

// addPod attaches a pod through the CNI socket.
func (e *env) addPod(portMappings ...string) pod {
	e.t.Helper()
	return e.addLabeled(nil, portMappings...)
}

// addLabeled attaches a pod that the API shows with these labels.
func (e *env) addLabeled(labels map[string]string, portMappings ...string) pod {
	e.t.Helper()
	e.pods++
	p := pod{place: place{netns: newNetns(e.t), cgroup: e.host.cgroup}, id: fmt.Sprintf("container%d", e.pods)}
	conf := `{"cniVersion":"1.1.0","name":"kombi","type":"kombi-cni","runtimeConfig":{"portMappings":[` + strings.Join(portMappings, ",") + `]}}`
	obj := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: p.id, UID: types.UID(p.id), Labels: labels}}
	obj.Spec.NodeName = nodeName
	_, err := e.client.CoreV1().Pods("default").Create(e.t.Context(), obj, metav1.CreateOptions{})
	e.must(err)
	resp, err := cniapi.Call(e.opts.SocketPath, &cniapi.Request{
		Command: "ADD", ContainerID: p.id, Netns: p.netns, IfName: "eth0",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.id + ";K8S_POD_UID=" + p.id, Config: json.RawMessage(conf),
	}, 20*time.Second)
	e.must(err)
	if resp.Error != nil {
		e.t.Fatalf("ADD: %v", resp.Error)
	}
	var result struct {
		IPs []struct{ Address string }
	}
	e.must(json.Unmarshal(resp.Result, &result))
	p.addr, _, _ = strings.Cut(result.IPs[0].Address, "/")
	if len(result.IPs) > 1 {
		p.addr6, _, _ = strings.Cut(result.IPs[1].Address, "/")
	}
	e.t.Cleanup(func() { p.delete(e) })
	return p
}

// delete detaches the pod.
func (p pod) delete(e *env) {
	e.t.Helper()
	resp, err := cniapi.Call(e.opts.SocketPath, &cniapi.Request{
		Command: "DEL", ContainerID: p.id, Netns: p.netns, IfName: "eth0",
	}, 20*time.Second)
	if err == nil && resp.Error != nil {
		err = resp.Error
	}
	if err != nil {
		e.t.Errorf("DEL: %v", err)
	}
}

// run runs a command at a place.
func (e *env) run(at place, args ...string) {
	e.t.Helper()
	if at.netns != "" {
		args = append([]string{"nsenter", "--net=" + at.netns, "--"}, args...)
	}
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		e.t.Fatalf("%v: %v %s", args, err, out)
	}
}

// drops returns how many packets were dropped for a reason.
func (e *env) drops(reason string) uint64 {
	e.t.Helper()
	all, err := e.net.dp.Drops()
	e.must(err)
	for _, d := range all {
		if d.Reason == reason {
			return d.Packets
		}
	}
	e.t.Fatalf("no counter for %s", reason)
	return 0
}

// newNetns makes a network namespace that ends with the test.
func newNetns(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	return path
}

// newCgroup makes a cgroup2 directory that ends with the test.
func newCgroup(t *testing.T) *os.File {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		var st unix.Statfs_t
		if unix.Statfs(root, &st) != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		dir, err := os.MkdirTemp(root, "kombi-network-test-")
		if err != nil {
			t.Skipf("cannot make a cgroup: %v", err)
		}
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			f.Close()
			deadline := time.Now().Add(2 * time.Second)
			for os.Remove(dir) != nil && time.Now().Before(deadline) {
				time.Sleep(10 * time.Millisecond) // the last process is still leaving
			}
		})
		return f
	}
	t.Skip("there is no cgroup2 hierarchy")
	return nil
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}
