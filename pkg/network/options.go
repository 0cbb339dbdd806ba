package network

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/client-go/rest"
)

// Options configure the data plane of one node.
type Options struct {
	// Log receives one line for each change that a person would care about.
	Log *slog.Logger
	// NodeName is the name of this node's Node object.
	NodeName string
	// NodeIPs are the addresses by which other nodes and the API know this node,
	// at most one of each family.
	NodeIPs []netip.Addr
	// ClusterCIDRs are the prefixes of all pods of the cluster, at most one of each
	// family. Traffic of pods to them is never masqueraded.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs are the prefixes of all service addresses. Traffic to an address
	// in them that no Service owns is refused instead of leaving the node.
	ServiceCIDRs []netip.Prefix
	// StateDir keeps one file per attached pod; normally <data-dir>/network.
	StateDir string
	// SocketPath is the unix socket on which kombi-cni reaches this node.
	SocketPath string
	// CNIConfDir is the directory in which 10-kombi.conflist is written.
	CNIConfDir string
	// PinDir is a directory on a bpf file system in which maps and links are
	// pinned, so that traffic flows while Kombi restarts. It must be this node's
	// own. Empty means that nothing is pinned and connections do not survive.
	PinDir string
	// CgroupPath is the cgroup2 directory to which the socket hooks attach. Empty means none:
	// pods are then served packet by packet, and the host itself does not reach service addresses.
	CgroupPath string
	// NodeLocalAddrs are service addresses that this host answers itself, such as
	// the cluster's DNS address. They are put on the loopback device and never translated.
	NodeLocalAddrs []netip.Addr
	// NodePortRange is the range from which the API allocates node ports. It is
	// only informative: any port that a Service has works.
	NodePortRange PortRange
	// Backend is how packets get to other nodes: BackendAuto (also empty), BackendNative
	// or BackendVXLAN.
	Backend string
	// MTU of pod devices in bytes; 0 derives it from the device of the default route.
	MTU int
	// Devices are the devices at which traffic enters and leaves the node. Empty means
	// all that own a default route or one of NodeIPs, followed as they change.
	Devices []string
	// Kube is the client configuration of the network's own identity.
	Kube *rest.Config

	noTCX bool // for tests: attach by tc clsact
}

// PortRange is an inclusive range of ports.
type PortRange struct{ From, To uint16 }

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

func (o Options) validate() error {
	for name, v := range map[string]string{
		"NodeName": o.NodeName, "StateDir": o.StateDir, "SocketPath": o.SocketPath, "CNIConfDir": o.CNIConfDir,
	} {
		if v == "" {
			return fmt.Errorf("network: option %s is not set", name)
		}
	}
	if len(o.NodeIPs) == 0 || slices.ContainsFunc(o.NodeIPs, func(a netip.Addr) bool { return !a.IsValid() }) {
		return errors.New("network: the node's address is not known; set node-ip")
	}
	return nil
}

// podsDir holds one record for each attached pod.
func (o Options) podsDir() string { return filepath.Join(o.StateDir, "pods") }

// confFile is the CNI configuration that makes kubelet report the network as ready.
func (o Options) confFile() string { return filepath.Join(o.CNIConfDir, "10-kombi.conflist") }
