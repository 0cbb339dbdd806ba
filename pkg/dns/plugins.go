package dns

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Directives of our own. Each takes the number of the instance as its argument.
const (
	dirMetrics = "kombi_metrics" // count queries in the process's registry
	dirHosts   = "kombi_hosts"   // names and addresses of nodes
	dirCluster = "kombi_cluster" // services and pods
	dirReverse = "kombi_reverse" // the rest of the cluster's reverse zones
	dirNowhere = "kombi_nowhere" // no upstream: say so
	ownPrefix  = "kombi_"
)

// directives are all that a configuration may use, in the order in which a query
// passes them.
//
// Missing on purpose: debug ends the process on a panic in a query; pprof and
// prometheus open ports; file, auto, sign, tls and dnssec read files of the node;
// kubernetes takes over the process's klog.
func directives() []string {
	return []string{
		"metadata", "bufsize", "bind", dirMetrics, "reload", "ready", "health",
		"errors", "log", "dns64", "any", "loadbalance", "rewrite", "cache", "header", "minimal", "template",
		dirHosts, "hosts", dirCluster, dirReverse, "loop", "forward", dirNowhere, "whoami",
	}
}

// ignored are directives that configurations for other distributions contain and
// that have no meaning here; they are accepted and do nothing. CoreDNS's own would
// open ports, poll, or end the process when they find a forwarding loop.
func ignored() []string { return []string{"reload", "ready", "health", "loop"} }

// instances finds the component that a configuration belongs to: CoreDNS keeps
// directives in a registry of the process and hands their setup functions only
// text. It is the reason for the only mutable state of this package.
var instances struct {
	sync.Map // string to *DNS
	last     atomic.Int64
}

// registerPlugins enters the directives into CoreDNS's registry, once.
var registerPlugins = sync.OnceValue(func() error {
	dnsserver.Quiet, caddy.Quiet = true, true // else zones are printed to stdout
	for name, make := range map[string]func(*DNS, *dnsserver.Config) plugin.Plugin{
		dirMetrics: countQueries,
		dirHosts:   func(d *DNS, _ *dnsserver.Config) plugin.Plugin { return d.hosts.handler },
		dirCluster: func(d *DNS, _ *dnsserver.Config) plugin.Plugin { return d.cluster.handler },
		dirReverse: func(d *DNS, _ *dnsserver.Config) plugin.Plugin { return d.unknownReverse },
		dirNowhere: func(*DNS, *dnsserver.Config) plugin.Plugin { return nowhere },
	} {
		plugin.Register(name, func(c *caddy.Controller) error {
			d, err := instanceOf(c)
			if err != nil {
				return err
			}
			config := dnsserver.GetConfig(c)
			config.AddPlugin(make(d, config))
			return nil
		})
	}
	taken := caddy.ListPlugins()["others"]
	for _, name := range ignored() {
		if !slices.Contains(taken, "dns."+name) {
			plugin.Register(name, func(*caddy.Controller) error { return nil })
		}
	}
	// The only possible error is that somebody else has done so.
	_ = legacyregistry.Registerer().Register(figures{prometheus.DefaultGatherer})
	if err := dnsserver.SetDirectives(directives()); err != nil {
		return fmt.Errorf("set up CoreDNS: %w", err)
	}
	return nil
})

// enter makes d known to the directives and returns its number.
func (d *DNS) enter() (id string, leave func()) {
	id = strconv.FormatInt(instances.last.Add(1), 10)
	instances.Store(id, d)
	return id, func() { instances.Delete(id) }
}

func instanceOf(c *caddy.Controller) (*DNS, error) {
	for c.Next() {
		if args := c.RemainingArgs(); len(args) > 0 {
			if d, ok := instances.Load(args[0]); ok {
				return d.(*DNS), nil
			}
		}
	}
	return nil, fmt.Errorf("directives that begin with %s are reserved", ownPrefix)
}

// countQueries counts queries by zone, type and result. The plugin's own setup
// function would serve the figures on a port; here the process's registry has
// them.
func countQueries(_ *DNS, config *dnsserver.Config) plugin.Plugin {
	m := metrics.New("")
	m.AddZone(config.Zone)
	return func(next plugin.Handler) plugin.Handler {
		m.Next = next
		return m
	}
}

func isOwn(directive string) bool { return strings.HasPrefix(directive, ownPrefix) }
