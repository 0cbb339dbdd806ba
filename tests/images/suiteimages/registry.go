package suiteimages

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// registryFiles is what agnhost's registry serves: pause:testing, laid out as
// fakeregistryserver/prepare_registry.sh of agnhost does.
func registryFiles(ctx context.Context, b *recipe.Builder) ([]ociimage.File, error) {
	imgs, err := buildPause(ctx, b)
	if err != nil {
		return nil, err
	}
	const dir = "/var/registry/pause/"
	blob := func(kind string, d digest.Digest, data []byte) ociimage.File {
		path := fmt.Sprintf("%s%s/%s/%s/%s/data", dir, kind, d.Algorithm(), d.Encoded()[:2], d.Encoded())
		return ociimage.File{Path: path, Mode: 0o644, Data: data}
	}
	var (
		img   = imgs[0]
		files []ociimage.File
	)
	for _, part := range slices.Concat([]ociimage.Blob{img.Config}, img.Layers) {
		files = append(files, blob("blobs", part.Digest, part.Bytes))
	}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{img.Manifest.Descriptor},
	})
	if err != nil {
		return nil, err
	}
	sum := digest.FromBytes(index)
	return append(files,
		blob("manifests", img.Manifest.Digest, img.Manifest.Bytes),
		blob("manifests", sum, index),
		ociimage.File{Path: dir + "manifests/testing", Mode: 0o644, Data: []byte(sum + "\n")},
	), nil
}
