package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kombi-k8s/kombi/pkg/pki"
	cmapp "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

// ControllerManagerOptions configure the controller manager.
type ControllerManagerOptions struct {
	// Certificates of the cluster.
	Certificates *pki.Cluster
	// Kubeconfig is the file with the controller manager's identity.
	Kubeconfig string
	// ClusterCIDRs are cut into ranges of pod addresses, one for each node: one
	// network, or one of each family.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are the ranges of service addresses, in the same families.
	ServiceCIDRs []netip.Prefix
	// Args are further name=value settings in upstream's terms.
	Args []string
}

// ControllerManager is the component "controller-manager".
type ControllerManager struct {
	opts ControllerManagerOptions
}

// NewControllerManager returns the component.
func NewControllerManager(opts ControllerManagerOptions) *ControllerManager {
	return &ControllerManager{opts: opts}
}

// Name implements component.Component.
func (m *ControllerManager) Name() string { return "controller-manager" }

// Needs implements component.Component.
func (m *ControllerManager) Needs() []string { return []string{"apiserver"} }

// Run implements component.Component. It is ready when all controllers are
// built. The kubelet waits for that: the attach-detach controller and the
// kubelet both set up the CSI volume plugin, which keeps its state in package
// variables of upstream, and the one that comes last has to be the kubelet.
func (m *ControllerManager) Run(ctx context.Context, ready func()) error {
	opts, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return err
	}
	// Binding the flags sets their defaults, so it goes before our settings.
	flags := controllerManagerFlags(opts)
	o := m.opts
	// The limits are for a server that others share; this one is in the same process.
	opts.Generic.ClientConnection.QPS, opts.Generic.ClientConnection.Burst = 500, 1000
	opts.Generic.ClientConnection.Kubeconfig = o.Kubeconfig
	// Only one controller manager runs: no election, so a slow disk costs no restart.
	opts.Generic.LeaderElection.LeaderElect = false
	// Its metrics are part of the API server's /metrics and its health of ours: no port.
	opts.SecureServing.BindPort = 0
	// Controllers keep nothing that a later start would miss.
	opts.ControllerShutdownTimeout = time.Second
	opts.KubeCloudShared.UseServiceAccountCredentials = true
	opts.KubeCloudShared.AllocateNodeCIDRs = true
	opts.KubeCloudShared.ClusterCIDR = commaList(o.ClusterCIDRs)
	opts.NodeIPAMController.ServiceCIDR = commaList(o.ServiceCIDRs)
	opts.SAController.ServiceAccountKeyFile = o.Certificates.ServiceAccountKey
	opts.SAController.RootCAFile = o.Certificates.ServerCA.CertFile
	client, server := o.Certificates.ClientCA, o.Certificates.ServerCA
	for _, signer := range []struct{ cert, key, certFile, keyFile *string }{
		{&opts.CSRSigningController.KubeAPIServerClientSignerConfiguration.CertFile, &opts.CSRSigningController.KubeAPIServerClientSignerConfiguration.KeyFile, &client.CertFile, &client.KeyFile},
		{&opts.CSRSigningController.KubeletClientSignerConfiguration.CertFile, &opts.CSRSigningController.KubeletClientSignerConfiguration.KeyFile, &client.CertFile, &client.KeyFile},
		{&opts.CSRSigningController.KubeletServingSignerConfiguration.CertFile, &opts.CSRSigningController.KubeletServingSignerConfiguration.KeyFile, &server.CertFile, &server.KeyFile},
		{&opts.CSRSigningController.LegacyUnknownSignerConfiguration.CertFile, &opts.CSRSigningController.LegacyUnknownSignerConfiguration.KeyFile, &server.CertFile, &server.KeyFile},
	} {
		*signer.cert, *signer.key = *signer.certFile, *signer.keyFile
	}
	if err := setArgs(flags, "kube-controller-manager-arg", o.Args); err != nil {
		return err
	}
	config, err := opts.Config(ctx, cmapp.KnownControllers(), cmapp.ControllersDisabledByDefault(), cmapp.ControllerAliases())
	if err != nil {
		return err
	}
	config.Kubeconfig.Wrap(whenBuilt(ready))
	return explainRanges(cmapp.Run(ctx, config.Complete()))
}

// explainRanges says what to do when a node has a range of pod addresses that
// the networks of the cluster do not hold any more. Upstream has no type for it.
func explainRanges(err error) error {
	if err == nil || !strings.Contains(err.Error(), "does not exist in cluster cidrs") && !strings.Contains(err.Error(), "as occupied for node") {
		return err
	}
	return fmt.Errorf("cluster-cidr does not hold the addresses that pods of a node have already: give it the networks from before, since those of a cluster with nodes cannot be taken away (%w)", err)
}
