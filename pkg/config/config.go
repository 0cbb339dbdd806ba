// Package config owns the one configuration of Kombi: every setting is declared once, in the schema, and is at
// the same time a flag, a key of /etc/kombi/config.yaml and its drop-ins, and an environment variable KOMBI_<KEY>.
//
// The package reads files and the environment when it is told to (Load) and touches nothing else: no network, no
// state, no package-level variables. Data flows one way: configuration, then components, then state.
package config

import (
	"io/fs"
	"log/slog"
	"net/netip"
)

// Defaults that other parts and the documentation refer to.
const (
	DefaultDataDir    = "/var/lib/kombi"
	DefaultRunDir     = "/run/kombi"
	DefaultConfigFile = "/etc/kombi/config.yaml"
	DefaultKubeconfig = "/etc/kombi/kombi.yaml"
)

// Config is the whole configuration with typed values. Load fills and validates it; a component gets what it
// needs from it as typed arguments and never reads files or the environment by itself.
type Config struct {
	// ConfigFile is the main file that was asked for; the drop-ins are in ConfigFile + ".d".
	ConfigFile string
	// DataDir holds all state. Absolute.
	DataDir string
	// RuntimeDir is run-dir as configured; empty means derived from DataDir. Use RunDir.
	RuntimeDir string

	// WriteKubeconfig is where the administrator's kubeconfig is written, with WriteKubeconfigMode.
	WriteKubeconfig     string
	WriteKubeconfigMode fs.FileMode

	// Token is the shared secret with which nodes join; TokenFile names a file that holds it. At most one is set.
	Token     string
	TokenFile string

	// BindAddress is the address the API listens on; 0.0.0.0 and :: mean all, of both families.
	BindAddress netip.Addr
	// HTTPSListenPort is the port of the API.
	HTTPSListenPort int
	// AdvertiseAddress is what the cluster is told as the API's address; the zero Addr means the node's address.
	AdvertiseAddress netip.Addr
	// TLSSAN are further names and addresses in the API's certificate.
	TLSSAN []string

	// ClusterCIDRs and ServiceCIDRs are the pod and the service networks: one, or one of each family. Both have the
	// same families in the same order; the first is the family of the cluster's own services.
	ClusterCIDRs, ServiceCIDRs []netip.Prefix
	// ClusterDNS has one address in each of ServiceCIDRs, in their order.
	ClusterDNS           []netip.Addr
	ClusterDomain        string
	ServiceNodePortRange PortRange

	// Server is the URL of the cluster that an agent joins.
	Server string
	// NetworkBackend is how packets get to other nodes: auto, native or vxlan.
	NetworkBackend string

	// NodeName is the name of the Node object, never empty after Load.
	NodeName string
	// NodeIPs are the node's addresses as far as they are set, at most one of each family; for a family of the
	// cluster without one, the address of the default route is meant.
	NodeIPs    []netip.Addr
	NodeLabel  []string
	NodeTaint  []string
	ResolvConf string // empty: the node's own, without resolver loops
	// KubeletPort is the port of the kubelet's API on the node's address.
	KubeletPort int
	MaxPods     int
	// CgroupRoot is the cgroup below which pods live; "auto" lets the node part choose. Use CgroupRootPath.
	CgroupRoot  string
	Snapshotter string // auto, overlayfs or native

	// Disable names the bundled parts that are not started, in Kombi's own names (k3s aliases are translated).
	Disable []string

	SecretsEncryption bool
	// AuditLog is the path of the API's audit log; empty means none.
	AuditLog string

	// The …Arg lists hold name=value pairs for what has no key of its own; names are checked when loading.
	KubeAPIServerArg         []string
	KubeControllerManagerArg []string
	KubeSchedulerArg         []string
	KubeletArg               []string

	LogLevel    string // debug, info, warn or error
	LogFormat   string // text or json
	Debug       bool
	EnablePprof bool

	origins map[string][]Origin // of each element, by key
	files   []string
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last int }

// Contains reports whether the port lies in the range.
func (r PortRange) Contains(port int) bool { return r.First <= port && port <= r.Last }

// Size is the number of ports in the range.
func (r PortRange) Size() int { return r.Last - r.First + 1 }

// Files are the configuration files that were read, in order.
func (c *Config) Files() []string { return append([]string(nil), c.files...) }

// Disabled reports whether a bundled part (dns, storage, metrics-server, network, …) was switched off.
func (c *Config) Disabled(part string) bool {
	for _, d := range c.Disable {
		if d == part {
			return true
		}
	}
	return false
}

// Level is the log level, with debug taken into account.
func (c *Config) Level() slog.Level {
	switch {
	case c.Debug || c.LogLevel == "debug":
		return slog.LevelDebug
	case c.LogLevel == "warn":
		return slog.LevelWarn
	case c.LogLevel == "error":
		return slog.LevelError
	}
	return slog.LevelInfo
}
