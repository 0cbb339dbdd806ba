package testimages

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

func busyboxInputs(b *builder) ([]byte, error) { return b.common() }

func buildBusybox(ctx context.Context, b *builder) ([]*ociimage.Image, error) {
	program := "/usr/bin/busybox"
	// The machine's own busybox will do if it needs no libraries.
	data, err := staticProgram(program)
	if err != nil {
		root, err := b.unpack(ctx, "busybox-static")
		if err != nil {
			return nil, err
		}
		program = filepath.Join(root, "bin/busybox")
		if data, err = staticProgram(program); err != nil {
			return nil, err
		}
	}
	list, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	files := []ociimage.File{
		{Path: "/bin/busybox", Mode: 0o755, Data: data},
		{Path: "/etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Path: "/etc/group", Mode: 0o644, Data: []byte("root:x:0:\ntty:x:5:\nnogroup:x:65534:\n")},
		{Path: "/root", Mode: fs.ModeDir | 0o700},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Path: "/var/run", Mode: fs.ModeDir | 0o755},
	}
	for _, applet := range bytes.Fields(list) {
		if name := path.Base(string(applet)); name != "busybox" {
			files = append(files, ociimage.File{Path: "/bin/" + name, Link: "busybox"})
		}
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
