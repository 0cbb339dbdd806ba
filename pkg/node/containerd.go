// Package node makes this machine a node: it runs containerd and the kubelet
// as components of this process. runc and the shims are programs of their own,
// so pods live on when this process ends.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins" // the plugins of containerd register themselves
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/kombi-k8s/kombi/pkg/node/images"
)

// CRINamespace is the containerd namespace of Kubernetes' containers and images.
const CRINamespace = "k8s.io"

// ContainerdOptions configure containerd.
type ContainerdOptions struct {
	// Log receives state changes.
	Log *slog.Logger
	// Root holds images and containers, State what does not outlive a boot.
	Root, State string
	// Socket is where clients find it.
	Socket string
	// BinDir holds runc, the shim, kombi-cni and pause.
	BinDir string
	// CNIConfDir is watched for the network's configuration.
	CNIConfDir string
	// RegistryHosts is the folder with hosts.toml files of registries.
	RegistryHosts string
	// Snapshotter is overlayfs or native.
	Snapshotter string
	// RestrictOOMScoreAdj is set where the kernel does not let us lower the
	// OOM score of containers: without CAP_SYS_RESOURCE.
	RestrictOOMScoreAdj bool
	// DisableApparmor is set where the kernel has none.
	DisableApparmor bool
}

// Containerd is the component "containerd".
type Containerd struct {
	opts ContainerdOptions
}

// NewContainerd returns the component.
func NewContainerd(opts ContainerdOptions) *Containerd { return &Containerd{opts: opts} }

// Name implements component.Component.
func (c *Containerd) Name() string { return "containerd" }

// Needs implements component.Component.
func (c *Containerd) Needs() []string { return nil }

// Run implements component.Component.
func (c *Containerd) Run(ctx context.Context, ready func()) error {
	config := c.config()
	// The folder watched for the network's configuration has to be there first.
	for _, dir := range []string{c.opts.CNIConfDir, c.opts.RegistryHosts} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	if err := server.CreateTopLevelDirectories(config); err != nil {
		return fmt.Errorf("cannot make containerd's folders: %w", err)
	}
	if err := mount.SetTempMountLocation(filepath.Join(c.opts.Root, "tmpmounts")); err != nil {
		return err
	}
	if _, err := mount.CleanupTempMounts(0); err != nil {
		c.opts.Log.Warn("left-over temporary mounts cannot be removed", "error", err)
	}
	srv, err := server.New(ctx, config)
	if err != nil {
		return fmt.Errorf("containerd cannot start: %w", err)
	}
	defer srv.Stop()
	if err := srv.Start(ctx); err != nil {
		return fmt.Errorf("containerd cannot listen on %s: %w", c.opts.Socket, err)
	}
	srv.Wait()
	if err := c.importPause(ctx); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// importPause gives containerd the image of the pause container, which comes
// out of our own file.
func (c *Containerd) importPause(ctx context.Context) error {
	client, err := containerd.New(c.opts.Socket, containerd.WithDefaultNamespace(CRINamespace), containerd.WithTimeout(10*time.Second))
	if err != nil {
		return fmt.Errorf("containerd does not answer on %s: %w", c.opts.Socket, err)
	}
	defer func() { _ = client.Close() }()
	if _, err := images.EnsurePause(ctx, client, filepath.Join(c.opts.BinDir, "pause")); err != nil {
		return fmt.Errorf("the pause image cannot be imported: %w", err)
	}
	return nil
}

// config translates our options into containerd's configuration, format 4.
func (c *Containerd) config() *srvconfig.Config {
	o := c.opts
	return &srvconfig.Config{
		Version: 4,
		Root:    o.Root,
		State:   o.State,
		// Only what a node of Kubernetes uses; each plugin costs start time and memory.
		DisabledPlugins: []string{
			"io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
			"io.containerd.differ.v1.erofs", "io.containerd.mount-handler.v1.erofs",
			"io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.restart",
			"io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
			"io.containerd.image-verifier.v1.bindir", "io.containerd.server.v1.grpc-tcp",
			"io.containerd.server.v1.debug", "io.containerd.server.v1.metrics",
		},
		Plugins: map[string]any{
			"io.containerd.server.v1.grpc":  map[string]any{"address": o.Socket},
			"io.containerd.server.v1.ttrpc": map[string]any{"address": o.Socket + ".ttrpc"},
			"io.containerd.cri.v1.images": map[string]any{
				"snapshotter":          o.Snapshotter,
				"pinned_images":        map[string]any{"sandbox": images.PauseRef},
				"registry":             map[string]any{"config_path": o.RegistryHosts},
				"stats_collect_period": 60,
			},
			"io.containerd.cri.v1.runtime": map[string]any{
				"containerd": map[string]any{
					"default_runtime_name": "runc",
					"runtimes": map[string]any{
						"runc": map[string]any{
							"runtime_type": "io.containerd.runc.v2",
							// It becomes the shim beside it, without the timer slack of an idle Kombi.
							"runtime_path": filepath.Join(o.BinDir, "shim"),
							"sandboxer":    "podsandbox",
							"options": map[string]any{
								"BinaryName":    filepath.Join(o.BinDir, "runc"),
								"Root":          filepath.Join(o.State, "runc"),
								"SystemdCgroup": false,
							},
						},
					},
				},
				"cni": map[string]any{
					"bin_dirs":              []string{o.BinDir, "/opt/cni/bin"}, // the second for a network of the user's own
					"conf_dir":              o.CNIConfDir,
					"max_conf_num":          1,
					"use_internal_loopback": true,
				},
				"restrict_oom_score_adj":              o.RestrictOOMScoreAdj,
				"disable_apparmor":                    o.DisableApparmor,
				"netns_mounts_under_state_dir":        true,
				"enable_unprivileged_ports":           true,
				"enable_unprivileged_icmp":            true,
				"tolerate_missing_hugetlb_controller": true,
				"disable_hugetlb_controller":          true,
			},
		},
	}
}
