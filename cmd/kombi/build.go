package main

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/controlplane"
	"github.com/kombi-k8s/kombi/pkg/datastore"
	"github.com/kombi-k8s/kombi/pkg/host"
	"github.com/kombi-k8s/kombi/pkg/kubeconfig"
	"github.com/kombi-k8s/kombi/pkg/node"
	"github.com/kombi-k8s/kombi/pkg/node/images"
	"github.com/kombi-k8s/kombi/pkg/pki"
	"github.com/kombi-k8s/kombi/pkg/status"
	"github.com/kombi-k8s/kombi/pkg/version"
)

// wiring holds what the constructors of the components share.
type wiring struct {
	config  *config.Config
	facts   host.Facts
	paths   config.Paths
	log     *slog.Logger
	nodeIPs []netip.Addr // one for each family of the cluster, in its order
	// client returns the connection settings of an identity towards the API.
	client func(user string, groups ...string) (*rest.Config, error)
	// credentials is the folder for kubeconfig files of parts that only take a file.
	credentials string
	kubelet     kubeletTLS

	// Of servers only.
	certs *pki.Cluster
	host  string // of the API, as this machine reaches it
}

// kubeletTLS are the files with which the kubelet serves and knows the API server.
type kubeletTLS struct{ clientCA, cert, key string }

// buildServer makes every component of a server with what it needs and binds them
// into a graph. It and buildAgent are where parts are wired together.
func buildServer(_ context.Context, c *config.Config, facts host.Facts, log *slog.Logger, started time.Time) (*component.Graph, error) {
	nodeIPs, err := nodeAddresses(c)
	if err != nil {
		return nil, err
	}
	w, err := newWiring(c, facts, nodeIPs, log)
	if err != nil {
		return nil, err
	}
	admin, err := w.client("system:kombi:admin", "system:masters")
	if err != nil {
		return nil, err
	}
	if err := kubeconfig.WriteEmbedding(w.paths.Kubeconfig, c.WriteKubeconfigMode, admin); err != nil {
		return nil, err
	}
	addons, apis, err := w.addons(admin)
	if err != nil {
		return nil, err
	}
	control, err := w.controlPlane(admin, apis)
	if err != nil {
		return nil, err
	}
	machine, err := w.node()
	if err != nil {
		return nil, err
	}
	itself, err := w.client("system:node:"+c.NodeName, "system:nodes")
	if err != nil {
		return nil, err
	}
	report := status.NewServer(status.Options{
		Socket: w.paths.ControlSocket, Version: version.String(), Started: started, NodeName: c.NodeName, Kube: itself,
	})
	components := append([]component.Component{w.certs, report}, control...)
	components = append(append(components, machine...), addons...)
	graph, err := component.NewGraph(log, components...)
	if err != nil {
		return nil, err
	}
	report.Watch(graph)
	return graph, nil
}

func newWiring(c *config.Config, facts host.Facts, nodeIPs []netip.Addr, log *slog.Logger) (*wiring, error) {
	w := &wiring{config: c, facts: facts, paths: c.Paths(), log: log, nodeIPs: nodeIPs}
	w.client, w.credentials = w.issue, w.paths.Credentials
	w.host = "https://" + netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(c.HTTPSListenPort)).String()
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() {
		w.host = "https://" + netip.AddrPortFrom(c.BindAddress, uint16(c.HTTPSListenPort)).String()
	}
	names, addresses := []string{}, slices.Clone(nodeIPs)
	for _, services := range c.ServiceCIDRs {
		addresses = append(addresses, services.Addr().Next()) // of the Service "kubernetes"
	}
	for _, a := range []netip.Addr{c.AdvertiseAddress, c.BindAddress} {
		if a.IsValid() && !a.IsUnspecified() {
			addresses = append(addresses, a)
		}
	}
	for _, san := range c.TLSSAN {
		if a, err := netip.ParseAddr(san); err == nil {
			addresses = append(addresses, a)
		} else {
			names = append(names, san)
		}
	}
	var err error
	w.certs, err = pki.Open(pki.Options{
		Dir: w.paths.TLS, EncryptionConfig: w.paths.EncryptionConfig, NodeName: c.NodeName,
		Names: names, Addresses: addresses, ClusterDomain: c.ClusterDomain, Log: log,
	})
	if err != nil {
		return nil, err
	}
	w.kubelet = kubeletTLS{w.certs.ClientCA.CertFile, w.certs.Kubelet.CertFile, w.certs.Kubelet.KeyFile}
	return w, w.ensureToken()
}

// issue makes an identity with the cluster's own authority.
func (w *wiring) issue(user string, groups ...string) (*rest.Config, error) {
	leaf, err := w.certs.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	config := w.certs.RESTConfig(w.host, leaf)
	config.UserAgent = "kombi/" + user
	return config, nil
}

// credential writes the kubeconfig file of an identity for parts that only
// take a file.
func (w *wiring) credential(user string, groups ...string) (string, *rest.Config, error) {
	config, err := w.client(user, groups...)
	if err != nil {
		return "", nil, err
	}
	path := filepath.Join(w.credentials, filepath.Base(config.CertFile)+".kubeconfig")
	return path, config, kubeconfig.WriteReferring(path, config)
}

func (w *wiring) controlPlane(admin *rest.Config, apis []controlplane.InProcessAPI) ([]component.Component, error) {
	c := w.config
	store := datastore.NewSQLite(datastore.Options{
		Log: w.log, File: w.paths.DB, SnapshotDir: w.paths.Snapshots, Socket: filepath.Join(w.paths.RunDir, "kine.sock"),
		Metrics: legacyregistry.Registerer(),
	})
	kubeletClient, err := w.certs.Client("system:kube-apiserver")
	if err != nil {
		return nil, err
	}
	anonymous := filepath.Join(w.paths.Credentials, "authentication.yaml")
	if err := pki.WriteFile(anonymous, []byte(controlplane.AnonymousHealthOnly)); err != nil {
		return nil, err
	}
	policy := ""
	if c.AuditLog != "" {
		policy = w.paths.AuditPolicy
		if _, err := os.Stat(policy); os.IsNotExist(err) {
			if err := pki.WriteFile(policy, []byte(controlplane.DefaultAuditPolicy)); err != nil {
				return nil, err
			}
		}
	}
	managerConfig, _, err := w.credential("system:kube-controller-manager")
	if err != nil {
		return nil, err
	}
	schedulerConfig, _, err := w.credential("system:kube-scheduler")
	if err != nil {
		return nil, err
	}
	front, err := w.joinAPI(admin)
	if err != nil {
		return nil, err
	}
	advertise := c.AdvertiseAddress
	if !advertise.IsValid() {
		advertise = w.nodeIPs[0]
	}
	return []component.Component{
		store,
		controlplane.NewAPIServer(controlplane.APIServerOptions{
			Log: w.log, Certificates: w.certs, KubeletClient: kubeletClient, Loopback: admin, Datastore: store.Endpoint(), NewDatastoreClient: store.NewClient,
			BindAddress: c.BindAddress, Port: c.HTTPSListenPort, AdvertiseAddress: advertise, ServiceCIDRs: c.ServiceCIDRs,
			NodePortFirst: c.ServiceNodePortRange.First, NodePortLast: c.ServiceNodePortRange.Last, ClusterDomain: c.ClusterDomain,
			AuthenticationConfig: anonymous, AuditLog: c.AuditLog, AuditPolicy: policy, Profiling: c.EnablePprof, Args: c.KubeAPIServerArg,
			InProcess: apis, Front: front,
		}),
		controlplane.NewControllerManager(controlplane.ControllerManagerOptions{
			Certificates: w.certs, Kubeconfig: managerConfig, ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs,
			Args: c.KubeControllerManagerArg,
		}),
		controlplane.NewScheduler(controlplane.SchedulerOptions{Kubeconfig: schedulerConfig, Args: c.KubeSchedulerArg}),
	}, nil
}

func (w *wiring) node() ([]component.Component, error) {
	c := w.config
	if err := node.EnsureCgroup(c.CgroupRootPath()); err != nil {
		return nil, err
	}
	kubeletConfig, kubeletClient, err := w.credential("system:node:"+c.NodeName, "system:nodes")
	if err != nil {
		return nil, err
	}
	labels, err := parseLabels(c.NodeLabel)
	if err != nil {
		return nil, err
	}
	taints, err := parseTaints(c.NodeTaint)
	if err != nil {
		return nil, err
	}
	snapshotter := w.snapshotter()
	return []component.Component{
		node.NewContainerd(node.ContainerdOptions{
			Log: w.log, Root: w.paths.ContainerdRoot, State: w.paths.ContainerdState, Socket: w.paths.ContainerdSocket,
			BinDir: binDir(), CNIConfDir: w.paths.CNIConfDir, RegistryHosts: w.paths.RegistryHosts, Snapshotter: snapshotter,
			RestrictOOMScoreAdj: !w.facts.Capabilities.SysResource(), DisableApparmor: !w.facts.AppArmor,
		}),
		images.New(images.Options{
			Log: w.log, Socket: w.paths.ContainerdSocket, Namespace: node.CRINamespace, Dir: w.paths.Images,
			StateFile: filepath.Join(w.paths.Node, "images.json"), Snapshotter: snapshotter,
		}),
		node.NewKubelet(node.KubeletOptions{
			Log: w.log, NodeName: c.NodeName, NodeIPs: w.nodeIPs, Kubeconfig: kubeletConfig, Client: kubeletClient,
			ClientCAFile: w.kubelet.clientCA, CertFile: w.kubelet.cert, KeyFile: w.kubelet.key,
			Root: w.paths.KubeletRoot, StaticPods: w.paths.StaticPods, PodLogs: w.paths.PodLogs, ContainerdSocket: w.paths.ContainerdSocket,
			CgroupRoot: c.CgroupRootPath(), ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, ResolvConf: "/etc/resolv.conf",
			Port: c.KubeletPort, MaxPods: c.MaxPods, Labels: labels, Taints: taints, Args: c.KubeletArg,
		}),
	}, nil
}

// snapshotter is the configured one; by default overlayfs where it works on the
// file system of the data directory, else native, which copies.
func (w *wiring) snapshotter() string {
	if w.config.Snapshotter != "auto" {
		return w.config.Snapshotter
	}
	if err := os.MkdirAll(w.paths.ContainerdRoot, 0o711); err == nil {
		err := host.OverlayWorks(w.paths.ContainerdRoot)
		if err == nil {
			return "overlayfs"
		}
		w.log.Warn("overlayfs does not work here, so images are copied for each container, which is slow and large: put the data directory on ext4 or xfs", "error", err)
	}
	return "native"
}
