package install

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// machine is this machine in namespaces of its own: an empty /usr/local/bin,
// /run and /var/log, and an /etc and /var/lib whose changes nobody else sees.
// Everything in it ends with the test.
type machine struct {
	t    *testing.T
	root *exec.Cmd // process 1
	pid  int
}

const setup = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs -o size=200m tmpfs "$1"
for dir in etc var/lib; do
	mkdir -p "$1/$dir/upper" "$1/$dir/work"
	mount -t overlay overlay -o "lowerdir=/$dir,upperdir=$1/$dir/upper,workdir=$1/$dir/work" "/$dir"
done
for dir in run var/log usr/local/bin; do mount -t tmpfs tmpfs "/$dir"; done
rm -rf /var/lib/kombi /etc/kombi
echo ready
exec tail -f /dev/null
`

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("an installation needs root")
	}
	m := &machine{t: t, root: exec.Command("sh", "-c", setup, "setup", t.TempDir())}
	m.root.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	m.root.Stderr = os.Stderr
	out, err := m.root.StdoutPipe()
	must(t, err)
	if err := m.root.Start(); err != nil {
		t.Skipf("this machine makes no namespaces: %v", err)
	}
	t.Cleanup(func() { _ = m.root.Process.Kill(); _ = m.root.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Skipf("this machine mounts no overlay: %v", err)
	}
	m.pid = m.root.Process.Pid
	return m
}

// run runs a shell command in the machine with more environment; it returns
// everything that was printed.
func (m *machine) run(command string, env ...string) (string, error) {
	m.t.Helper()
	cmd := exec.Command("nsenter", "-t", fmt.Sprint(m.pid), "-m", "-p", "sh", "-c", command)
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=/root"}, env...)
	// A file: what runs in the background must not keep a pipe open.
	out, err := os.CreateTemp(m.t.TempDir(), "out")
	must(m.t, err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	text, readErr := os.ReadFile(out.Name())
	must(m.t, readErr)
	m.t.Logf("$ %s %s\n%s(%v)", strings.Join(env, " "), command, text, err)
	return string(text), err
}

// ok runs a command that must succeed.
func (m *machine) ok(command string, env ...string) string {
	m.t.Helper()
	out, err := m.run(command, env...)
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// file reads a file of the machine.
func (m *machine) file(path string) string {
	m.t.Helper()
	return m.ok("cat " + path)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kombi builds a kombi file around the stand-in with a version.
func kombi(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	goBuild(t, filepath.Join(dir, "launcher"), "-s -w", "../../cmd/launcher")
	goBuild(t, filepath.Join(dir, "pack"), "-s -w", "../../scripts/pack")
	goBuild(t, filepath.Join(dir, "kombi"), "-s -w -X main.version="+version, "./standin")
	out := filepath.Join(dir, "kombi.file")
	pack := exec.Command(filepath.Join(dir, "pack"), "-o", out, "-launcher", filepath.Join(dir, "launcher"), "-level", "1", filepath.Join(dir, "kombi"))
	if text, err := pack.CombinedOutput(); err != nil {
		t.Fatalf("pack: %v\n%s", err, text)
	}
	return out
}

func goBuild(t *testing.T, out, ldflags, pkg string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-ldflags", ldflags, "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, text)
	}
}
