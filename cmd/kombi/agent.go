package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/host"
	"github.com/kombi-k8s/kombi/pkg/status"
	"github.com/kombi-k8s/kombi/pkg/supervisor"
	"github.com/kombi-k8s/kombi/pkg/version"
)

func newAgentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run an agent: this machine as a node of a cluster whose server is elsewhere",
		Args:  configcmd.NoArgs,
	}
	flags := cmd.Flags()
	config.BindFlags(flags, config.Agent)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.ExplainFlagError(flags, err) })
	cmd.RunE = func(*cobra.Command, []string) error {
		started := time.Now()
		c, err := config.Load(config.LoadOptions{Role: config.Agent, Flags: flags, NodeAddresses: ownAddresses(), CheckArg: checkArg})
		if err != nil {
			return err
		}
		return serve(c, started, program{name: "kombi agent", build: buildAgent, folders: []string{c.Paths().Agent}})
	}
	return cmd
}

// rejoinEvery is how often an agent asks for new certificates. They last a year.
const rejoinEvery = 30 * 24 * time.Hour

// buildAgent joins the cluster, and makes the components of a node.
func buildAgent(ctx context.Context, c *config.Config, facts host.Facts, log *slog.Logger, started time.Time) (*component.Graph, error) {
	machine, err := newMachine(c)
	if err != nil {
		return nil, err
	}
	membership, err := supervisor.Join(ctx, machine)
	if err != nil {
		return nil, err
	}
	adopt(c, membership.Cluster)
	nodeIPs, err := nodeAddresses(c)
	if err != nil {
		return nil, err
	}
	w := &wiring{
		config: c, facts: facts, paths: c.Paths(), log: log, nodeIPs: nodeIPs, credentials: c.Paths().Agent,
		client: func(user string, _ ...string) (*rest.Config, error) { return joined(membership, user) },
		kubelet: kubeletTLS{
			clientCA: membership.ClientCA(), cert: membership.File(supervisor.KubeletServing), key: membership.File(supervisor.KubeletServing),
		},
	}
	containers, err := w.node()
	if err != nil {
		return nil, err
	}
	parts, err := w.nodeParts()
	if err != nil {
		return nil, err
	}
	itself, err := w.client("system:node:" + c.NodeName)
	if err != nil {
		return nil, err
	}
	report := status.NewServer(status.Options{
		Socket: w.paths.ControlSocket, Version: version.String(), Started: started, NodeName: c.NodeName, Kube: itself,
	})
	components := []component.Component{report, membershipComponent(machine, log)}
	components = append(append(append(components, cluster(itself)...), containers...), parts...)
	graph, err := component.NewGraph(log, components...)
	if err != nil {
		return nil, err
	}
	report.Watch(graph)
	return graph, nil
}

func newMachine(c *config.Config) (supervisor.Machine, error) {
	if c.Server == "" {
		return supervisor.Machine{}, errors.New("there is no cluster to join: give the server with --server https://ADDRESS:6443")
	}
	text, err := c.ReadToken()
	if err != nil {
		return supervisor.Machine{}, err
	}
	if text == "" {
		return supervisor.Machine{}, errors.New("there is no token: give the line that `kombi token` prints on the server, with --token or --token-file")
	}
	token, err := supervisor.ParseToken(text)
	if err != nil {
		return supervisor.Machine{}, err
	}
	return supervisor.Machine{
		Server: c.Server, Token: token, Dir: c.Paths().Agent, NodeName: c.NodeName, Addresses: reachable(c), Version: version.String(),
	}, nil
}

// reachable are the addresses by which others may know this machine: those that
// are configured, or all of its own.
func reachable(c *config.Config) []netip.Addr {
	if len(c.NodeIPs) > 0 {
		return c.NodeIPs
	}
	var out []netip.Addr
	for _, a := range ownAddresses() {
		if a.IsGlobalUnicast() {
			out = append(out, a)
		}
	}
	return out
}

// adopt takes over what all nodes of the cluster have in common.
func adopt(c *config.Config, cluster supervisor.Cluster) {
	c.ClusterCIDRs, c.ServiceCIDRs = cluster.ClusterCIDRs, cluster.ServiceCIDRs
	c.ClusterDNS, c.ClusterDomain = cluster.ClusterDNS, cluster.ClusterDomain
}

// joined finds the identity of a user among those that the cluster gave this node.
func joined(m *supervisor.Membership, user string) (*rest.Config, error) {
	identity := strings.TrimPrefix(user, "system:kombi:")
	if strings.HasPrefix(user, "system:node:") {
		identity = supervisor.KubeletClient
	}
	if _, err := os.Stat(m.File(identity)); err != nil {
		return nil, fmt.Errorf("the cluster gave this node no identity %s: %w", user, err)
	}
	client := m.Client(identity)
	client.UserAgent = "kombi/" + user
	return client, nil
}

// membershipComponent renews the certificates long before they end.
func membershipComponent(m supervisor.Machine, log *slog.Logger) component.Component {
	return component.Func{ID: "membership", Do: func(ctx context.Context, ready func()) error {
		ready()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(rejoinEvery):
			}
			if _, err := supervisor.Join(ctx, m); err != nil && ctx.Err() == nil {
				log.Error("the node's certificates cannot be renewed", "error", err)
			}
		}
	}}
}

// cluster stands for what a server has and an agent only reaches. Its API need not
// answer for the node to start: pods that run here go on.
func cluster(itself *rest.Config) []component.Component {
	reached := func(ctx context.Context, ready func()) error {
		client, err := rest.HTTPClientFor(itself)
		if err != nil {
			return err
		}
		client.Timeout = 5 * time.Second
		for {
			if answer, err := client.Get(itself.Host + "/readyz"); err == nil {
				_ = answer.Body.Close()
				if answer.StatusCode == http.StatusOK {
					break
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(200 * time.Millisecond):
			}
		}
		ready()
		<-ctx.Done()
		return nil
	}
	with := func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return nil
	}
	return []component.Component{
		component.Func{ID: "apiserver", Do: reached},
		component.Func{ID: "rbac", After: []string{"apiserver"}, Do: with},
		component.Func{ID: "controller-manager", After: []string{"apiserver"}, Do: with},
	}
}
