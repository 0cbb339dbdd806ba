package testimages

import (
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

func webInputs(b *builder) ([]byte, error) { return b.common("tests/images/web") }

// buildWeb makes two versions from one program: they differ by an environment
// variable, as releases often do.
func buildWeb(ctx context.Context, b *builder) ([]*ociimage.Image, error) {
	out := filepath.Join(b.work, "web")
	// With these tags nothing needs cgo, so the program is static, and the
	// packages of the main build are used again.
	cmd := exec.CommandContext(ctx, "go", "build", "-tags=netgo,osusergo", "-ldflags=-s -w", "-o", out, "./tests/images/web")
	if flags := os.Getenv("GOFLAGS"); flags != "" {
		cmd = exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", out, "./tests/images/web")
	}
	cmd.Dir = b.repo
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w\n%s", err, text)
	}
	program, err := staticProgram(out)
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

// staticProgram reads a program and makes sure that it needs no libraries.
func staticProgram(path string) ([]byte, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s is no program: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is not static: its image would need a C library", path)
		}
	}
	return os.ReadFile(path)
}
