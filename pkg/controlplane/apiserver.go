// Package controlplane runs the API server, the controller manager and the
// scheduler of Kubernetes as components of this process, by their typed
// options. It knows nothing of nodes.
package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/kombi-k8s/kombi/pkg/pki"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
)

// InProcessAPI is an API group that this process serves itself, as a local part
// of the aggregated API: no port, no certificate and no Service of its own.
type InProcessAPI struct {
	// GroupVersion that is served.
	GroupVersion schema.GroupVersion
	// Priority is its place in discovery.
	Priority controlplaneapiserver.APIServicePriority
	// ExtendOpenAPI adds the schemas of the group's types to the server's.
	ExtendOpenAPI func(*genericapiserver.Config)
	// Install adds the group to the server before it runs.
	Install func(*genericapiserver.GenericAPIServer) error
}

// APIServerOptions configure the API server.
type APIServerOptions struct {
	// Log receives state changes.
	Log *slog.Logger
	// Certificates of the cluster.
	Certificates *pki.Cluster
	// KubeletClient is the identity with which the API server calls kubelets.
	KubeletClient *pki.Leaf
	// Loopback is the administrator's identity, used only to see when the API is ready.
	Loopback *rest.Config
	// Datastore is the URL of the etcd endpoint, for checks of its health.
	Datastore string
	// NewDatastoreClient returns a client of it; it is called once for each resource.
	NewDatastoreClient func() *kubernetes.Client
	// BindAddress and Port are what it listens on.
	BindAddress netip.Addr
	Port        int
	// AdvertiseAddress is the address of the `kubernetes` Service's endpoint, of
	// the family of the first of ServiceCIDRs.
	AdvertiseAddress netip.Addr
	// ServiceCIDRs are the ranges of service addresses: one, or one of each family.
	ServiceCIDRs []netip.Prefix
	// NodePortFirst and NodePortLast bound the ports of NodePort Services, inclusive.
	NodePortFirst, NodePortLast int
	// ClusterDomain names the issuer of service account tokens.
	ClusterDomain string
	// AuthenticationConfig is the file that restricts anonymous requests.
	AuthenticationConfig string
	// AuditLog is the file of the audit log; empty for none.
	AuditLog string
	// AuditPolicy is the file of its policy.
	AuditPolicy string
	// Profiling serves /debug/pprof.
	Profiling bool
	// Args are further name=value settings in upstream's terms.
	Args []string
	// InProcess are the API groups that this process serves itself.
	InProcess []InProcessAPI
	// Front sees every request before the API does, also before it knows who asks;
	// what it does not answer it gives to next. Nil is nothing.
	Front func(next http.Handler) http.Handler
}

// APIServer is the component "apiserver".
type APIServer struct {
	opts APIServerOptions
}

// NewAPIServer returns the component.
func NewAPIServer(opts APIServerOptions) *APIServer { return &APIServer{opts: opts} }

// Name implements component.Component.
func (s *APIServer) Name() string { return "apiserver" }

// Needs implements component.Component.
func (s *APIServer) Needs() []string { return []string{"datastore", "certificates"} }

// Run implements component.Component.
func (s *APIServer) Run(ctx context.Context, ready func()) error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	server, err := s.build(ctx, opts)
	if err != nil {
		return explainBind(err, s.opts.Port)
	}
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	go func() {
		if waitReady(ctx, s.opts.Loopback) != nil {
			return
		}
		ready()
		select {
		case <-ctx.Done():
		case <-time.After(documentsDelay):
			server.documents.settle()
		}
	}()
	done := make(chan error, 1)
	go func() { done <- prepared.Run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	// It would wait up to a minute for watches to be given up by their clients.
	// Those are mostly in this process and gone; the others start theirs again.
	select {
	case err := <-done:
		return err
	case <-time.After(shutdownGrace):
		return nil
	}
}

// shutdownGrace is how long requests that are being answered may take when the
// process stops.
const shutdownGrace = time.Second

// options translates our options into upstream's.
func (s *APIServer) options() (*options.ServerRunOptions, error) {
	o := s.opts
	opts := options.NewServerRunOptions()
	// Binding the flags sets their defaults, so it goes before our settings.
	flags := opts.Flags()

	opts.GenericServerRunOptions.AdvertiseAddress = o.AdvertiseAddress.AsSlice()
	// A single server has nobody who could take over while it says goodbye.
	opts.GenericServerRunOptions.ShutdownDelayDuration = 0
	opts.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = 0

	opts.Etcd.StorageConfig.Transport.ServerList = []string{o.Datastore}
	// Objects are counted for metrics and for the cost of lists, which takes a
	// count for stale after three minutes.
	opts.Etcd.StorageConfig.CountMetricPollPeriod = 150 * time.Second
	opts.Etcd.EncryptionProviderConfigFilepath = o.Certificates.EncryptionConfig

	opts.SecureServing.BindAddress = net.IP(o.BindAddress.AsSlice())
	opts.SecureServing.BindPort = o.Port
	opts.SecureServing.ServerCert.CertKey.CertFile = o.Certificates.APIServer.CertFile
	opts.SecureServing.ServerCert.CertKey.KeyFile = o.Certificates.APIServer.KeyFile
	opts.SecureServing.MinTLSVersion = "VersionTLS12"

	opts.Authentication.ClientCert.ClientCA = o.Certificates.ClientCA.CertFile
	opts.Authentication.RequestHeader.ClientCAFile = o.Certificates.RequestHeaderCA.CertFile
	opts.Authentication.RequestHeader.AllowedNames = []string{o.Certificates.FrontProxy.Subject.CommonName}
	opts.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	opts.Authentication.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	opts.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	opts.Authentication.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	opts.Authentication.ServiceAccounts.Issuers = []string{"https://kubernetes.default.svc." + o.ClusterDomain}
	opts.Authentication.ServiceAccounts.KeyFiles = []string{o.Certificates.ServiceAccountKey}
	opts.Authentication.AuthenticationConfigFile = o.AuthenticationConfig
	opts.ServiceAccountSigningKeyFile = o.Certificates.ServiceAccountKey
	opts.Authorization.Modes = []string{"Node", "RBAC"}
	opts.Admission.GenericAdmission.EnablePlugins = []string{"NodeRestriction"}

	opts.ProxyClientCertFile = o.Certificates.FrontProxy.CertFile
	opts.ProxyClientKeyFile = o.Certificates.FrontProxy.KeyFile
	opts.KubeletConfig.TLSClientConfig.CertFile = o.KubeletClient.CertFile
	opts.KubeletConfig.TLSClientConfig.KeyFile = o.KubeletClient.KeyFile
	opts.KubeletConfig.TLSClientConfig.CAFile = o.Certificates.ServerCA.CertFile
	opts.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname"}

	opts.ServiceClusterIPRanges = commaList(o.ServiceCIDRs)
	opts.ServiceNodePortRange = utilnet.PortRange{Base: o.NodePortFirst, Size: o.NodePortLast - o.NodePortFirst + 1}
	opts.AllowPrivileged = true
	// Endpoints are reachable from every server, so no Service has to be in between.
	opts.EnableAggregatorRouting = true
	// One server: its address is written when it changes, not renewed every few seconds.
	opts.EndpointReconcilerType = string(reconcilers.MasterCountReconcilerType)
	opts.MasterCount = 1
	opts.Features.EnableProfiling = o.Profiling

	if o.AuditLog != "" {
		opts.Audit.PolicyFile = o.AuditPolicy
		opts.Audit.LogOptions.Path = o.AuditLog
		opts.Audit.LogOptions.MaxSize = 100
		opts.Audit.LogOptions.MaxBackups = 5
	}
	if err := setArgs(flags, "kube-apiserver-arg", o.Args); err != nil {
		return nil, err
	}
	return opts, nil
}

// build assembles the chain: aggregator → Kubernetes → extensions → not found.
// It differs from upstream's own assembly in three things: the stores call the
// datastore in the process, the API groups of this process are installed on the
// Kubernetes server, and that server's OpenAPI documents are built later.
func (s *APIServer) build(ctx context.Context, opts *options.ServerRunOptions) (*chain, error) {
	registry := opts.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := setFeatures(registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)); err != nil {
		return nil, err
	}
	if err := registry.Set(); err != nil {
		return nil, err
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})

	completed, err := opts.Complete(ctx)
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) != 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	stores, err := newStores(ctx, s.opts.NewDatastoreClient, completed.Etcd)
	if err != nil {
		return nil, err
	}
	// It is compacted once, by the stores.
	completed.Etcd.StorageConfig.CompactionInterval = 0
	if completed.InformerName, err = cache.NewInformerName("kube-apiserver"); err != nil {
		return nil, err
	}
	return assemble(completed, stores, s.opts)
}

// explainBind puts the port into the error of a listener.
func explainBind(err error, port int) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the API server cannot start (port %d): %w", port, err)
}

// waitReady returns nil as soon as the API server says that it is ready.
func waitReady(ctx context.Context, config *rest.Config) error {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	client.Timeout = 5 * time.Second
	for {
		if ok := probe(ctx, client, config.Host+"/readyz"); ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
