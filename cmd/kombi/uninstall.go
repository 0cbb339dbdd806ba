package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/network"
	"github.com/kombi-k8s/kombi/pkg/node"
	"github.com/kombi-k8s/kombi/pkg/supervisor"
	"github.com/kombi-k8s/kombi/pkg/uninstall"
)

func newUninstallCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove everything that Kombi made on this machine, its data included",
		Args:  configcmd.NoArgs,
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	load := configFlags(cmd, "data-dir", "run-dir", "config", "cgroup-root", "cluster-dns", "cluster-cidr", "service-cidr")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// A configuration that is broken must not keep anyone from removing Kombi.
		c, _ := load()
		if m, err := supervisor.Load(c.Paths().Agent); err == nil {
			adopt(c, m.Cluster) // an agent's networks are those of its cluster
		}
		options := uninstallOptions(c)
		options.Yes, options.In, options.Out = yes, cmd.InOrStdin(), cmd.OutOrStdout()
		return uninstall.Run(cmd.Context(), options)
	}
	return cmd
}

// uninstallOptions are where a Kombi of this configuration leaves its traces.
func uninstallOptions(c *config.Config) uninstall.Options {
	p := c.Paths()
	return uninstall.Options{
		DataDir: p.DataDir, RunDir: p.RunDir, ContainerdState: p.ContainerdState, CgroupRoot: c.CgroupRootPath(), PodLogs: p.PodLogs,
		NetworkCleanup: func(context.Context) error {
			return errors.Join(
				network.Cleanup(networkOptions(c, slog.New(slog.DiscardHandler))),
				node.LeaveSocketCgroup(c.Instance(), c.CgroupRootPath()),
			)
		},
	}
}
