package main

import (
	"io/fs"
	"net/netip"

	"k8s.io/client-go/rest"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/kombi-k8s/kombi/manifests"
	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/controlplane"
	"github.com/kombi-k8s/kombi/pkg/deploy"
	"github.com/kombi-k8s/kombi/pkg/dns"
	"github.com/kombi-k8s/kombi/pkg/metrics"
	"github.com/kombi-k8s/kombi/pkg/network"
	"github.com/kombi-k8s/kombi/pkg/node"
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
			Vars: manifests.Vars(c.ClusterDNS.String(), c.ClusterDomain), Server: c.NodeName,
		}),
	}
	if !c.Disabled("network") {
		options, err := w.networkOptions()
		if err != nil {
			return nil, nil, err
		}
		if options.Kube, err = w.client("system:kombi:network"); err != nil {
			return nil, nil, err
		}
		all = append(all, network.New(options))
	}
	if !c.Disabled("dns") {
		identity, err := w.client("system:kombi:dns")
		if err != nil {
			return nil, nil, err
		}
		resolver, err := dns.New(dns.Options{
			Log: w.log, Kube: identity, Listen: []netip.AddrPort{netip.AddrPortFrom(c.ClusterDNS, 53)},
			ClusterDomain: c.ClusterDomain, ClusterCIDRs: []netip.Prefix{c.ClusterCIDR}, ServiceCIDRs: []netip.Prefix{c.ServiceCIDR},
			ResolvConf: c.ResolvConf, StateDir: w.paths.Node,
		})
		if err != nil {
			return nil, nil, err
		}
		all = append(all, resolver)
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

// networkOptions are what the data plane needs, without its identity: enough
// to take down what it made.
func (w *wiring) networkOptions() (network.Options, error) {
	c := w.config
	cgroup, err := node.SocketCgroup(c.Instance())
	if err != nil {
		return network.Options{}, err
	}
	p := w.paths
	return network.Options{
		Log: w.log, NodeName: c.NodeName, NodeIP: w.nodeIP,
		ClusterCIDRs: []netip.Prefix{c.ClusterCIDR}, ServiceCIDRs: []netip.Prefix{c.ServiceCIDR},
		StateDir: p.Network, SocketPath: p.NetworkSocket, CNIConfDir: p.CNIConfDir, PinDir: p.BPF, CgroupPath: cgroup,
		NodeLocalAddrs: []netip.Addr{c.ClusterDNS},
		NodePortRange:  network.PortRange{From: uint16(c.ServiceNodePortRange.First), To: uint16(c.ServiceNodePortRange.Last)},
	}, nil
}
