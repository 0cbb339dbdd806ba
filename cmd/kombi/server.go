package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/logging"
	"github.com/kombi-k8s/kombi/pkg/version"
)

// Garbage collection: a start allocates a lot once, so it runs with a lazy
// collector; afterwards memory matters more than a little work.
const (
	gcPercentStart = 400
	gcPercentRun   = 40
)

func newServerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server: the control plane and a node of this machine",
		Args:  cobra.NoArgs,
	}
	load := serverConfig(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		started := time.Now()
		c, err := load()
		if err != nil {
			return err
		}
		return serve(c, started)
	}
	return cmd
}

// serverConfig gives the command all settings of a server as flags and returns
// the function that loads and checks them.
func serverConfig(cmd *cobra.Command) func() (*config.Config, error) {
	flags := cmd.Flags()
	config.BindFlags(flags, config.Server)
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return config.ExplainFlagError(flags, err) })
	return func() (*config.Config, error) {
		return config.Load(config.LoadOptions{Flags: flags, NodeAddresses: ownAddresses(), CheckArg: checkArg})
	}
}

// serve runs a server until it is told to stop or fails.
func serve(c *config.Config, started time.Time) error {
	debug.SetGCPercent(gcPercentStart)
	// The embedded kubelet would tell systemd by itself that it is ready.
	manager := takeServiceManager()

	log := logging.New(os.Stderr, c.LogFormat, c.Level())
	embedded := logging.Adopt(log)
	slog.SetDefault(log)

	lock, err := prepare(c)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once

	log.Info("kombi starts", "version", version.String(), "dataDir", c.DataDir)
	graph, err := build(c, log, started)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-graph.Ready():
		case <-ctx.Done():
			return
		}
		log.Info("kombi is ready", "after", time.Since(started).Round(time.Millisecond), "node", c.NodeName)
		embedded.Settle()
		debug.SetGCPercent(gcPercentRun)
		debug.FreeOSMemory()
		manager.notifyReady(ctx, graph)
	}()
	if err := graph.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("kombi has stopped; pods go on running")
	return nil
}

// prepare makes the folders and takes the lock, before anything starts.
func prepare(c *config.Config) (*os.File, error) {
	p := c.Paths()
	for _, dir := range []struct {
		path string
		mode os.FileMode
	}{{p.DataDir, 0o755}, {p.RunDir, 0o711}, {p.Server, 0o700}, {p.TLS, 0o700}, {p.Credentials, 0o700}, {p.Node, 0o755}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return nil, fmt.Errorf("cannot make a folder: %w; check that %s is writable", err, c.DataDir)
		}
	}
	return takeLock(p.Lock)
}

// takeLock makes sure that one server at a time uses the data directory.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		pid, _ := os.ReadFile(path)
		_ = f.Close()
		return nil, fmt.Errorf("another kombi (process %s) runs with this data directory (%s): stop it, or give this one its own --data-dir", pid, path)
	}
	if err := f.Truncate(0); err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(f, "%d", os.Getpid())
	return f, err
}
