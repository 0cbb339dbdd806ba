package images

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

// PauseRef is the name of the sandbox image, for the configuration of
// containerd's CRI plugin. Its version changes with the image's layout; a new
// pause program alone only changes the digest.
const PauseRef = "kombi.dev/pause:1"

// EnsurePause makes the sandbox image from the static program at
// pauseBinaryPath and stores it, pinned, as PauseRef, which it returns. When the
// same image is stored already it does nothing. It does not unpack the image:
// containerd does that with the first pod, by the snapshotter in use.
func EnsurePause(ctx context.Context, client *containerd.Client, pauseBinaryPath string) (ref string, err error) {
	program, err := os.ReadFile(pauseBinaryPath)
	if err != nil {
		return "", fmt.Errorf("sandbox image: %w", err)
	}
	img, err := pauseImage(program)
	if err != nil {
		return "", fmt.Errorf("sandbox image: %w", err)
	}
	ctx = namespaces.WithNamespace(ctx, Namespace)
	if stored, err := client.ImageService().Get(ctx, PauseRef); err == nil && stored.Target.Digest == img.Manifest.Digest {
		return PauseRef, nil
	}
	if err := storeImage(ctx, client, img); err != nil {
		return "", fmt.Errorf("sandbox image %s: %w", PauseRef, err)
	}
	return PauseRef, nil
}

func pauseImage(program []byte) (*ociimage.Image, error) {
	layer, err := ociimage.Layer([]ociimage.File{{Path: "/pause", Mode: 0o555, Data: program}})
	if err != nil {
		return nil, err
	}
	return ociimage.Build(ociimage.Spec{
		Name: PauseRef,
		OS:   "linux",
		Arch: runtime.GOARCH,
		Config: ocispec.ImageConfig{
			// As upstream's sandbox image: an unprivileged user.
			User:       "65535:65535",
			Entrypoint: []string{"/pause"},
			WorkingDir: "/",
		},
		Layers: [][]byte{layer},
	})
}

// storeImage writes the blobs and names of an image that is in memory.
func storeImage(ctx context.Context, client *containerd.Client, img *ociimage.Image) error {
	ctx, done, err := client.WithLease(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = done(context.WithoutCancel(ctx)) }()

	store := client.ContentStore()
	refs := map[string]string{"containerd.io/gc.ref.content.config": img.Config.Digest.String()}
	for i, layer := range img.Layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", i)] = layer.Digest.String()
		if err := writeBlob(ctx, store, layer, nil); err != nil {
			return err
		}
	}
	if err := writeBlob(ctx, store, img.Config, nil); err != nil {
		return err
	}
	if err := writeBlob(ctx, store, img.Manifest, refs); err != nil {
		return err
	}
	target := img.Manifest.Descriptor
	for _, name := range []string{img.Config.Digest.String(), img.Name} {
		if err := put(ctx, client.ImageService(), images.Image{Name: name, Target: target, Labels: Labels(true)}); err != nil {
			return err
		}
	}
	return nil
}

func writeBlob(ctx context.Context, store content.Store, b ociimage.Blob, labels map[string]string) error {
	err := content.WriteBlob(ctx, store, "kombi-"+b.Digest.String(), bytes.NewReader(b.Bytes), b.Descriptor, content.WithLabels(labels))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("store %s: %w", b.Digest, err)
	}
	return nil
}
