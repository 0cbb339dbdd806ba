// Package dns answers DNS queries of pods and of the node itself from inside the
// process: CoreDNS as a library, on the service address that pods find in their
// resolv.conf.
//
// It owns the listening sockets on the given addresses, CoreDNS's process-wide
// registries of directives and servers, and one file with the configuration in
// use. It needs the addresses to exist before it starts; it puts none on an
// interface.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"k8s.io/client-go/rest"
)

// DefaultDomain is the cluster domain that most manifests expect.
const DefaultDomain = "cluster.local"

// Options are what [New] needs.
type Options struct {
	// Log receives one line for each change of state; required.
	Log *slog.Logger
	// Kube reaches the API server with the rights to list and watch services,
	// endpointslices, namespaces and nodes, and the ConfigMap coredns-custom.
	// Nothing is connected before Run. Required.
	Kube *rest.Config
	// Listen are the addresses to answer on, over UDP and TCP; required, and
	// present on an interface when Run is called.
	Listen []netip.AddrPort
	// ClusterDomain is the zone of the cluster; "" means [DefaultDomain].
	ClusterDomain string
	// ClusterCIDRs and ServiceCIDRs are the networks of pods and services. The
	// reverse zones of these are answered here and never asked of others.
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
	// ResolvConf is a file in the format of resolv.conf(5) that names the
	// resolvers for all other names; it is used as it is, but for addresses of
	// the cluster's own. "" means the node's own, with loopback resolvers left
	// out (see [Upstreams]). It is followed when it changes.
	ResolvConf string
	// StateDir is where the configuration in use is written for people to read;
	// "" means nowhere.
	StateDir string
}

// DNS is the component "dns".
type DNS struct {
	log        *slog.Logger
	kube       *rest.Config
	listen     []netip.AddrPort
	domain     string // fully qualified
	reverse    []string
	services   []netip.Prefix
	resolvConf string
	stateDir   string

	hosts   *nodeHosts
	cluster *cluster // of the current Run
	serving atomic.Bool
}

// New checks the options; it opens and connects nothing.
func New(opts Options) (*DNS, error) {
	if opts.Log == nil || opts.Kube == nil {
		return nil, errors.New("dns: Log and Kube are required")
	}
	if len(opts.Listen) == 0 {
		return nil, errors.New("dns: there is no address to listen on; give at least one in Listen")
	}
	for _, a := range opts.Listen {
		if !a.IsValid() || a.Port() == 0 {
			return nil, fmt.Errorf("dns: %s is not an address with a port to listen on", a)
		}
		if a.Addr().IsUnspecified() {
			return nil, fmt.Errorf("dns: refusing to listen on %s: it would answer the whole network; give the service address", a)
		}
	}
	if opts.ClusterDomain == "" {
		opts.ClusterDomain = DefaultDomain
	}
	domain := dns.Fqdn(strings.ToLower(opts.ClusterDomain))
	if labels, ok := dns.IsDomainName(domain); !ok || labels == 0 || strings.ContainsAny(domain, " \t\n\"{}#$%\\") {
		return nil, fmt.Errorf("dns: %q is not a domain name for the cluster", opts.ClusterDomain)
	}
	return &DNS{
		log:        opts.Log,
		kube:       opts.Kube,
		listen:     slices.Clone(opts.Listen),
		domain:     domain,
		reverse:    reverseZones(slices.Concat(opts.ClusterCIDRs, opts.ServiceCIDRs)),
		services:   slices.Clone(opts.ServiceCIDRs),
		resolvConf: opts.ResolvConf,
		stateDir:   opts.StateDir,
		hosts:      newNodeHosts(),
	}, nil
}

// Name implements component.Component.
func (d *DNS) Name() string { return "dns" }

// Needs implements component.Component.
func (d *DNS) Needs() []string { return []string{"network", "rbac", "apiserver"} }

// Restartable tells that Run may be called again after a failure.
func (d *DNS) Restartable() bool { return true }

// healthTimeout keeps Healthy within the second that its callers allow.
const healthTimeout = 900 * time.Millisecond

// Healthy asks the server for a record that needs no API server, over the wire,
// on each of its addresses.
func (d *DNS) Healthy() error {
	if !d.serving.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), healthTimeout)
	defer cancel()
	query := new(dns.Msg).SetQuestion("dns-version."+d.domain, dns.TypeTXT)
	for _, a := range d.listen {
		reply, _, err := (&dns.Client{}).ExchangeContext(ctx, query, a.String())
		switch {
		case err != nil:
			return fmt.Errorf("DNS does not answer on %s, so pods cannot resolve names: %w", a, err)
		case reply.Rcode != dns.RcodeSuccess:
			return fmt.Errorf("DNS on %s answers its own test query with %s", a, dns.RcodeToString[reply.Rcode])
		}
	}
	return nil
}
