package node

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
)

// KubeletOptions configure the kubelet.
type KubeletOptions struct {
	// Log receives state changes.
	Log *slog.Logger
	// NodeName is the name of the Node object.
	NodeName string
	// NodeIPs are the addresses of the node, at most one of each family, the
	// cluster's first family first; without any, the kubelet finds one.
	NodeIPs []netip.Addr
	// Kubeconfig is the file with the node's identity, Client the same for our
	// own look at the Node object.
	Kubeconfig string
	Client     *rest.Config
	// ClientCAFile verifies who calls the kubelet; CertFile and KeyFile are what it shows.
	ClientCAFile, CertFile, KeyFile string
	// Root holds the volumes of pods, StaticPods manifests of static pods, PodLogs logs.
	Root, StaticPods, PodLogs string
	// ContainerdSocket is the container runtime.
	ContainerdSocket string
	// CgroupRoot is the existing cgroup below which pods are put, such as /kombi.
	CgroupRoot string
	// ClusterDNS and ClusterDomain go into the resolver configuration of pods.
	ClusterDNS    []netip.Addr
	ClusterDomain string
	// ResolvConf is the resolver configuration that pods inherit.
	ResolvConf string
	// Port of the kubelet's API, with authentication and authorization.
	Port int
	// MaxPods on this node.
	MaxPods int
	// Labels and Taints of a new Node object.
	Labels map[string]string
	Taints []corev1.Taint
	// Args are further name=value settings in upstream's terms.
	Args []string
}

// Kubelet is the component "kubelet". It is ready when the Node is.
type Kubelet struct {
	opts KubeletOptions
}

// NewKubelet returns the component.
func NewKubelet(opts KubeletOptions) *Kubelet { return &Kubelet{opts: opts} }

// Name implements component.Component.
func (k *Kubelet) Name() string { return "kubelet" }

// Needs implements component.Component.
func (k *Kubelet) Needs() []string { return []string{"containerd", "apiserver", "controller-manager"} }

// Run implements component.Component.
func (k *Kubelet) Run(ctx context.Context, ready func()) error {
	for _, dir := range []string{k.opts.Root, k.opts.StaticPods} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	server, err := k.server()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := registerNode(ctx, k.opts); err != nil {
		return err
	}
	gate := utilfeature.DefaultFeatureGate
	deps, err := app.UnsecuredDependencies(ctx, server, gate)
	if err != nil {
		return err
	}
	go func() {
		if err := waitNodeReady(ctx, k.opts.Client, k.opts.NodeName, began); err == nil {
			ready()
		} else if ctx.Err() == nil {
			k.opts.Log.Error("the node's readiness cannot be watched", "error", err)
		}
	}()
	return app.Run(ctx, server, deps, gate)
}

// server translates our options into upstream's.
func (k *Kubelet) server() (*options.KubeletServer, error) {
	o := k.opts
	server, err := options.NewKubeletServer()
	if err != nil {
		return nil, err
	}
	// Binding the flags sets their defaults, so it goes before our settings.
	flags := kubeletFlags(server)
	server.KubeConfig = o.Kubeconfig
	server.HostnameOverride = o.NodeName
	server.NodeIP = strings.Join(texts(o.NodeIPs), ",")
	server.RootDirectory = o.Root
	server.CertDirectory = filepath.Join(o.Root, "pki")
	server.NodeLabels = o.Labels

	c := &server.KubeletConfiguration
	c.Address = netip.IPv4Unspecified().String()
	if slices.ContainsFunc(o.NodeIPs, netip.Addr.Is6) {
		c.Address = netip.IPv6Unspecified().String() // takes IPv4 as well
	}
	c.Port = int32(o.Port)
	c.ReadOnlyPort = 0
	c.HealthzPort = 0
	c.TLSCertFile, c.TLSPrivateKeyFile = o.CertFile, o.KeyFile
	c.TLSMinVersion = "VersionTLS12"
	c.Authentication.Anonymous.Enabled = false
	c.Authentication.Webhook.Enabled = true
	c.Authentication.X509.ClientCAFile = o.ClientCAFile
	c.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	c.RotateCertificates = false
	c.ContainerRuntimeEndpoint = "unix://" + o.ContainerdSocket
	c.StaticPodPath = o.StaticPods
	c.PodLogsDir = o.PodLogs
	c.VolumePluginDir = filepath.Join(o.Root, "volume-plugins")
	c.ClusterDomain = o.ClusterDomain
	c.ClusterDNS = texts(o.ClusterDNS)
	c.ResolverConfig = o.ResolvConf
	c.MaxPods = int32(o.MaxPods)
	c.RegisterWithTaints = append(c.RegisterWithTaints, o.Taints...)
	c.CgroupDriver = "cgroupfs"
	c.CgroupRoot = o.CgroupRoot
	c.FailCgroupV1 = false
	c.FailSwapOn = false
	c.MemorySwap.SwapBehavior = "NoSwap"
	c.SerializeImagePulls = false
	maxPulls := int32(3)
	c.MaxParallelImagePulls = &maxPulls
	seccomp := true
	c.SeccompDefault = seccomp
	c.EventRecordQPS = 50
	// The Node object is written when something changed; the lease is the
	// heartbeat, renewed after a quarter of its duration. At the usual 40 s it
	// is the only write of an idle cluster, and twice the bytes that a flash
	// disk should see; 20 s between beats still fit twice into the 50 s after
	// which the controller manager calls a node lost.
	c.NodeLeaseDurationSeconds = 80
	c.NodeStatusReportFrequency = metav1.Duration{Duration: 5 * time.Minute}
	c.ImageMaximumGCAge = metav1.Duration{}
	// The logging of this process is set up once, by us.
	c.Logging.Format = logsapi.DefaultLogFormat
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged

	return server, setKubeletArgs(flags, o.Args)
}

func texts(addrs []netip.Addr) []string {
	out := make([]string, len(addrs))
	for i, a := range addrs {
		out[i] = a.String()
	}
	return out
}

// CheckKubeletArgs says whether name=value pairs are settings of the kubelet.
func CheckKubeletArgs(args []string) error {
	server, err := options.NewKubeletServer()
	if err != nil {
		return err
	}
	return setKubeletArgs(kubeletFlags(server), args)
}

func setKubeletArgs(flags *pflag.FlagSet, args []string) error {
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if flags.Lookup(name) == nil {
			return fmt.Errorf("kubelet-arg: there is no setting %q: see the reference of the kubelet for its names", name)
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("kubelet-arg: %s: %w", name, err)
		}
	}
	return nil
}
