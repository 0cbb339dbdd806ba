package uninstall

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The test program, started by another name, plays the processes of a node: a
// shim that starts the programs in its arguments, and programs that end at
// SIGTERM, or do not.
func TestMain(m *testing.M) {
	switch os.Getenv("UNINSTALL_TEST_ROLE") {
	case "":
		os.Exit(m.Run())
	case "shim":
		shim()
	case "polite":
		fmt.Println("ready")
		wait := make(chan os.Signal, 1)
		signal.Notify(wait, syscall.SIGTERM)
		<-wait
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
}

// shim starts role=path words and prints their process IDs.
func shim() {
	signal.Ignore(syscall.SIGTERM)
	for _, word := range strings.Fields(os.Getenv("UNINSTALL_TEST_CHILDREN")) {
		role, path, _ := strings.Cut(word, "=")
		pid, err := startRole(role, path)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(pid)
	}
	fmt.Println("ready")
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	for range children {
		for {
			var ws syscall.WaitStatus
			if pid, _ := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil); pid <= 0 {
				break
			}
		}
	}
}

func startRole(role, path string, args ...string) (int, error) {
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "UNINSTALL_TEST_ROLE="+role)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		return 0, fmt.Errorf("%s said %q: %w", path, line, err)
	}
	return cmd.Process.Pid, nil
}

// node is a pretended Kombi: folders, a cgroup, programs.
type node struct {
	Options
	t    *testing.T
	pids []int
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("signals, mounts and cgroups need root")
	}
	base := t.TempDir()
	n := &node{t: t, Options: Options{
		DataDir:    filepath.Join(base, "data"),
		RunDir:     filepath.Join(base, "run"),
		ConfigDir:  filepath.Join(base, "etc-kombi"),
		LogDir:     filepath.Join(base, "log"),
		BinDir:     filepath.Join(base, "usr-bin"),
		PodLogs:    filepath.Join(base, "log", "pods"),
		CgroupRoot: "/kombi-uninstall-test-" + strconv.Itoa(os.Getpid()),
		Root:       filepath.Join(base, "root"),
		Grace:      300 * time.Millisecond,
		Yes:        true,
		Out:        testWriter{t},
	}}
	for _, dir := range []string{n.DataDir, n.RunDir, n.ConfigDir, n.LogDir, n.BinDir, n.PodLogs,
		filepath.Join(n.DataDir, "bin", "0123"), filepath.Join(n.DataDir, "server"), filepath.Join(n.RunDir, "containerd")} {
		n.must(os.MkdirAll(dir, 0o755))
	}
	t.Cleanup(func() {
		for _, pid := range n.pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_, _ = unmountBelow(base)
		_ = removeCgroups(context.Background(), n.CgroupRoot) // that of the test is over
	})
	return n
}

func (n *node) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// program installs the test program under a name below dir and returns its path.
func (n *node) program(dir, name string) string {
	n.t.Helper()
	n.must(os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, name)
	self, err := os.Open("/proc/self/exe")
	n.must(err)
	defer self.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	n.must(err)
	_, err = io.Copy(out, self)
	n.must(err)
	n.must(out.Close())
	return path
}

// startShim starts a shim of this node and returns it with its children.
func (n *node) startShim(exe string, args []string, children ...string) (shim *exec.Cmd, pids []int) {
	n.t.Helper()
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "UNINSTALL_TEST_ROLE=shim", "UNINSTALL_TEST_CHILDREN="+strings.Join(children, " "))
	out, err := cmd.StdoutPipe()
	n.must(err)
	n.must(cmd.Start())
	n.pids = append(n.pids, cmd.Process.Pid)
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "ready" {
		pid, err := strconv.Atoi(lines.Text())
		if err != nil {
			n.t.Fatalf("the shim said %q", lines.Text())
		}
		pids = append(pids, pid)
		n.pids = append(n.pids, pid)
	}
	go func() { _ = cmd.Wait() }()
	return cmd, pids
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Helper()
	w.t.Log(strings.TrimRight(string(b), "\n"))
	return len(b), nil
}
