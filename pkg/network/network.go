// Package network is the eBPF data plane of a node: it wires pods, translates
// services, masquerades traffic that leaves the cluster and serves CNI requests.
//
// It owns the devices that start with "kmb", the node's socket for kombi-cni, the
// CNI configuration and everything below its pin and state directories. The
// programs and maps are in bpf and datapath, the pure model of services in services.
package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"k8s.io/client-go/kubernetes"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
	"github.com/kombi-k8s/kombi/pkg/network/ipam"
	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// Network is the component "network".
type Network struct {
	opts         Options
	client       kubernetes.Interface // nil: made from opts.Kube, as is the next
	policyClient policyclient.Interface

	load     sync.Mutex // guards loading
	loaded   bool
	dp       *datapath.Datapath
	table    *services.Table
	pods     *pods
	devices  *devices
	enforcer *enforcer
	peers    *peers
	deferred bool // programs wait for the services to be filled in

	apply  sync.Mutex // one writer of services at a time
	synced bool       // the maps hold all services; guarded by apply
	health *health    // once synced; guarded by apply

	mu   sync.Mutex
	sick error // why services are not what they should be
}

// New returns the component. Nothing is touched before Preload or Run.
func New(opts Options) *Network { return &Network{opts: opts.withDefaults()} }

// Name implements the component interface.
func (n *Network) Name() string { return "network" }

// Needs implements the component interface. Only watching the API needs these;
// call Preload to load programs earlier.
func (n *Network) Needs() []string { return []string{"rbac", "apiserver"} }

// Preload puts the node-local addresses on the loopback device, loads the programs and
// reconnects the pods of a process before. It needs no API. Run does it if
// nobody did; calling it again after success does nothing.
func (n *Network) Preload(ctx context.Context) error {
	n.load.Lock()
	defer n.load.Unlock()
	if n.loaded {
		return nil
	}
	if err := n.opts.validate(); err != nil {
		return err
	}
	if err := addNodeLocal(n.opts.NodeLocalAddrs); err != nil {
		return err
	}
	if err := ensureForwarding(n.opts.ClusterCIDRs); err != nil {
		return err
	}
	if n.opts.PinDir != "" {
		if err := datapath.EnsureBPFFS(n.opts.PinDir); err != nil {
			return err
		}
	}
	dp, err := datapath.Load(datapath.Options{Log: n.opts.Log, PinDir: n.opts.PinDir, NoTCX: n.opts.noTCX})
	if err != nil {
		return err
	}
	if err := n.setUp(dp); err != nil {
		return errors.Join(err, dp.Close())
	}
	n.loaded = true
	return ctx.Err()
}

func (n *Network) setUp(dp *datapath.Datapath) error {
	prefixes := map[netip.Prefix]datapath.PrefixKind{}
	for _, p := range n.opts.ClusterCIDRs {
		prefixes[p.Masked()] = datapath.Pods
	}
	for _, p := range n.opts.ServiceCIDRs {
		prefixes[p.Masked()] = datapath.Services
	}
	if err := dp.SetPrefixes(prefixes); err != nil {
		return err
	}
	store, err := ipam.OpenStore(n.opts.podsDir())
	if err != nil {
		return err
	}
	n.dp = dp
	n.table = services.NewTable(services.Config{NodeName: n.opts.NodeName, Untouched: n.opts.NodeLocalAddrs})
	n.devices = newDevices(n.opts, dp)
	n.enforcer = newEnforcer(n.opts, dp)
	n.peers = newPeers(n.opts, dp, n.devices)
	n.devices.changed = n.peers.refresh
	n.pods = newPods(n.opts, dp, store, n.table, n.devices, n.enforcer)
	n.pods.flush = n.flush

	// Programs of an older layout still serve from their own maps. Their places are
	// taken over when the new maps hold the services.
	n.deferred = dp.TakeoverPending()
	n.devices.setHold(n.deferred)
	if err := n.devices.refresh(); err != nil {
		return err
	}
	if err := n.pods.restore(!n.deferred); err != nil {
		return err
	}
	if n.deferred {
		return nil
	}
	return dp.AttachSockets(n.opts.CgroupPath)
}

// takeOver attaches what setUp left to the programs of an older layout.
func (n *Network) takeOver() error {
	if !n.deferred {
		return nil
	}
	n.devices.setHold(false)
	err := errors.Join(
		n.devices.refresh(),
		n.pods.attachAll(),
		n.dp.AttachSockets(n.opts.CgroupPath),
	)
	if err == nil {
		n.deferred = false
		n.dp.DropOldSchemas()
	}
	return err
}

// Run implements the component interface. It is ready when the programs are
// loaded and the CNI socket answers; kubelet sees the network as ready when, after
// that, the node's pod prefix is known and the services are in place.
func (n *Network) Run(ctx context.Context, ready func()) error {
	if err := n.Preload(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	srv, err := listenCNI(n.opts.SocketPath, n.pods, n.opts.Log)
	if err != nil {
		return err
	}
	ready()

	failed := make(chan error, 3)
	var wg sync.WaitGroup
	for _, run := range []func(context.Context) error{srv.serve, n.devices.follow, n.follow} {
		wg.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				failed <- err
			}
		})
	}
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	cancel()
	wg.Wait()
	n.load.Lock()
	defer n.load.Unlock()
	n.apply.Lock()
	if n.health != nil {
		n.health.close()
		n.health = nil
	}
	n.apply.Unlock()
	n.mu.Lock()
	n.enforcer = nil
	n.mu.Unlock()
	n.loaded, n.synced = false, false
	return errors.Join(err, n.dp.Close())
}

// Restartable implements the component interface.
func (n *Network) Restartable() bool { return true }

// Healthy returns why the data plane is not what the API asks for.
func (n *Network) Healthy() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sick != nil {
		return fmt.Errorf("services are not up to date on this node: %w", n.sick)
	}
	if n.enforcer != nil {
		return n.enforcer.healthy()
	}
	return nil
}
