package dns

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// ttl is how long answers about the cluster may be kept, in seconds.
const ttl = 5

// cluster is CoreDNS's kubernetes plugin with its caches of services,
// endpointslices and namespaces. It lives as long as a Run of the component;
// every configuration that is loaded meanwhile gets a copy that shares the caches,
// so a reload asks the API server for nothing.
//
// The plugin's own setup function is not used: it would make itself the sink of
// the whole process's klog, and take credentials from files only.
type cluster struct{ plugin *kubernetes.Kubernetes }

func newCluster(ctx context.Context, kube *rest.Config, domain string) (*cluster, error) {
	// Reverse lookups of all networks are looked for, not only of the cluster's
	// own: pods on the host network are endpoints as well.
	stanza := fmt.Sprintf("kubernetes %s in-addr.arpa ip6.arpa {\n pods insecure\n ttl %d\n fallthrough in-addr.arpa ip6.arpa\n}\n", domain, ttl)
	c := caddy.NewTestController("dns", stanza)
	c.Next()
	k, err := kubernetes.ParseStanza(c)
	if err != nil {
		return nil, fmt.Errorf("set up CoreDNS's kubernetes plugin: %w", err)
	}
	k.ClientConfig = typedConfig{apiConfig(kube)}
	if _, _, err := k.InitKubeCache(ctx); err != nil {
		return nil, fmt.Errorf("set up CoreDNS's kubernetes plugin: %w", err)
	}
	return &cluster{k}, nil
}

// run keeps the caches current until ctx is done.
func (c *cluster) run(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = c.plugin.APIConn.Stop() })
	defer stop()
	c.plugin.APIConn.Run()
}

// synced tells whether all caches were filled once.
func (c *cluster) synced() bool { return c.plugin.APIConn.HasSynced() }

// handler returns the plugin followed by next.
func (c *cluster) handler(next plugin.Handler) plugin.Handler {
	k := *c.plugin
	k.Next = next
	return &k
}

// reverseZones returns the in-addr.arpa and ip6.arpa zones of the networks.
func reverseZones(networks []netip.Prefix) []string {
	var zones []string
	for _, n := range networks {
		zones = append(zones, plugin.Host(n.Masked().String()).NormalizeExact()...)
	}
	return zones
}

// apiConfig returns a copy of c for this component's clients.
func apiConfig(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	c.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return c
}

// typedConfig hands a rest.Config to code that expects a kubeconfig.
type typedConfig struct{ config *rest.Config }

func (t typedConfig) ClientConfig() (*rest.Config, error)     { return t.config, nil }
func (t typedConfig) RawConfig() (clientcmdapi.Config, error) { return clientcmdapi.Config{}, nil }
func (t typedConfig) Namespace() (string, bool, error)        { return "default", false, nil }
func (t typedConfig) ConfigAccess() clientcmd.ConfigAccess    { return nil }

var _ clientcmd.ClientConfig = typedConfig{}
