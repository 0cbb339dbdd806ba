package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/cmd/kombi/internal/configcmd"
	"github.com/kombi-k8s/kombi/pkg/component"
	"github.com/kombi-k8s/kombi/pkg/config"
	"github.com/kombi-k8s/kombi/pkg/doctor"
	"github.com/kombi-k8s/kombi/pkg/host"
	"github.com/kombi-k8s/kombi/pkg/idle"
	"github.com/kombi-k8s/kombi/pkg/logging"
	"github.com/kombi-k8s/kombi/pkg/payload"
	"github.com/kombi-k8s/kombi/pkg/version"
)

// stopGrace is how long the components may take to end.
const stopGrace = 10 * time.Second

func newServerCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server: the control plane and a node of this machine",
		Args:  configcmd.NoArgs,
	}
	load := serverConfig(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		started := time.Now()
		c, err := load()
		if err != nil {
			return err
		}
		return serve(c, started, program{name: "kombi", build: buildServer, ports: serverPorts(c), folders: serverFolders(c), check: hasAddresses})
	}
	return cmd
}

// program is what serve runs: a server or an agent.
type program struct {
	name    string
	build   func(ctx context.Context, c *config.Config, facts host.Facts, log *slog.Logger, started time.Time) (*component.Graph, error)
	ports   []doctor.Port
	folders []string // with mode 0700, beside those of a node
	// check looks for what would fail later, before anything is written; nil is nothing.
	check func(c *config.Config) error
}

func hasAddresses(c *config.Config) error {
	_, err := nodeAddresses(c)
	return err
}

func serverPorts(c *config.Config) []doctor.Port {
	bind := ""
	if c.BindAddress.IsValid() && !c.BindAddress.IsUnspecified() {
		bind = c.BindAddress.String()
	}
	return []doctor.Port{{Key: "https-listen-port", Address: bind, Number: c.HTTPSListenPort}}
}

func serverFolders(c *config.Config) []string {
	p := c.Paths()
	return []string{p.Server, p.TLS, p.Credentials}
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

// serve runs a program until it is told to stop or fails.
func serve(c *config.Config, started time.Time, p program) error {
	collectLazily()
	// The embedded kubelet would tell systemd by itself that it is ready.
	manager := takeServiceManager()

	log := logging.New(os.Stderr, c.LogFormat, c.Level())
	embedded := logging.Adopt(log)
	slog.SetDefault(log)

	// containerd looks for runc by name as well as by the path that it is given.
	if err := os.Setenv("PATH", binDir()+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	facts := host.Gather()
	if err := preflight(c, facts, p.ports, log); err != nil {
		return err
	}
	if p.check != nil {
		if err := p.check(c); err != nil {
			return err
		}
	}
	lock, err := prepare(c, p.folders)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(ctx, func() {
		stop() // a second signal ends the process at once
		embedded.Settle(false)
	})

	log.Info(p.name+" starts", "version", version.String(), "dataDir", c.DataDir)
	graph, err := p.build(ctx, c, facts, log, started)
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-graph.Ready():
		case <-ctx.Done():
			return
		}
		log.Info(p.name+" is ready", "after", time.Since(started).Round(time.Millisecond), "node", c.NodeName)
		embedded.Settle(true)
		collectThriftily()
		go idle.Run(ctx, log)
		go tidyPrograms(c.DataDir, log)
		manager.notifyReady(ctx, graph)
	}()
	ended := make(chan error, 1)
	go func() { ended <- graph.Run(ctx) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		// Nothing is lost by leaving: every part survives kill -9.
		select {
		case err = <-ended:
		case <-time.After(stopGrace):
			log.Warn("some components did not end in time", "components", graph.Running())
		}
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	log.Info("kombi has stopped; pods go on running")
	return nil
}

// preflight runs the checks of the machine: warnings are logged, errors end the start.
func preflight(c *config.Config, facts host.Facts, ports []doctor.Port, log *slog.Logger) error {
	p := c.Paths()
	findings := doctor.Preflight(context.Background(), doctor.Options{
		DataDir: p.DataDir, RunDir: p.RunDir, Kubeconfig: p.Kubeconfig, Lock: p.Lock, ResolvConf: c.ResolvConf,
		BPFFS: filepath.Dir(p.BPF), PodNetworks: c.ClusterCIDRs, Facts: &facts,
		Ports: append(ports, doctor.Port{Key: "kubelet-port", Number: c.KubeletPort}),
	})
	for _, f := range findings {
		if f.Severity == doctor.Warning {
			log.Warn(f.Sentence, "check", f.Check, "next", f.NextAction)
		}
	}
	return doctor.Err(findings)
}

// tidyPrograms makes the unpacked programs of this version safe against a
// power cut and removes those of older versions that nothing runs from.
func tidyPrograms(dataDir string, log *slog.Logger) {
	if os.Getenv("KOMBI_BIN_DIR") == "" {
		return // not started by the launcher
	}
	hash := filepath.Base(binDir())
	if err := payload.Settle(dataDir, hash); err != nil {
		log.Warn("the unpacked programs cannot be made durable", "error", err)
	}
	removed, err := payload.Prune(dataDir, hash)
	if err != nil {
		log.Warn("programs of older versions cannot be removed", "error", err)
	} else if len(removed) > 0 {
		log.Info("programs of older versions removed", "versions", removed)
	}
}

// prepare makes the folders and takes the lock, before anything starts.
func prepare(c *config.Config, secret []string) (*os.File, error) {
	type folder struct {
		path string
		mode os.FileMode
	}
	p := c.Paths()
	folders := []folder{{p.DataDir, 0o755}, {p.RunDir, 0o711}, {p.Node, 0o755}}
	for _, path := range secret {
		folders = append(folders, folder{path, 0o700})
	}
	for _, dir := range folders {
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
