package main

import (
	"context"
	"io/fs"
	"log/slog"
	"net/netip"

	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kombi-k8s/kombi/manifests"
	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/controlplane"
	"github.com/kombi-k8s/kombi/pkg/deploy"
	"github.com/kombi-k8s/kombi/pkg/dns"
	"github.com/kombi-k8s/kombi/pkg/metrics"
	"github.com/kombi-k8s/kombi/pkg/network"
	"github.com/kombi-k8s/kombi/pkg/network/loadbalancer"
	"github.com/kombi-k8s/kombi/pkg/node"
	"github.com/kombi-k8s/kombi/pkg/storage"
)

// addons makes what turns a bare control plane and node into a usable cluster,
// and the API groups that those parts serve. Each has an identity of its own.
func (w *wiring) addons(admin *rest.Config) ([]component.Component, []controlplane.InProcessAPI, error) {
	c := w.config
	deployer, err := w.client("system:kombi:deploy")
	if err != nil {
		return nil, nil, err
	}
	roles, err := fs.Sub(manifests.FS(), manifests.RBACFolder)
	if err != nil {
		return nil, nil, err
	}
	all := []component.Component{
		deploy.NewRBAC(deploy.RBACOptions{Log: w.log, Kube: admin, Roles: roles}),
		deploy.New(deploy.Options{
			Log: w.log, Kube: deployer, Bundled: manifests.FS(), UserDir: w.paths.Manifests, Disable: c.Disable,
			Vars: manifests.Vars(c.ClusterDNS, c.ClusterDomain), Server: c.NodeName,
		}),
	}
	parts, err := w.nodeParts()
	if err != nil {
		return nil, nil, err
	}
	all = append(all, parts...)
	if !c.Disabled("network") {
		identity, err := w.client("system:kombi:network")
		if err != nil {
			return nil, nil, err
		}
		all = append(all, loadbalancer.New(loadbalancer.Options{
			Log: w.log, Kube: identity, TakenPorts: []int32{sshPort, int32(c.HTTPSListenPort), int32(c.KubeletPort)},
		}))
	}
	var apis []controlplane.InProcessAPI
	if !c.Disabled("metrics-server") {
		identity, err := w.client("system:kombi:metrics")
		if err != nil {
			return nil, nil, err
		}
		m, err := metrics.New(metrics.Options{Log: w.log, Kube: identity})
		if err != nil {
			return nil, nil, err
		}
		all = append(all, m)
		apis = append(apis, controlplane.InProcessAPI{
			GroupVersion:  metrics.GroupVersion(),
			Priority:      controlplaneapiserver.APIServicePriority{Group: metrics.GroupPriority, Version: metrics.VersionPriority},
			ExtendOpenAPI: metrics.ExtendOpenAPI,
			Install:       m.InstallAPI,
		})
	}
	return all, apis, nil
}

// sshPort is how people reach the machine when nothing else works.
const sshPort = 22

// nodeParts are the parts that every node has, beside containers.
func (w *wiring) nodeParts() ([]component.Component, error) {
	c := w.config
	var all []component.Component
	if !c.Disabled("network") {
		options := networkOptions(c, w.log)
		options.NodeIPs = w.nodeIPs
		var err error
		if options.CgroupPath, err = node.SocketCgroup(c.Instance(), c.CgroupRootPath()); err != nil {
			return nil, err
		}
		if options.Kube, err = w.client("system:kombi:network"); err != nil {
			return nil, err
		}
		dataPlane := network.New(options)
		// One registry for all parts: the API server's /metrics shows it, behind
		// the API's authorization.
		legacyregistry.RawMustRegister(dataPlane.Collectors()...)
		// Loading programs needs no API, so it need not wait for it.
		preload := component.Func{ID: "network-programs", Do: func(ctx context.Context, ready func()) error {
			if err := dataPlane.Preload(ctx); err != nil {
				return err
			}
			ready()
			<-ctx.Done()
			return nil
		}}
		all = append(all, preload, dataPlane)
	}
	if !c.Disabled("dns") {
		identity, err := w.client("system:kombi:dns")
		if err != nil {
			return nil, err
		}
		var listen []netip.AddrPort
		for _, a := range c.ClusterDNS {
			listen = append(listen, netip.AddrPortFrom(a, 53))
		}
		resolver, err := dns.New(dns.Options{
			Log: w.log, Kube: identity, Listen: listen,
			ClusterDomain: c.ClusterDomain, ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs,
			ResolvConf: c.ResolvConf, StateDir: w.paths.Node,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, resolver)
	}
	if !c.Disabled("storage") {
		identity, err := w.client("system:kombi:storage")
		if err != nil {
			return nil, err
		}
		all = append(all, storage.New(storage.Options{Log: w.log, Kube: identity, NodeName: c.NodeName, Dir: w.paths.Storage}))
	}
	return all, nil
}

// networkOptions are what the data plane needs to take down what it made; to
// run, it also needs the node's address, a cgroup and an identity.
func networkOptions(c *config.Config, log *slog.Logger) network.Options {
	p := c.Paths()
	return network.Options{
		Log: log, NodeName: c.NodeName,
		ClusterCIDRs: c.ClusterCIDRs, ServiceCIDRs: c.ServiceCIDRs,
		StateDir: p.Network, SocketPath: p.NetworkSocket, CNIConfDir: p.CNIConfDir, PinDir: p.BPF,
		NodeLocalAddrs: c.ClusterDNS, Backend: c.NetworkBackend,
		NodePortRange: network.PortRange{From: uint16(c.ServiceNodePortRange.First), To: uint16(c.ServiceNodePortRange.Last)},
	}
}
