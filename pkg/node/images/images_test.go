package images

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kombi-k8s/kombi/pkg/images/containerdtest"
	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
)

var socket string

func TestMain(m *testing.M) { os.Exit(containerdtest.Main(m, &socket)) }

// testImage builds an image whose content depends on salt.
func testImage(t *testing.T, name, salt string) *ociimage.Image {
	t.Helper()
	layer, err := ociimage.Layer([]ociimage.File{
		{Path: "/salt", Mode: 0o644, Data: []byte(salt)},
		{Path: "/big", Mode: 0o644, Data: bytes.Repeat([]byte(salt+"."), 30_000)},
	})
	if err != nil {
		t.Fatal(err)
	}
	spec := ociimage.Spec{Name: name, OS: "linux", Arch: goarch(), Layers: [][]byte{layer},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/x"}}}
	img, err := ociimage.Build(spec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func archive(t *testing.T, write func(io.Writer, ...*ociimage.Image) error, imgs ...*ociimage.Image) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := write(&out, imgs...); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstded(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return namespaces.WithNamespace(ctx, Namespace)
}

func TestImportFormats(t *testing.T) {
	client := containerdtest.Client(t, socket, Namespace)
	ctx := testContext(t)
	for _, tc := range []struct {
		name  string
		image string
		want  string
		bytes func(*ociimage.Image) []byte
	}{
		{"oci plain", "kombi.test/f1:1", "kombi.test/f1:1", func(i *ociimage.Image) []byte { return archive(t, ociimage.WriteOCI, i) }},
		{"oci gzip", "kombi.test/f2:1", "kombi.test/f2:1", func(i *ociimage.Image) []byte { return gzipped(t, archive(t, ociimage.WriteOCI, i)) }},
		{"oci zstd", "kombi.test/f3:1", "kombi.test/f3:1", func(i *ociimage.Image) []byte { return zstded(t, archive(t, ociimage.WriteOCI, i)) }},
		{"docker plain", "kombi.test/f4:1", "kombi.test/f4:1", func(i *ociimage.Image) []byte { return archive(t, ociimage.WriteDocker, i) }},
		{"docker gzip", "kombi.test/f5:1", "kombi.test/f5:1", func(i *ociimage.Image) []byte { return gzipped(t, archive(t, ociimage.WriteDocker, i)) }},
		{"docker zstd", "kombi.test/f6:1", "kombi.test/f6:1", func(i *ociimage.Image) []byte { return zstded(t, archive(t, ociimage.WriteDocker, i)) }},
		{"short name is completed", "f7:1", "docker.io/library/f7:1", func(i *ociimage.Image) []byte { return archive(t, ociimage.WriteOCI, i) }},
		{"no tag means latest", "kombi.test/f8", "kombi.test/f8:latest", func(i *ociimage.Image) []byte { return archive(t, ociimage.WriteOCI, i) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			img := testImage(t, tc.image, tc.name)
			got, err := Import(ctx, client, bytes.NewReader(tc.bytes(img)), ImportOptions{Snapshotter: "native", Pinned: true})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || got[0].Name != tc.want {
				t.Fatalf("imported %v, want %s", got, tc.want)
			}
			stored, err := client.GetImage(ctx, tc.want)
			if err != nil {
				t.Fatal(err)
			}
			if unpacked, err := stored.IsUnpacked(ctx, "native"); err != nil || !unpacked {
				t.Errorf("unpacked: %v, %v", unpacked, err)
			}
			repo := strings.TrimSuffix(strings.TrimSuffix(tc.want, ":latest"), ":1")
			for _, name := range []string{tc.want, img.Config.Digest.String(), repo + "@" + got[0].Digest.String()} {
				alias, err := client.ImageService().Get(ctx, name)
				if err != nil {
					t.Error(err)
					continue
				}
				if alias.Labels[LabelManaged] != ManagedValue || alias.Labels[LabelPinned] != PinnedValue {
					t.Errorf("%s has labels %v", name, alias.Labels)
				}
			}
		})
	}
}

func TestImportRefusals(t *testing.T) {
	client := containerdtest.Client(t, socket, Namespace)
	ctx := testContext(t)
	img := testImage(t, "kombi.test/bad:1", "bad")
	oci, docker := archive(t, ociimage.WriteOCI, img), archive(t, ociimage.WriteDocker, img)
	tagOnly := testImage(t, "v1", "tag only")
	foreign := testImage(t, "kombi.test/foreign:1", "foreign")
	foreignLayer := foreign.Layers[0].Bytes
	other, err := ociimage.Build(ociimage.Spec{Name: "kombi.test/other:1", OS: "linux", Arch: "s390x", Layers: [][]byte{foreignLayer}})
	if err != nil {
		t.Fatal(err)
	}
	noLayer := *testImage(t, "kombi.test/no-layer:1", "no layer")
	noLayer.Layers = nil
	flipped := gzipped(t, oci)
	flipped[len(flipped)/2] ^= 0xff
	zflipped := zstded(t, oci)
	zflipped[len(zflipped)-2] ^= 0xff
	broken, err := ociimage.Build(ociimage.Spec{Name: "kombi.test/broken:1", OS: "linux", Arch: goarch(), Layers: [][]byte{bytes.Repeat([]byte("no tar "), 500)}})
	if err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "empty"},
		{"text", []byte("this is a list of images\n" + strings.Repeat("kombi.test/web:v1\n", 100)), "not an image archive"},
		{"short text", []byte("x"), "ends too early"},
		{"plain, cut in a blob", oci[:len(oci)/2], "ends too early"},
		{"plain docker, cut in a blob", docker[:len(docker)/2], "ends too early"},
		{"plain, cut before the index", oci[:512*4], ""},
		{"gzip, cut", gzipped(t, oci)[:300], "ends too early"},
		{"gzip, cut in the checksum", gzipped(t, oci)[:len(gzipped(t, oci))-2], "ends too early"},
		{"gzip, damaged", flipped, "damaged"},
		{"zstd, cut", zstded(t, docker)[:200], "ends too early"},
		{"zstd, damaged", zflipped, "damaged"},
		{"foreign tar", foreignLayer, "not an image archive"},
		{"foreign tar, gzip", gzipped(t, foreignLayer), "not an image archive"},
		{"other platform", archive(t, ociimage.WriteOCI, other), "platform"},
		{"layer missing, oci", archive(t, ociimage.WriteOCI, &noLayer), "missing"},
		{"only a tag", archive(t, ociimage.WriteOCI, tagOnly), "--name"},
		{"layer is no tar", archive(t, ociimage.WriteOCI, broken), "damaged"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Import(ctx, client, bytes.NewReader(tc.data), ImportOptions{Snapshotter: "native"})
			if err == nil {
				t.Fatal("imported")
			}
			t.Log(err)
			var refused *Refused
			if tc.want != "" && (!errors.As(err, &refused) || !strings.Contains(refused.Reason, tc.want)) {
				t.Errorf("got %v, want a refusal with %q", err, tc.want)
			}
		})
	}
	for _, name := range []string{"kombi.test/bad:1", "kombi.test/no-layer:1", "kombi.test/foreign:1", "kombi.test/other:1", "kombi.test/broken:1"} {
		if _, err := client.GetImage(ctx, name); err == nil {
			t.Errorf("%s was left behind", name)
		}
	}
}

func TestImportNamesTagOnlyImages(t *testing.T) {
	client := containerdtest.Client(t, socket, Namespace)
	data := archive(t, ociimage.WriteOCI, testImage(t, "v9", "named"))
	got, err := Import(testContext(t), client, bytes.NewReader(data), ImportOptions{Snapshotter: "native", Name: "kombi.test/named"})
	if err != nil || len(got) != 1 || got[0].Name != "kombi.test/named:v9" {
		t.Fatalf("got %v, %v", got, err)
	}
}

func TestSniffRefusesForeignTarEarly(t *testing.T) {
	img := testImage(t, "kombi.test/sniff:1", "sniff")
	if err := sniff(bytes.NewReader(gzipped(t, archive(t, ociimage.WriteDocker, img)))); err != nil {
		t.Error(err)
	}
	var refused *Refused
	if err := sniff(bytes.NewReader(img.Layers[0].Bytes)); !errors.As(err, &refused) || !strings.Contains(refused.Reason, `"big"`) {
		t.Errorf("got %v", err)
	}
}

func TestEnsurePause(t *testing.T) {
	client := containerdtest.Client(t, socket, Namespace)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	program := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(program, bytes.Repeat([]byte("pause"), 150_000), 0o755); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	ref, err := EnsurePause(ctx, client, program)
	if err != nil {
		t.Fatal(err)
	}
	first := time.Since(start)
	start = time.Now()
	if _, err := EnsurePause(ctx, client, program); err != nil {
		t.Fatal(err)
	}
	t.Logf("first %s, again %s", first, time.Since(start))
	nctx := namespaces.WithNamespace(ctx, Namespace)
	img, err := client.GetImage(nctx, ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := img.Unpack(nctx, "native"); err != nil {
		t.Error(err)
	}
	before := img.Target().Digest
	if err := os.WriteFile(program, []byte("new pause"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := EnsurePause(ctx, client, program); err != nil {
		t.Fatal(err)
	}
	if img, err = client.GetImage(nctx, ref); err != nil || img.Target().Digest == before {
		t.Errorf("a new program did not replace the image: %v", err)
	}
	if _, err := EnsurePause(ctx, client, program+"-missing"); err == nil {
		t.Error("no error without the program")
	}
}

func labelsOf(t *testing.T, client *containerd.Client, name string) map[string]string {
	t.Helper()
	img, err := client.ImageService().Get(testContext(t), name)
	if err != nil {
		t.Fatal(err)
	}
	return img.Labels
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s did not happen in time", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func runComponent(t *testing.T, opts Options) (*Images, func()) {
	t.Helper()
	im := New(opts)
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- im.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stop := func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	wait, done := context.WithTimeout(context.Background(), 30*time.Second)
	defer done()
	if err := im.Wait(wait); err != nil {
		t.Fatal(err)
	}
	return im, stop
}

func TestFolder(t *testing.T) {
	client := containerdtest.Client(t, socket, Namespace)
	base := t.TempDir()
	dir := filepath.Join(base, "images")
	opts := Options{Socket: socket, Dir: dir, StateFile: filepath.Join(base, "images.json"), Snapshotter: "native",
		Settle: 20 * time.Millisecond, Retry: 50 * time.Millisecond}
	write := func(name string, data []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	one := archive(t, ociimage.WriteOCI, testImage(t, "kombi.test/one:1", "one"))
	write("one.tar", one)
	write("bad.tar", one[:len(one)/2])
	write(".hidden.tar", one)
	write("list.txt", []byte("no archive"))

	im, stop := runComponent(t, opts)
	status := func(file string) FileStatus {
		for _, s := range im.Status() {
			if s.File == file {
				return s
			}
		}
		return FileStatus{}
	}
	if s := status("one.tar"); len(s.Images) != 1 || s.Error != "" {
		t.Errorf("one.tar: %+v", s)
	}
	if s := status("bad.tar"); !strings.Contains(s.Error, "bad.tar is refused: it ends too early") {
		t.Errorf("bad.tar: %+v", s)
	}
	if s := status("list.txt"); !strings.Contains(s.Error, "not an image archive") && !strings.Contains(s.Error, "too early") {
		t.Errorf("list.txt: %+v", s)
	}
	if s := status(".hidden.tar"); s.File != "" {
		t.Errorf("hidden file: %+v", s)
	}
	if l := labelsOf(t, client, "kombi.test/one:1"); l[LabelPinned] != PinnedValue {
		t.Errorf("labels %v", l)
	}

	t.Run("a file that still grows waits for its end", func(t *testing.T) {
		two := archive(t, ociimage.WriteOCI, testImage(t, "kombi.test/two:1", "two"))
		f, err := os.Create(filepath.Join(dir, "two.tar"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(two[:len(two)/2]); err != nil {
			t.Fatal(err)
		}
		eventually(t, "pending", func() bool { return status("two.tar").Pending })
		if _, err := f.Write(two[len(two)/2:]); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "import", func() bool { return len(status("two.tar").Images) == 1 })
		if s := status("two.tar"); s.Error != "" || s.Pending {
			t.Errorf("%+v", s)
		}
	})
	t.Run("a file that is moved in", func(t *testing.T) {
		three := gzipped(t, archive(t, ociimage.WriteDocker, testImage(t, "kombi.test/three:1", "three")))
		tmp := filepath.Join(base, "three")
		if err := os.WriteFile(tmp, three, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "three.tgz")); err != nil {
			t.Fatal(err)
		}
		eventually(t, "import", func() bool { return len(status("three.tgz").Images) == 1 })
	})
	t.Run("a bad file that is replaced", func(t *testing.T) {
		write("bad.tar", archive(t, ociimage.WriteOCI, testImage(t, "kombi.test/bad-no-more:1", "good")))
		eventually(t, "import", func() bool { s := status("bad.tar"); return len(s.Images) == 1 && s.Error == "" })
	})
	t.Run("a new version of a file", func(t *testing.T) {
		img := testImage(t, "kombi.test/one:1", "one changed")
		write("one.tar", archive(t, ociimage.WriteOCI, img))
		eventually(t, "import", func() bool {
			s := status("one.tar")
			return len(s.Images) == 1 && s.Images[0].Digest == img.Manifest.Digest
		})
	})
	stop()

	t.Run("a restart imports only what is missing", func(t *testing.T) {
		ctx := testContext(t)
		if err := client.ImageService().Delete(ctx, "kombi.test/two:1"); err != nil {
			t.Fatal(err)
		}
		before, err := client.ImageService().Get(ctx, "kombi.test/three:1")
		if err != nil {
			t.Fatal(err)
		}
		im2, stop2 := runComponent(t, opts)
		defer stop2()
		if _, err := client.ImageService().Get(ctx, "kombi.test/two:1"); err != nil {
			t.Error(err)
		}
		after, err := client.ImageService().Get(ctx, "kombi.test/three:1")
		if err != nil || !after.UpdatedAt.Equal(before.UpdatedAt) {
			t.Errorf("three was imported again: %s, %s, %v", before.UpdatedAt, after.UpdatedAt, err)
		}
		// Touching a file does not import it either.
		now := time.Now().Add(time.Second)
		if err := os.Chtimes(filepath.Join(dir, "three.tgz"), now, now); err != nil {
			t.Fatal(err)
		}
		write("four.tar", archive(t, ociimage.WriteOCI, testImage(t, "kombi.test/four:1", "four")))
		eventually(t, "import", func() bool {
			for _, s := range im2.Status() {
				if s.File == "four.tar" && len(s.Images) == 1 {
					return true
				}
			}
			return false
		})
		after, err = client.ImageService().Get(ctx, "kombi.test/three:1")
		if err != nil || !after.UpdatedAt.Equal(before.UpdatedAt) {
			t.Errorf("three was imported again after a touch: %v", err)
		}
	})
}

func TestRunEndsWhenTheFolderGoes(t *testing.T) {
	containerdtest.Client(t, socket, Namespace)
	base := t.TempDir()
	opts := Options{Socket: socket, Dir: filepath.Join(base, "images"), StateFile: filepath.Join(base, "state")}
	im := New(opts)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- im.Run(context.Background(), func() { close(ready) }) }()
	<-ready
	if err := os.RemoveAll(opts.Dir); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, errDirGone) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("still running")
	}
}

func TestBrokenStateFileIsReadAsEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	records, err := loadState(path)
	if len(records) != 0 || err == nil {
		t.Errorf("got %v, %v", records, err)
	}
	want := map[string]record{"a": {Size: 1, MTime: time.Unix(5, 6), Images: []Imported{{Name: "n"}}}}
	if err := saveState(path, want); err != nil {
		t.Fatal(err)
	}
	records, err = loadState(path)
	if err != nil || fmt.Sprint(records["a"].Images) != fmt.Sprint(want["a"].Images) || !records["a"].MTime.Equal(want["a"].MTime) {
		t.Errorf("got %v, %v", records, err)
	}
}

func goarch() string { return runtime.GOARCH }
