// Command kombi is the whole of Kombi: server, command line and, by the name it
// is called with, kubectl, ctr and crictl.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/version"
)

func main() {
	os.Exit(run(os.Args))
}

// run dispatches by the name of the program and by the first argument, and
// returns the exit code.
func run(args []string) int {
	if t, ok := toolNamed(filepath.Base(args[0])); ok {
		return t(args)
	}
	// Tools parse their own flags, so they are taken out before cobra sees them.
	if len(args) > 1 {
		if t, ok := toolNamed(args[1]); ok {
			return t(args[1:])
		}
	}
	// Upstream parts register flags of their own programs (version, log levels)
	// in this global set, and cobra would offer them on each of our commands.
	pflag.CommandLine = pflag.NewFlagSet(args[0], pflag.ContinueOnError)
	if err := newRootCommand().Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "kombi: %v\n", err)
		return 1
	}
	return 0
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "kombi",
		Short:         "Kubernetes for containers and virtual machines in one file",
		Version:       version.String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
	}
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
	flags := root.Flags()
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.ExplainFlagError(flags, err) })
	root.AddCommand(
		newServerCommand(),
		newAgentCommand(),
		newStopCommand(),
		newStatusCommand(),
		newVersionCommand(),
		newTokenCommand(),
		newUninstallCommand(),
		configcmd.New(configcmd.Options{Load: config.LoadOptions{CheckArg: checkArg, NodeAddresses: ownAddresses()}}),
		newImageCommand(),
	)
	for _, t := range []struct{ name, short string }{
		{"kubectl", "Talk to the cluster (the upstream kubectl)"},
		{"ctr", "Talk to containerd (the upstream ctr)"},
		{"crictl", "Talk to the container runtime interface (the upstream crictl)"},
		{"supervise", "Keep Kombi running where there is neither systemd nor OpenRC"},
	} {
		// Only for the help: run, or the launcher, takes these names out first.
		root.AddCommand(&cobra.Command{Use: t.name, Short: t.short, DisableFlagParsing: true, Run: func(*cobra.Command, []string) {}})
	}
	return root
}

// unknownCommand says what the user may have meant.
func unknownCommand(root *cobra.Command, name string) error {
	var known []string
	for _, c := range root.Commands() {
		known = append(known, c.Name())
	}
	if meant := config.Suggest(name, known); meant != "" {
		return fmt.Errorf("there is no command %q; did you mean %s?", name, meant)
	}
	return fmt.Errorf("there is no command %q; see kombi --help", name)
}
