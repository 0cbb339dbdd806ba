package testimages

import (
	"context"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

func buildBusybox(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	files, err := b.Busybox(ctx)
	if err != nil {
		return nil, err
	}
	layer, err := ociimage.Layer(files)
	if err != nil {
		return nil, err
	}
	img, err := ociimage.Build(ociimage.Spec{
		Name: Busybox, OS: "linux", Arch: runtime.GOARCH,
		Config: ocispec.ImageConfig{
			Cmd: []string{"/bin/sh"},
			Env: []string{"PATH=/bin"},
		},
		Layers: [][]byte{layer},
	})
	return []*ociimage.Image{img}, err
}
