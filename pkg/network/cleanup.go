package network

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/kombi-k8s/kombi/pkg/network/datapath"
)

// Cleanup removes every device, route, address, program, map and file that the
// network made on this machine. It needs neither a running Kombi nor a reachable API, may be
// repeated, and goes on after failures. Pods that still run lose their network.
//
// Kernel settings stay as they are: other software may have come to rely on ip_forward.
func Cleanup(opts Options) error {
	opts = opts.withDefaults()
	var errs []error
	links, err := netlink.LinkList()
	if err != nil {
		errs = append(errs, fmt.Errorf("cannot list network devices: %w", err))
	}
	for _, l := range links {
		if l.Attrs().Alias == opts.alias() {
			errs = append(errs, deletePair(l.Attrs().Name))
		}
	}
	errs = append(errs, removeRoutes(opts.ClusterCIDRs))
	if opts.PinDir != "" {
		errs = append(errs, datapath.RemoveAll(opts.PinDir))
	}
	errs = append(errs, datapath.RemoveFilters())
	errs = append(errs, removeNodeLocal(opts.NodeLocalAddrs))
	for _, path := range []string{opts.SocketPath, opts.StateDir} {
		if path != "" {
			errs = append(errs, os.RemoveAll(path))
		}
	}
	if opts.CNIConfDir != "" {
		errs = append(errs, os.RemoveAll(opts.confFile()), os.RemoveAll(opts.confFile()+".tmp"))
	}
	return errors.Join(errs...)
}
