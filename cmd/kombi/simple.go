package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/cmd/kombi/internal/imagecmd"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/status"
	"github.com/kombi-k8s/kombi/pkg/supervisor"
	"github.com/kombi-k8s/kombi/pkg/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  configcmd.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version.String())
			return err
		},
	}
}

func newStatusCommand() *cobra.Command {
	var output string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the components, where the time of the start went, and the first thing that is wrong",
		Args:  configcmd.NoArgs,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait so long for everything to be ready")
	load := configFlags(cmd, "data-dir", "run-dir", "config")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != "text" && output != "json" {
			return fmt.Errorf("there is no output format %q: use text or json", output)
		}
		c, err := load()
		if err != nil {
			return err
		}
		report, err := waitForReport(cmd.Context(), c.Paths().ControlSocket, wait)
		if err != nil {
			return err
		}
		if output == "json" {
			e := json.NewEncoder(cmd.OutOrStdout())
			e.SetIndent("", "  ")
			err = e.Encode(report)
		} else {
			err = status.Print(cmd.OutOrStdout(), report)
		}
		if err == nil && wait > 0 && !report.Ready {
			err = fmt.Errorf("not ready after %s: %s", wait, report.Problem)
		}
		return err
	}
	return cmd
}

// waitForReport asks for the report, again and again until it says ready or
// the time is over.
func waitForReport(ctx context.Context, socket string, wait time.Duration) (*status.Report, error) {
	if ctx == nil {
		ctx = context.Background()
	}
	deadline := time.Now().Add(wait)
	for {
		report, err := status.Get(ctx, socket)
		if (err == nil && report.Ready) || time.Now().After(deadline) {
			return report, err
		}
		if err != nil && !errors.Is(err, status.ErrNotRunning) {
			return nil, err
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func newTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Print the token with which other machines join, in the form that pins the cluster's certificate authority",
		Args:  configcmd.NoArgs,
	}
	load := configFlags(cmd, "data-dir", "config")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		p := c.Paths()
		secret, err := os.ReadFile(p.ServerToken)
		if err != nil {
			return fmt.Errorf("there is no token yet (%w): start `kombi server` first, and read it as root", err)
		}
		ca, err := os.ReadFile(filepath.Join(p.TLS, "server-ca.crt"))
		if err != nil {
			return err
		}
		line, err := supervisor.FormatToken(ca, strings.TrimSpace(string(secret)))
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Join(p.TLS, "server-ca.crt"), err)
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
		return err
	}
	return cmd
}

func newImageCommand() *cobra.Command {
	var flags *pflag.FlagSet // of the subcommand that runs
	cmd := imagecmd.New(func() (string, error) {
		c, err := config.Load(config.LoadOptions{Flags: flags})
		if err != nil {
			return "", err
		}
		return c.Paths().ContainerdSocket, nil
	})
	config.BindFlags(cmd.PersistentFlags(), config.Server, "data-dir", "run-dir", "config")
	cmd.PersistentPreRunE = func(sub *cobra.Command, _ []string) error {
		flags = sub.Flags()
		hosts := flags.Lookup("hosts-dir")
		if hosts == nil || hosts.Changed {
			return nil
		}
		c, err := config.Load(config.LoadOptions{Flags: flags})
		if err != nil {
			return err
		}
		return hosts.Value.Set(c.Paths().RegistryHosts)
	}
	return cmd
}

// configFlags gives a command some of the server's settings as flags and
// returns the function that loads the configuration.
func configFlags(cmd *cobra.Command, names ...string) func() (*config.Config, error) {
	flags := cmd.Flags()
	config.BindFlags(flags, config.Server, names...)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.ExplainFlagError(flags, err) })
	return func() (*config.Config, error) { return config.Load(config.LoadOptions{Flags: flags}) }
}
