package recipe

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

func TestEnsureBuildsOnlyWhatChanged(t *testing.T) {
	var (
		cache  = t.TempDir()
		input  = "one"
		builds int
	)
	r := Recipe{
		Name:   "thing",
		Inputs: func(*Builder) ([]byte, error) { return []byte(input), nil },
		Build: func(_ context.Context, b *Builder) ([]*ociimage.Image, error) {
			builds++
			if _, err := os.Stat(b.Work); err != nil {
				t.Error(err)
			}
			layer, err := ociimage.Layer([]ociimage.File{{Path: "/input", Data: []byte(input)}})
			if err != nil {
				return nil, err
			}
			img, err := ociimage.Build(ociimage.Spec{Name: "kombi.test/thing:1", OS: "linux", Arch: "amd64", Layers: [][]byte{layer}})
			return []*ociimage.Image{img}, err
		},
	}
	var paths []string
	for _, step := range []struct {
		input  string
		builds int
	}{{"one", 1}, {"one", 1}, {"two", 2}} {
		input = step.input
		path, err := ensure(t.Context(), cache, "/", r)
		if err != nil {
			t.Fatal(err)
		}
		if builds != step.builds {
			t.Errorf("input %s: %d builds, want %d", step.input, builds, step.builds)
		}
		paths = append(paths, path)
	}
	if paths[0] != paths[1] || paths[1] == paths[2] {
		t.Errorf("paths are %v", paths)
	}
	left, err := filepath.Glob(filepath.Join(cache, "*"))
	if err != nil || len(left) != 1 || left[0] != paths[2] {
		t.Errorf("the cache holds %v, %v", left, err)
	}
}

func TestStaticProgram(t *testing.T) {
	if _, err := StaticProgram("/etc/passwd"); err == nil {
		t.Error("a text file passes for a program")
	}
}
