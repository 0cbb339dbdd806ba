package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	containerd "github.com/containerd/containerd/v2/client"
	coreimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/node/images"
)

func newRemove(c connector) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove", "delete"},
		Short:   "Remove images from this node",
		Long: `Remove images from this node, pinned or not.

An image whose archive is still in the images folder comes back with the next
start: remove the archive too.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no image is given: `kombi image list` shows their names")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.use(cmd.Context(), func(ctx context.Context, client *containerd.Client) error {
				var errs []error
				for _, name := range args {
					full, err := removeImage(ctx, client, name, force)
					if err != nil {
						errs = append(errs, err)
						continue
					}
					fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", full)
				}
				return errors.Join(errs...)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove the name even if containers use the image")
	return cmd
}

// removeImage removes a name and, with the last tag of an image, the names by
// id and by digest that stood beside it.
func removeImage(ctx context.Context, client *containerd.Client, name string, force bool) (string, error) {
	full := name
	if !digestOnly(name) {
		var err error
		if full, err = images.FullName(name, ""); err != nil {
			return "", fmt.Errorf("%q is no image name: %w", name, err)
		}
	}
	store := client.ImageService()
	img, err := store.Get(ctx, full)
	if errdefs.IsNotFound(err) {
		return "", fmt.Errorf("no image %s on this node: `kombi image list` shows what is there", full)
	}
	if err != nil {
		return "", fmt.Errorf("image %s: %w", full, err)
	}
	same, err := store.List(ctx, fmt.Sprintf("target.digest==%s", img.Target.Digest))
	if err != nil {
		return "", fmt.Errorf("image %s: %w", full, err)
	}
	same = slices.DeleteFunc(same, func(i coreimages.Image) bool { return i.Name == full })
	lastTag := !slices.ContainsFunc(same, func(i coreimages.Image) bool { return !alias(i.Name) })
	gone := []string{full}
	if lastTag {
		for _, i := range same {
			gone = append(gone, i.Name)
		}
	}
	if !force && lastTag {
		if err := unused(ctx, client, gone); err != nil {
			return "", err
		}
	}
	for i, n := range gone {
		var opts []coreimages.DeleteOpt
		if i == len(gone)-1 {
			// Space is free again when the command returns.
			opts = append(opts, coreimages.SynchronousDelete())
		}
		if err := store.Delete(ctx, n, opts...); err != nil && !errdefs.IsNotFound(err) {
			return "", fmt.Errorf("remove image %s: %w", n, err)
		}
	}
	return full, nil
}

// unused fails when a container was made from one of the names.
func unused(ctx context.Context, client *containerd.Client, names []string) error {
	containers, err := client.ContainerService().List(ctx)
	if err != nil {
		return fmt.Errorf("list containers: %w", err)
	}
	for _, ctr := range containers {
		if slices.Contains(names, ctr.Image) {
			pod := ctr.Labels["io.kubernetes.pod.namespace"] + "/" + ctr.Labels["io.kubernetes.pod.name"]
			return fmt.Errorf("image %s is used by pod %s: delete the pod first, or add --force", names[0], pod)
		}
	}
	return nil
}

func digestOnly(name string) bool {
	_, err := digest.Parse(name)
	return err == nil
}
