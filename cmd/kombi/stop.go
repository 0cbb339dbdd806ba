package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/pkg/status"
	"github.com/kombi-k8s/kombi/pkg/uninstall"
)

func newStopCommand() *cobra.Command {
	var pods bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the running Kombi; pods go on running unless --pods is given",
		Args:  configcmd.NoArgs,
	}
	cmd.Flags().BoolVar(&pods, "pods", false, "end the pods of this node as well")
	load := configFlags(cmd, "data-dir", "run-dir", "config", "cgroup-root")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		if err := stopServer(cmd.Context(), c.Paths().ControlSocket, pods); err != nil || !pods {
			return err
		}
		stopped, err := uninstall.StopPods(cmd.Context(), uninstallOptions(c))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "ended %d containers of %d pods\n", stopped.Containers, stopped.Pods)
		return err
	}
	return cmd
}

// stopServer tells the process to stop and waits until it is gone. That
// nothing runs is a mistake, unless it may be so.
func stopServer(ctx context.Context, socket string, mayBeDown bool) error {
	report, err := status.Get(ctx, socket)
	if mayBeDown && errors.Is(err, status.ErrNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	process, err := os.FindProcess(report.PID)
	if err != nil {
		return err
	}
	if err := process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("process %d cannot be told to stop: %w", report.PID, err)
	}
	deadline := time.Now().Add(time.Minute)
	for process.Signal(syscall.Signal(0)) == nil {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d is still there after a minute: look at its log, or end it with kill -9 %d (no data is lost)", report.PID, report.PID)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}
