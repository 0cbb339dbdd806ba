// Package containerdtest runs a real containerd inside a test program, with its
// own folders and socket below a temporary folder. It is for tests only.
package containerdtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	containerd "github.com/containerd/containerd/v2/client"
	// The plugins: content and snapshot stores, the services, the server.
	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	"github.com/containerd/containerd/v2/cmd/containerd/server"
	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/log"
)

// Main is the body of a TestMain: it starts containerd, runs the tests and
// stops it again. Without root, which containerd needs, the tests run with an
// empty socket and have to skip. One process can run containerd once only.
func Main(m *testing.M, socket *string) int {
	if os.Geteuid() != 0 {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "kombi-containerd-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "containerdtest:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	stop, err := start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "containerdtest:", err)
		return 1
	}
	defer stop()
	*socket = filepath.Join(dir, "c.sock")
	return m.Run()
}

func start(dir string) (stop func(), err error) {
	_ = log.SetLevel("error")
	config := &srvconfig.Config{
		Version: 4,
		Root:    filepath.Join(dir, "root"),
		State:   filepath.Join(dir, "state"),
		// No pods here, and nothing that looks at the machine around.
		DisabledPlugins: []string{
			"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images",
			"io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri",
			"io.containerd.server.v1.debug", "io.containerd.server.v1.metrics", "io.containerd.server.v1.grpc-tcp",
			"io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs",
		},
		Plugins: map[string]any{
			"io.containerd.server.v1.grpc":  map[string]any{"address": filepath.Join(dir, "c.sock")},
			"io.containerd.server.v1.ttrpc": map[string]any{"address": filepath.Join(dir, "c.ttrpc")},
		},
	}
	if err := server.CreateTopLevelDirectories(config); err != nil {
		return nil, err
	}
	if err := mount.SetTempMountLocation(filepath.Join(dir, "tmpmounts")); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	srv, err := server.New(ctx, config)
	if err != nil {
		cancel()
		return nil, err
	}
	if err := srv.Start(ctx); err != nil {
		cancel()
		return nil, err
	}
	return func() {
		cancel()
		srv.Stop()
	}, nil
}

// Client connects to the containerd that Main started, and skips the test when
// there is none.
func Client(tb testing.TB, socket, namespace string) *containerd.Client {
	tb.Helper()
	if socket == "" {
		tb.Skip("containerd needs root")
	}
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(namespace))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}
