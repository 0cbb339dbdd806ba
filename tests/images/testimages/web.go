package testimages

import (
	"context"
	"io/fs"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// buildWeb makes two versions from one program: they differ by an environment
// variable, as releases often do.
func buildWeb(ctx context.Context, b *recipe.Builder) ([]*ociimage.Image, error) {
	program, err := b.Go(ctx, ".", "./tests/images/web")
	if err != nil {
		return nil, err
	}
	layer, err := ociimage.Layer([]ociimage.File{
		{Path: "/web", Mode: 0o755, Data: program},
		{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/:/web\nweb:x:10001:10001:web:/:/web\n")},
		{Path: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\nweb:x:10001:\n")},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	})
	if err != nil {
		return nil, err
	}
	var imgs []*ociimage.Image
	for _, v := range []struct{ name, version string }{{WebV1, "v1"}, {WebV2, "v2"}} {
		img, err := ociimage.Build(ociimage.Spec{
			Name: v.name, OS: "linux", Arch: runtime.GOARCH,
			Config: ocispec.ImageConfig{
				Entrypoint:   []string{"/web"},
				Cmd:          []string{"serve"},
				Env:          []string{"VERSION=" + v.version},
				User:         "10001:10001",
				ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			},
			Layers: [][]byte{layer},
		})
		if err != nil {
			return nil, err
		}
		imgs = append(imgs, img)
	}
	return imgs, nil
}
