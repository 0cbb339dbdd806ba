package recipe

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

// Busybox returns a static busybox in /bin with all its applets, and the folders
// and accounts that a root file system has.
func (b *Builder) Busybox(ctx context.Context) ([]ociimage.File, error) {
	program := "/usr/bin/busybox"
	// The machine's own busybox will do if it needs no libraries.
	data, err := StaticProgram(program)
	if err != nil {
		root, err := b.Unpack(ctx, "busybox-static")
		if err != nil {
			return nil, err
		}
		program = filepath.Join(root, "bin/busybox")
		if data, err = StaticProgram(program); err != nil {
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
	return files, nil
}
