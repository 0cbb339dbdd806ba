package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"os"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

func newImport(c connector) *cobra.Command {
	var opts images.ImportOptions
	cmd := &cobra.Command{
		Use:   "import FILE...",
		Short: "Import docker or OCI archives, plain or compressed with gzip or zstd",
		Example: `  kombi image import shop.tar db.tar.zst
  docker save shop:v2 | kombi image import -`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no archive is given: name one or more files, or - for standard input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.use(cmd.Context(), func(ctx context.Context, client *containerd.Client) error {
				// One bad file does not keep the others out.
				var errs []error
				for _, file := range args {
					if err := importFile(ctx, cmd, client, file, opts); err != nil {
						errs = append(errs, err)
					}
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().BoolVar(&opts.Pinned, "pin", true, "protect the images from the kubelet's garbage collection")
	cmd.Flags().StringVar(&opts.Name, "name", "", "repository for images that carry only a tag, such as example.com/shop")
	return cmd
}

func importFile(ctx context.Context, cmd *cobra.Command, client *containerd.Client, file string, opts images.ImportOptions) error {
	in, ok := cmd.InOrStdin().(*os.File)
	if file != "-" {
		var err error
		if in, err = os.Open(file); err != nil {
			return fmt.Errorf("image archive: %w", err)
		}
		defer in.Close()
	} else if !ok {
		return errors.New("standard input cannot be read: name a file instead")
	}
	bar := newProgress(cmd.ErrOrStderr(), "importing "+fileName(file), size(in))
	opts.Progress = bar.set
	imported, err := images.Import(ctx, client, in, opts)
	bar.done()
	var refused *images.Refused
	switch {
	case errors.As(err, &refused):
		return fmt.Errorf("image archive %s is refused: %w", fileName(file), err)
	case err != nil:
		return fmt.Errorf("image archive %s could not be imported: %w", fileName(file), err)
	}
	for _, img := range imported {
		fmt.Fprintf(cmd.OutOrStdout(), "imported %s\n", img.Name)
	}
	return nil
}
