package imagecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kombi-k8s/kombi/pkg/images/containerdtest"
	"github.com/kombi-k8s/kombi/pkg/images/ociimage"
	"github.com/kombi-k8s/kombi/pkg/node/images"
)

var socket string

func TestMain(m *testing.M) { os.Exit(containerdtest.Main(m, &socket)) }

// run executes the command as a user would type it.
func run(t *testing.T, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := New(func() (string, error) { return socket, nil })
	return execute(t, cmd, stdin, args...)
}

func execute(t *testing.T, cmd *cobra.Command, stdin io.Reader, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errOut)
	if stdin != nil {
		cmd.SetIn(stdin)
	}
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(ctx)
	return out.String(), errOut.String(), err
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, _, err := run(t, nil, args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}

func buildImage(t *testing.T, name string) *ociimage.Image {
	t.Helper()
	layer, err := ociimage.Layer([]ociimage.File{{Path: "/name", Mode: 0o644, Data: []byte(name)}})
	if err != nil {
		t.Fatal(err)
	}
	img, err := ociimage.Build(ociimage.Spec{Name: name, OS: "linux", Arch: runtime.GOARCH, Layers: [][]byte{layer}})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func writeArchive(t *testing.T, imgs ...*ociimage.Image) string {
	t.Helper()
	var out bytes.Buffer
	if err := ociimage.WriteOCI(&out, imgs...); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "images.tar")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func needRoot(t *testing.T) {
	t.Helper()
	containerdtest.Client(t, socket, images.Namespace)
}

func TestImportListExportRemove(t *testing.T) {
	needRoot(t)
	one := writeArchive(t, buildImage(t, "kombi.test/cmd-one:1"))
	two := writeArchive(t, buildImage(t, "kombi.test/cmd-two:1"), buildImage(t, "kombi.test/cmd-three:1"))

	if out := must(t, "import", one, two); out != "imported kombi.test/cmd-one:1\nimported kombi.test/cmd-two:1\nimported kombi.test/cmd-three:1\n" {
		t.Errorf("import prints %q", out)
	}
	table := must(t, "list")
	if !regexp.MustCompile(`(?m)^NAME +SIZE +CREATED +PINNED\n`).MatchString(table) ||
		!regexp.MustCompile(`(?m)^kombi\.test/cmd-one:1 +\d\.\d kB +\d+s ago +yes$`).MatchString(table) ||
		strings.Contains(table, "sha256:") {
		t.Errorf("list prints\n%s", table)
	}
	if all := must(t, "list", "--all"); !strings.Contains(all, "kombi.test/cmd-one@sha256:") {
		t.Errorf("list --all prints\n%s", all)
	}
	var rows []row
	if err := json.Unmarshal([]byte(must(t, "list", "-o", "json", "kombi.test/cmd-two:1")), &rows); err != nil || len(rows) != 1 || !rows[0].Pinned || rows[0].Size == 0 {
		t.Errorf("list -o json: %v, %+v", err, rows)
	}

	file := filepath.Join(t.TempDir(), "out.tar.zst")
	must(t, "export", "-o", file, "kombi.test/cmd-one:1", "kombi.test/cmd-two:1")
	must(t, "rm", "kombi.test/cmd-one:1", "kombi.test/cmd-two:1")
	if rest := must(t, "list", "-a"); strings.Contains(rest, "cmd-one") || strings.Contains(rest, "cmd-two") {
		t.Errorf("after rm:\n%s", rest)
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, _, err := run(t, in, "import", "--pin=false", "-")
	if err != nil || !strings.Contains(out, "imported kombi.test/cmd-one:1\n") || !strings.Contains(out, "imported kombi.test/cmd-two:1\n") {
		t.Fatalf("import of the export: %q, %v", out, err)
	}
	if table := must(t, "list", "kombi.test/cmd-one:1"); !strings.Contains(table, " no\n") {
		t.Errorf("--pin=false:\n%s", table)
	}
	stdout := must(t, "export", "kombi.test/cmd-one:1")
	again := filepath.Join(t.TempDir(), "again.tar")
	if err := os.WriteFile(again, []byte(stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, "import", again)
}

func TestErrorsSayWhatToDo(t *testing.T) {
	needRoot(t)
	good := writeArchive(t, buildImage(t, "kombi.test/cmd-good:1"))
	bad := filepath.Join(t.TempDir(), "bad.tar")
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, data[:len(data)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"import"}, "no archive is given"},
		{[]string{"import", "/no/such/file"}, "no such file"},
		{[]string{"import", bad}, "bad.tar is refused: it ends too early: copy it again"},
		{[]string{"list", "kombi.test/none:1"}, "no image kombi.test/none:1"},
		{[]string{"list", "-o", "yaml"}, "use json or name"},
		{[]string{"rm"}, "no image is given"},
		{[]string{"rm", "kombi.test/none:1"}, "no image kombi.test/none:1 on this node"},
		{[]string{"rm", "Bad Name"}, "is no image name"},
		{[]string{"export", "kombi.test/none:1"}, "no image kombi.test/none:1 on this node"},
		{[]string{"pull", "a", "b"}, "exactly one image"},
		{[]string{"pull", "--creds", "x", "kombi.test/x:1"}, "user:password"},
		{[]string{"pull", "--platform", "a/b/c/d/e", "kombi.test/x:1"}, "linux/arm64"},
	} {
		_, _, err := run(t, nil, tc.args...)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("kombi image %s: got %v, want %q", strings.Join(tc.args, " "), err, tc.want)
		}
	}
	// A bad file does not keep the good one out.
	out, _, err := run(t, nil, "import", bad, good)
	if err == nil || !strings.Contains(out, "imported kombi.test/cmd-good:1") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestNotRunning(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{filepath.Join(dir, "missing.sock"), stale} {
		_, _, err := execute(t, New(func() (string, error) { return path, nil }), nil, "list")
		if err == nil || !strings.Contains(err.Error(), "kombi is not running") || !strings.Contains(err.Error(), "systemctl start kombi") {
			t.Errorf("%s: %v", path, err)
		}
	}
	want := errors.New("no configuration")
	if _, _, err := execute(t, New(func() (string, error) { return "", want }), nil, "list"); !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

// registry serves one image as the distribution API does, on the loopback.
func registry(t *testing.T, img *ociimage.Image, user, password string) string {
	t.Helper()
	blobs := map[string]ociimage.Blob{}
	for _, b := range append([]ociimage.Blob{img.Manifest, img.Config}, img.Layers...) {
		blobs[b.Digest.String()] = b
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); user != "" && (u != user || p != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		key := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]
		if key == "v1" {
			key = img.Manifest.Digest.String()
		}
		b, ok := blobs[key]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", b.MediaType)
		w.Header().Set("Docker-Content-Digest", b.Digest.String())
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.Bytes))
	}))
	t.Cleanup(srv.Close)
	return strings.TrimPrefix(srv.URL, "http://")
}

func TestPull(t *testing.T) {
	needRoot(t)
	img := buildImage(t, "shop")
	host := registry(t, img, "carl", "secret")
	ref := host + "/shop:v1"
	if _, _, err := run(t, nil, "pull", "--plain-http", ref); err == nil || !strings.Contains(err.Error(), "--creds") {
		t.Errorf("without credentials: %v", err)
	}
	if _, _, err := run(t, nil, "pull", "--plain-http", "--creds", "carl:secret", host+"/shop:v2"); err == nil || !strings.Contains(err.Error(), "no such image") {
		t.Errorf("wrong tag: %v", err)
	}
	if out := must(t, "pull", "--plain-http", "--creds", "carl:secret", "--pin", ref); out != "pulled "+ref+"\n" {
		t.Errorf("pull prints %q", out)
	}
	if table := must(t, "list", ref); !strings.Contains(table, " yes\n") {
		t.Errorf("list:\n%s", table)
	}
	must(t, "rm", ref)
}

func TestProgress(t *testing.T) {
	p := &progress{label: "importing a.tar", width: 80}
	if got, want := p.text(50e6, 100e6, 10*time.Second), "importing a.tar  [###########............"; !strings.HasPrefix(got, want[:25]) || !strings.Contains(got, " 50%  50.0 MB of 100.0 MB  5.0 MB/s") || len(got) >= 80 {
		t.Errorf("terminal: %q (%d)", got, len(got))
	}
	p.width = 0
	if got := p.text(50e6, 100e6, 10*time.Second); got != "importing a.tar   50%  50.0 MB of 100.0 MB  5.0 MB/s" {
		t.Errorf("no terminal: %q", got)
	}
	if got := p.text(50e6, 0, 10*time.Second); got != "importing a.tar  50.0 MB  5.0 MB/s" {
		t.Errorf("no total: %q", got)
	}
	p.width = 20
	if got := p.text(50e6, 100e6, 10*time.Second); len(got) >= 20 {
		t.Errorf("narrow: %q", got)
	}
	var out bytes.Buffer
	quick := newProgress(&out, "quick", 1)
	quick.done()
	if out.Len() != 0 {
		t.Errorf("a quick action prints %q", out.String())
	}
}
