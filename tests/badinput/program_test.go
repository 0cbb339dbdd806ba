package badinput

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// unpacked is the folder with the program of the payload, unpacked once for all rows that are not about unpacking.
// It is empty when the program under test has no payload, as one straight from go build.
var unpacked = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(harness.Dir(), "unpacked")
	cmd := exec.Command(harness.Binary(), "version")
	cmd.Env = environment("KOMBI_DATA_DIR=" + dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.New(string(out))
	}
	found, err := filepath.Glob(filepath.Join(dir, "bin", "*", "kombi"))
	if err != nil || len(found) == 0 {
		return "", err
	}
	return filepath.Dir(found[0]), nil
})

// program is what most rows run, with its environment.
func program(t *testing.T) (path string, env []string) {
	t.Helper()
	dir, err := unpacked()
	if err != nil {
		t.Fatal("the program cannot be unpacked: ", err)
	}
	if dir == "" {
		return harness.Binary(), environment()
	}
	return filepath.Join(dir, "kombi"), environment("KOMBI_BIN_DIR="+dir, "KOMBI_LAUNCHER="+harness.Binary())
}

func environment(more ...string) []string {
	return append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + harness.Dir()}, more...)
}

// result is how a program ended.
type result struct {
	code    int
	stdout  string
	stderr  string
	timeout bool
}

// start describes one run.
type start struct {
	path   string
	args   []string
	env    []string
	stdin  string
	mounts func(t *testing.T) // made in a mount namespace of the run's own
	user   uint32
	drop   []uintptr // capabilities that the program does not get
}

const patience = 30 * time.Second

// run waits for the end of the program, or ends it.
func run(t *testing.T, s start) result {
	t.Helper()
	done := make(chan result)
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine, and with it what was done to it.
		runtime.LockOSThread()
		if s.mounts != nil {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				t.Error(err)
				return
			}
			if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				t.Error(err)
				return
			}
			s.mounts(t)
		}
		for _, c := range s.drop {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
				t.Error(err)
				return
			}
		}
		done <- s.run(t)
	}()
	r, ok := <-done
	if !ok {
		t.FailNow()
	}
	return r
}

func (s start) run(t *testing.T) result {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.path, s.args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = s.env, "/", time.Second
	cmd.Stdin = strings.NewReader(s.stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if s.user != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.user, Gid: s.user}}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("the program does not start: %v", err)
		return result{}
	}
	return result{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String(), timeout: ctx.Err() != nil}
}

// refused checks that the program ended with exactly one sentence that holds all texts.
func (r result) refused(t *testing.T, texts ...string) {
	t.Helper()
	all := r.stdout + r.stderr
	switch {
	case r.timeout:
		t.Errorf("the program was still running after %s; it said:\n%s", patience, tail(all))
		return
	case r.code == 0:
		t.Errorf("the program was content; it said:\n%s", tail(all))
	}
	noCrash(t, all)
	sentences := lastSentences(r.stderr)
	if len(sentences) != 1 {
		t.Errorf("want one sentence, got %d:\n%s", len(sentences), tail(r.stderr))
	}
	said := strings.Join(sentences, "\n")
	for _, text := range texts {
		if !strings.Contains(said, text) {
			t.Errorf("%q is missing in:\n%s", text, tail(r.stderr))
		}
	}
}

// lastSentences drops log lines, and the "kombi: " in front of what the program says at its end.
func lastSentences(stderr string) []string {
	var out []string
	for line := range strings.Lines(stderr) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "time=") {
			continue
		}
		out = append(out, strings.TrimPrefix(line, "kombi: "))
	}
	return out
}

func noCrash(t *testing.T, said string) {
	t.Helper()
	for _, trace := range []string{"panic:", "goroutine ", "runtime error", "SIGSEGV", "0x0", "%!"} {
		if strings.Contains(said, trace) {
			t.Errorf("%q in:\n%s", trace, tail(said))
		}
	}
}

func tail(s string) string {
	const most = 3000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}

// listing names every file below dir with its size and time, to see whether anything was written.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // a folder that is not there is an empty one
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(path + " " + info.ModTime().String() + " " + info.Mode().String() + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
