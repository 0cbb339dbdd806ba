// Package configcmd is the command kombi config: it shows the configuration that a server would start with, and
// where each value comes from, and checks it without starting anything.
package configcmd

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/host"
)

// Options carries what validation needs to know about the machine and the embedded parts.
type Options struct {
	// Load is the base of every load; Flags is replaced by the command's own, and NodeAddresses defaults to those of
	// this machine.
	Load config.LoadOptions
}

// New makes the command with its subcommands show and validate. Both take every flag of kombi server.
func New(o Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the configuration",
		Args:  NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(show(o), validate(o))
	return cmd
}

func show(o Options) *cobra.Command {
	format, origin := "yaml", false
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print every key with its value; the output is a configuration file",
		Example: "  kombi config show --origin\n" +
			"  KOMBI_MAX_PODS=200 kombi config show -o json",
		Args: NoArgs,
	}
	cmd.Flags().StringVarP(&format, "output", "o", format, "output format: yaml or json")
	cmd.Flags().BoolVar(&origin, "origin", origin, "show where each value comes from")
	return finish(cmd, o, func(w io.Writer, c *config.Config, err error) error {
		write := map[string]func(io.Writer, []config.Setting, bool) error{"yaml": writeYAML, "json": writeJSON}[format]
		if write == nil {
			return fmt.Errorf("flag --output: %q is not a format; give yaml or json", format)
		}
		if werr := write(w, c.Settings(config.Server), origin); werr != nil {
			return werr
		}
		return err
	})
}

func validate(o Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check files, environment and flags, and print everything that is wrong",
		Args:  NoArgs,
	}
	return finish(cmd, o, func(w io.Writer, c *config.Config, err error) error {
		if err != nil {
			return err
		}
		from := "defaults only; there is no " + c.ConfigFile
		if files := c.Files(); len(files) > 0 {
			from = strings.Join(files, ", ")
		}
		_, err = fmt.Fprintf(w, "The configuration is valid (%s).\n", from)
		return err
	})
}

// finish gives the command the server's flags and loads the configuration before run.
func finish(cmd *cobra.Command, o Options, run func(io.Writer, *config.Config, error) error) *cobra.Command {
	cmd.SilenceUsage = true
	config.BindFlags(cmd.Flags(), config.Server)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return config.ExplainFlagError(cmd.Flags(), err) })
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		load := o.Load
		load.Flags = cmd.Flags()
		if load.NodeAddresses == nil {
			load.NodeAddresses = host.Addresses()
		}
		c, err := config.Load(load)
		return run(cmd.OutOrStdout(), c, err)
	}
	return cmd
}

// NoArgs is cobra.NoArgs with a next action.
func NoArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("the argument %q is not expected; see --help", args[0])
	}
	return nil
}
