// Package suiteimages builds the images that the official end-to-end suite of
// Kubernetes runs, under their official names, from the suite's own sources and from
// Debian packages. docs/conformance.md says in what they differ from the published
// ones.
package suiteimages

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/tests/images/recipe"
)

// module is the folder of the module that has the suite and its programs.
const module = "tools/e2e"

// kubernetes is the module with the sources of most images.
const kubernetes = "k8s.io/kubernetes"

// Recipes are those of all images.
func Recipes() []recipe.Recipe {
	var all []recipe.Recipe
	for _, r := range []struct {
		name  string
		build func(context.Context, *recipe.Builder) ([]*ociimage.Image, error)
	}{
		{"agnhost", buildAgnhost},
		{"busybox", buildBusybox},
		{"etcd", buildEtcd},
		{"glibc-dns", buildGlibcDNS},
		{"ipc-utils", buildIPCUtils},
		{"nginx", buildNginx},
		{"nonewprivs", buildNonewprivs},
		{"pause", buildPause},
		{"regression-issue-74839", buildRegression},
		{"resource-consumer", buildResourceConsumer},
		{"sample-apiserver", buildSampleAPIServer},
		{"sample-device-plugin", buildSampleDevicePlugin},
	} {
		all = append(all, recipe.Recipe{Name: r.name, Inputs: inputs, Build: r.build})
	}
	return all
}

func inputs(b *recipe.Builder) ([]byte, error) {
	return b.Common("tests/images/suiteimages", module, "cmd/pause", "cmd/include")
}

// Names lists the images that the recipes make.
func Names() []string {
	var names []string
	for _, id := range []imageutils.ImageID{
		imageutils.Agnhost, imageutils.AgnhostPrev, imageutils.APIServer, imageutils.BusyBox, imageutils.Etcd,
		imageutils.GlibcDnsTesting, imageutils.IpcUtils, imageutils.Kitten, imageutils.Nautilus, imageutils.Nginx,
		imageutils.NginxNew, imageutils.Nonewprivs, imageutils.NonRoot, imageutils.Pause,
		imageutils.RegressionIssue74839, imageutils.ResourceConsumer, imageutils.SampleDevicePlugin,
	} {
		names = append(names, imageutils.GetE2EImage(id))
	}
	slices.Sort(names)
	return names
}

// searchPath is PATH in every image.
const searchPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image makes an image of layers.
func image(id imageutils.ImageID, config ocispec.ImageConfig, layers ...[]byte) (*ociimage.Image, error) {
	config.Env = append([]string{searchPath}, config.Env...)
	return ociimage.Build(ociimage.Spec{
		Name: imageutils.GetE2EImage(id), OS: "linux", Arch: runtime.GOARCH, Config: config, Layers: layers,
	})
}

// images makes one image of files under several names.
func images(config ocispec.ImageConfig, files []ociimage.File, ids ...imageutils.ImageID) ([]*ociimage.Image, error) {
	layer, err := ociimage.Layer(files)
	if err != nil {
		return nil, err
	}
	var all []*ociimage.Image
	for _, id := range ids {
		img, err := image(id, config, layer)
		if err != nil {
			return nil, err
		}
		all = append(all, img)
	}
	return all, nil
}

// over puts files over a root file system: those of the same path, and commands that
// /bin has under the same name, are replaced.
func over(base, files []ociimage.File) []ociimage.File {
	replaced := make(map[string]bool)
	for _, f := range files {
		replaced[f.Path] = true
		switch filepath.Dir(f.Path) {
		case "/usr/bin", "/usr/sbin", "/sbin", "/bin":
			replaced["/bin/"+filepath.Base(f.Path)] = true
		}
	}
	base = slices.DeleteFunc(slices.Clone(base), func(f ociimage.File) bool { return replaced[f.Path] })
	return append(base, files...)
}

// sources reads files of the suite's sources. The keys of to are their paths there,
// the values those in the image.
func sources(ctx context.Context, b *recipe.Builder, to map[string]string) ([]ociimage.File, error) {
	dir, err := b.Module(ctx, module, kubernetes)
	if err != nil {
		return nil, err
	}
	var files []ociimage.File
	for from, path := range to {
		data, err := os.ReadFile(filepath.Join(dir, from))
		if err != nil {
			return nil, fmt.Errorf("source of an image: %w", err)
		}
		files = append(files, ociimage.File{Path: path, Mode: 0o644, Data: data})
	}
	return files, nil
}
