package badinput

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDatastore has rows about files below the data directory that are not what Kombi wrote. They are found while
// starting; the file is left as it is.
func TestDatastore(t *testing.T) {
	needPayload(t)
	for _, row := range []struct {
		name  string
		file  string
		bytes string
		also  string // a file with the same content
		want  []string
	}{
		{"SQLite file that is none", "server/db/state.db", strings.Repeat("not a database ", 1000), "", []string{"state.db is damaged", "restore the file from a backup"}},
		{"SQLite file cut off", "server/db/state.db", "SQLite format 3\x00\x10\x00\x01\x01\x00\x40\x20\x20", "", []string{"state.db is damaged", "restore the file from a backup"}},
		{"certificate authority without its key", "server/tls/server-ca.crt", "not a certificate", "", []string{"server-ca.key", "put the key back from a backup"}},
		{"certificate authority that is none", "server/tls/server-ca.crt", "not a certificate", "server/tls/server-ca.key", []string{"server-ca", "backup"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			path, env := program(t)
			dir := shortDir(t)
			file := filepath.Join(dir, "data", row.file)
			put(t, file, row.bytes)
			if row.also != "" {
				put(t, filepath.Join(dir, "data", row.also), row.bytes)
			}
			r := run(t, start{path: path, env: env, args: serverArgs(t, dir)})
			r.refused(t, row.want...)
			if data, err := os.ReadFile(file); err != nil || string(data) != row.bytes {
				t.Errorf("the file was changed (%v)", err)
			}
		})
	}
}

func serverArgs(t *testing.T, dir string, more ...string) []string {
	t.Helper()
	return append([]string{"server", "--config=" + emptyFile(t), "--data-dir=" + dir + "/data", "--write-kubeconfig=" + dir + "/kombi.yaml"}, more...)
}

func needPayload(t *testing.T) {
	t.Helper()
	if dir, err := unpacked(); err != nil {
		t.Fatal(err)
	} else if dir == "" {
		t.Skip("the program under test has no payload, so it cannot run a node")
	}
}

// TestRunningServer has rows that need a server: archives, manifests, a second server.
func TestRunningServer(t *testing.T) {
	needPayload(t)
	path, env := program(t)
	dir := shortDir(t)
	data := dir + "/data"
	env = append(env, "KOMBI_DATA_DIR="+data, "KOMBI_CONFIG="+emptyFile(t), "KUBECONFIG="+dir+"/kombi.yaml")
	manifests := data + "/manifests/"
	put(t, manifests+"notes.txt", "remember the milk\n")
	put(t, manifests+"photo.yaml", "\xff\xd8\xff\xe0\x00\x10JFIF")
	put(t, manifests+"parts.yaml", configMap("good-before")+"---\nkind: [broken\n---\n"+configMap("good-after"))
	put(t, manifests+"unknown.yaml", "apiVersion: example.org/v1\nkind: Widget\nmetadata:\n  name: w\n")
	put(t, manifests+"nameless.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {}\n")
	put(t, manifests+"values.yaml", "replicas: 3\nimage: shop\n")
	log := filepath.Join(t.TempDir(), "log")
	pid := serve(t, path, env, serverArgs(t, dir), log)

	t.Run("archives", func(t *testing.T) { testArchives(t, path, env, data) })
	t.Run("manifests", func(t *testing.T) { testManifests(t, path, env, log) })
	t.Run("second server with the data directory", func(t *testing.T) {
		r := run(t, start{path: path, env: env, args: serverArgs(t, dir, "--https-listen-port=7443", "--kubelet-port=7250")})
		r.refused(t, fmt.Sprintf("another Kombi (process %d) is running with the data directory %s", pid, data), "kombi stop")
	})
	t.Run("second server with the port", func(t *testing.T) {
		other := shortDir(t)
		r := run(t, start{path: path, env: env, args: serverArgs(t, other, "--kubelet-port=7250")})
		r.refused(t, fmt.Sprintf("port 6443 is in use by kombi (process %d)", pid), "--https-listen-port")
	})
	t.Run("status in an unknown format", func(t *testing.T) {
		run(t, start{path: path, env: env, args: []string{"status", "-o", "xml"}}).refused(t, `"xml"`, "use text or json")
	})
	t.Run("status of nothing", func(t *testing.T) {
		run(t, start{path: path, env: env, args: []string{"status", "--data-dir=/nonexistent"}}).refused(t, "not running", "kombi server")
	})
}

func configMap(name string) string {
	return "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: " + name + "\n  namespace: default\n"
}

// serve runs a server until the end of the test, and waits until it is ready.
func serve(t *testing.T, path string, env, args []string, log string) (pid int) {
	t.Helper()
	out, err := os.Create(log)
	must(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			t.Error("the server did not stop")
			<-ended
		}
		_ = out.Close()
		said, err := os.ReadFile(log)
		must(t, err)
		noCrash(t, string(said))
		if t.Failed() {
			t.Log(tail(string(said)))
		}
	})
	r := run(t, start{path: path, env: env, args: []string{"status", "--wait=25s"}})
	if r.code != 0 {
		t.Fatalf("the server is not ready: %s\n%s", r.stdout, r.stderr)
	}
	return cmd.Process.Pid
}

func testArchives(t *testing.T, path string, env []string, data string) {
	dir := t.TempDir()
	whole := filepath.Join(dir, "pause.tar")
	if r := run(t, start{path: path, env: env, args: []string{"image", "list"}}); r.code != 0 {
		t.Fatalf("image list: %s", r.stderr)
	} else if name := firstImage(r.stdout); name == "" {
		t.Fatalf("no image to export in:\n%s", r.stdout)
	} else if r := run(t, start{path: path, env: env, args: []string{"image", "export", name, "-o", whole}}); r.code != 0 {
		t.Fatalf("image export: %s", r.stderr)
	}
	archive, err := os.ReadFile(whole)
	must(t, err)
	for _, row := range []struct {
		name  string
		bytes string
		want  []string
	}{
		{"truncated archive", string(archive[:len(archive)/1024*512+100]), []string{"is refused", "it ends too early", "copy it again"}},
		{"archive truncated between two files", string(archive[:len(archive)/1024*512]), []string{"is refused", ":"}},
		{"damaged archive", string(archive[:600]) + strings.Repeat("?", 600) + string(archive[1200:]), []string{"is refused", ":"}},
		{"empty archive", "", []string{"is refused", "it is empty", "copy it again"}},
		{"text in place of an archive", strings.Repeat("hello ", 200), []string{"is refused", "it is not an image archive", "use one that"}},
		{"truncated gzip", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xcb\x48", []string{"is refused", "copy it again"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "image.tar")
			put(t, file, row.bytes)
			run(t, start{path: path, env: env, args: []string{"image", "import", file}}).refused(t, append(row.want, "image.tar")...)
		})
	}
	t.Run("archive that is not there", func(t *testing.T) {
		run(t, start{path: path, env: env, args: []string{"image", "import", "/nonexistent.tar"}}).refused(t, "/nonexistent.tar", "no such file")
	})
}

// firstImage takes a name out of the table that image list prints.
func firstImage(table string) string {
	for line := range strings.Lines(table) {
		for _, field := range strings.Fields(line) {
			if strings.Contains(field, "/") {
				return field
			}
		}
	}
	return ""
}

func testManifests(t *testing.T, path string, env []string, log string) {
	kubectl := func(args ...string) string {
		return run(t, start{path: path, env: env, args: append([]string{"kubectl"}, args...)}).stdout
	}
	for _, row := range []struct {
		name  string
		query []string
		want  []string
	}{
		{"documents beside a broken one are applied", []string{"get", "configmap", "-n", "default", "-o", "name"}, []string{"configmap/good-before", "configmap/good-after"}},
		{"broken document", message("parts"), []string{"parts.yaml", "this is not valid YAML"}},
		{"binary file", message("photo"), []string{"photo.yaml", "it is binary"}},
		{"unknown kind", message("unknown"), []string{"Widget", "unknown.yaml"}},
		{"object without a name", message("nameless"), []string{"nameless.yaml", "name"}},
		{"values of a chart", message("values"), []string{"values.yaml", "apiVersion"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			deadline := time.Now().Add(patience)
			for {
				got := kubectl(row.query...)
				missing := ""
				for _, text := range row.want {
					if !strings.Contains(got, text) {
						missing = text
					}
				}
				if missing == "" {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%q is missing in:\n%s", missing, got)
				}
				time.Sleep(100 * time.Millisecond) // between two looks
			}
		})
	}
	t.Run("file that is no manifest", func(t *testing.T) {
		said, err := os.ReadFile(log)
		must(t, err)
		if !strings.Contains(string(said), "notes.txt is ignored: only .yaml, .yml and .json files are applied") {
			t.Errorf("the log does not name notes.txt:\n%s", tail(string(said)))
		}
	})
}

func message(addon string) []string {
	return []string{"get", "addon", addon, "-o", `jsonpath={.status.conditions[?(@.type=="Degraded")].message}`}
}
