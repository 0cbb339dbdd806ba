package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/pkg/host"
	"github.com/kombi-k8s/kombi/pkg/kubeconfig"
	"github.com/kombi-k8s/kombi/pkg/node/images"
	"github.com/kombi-k8s/kombi/pkg/pki"
	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// separate is upstream's programs, each a process of its own, configured
// plainly: their defaults wherever they have one. Their certificates are made
// before the clock starts.
type separate struct {
	base    string // data, wiped between starts
	setup   string // certificates and configuration files
	running []*process
	certs   *pki.Cluster
	api     *http.Client
}

func newSeparate() *separate {
	return &separate{base: filepath.Join(harness.Dir(), "u"), setup: filepath.Join(harness.Dir(), "setup")}
}

func (u *separate) name() string         { return "separate processes" }
func (u *separate) dir() string          { return u.base }
func (u *separate) path(s string) string { return filepath.Join(u.base, s) }
func (u *separate) file(s string) string { return filepath.Join(u.setup, s) }
func (u *separate) kubeconfig() string   { return u.file("admin.kubeconfig") }
func (u *separate) dns() netip.AddrPort  { return netip.MustParseAddrPort(harness.MachineIP + ":53") }

func (u *separate) processes() []*process { return u.running }

// joinNode leaves Kombi's cgroup: kube-proxy serves the whole machine.
func (u *separate) joinNode() error {
	for _, procs := range []string{"/sys/fs/cgroup/unified/cgroup.procs", "/sys/fs/cgroup/harness/cgroup.procs"} {
		if _, err := os.Stat(procs); err == nil {
			return os.WriteFile(procs, []byte("0"), 0o644)
		}
	}
	return nil
}

const apiURL = "https://127.0.0.1:6443"

// prepare writes certificates and configuration files. The clock does not run.
func (u *separate) prepare() (err error) {
	for _, dir := range []string{u.path("kine"), u.path("kubelet"), u.path("logs"), u.path("static"), u.path("containerd"), u.file("cni")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if u.certs != nil {
		return nil
	}
	u.certs, err = pki.Open(pki.Options{
		Dir: u.file("pki"), EncryptionConfig: u.file("encryption.yaml"), NodeName: harness.HostName, ClusterDomain: "cluster.local",
		Addresses: []netip.Addr{netip.MustParseAddr(harness.MachineIP), netip.MustParseAddr("10.43.0.1")},
		Log:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	for name, subject := range map[string][]string{
		"admin":              {"admin", "system:masters"},
		"controller-manager": {"system:kube-controller-manager"},
		"scheduler":          {"system:kube-scheduler"},
		"kubelet":            {"system:node:" + harness.HostName, "system:nodes"},
		"proxy":              {"system:kube-proxy"},
		"dns":                {"dns", "system:masters"},
	} {
		leaf, err := u.certs.Client(subject[0], subject[1:]...)
		if err != nil {
			return err
		}
		config := u.certs.RESTConfig(apiURL, leaf)
		if err := kubeconfig.WriteReferring(u.file(name+".kubeconfig"), config); err != nil {
			return err
		}
		if name == "admin" {
			if u.api, err = rest.HTTPClientFor(config); err != nil {
				return err
			}
			u.api.Timeout = 2 * time.Second
		}
	}
	if _, err := u.certs.Client("kube-apiserver-kubelet-client", "system:masters"); err != nil {
		return err
	}
	return u.writeFiles()
}

func (u *separate) writeFiles() error {
	for name, content := range map[string]any{
		"kubelet.yaml": map[string]any{
			"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
			"cgroupDriver": "cgroupfs", "cgroupRoot": "/" + cgroupRoot, "failCgroupV1": false, "failSwapOn": false,
			"containerRuntimeEndpoint": "unix://" + u.socket(), "clusterDNS": []string{harness.MachineIP}, "clusterDomain": "cluster.local",
			"authentication": map[string]any{"x509": map[string]any{"clientCAFile": u.certs.ClientCA.CertFile}, "anonymous": map[string]any{"enabled": false}},
			"tlsCertFile":    u.certs.Kubelet.CertFile, "tlsPrivateKeyFile": u.certs.Kubelet.KeyFile,
			"podLogsDir": u.path("logs"), "volumePluginDir": u.path("kubelet/plugins"), "staticPodPath": u.path("static"),
			"evictionHard": map[string]any{"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
		},
		"cni/10-ptp.conflist": map[string]any{
			"cniVersion": "1.0.0", "name": "bench",
			"plugins": []any{map[string]any{"type": "ptp", "ipam": map[string]any{
				"type": "host-local", "dataDir": u.path("ipam"), "ranges": []any{[]any{map[string]any{"subnet": "10.42.0.0/24"}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			}}},
		},
	} {
		data, err := json.MarshalIndent(content, "", "  ") // JSON is YAML
		if err != nil {
			return err
		}
		if err := os.WriteFile(u.file(name), data, 0o600); err != nil {
			return err
		}
	}
	corefile := fmt.Sprintf(`.:53 {
    bind %s
    errors
    ready
    kubernetes cluster.local in-addr.arpa {
        kubeconfig %s
    }
    cache 30
    loadbalance
}
`, harness.MachineIP, u.file("dns.kubeconfig"))
	if err := os.WriteFile(u.file("Corefile"), []byte(corefile), 0o600); err != nil {
		return err
	}
	return os.WriteFile(u.file("containerd.toml"), []byte(fmt.Sprintf(`version = 3
root = %[1]q
state = %[2]q
[grpc]
  address = %[3]q
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = %[4]q
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = %[5]v
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = [%[6]q]
  conf_dir = %[7]q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  runtime_path = %[8]q
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = %[9]q
`, u.path("containerd"), u.path("state"), u.socket(), images.PauseRef, !host.ReadCapabilities().SysResource(),
		programDir(), u.file("cni"), filepath.Join(payloadDir(), "containerd-shim-runc-v2"), filepath.Join(payloadDir(), "runc"))), 0o600)
}

func (u *separate) socket() string { return u.path("state/c.sock") }

func (u *separate) launch(name string, args ...string) error {
	p, err := launch(name, filepath.Join(harness.Dir(), name+".log"), u.path("kine"), filepath.Join(programDir(), name), args...)
	if err == nil {
		u.running = append(u.running, p)
	}
	return err
}

// start starts everything as soon as what it needs answers, as a good
// supervisor would.
func (u *separate) start(ctx context.Context) error {
	u.running = nil
	if err := u.launch("kine"); err != nil { // its defaults: SQLite in ./db, port 2379
		return err
	}
	if err := u.launch("containerd", "--config", u.file("containerd.toml")); err != nil {
		return err
	}
	if err := await(ctx, u, "kine", time.Minute, func() error { return dial("tcp", "127.0.0.1:2379") }); err != nil {
		return err
	}
	pause := make(chan error, 1)
	go func() { pause <- u.importPause(ctx) }()
	kubeletClient, err := u.certs.Client("kube-apiserver-kubelet-client", "system:masters")
	if err != nil {
		return err
	}
	err = u.launch("kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=10.43.0.0/16",
		"--advertise-address="+harness.MachineIP, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
		"--client-ca-file="+u.certs.ClientCA.CertFile, "--tls-cert-file="+u.certs.APIServer.CertFile, "--tls-private-key-file="+u.certs.APIServer.KeyFile,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+u.certs.ServiceAccountKey, "--service-account-signing-key-file="+u.certs.ServiceAccountKey,
		"--kubelet-client-certificate="+kubeletClient.CertFile, "--kubelet-client-key="+kubeletClient.KeyFile,
		"--kubelet-certificate-authority="+u.certs.ServerCA.CertFile)
	if err != nil {
		return err
	}
	if err := await(ctx, u, "kube-apiserver", time.Minute, u.apiReady); err != nil {
		return err
	}
	if err := <-pause; err != nil {
		return err
	}
	for _, p := range [][]string{
		{"kubelet", "--config=" + u.file("kubelet.yaml"), "--kubeconfig=" + u.file("kubelet.kubeconfig"), "--hostname-override=" + harness.HostName,
			"--node-ip=" + harness.MachineIP, "--root-dir=" + u.path("kubelet")},
		{"kube-controller-manager", "--kubeconfig=" + u.file("controller-manager.kubeconfig"), "--allocate-node-cidrs", "--cluster-cidr=10.42.0.0/16",
			"--service-account-private-key-file=" + u.certs.ServiceAccountKey, "--root-ca-file=" + u.certs.ServerCA.CertFile, "--use-service-account-credentials"},
		{"kube-scheduler", "--kubeconfig=" + u.file("scheduler.kubeconfig")},
		{"kube-proxy", "--proxy-mode=nftables", "--kubeconfig=" + u.file("proxy.kubeconfig"), "--hostname-override=" + harness.HostName, "--cluster-cidr=10.42.0.0/16",
			// These settings belong to the machine and cannot be written in a network namespace.
			"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"},
		{"coredns", "-conf", u.file("Corefile")},
	} {
		if err := u.launch(p[0], p[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func dial(network, address string) error {
	conn, err := net.DialTimeout(network, address, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

func (u *separate) apiReady() error {
	response, err := u.api.Get(apiURL + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz says %s", response.Status)
	}
	return nil
}

// containerd returns a client of the running containerd.
func (u *separate) containerd(ctx context.Context) (*containerd.Client, error) {
	if err := await(ctx, u, "containerd", time.Minute, func() error { return dial("unix", u.socket()) }); err != nil {
		return nil, err
	}
	return containerd.New(u.socket(), containerd.WithDefaultNamespace("k8s.io"))
}

func (u *separate) importPause(ctx context.Context) error {
	c, err := u.containerd(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	_, err = images.EnsurePause(ctx, c, filepath.Join(payloadDir(), "pause"))
	return err
}

func (u *separate) addImages(ctx context.Context, archives []string) error {
	c, err := u.containerd(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for _, archive := range archives {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		_, err = c.Import(ctx, f)
		f.Close()
		if err != nil {
			return fmt.Errorf("import %s: %w", archive, err)
		}
	}
	return nil
}

// stop ends first what asks the API, then the API, then what that stands on.
func (u *separate) stop(ctx context.Context) error {
	var groups [3][]*process
	for _, p := range u.running {
		switch p.name {
		case "kine", "containerd":
			groups[2] = append(groups[2], p)
		case "kube-apiserver":
			groups[1] = append(groups[1], p)
		default:
			groups[0] = append(groups[0], p)
		}
	}
	for _, group := range groups {
		if err := endAll(ctx, group...); err != nil {
			return err
		}
	}
	return nil
}
