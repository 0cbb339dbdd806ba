// Package imagecmd is the `kombi image` command: it imports, lists, exports,
// removes and pulls the images of this node through containerd's socket.
package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

// New returns the command. socket gives the path of containerd's socket when a
// subcommand needs it, after the flags were read.
func New(socket func() (path string, err error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Manage the container images of this node",
		Long: `Manage the container images of this node.

Archives that are copied to the images folder of the data directory are
imported without a command. Imported images are pinned: the kubelet never
removes them to save space.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c := connector(socket)
	cmd.AddCommand(newImport(c), newList(c), newExport(c), newRemove(c), newPull(c))
	for _, sub := range cmd.Commands() {
		sub.SilenceUsage, sub.SilenceErrors = true, true
	}
	return cmd
}

// connector finds containerd's socket.
type connector func() (string, error)

// use calls do with a client and with a context in the kubelet's namespace.
func (c connector) use(ctx context.Context, do func(context.Context, *containerd.Client) error) error {
	socket, err := c()
	if err != nil {
		return err
	}
	if err := reachable(ctx, socket); err != nil {
		return err
	}
	client, err := containerd.New(socket, containerd.WithDefaultNamespace(images.Namespace), containerd.WithTimeout(10*time.Second))
	if err != nil {
		return fmt.Errorf("containerd at %s does not answer: %w; see `kombi status`", socket, err)
	}
	defer func() { _ = client.Close() }()
	return do(namespaces.WithNamespace(ctx, images.Namespace), client)
}

// reachable tells in one sentence why nobody answers at the socket.
func reachable(ctx context.Context, socket string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", socket)
	switch {
	case err == nil:
		return conn.Close()
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("kombi is not running (nothing listens at %s): start it with `systemctl start kombi` or `kombi server`", socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission to use %s: run the command as root, as in `sudo kombi image …`", socket)
	}
	return fmt.Errorf("containerd at %s does not answer: %w; see `kombi status`", socket, err)
}

// fileName is how a file argument is shown.
func fileName(arg string) string {
	if arg == "-" {
		return "standard input"
	}
	return arg
}

// size of a file, or 0 when it is not known, as for a pipe.
func size(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	return info.Size()
}
