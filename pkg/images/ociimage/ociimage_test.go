package ociimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestLayerIsDeterministicAndSorted(t *testing.T) {
	files := []File{
		{Path: "/usr/bin/tool", Mode: 0o755, Data: []byte("tool")},
		{Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0::/root:/bin/sh\n")},
		{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{Path: "/bin/sh", Link: "../usr/bin/tool"},
		{Path: "/data", Mode: fs.ModeDir | 0o700, UID: 999, GID: 998},
	}
	a, err := Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	files[0], files[4] = files[4], files[0]
	b, err := Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("the order of the input changes the bytes")
	}
	want := []struct {
		name string
		kind byte
		mode int64
	}{
		{"bin/", tar.TypeDir, 0o755}, {"bin/sh", tar.TypeSymlink, 0o777},
		{"data/", tar.TypeDir, 0o700}, {"etc/", tar.TypeDir, 0o755},
		{"etc/passwd", tar.TypeReg, 0o644}, {"tmp/", tar.TypeDir, 0o1777},
		{"usr/", tar.TypeDir, 0o755}, {"usr/bin/", tar.TypeDir, 0o755},
		{"usr/bin/tool", tar.TypeReg, 0o755},
	}
	tr := tar.NewReader(bytes.NewReader(a))
	for _, w := range want {
		hdr, err := tr.Next()
		if err != nil {
			t.Fatal(err)
		}
		if hdr.Name != w.name || hdr.Typeflag != w.kind || hdr.Mode != w.mode || hdr.ModTime.Unix() != 0 {
			t.Errorf("got %s %c %o %s, want %s %c %o at the epoch", hdr.Name, hdr.Typeflag, hdr.Mode, hdr.ModTime, w.name, w.kind, w.mode)
		}
		if hdr.Name == "data/" && (hdr.Uid != 999 || hdr.Gid != 998) {
			t.Errorf("data/ belongs to %d:%d", hdr.Uid, hdr.Gid)
		}
	}
	if _, err := tr.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("more entries than wanted: %v", err)
	}
}

func TestLayerRefusesBadEntries(t *testing.T) {
	for name, files := range map[string][]File{
		"twice":   {{Path: "/a"}, {Path: "a"}},
		"no name": {{Path: "/"}},
	} {
		if _, err := Layer(files); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	// What climbs out of the image stays inside it.
	layer, err := Layer([]File{{Path: "../../x", Mode: 0o600}})
	if err != nil {
		t.Fatal(err)
	}
	hdr, err := tar.NewReader(bytes.NewReader(layer)).Next()
	if err != nil || hdr.Name != "x" {
		t.Errorf("got %v, %v", hdr, err)
	}
}

func TestBuildAndArchivesAreDeterministic(t *testing.T) {
	build := func() *Image {
		layer, err := Layer([]File{{Path: "/a", Mode: 0o644, Data: []byte("a")}})
		if err != nil {
			t.Fatal(err)
		}
		img, err := Build(Spec{Name: "kombi.test/a:1", OS: "linux", Arch: "amd64",
			Config: ocispec.ImageConfig{Env: []string{"A=1"}}, Layers: [][]byte{layer}})
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	for name, write := range map[string]func(io.Writer, ...*Image) error{"oci": WriteOCI, "docker": WriteDocker} {
		var a, b bytes.Buffer
		if err := errors.Join(write(&a, build()), write(&b, build(), build())); err != nil {
			t.Fatal(err)
		}
		if a.Len() == 0 || b.Len() > a.Len()+1024 {
			t.Errorf("%s: shared blobs are stored twice: %d and %d bytes", name, a.Len(), b.Len())
		}
	}
	if a, b := build(), build(); a.Manifest.Digest != b.Manifest.Digest {
		t.Errorf("digests differ: %s and %s", a.Manifest.Digest, b.Manifest.Digest)
	}
}

func TestBuildRefusesIncompleteSpecs(t *testing.T) {
	layer := [][]byte{{}}
	for _, spec := range []Spec{
		{OS: "linux", Arch: "amd64", Layers: layer},
		{Name: "a", Arch: "amd64", Layers: layer},
		{Name: "a", OS: "linux", Layers: layer},
		{Name: "a", OS: "linux", Arch: "amd64"},
	} {
		if _, err := Build(spec); err == nil {
			t.Errorf("no error for %+v", spec)
		}
	}
}
