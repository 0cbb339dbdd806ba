package imagecmd

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/klauspost/compress/zstd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

func newExport(c connector) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export NAME...",
		Short: "Write images to one archive that docker, podman and kombi can import",
		Example: `  kombi image export -o shop.tar.zst example.com/shop:v2
  kombi image export example.com/shop:v2 | ssh edge kombi image import -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no image is given: `kombi image list` shows their names")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if f, ok := cmd.OutOrStdout().(*os.File); ok && output == "-" && term.IsTerminal(int(f.Fd())) {
				return errors.New("an archive is not for the terminal: use -o FILE, or send the output to a pipe")
			}
			return c.use(cmd.Context(), func(ctx context.Context, client *containerd.Client) error {
				return export(ctx, cmd, client, output, args)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "-", "file to write, compressed if it ends in .gz, .tgz or .zst; - for standard output")
	return cmd
}

func export(ctx context.Context, cmd *cobra.Command, client *containerd.Client, output string, names []string) (err error) {
	opts := []archive.ExportOpt{archive.WithPlatform(platforms.Default())}
	var total int64
	for _, name := range names {
		full, err := images.FullName(name, "")
		if err != nil {
			return fmt.Errorf("%q is no image name: %w", name, err)
		}
		img, err := client.GetImage(ctx, full)
		if errdefs.IsNotFound(err) {
			return fmt.Errorf("no image %s on this node: `kombi image list` shows what is there", full)
		}
		if err != nil {
			return fmt.Errorf("image %s: %w", full, err)
		}
		if n, err := img.Size(ctx); err == nil {
			total += n
		}
		opts = append(opts, archive.WithImage(client.ImageService(), full))
	}
	bar := newProgress(cmd.ErrOrStderr(), "exporting", total)
	defer bar.done()
	write := func(w io.Writer) error {
		zw, err := compressor(w, output)
		if err != nil {
			return err
		}
		counted := &countingWriter{w: zw, report: bar.set}
		if err := client.Export(ctx, counted, opts...); err != nil {
			return fmt.Errorf("export: %w", err)
		}
		return zw.Close()
	}
	if output == "-" {
		return write(cmd.OutOrStdout())
	}
	return replaceFile(output, write)
}

// replaceFile writes a file in full or leaves what was there.
func replaceFile(path string, write func(io.Writer) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return fmt.Errorf("export: %w", err)
	}
	defer os.Remove(tmp.Name())
	if err := errors.Join(write(tmp), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

// compressor compresses as the file's name says.
func compressor(w io.Writer, name string) (io.WriteCloser, error) {
	switch {
	case strings.HasSuffix(name, ".gz"), strings.HasSuffix(name, ".tgz"):
		return gzip.NewWriter(w), nil
	case strings.HasSuffix(name, ".zst"):
		return zstd.NewWriter(w)
	}
	return nopCloser{w}, nil
}

type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

type countingWriter struct {
	w      io.Writer
	n      int64
	report func(int64)
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	c.report(c.n)
	return n, err
}
