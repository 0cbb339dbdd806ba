package main

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/status"
)

func newStopCommand() *cobra.Command {
	var pods bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the running Kombi; pods go on running unless --pods is given",
		Args:  cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&pods, "pods", false, "end the pods of this node as well")
	load := configFlags(cmd, "data-dir", "run-dir", "config")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := load()
		if err != nil {
			return err
		}
		report, err := status.Get(cmd.Context(), c.Paths().ControlSocket)
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
	return cmd
}
