// The launcher is the first program in the kombi file. It unpacks the programs
// behind it once, then becomes the main program: one exec, the same arguments,
// the same process. It runs before every command, so it must stay small.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/payload"
	"github.com/kombi-k8s/kombi/pkg/supervise"
)

const (
	program = "kombi"
	// What the main program learns from the launcher.
	envBinDir   = "KOMBI_BIN_DIR"  // the folder of the unpacked programs
	envLauncher = "KOMBI_LAUNCHER" // the file that the user started
)

func main() {
	// The supervisor stays for as long as the service: as part of this small
	// program it costs 2 MB of memory, as part of the main one it would cost 50.
	if len(os.Args) > 1 && os.Args[1] == "supervise" {
		os.Exit(supervise.Main(os.Args[2:]))
	}
	fmt.Fprintf(os.Stderr, "kombi: %v\n", run())
	os.Exit(1)
}

// run returns only when it fails.
func run() error {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot read its own file: %w: mount /proc", err)
	}
	p, err := payload.Open(exe)
	if err != nil {
		return err
	}
	dir, err := ensure(p)
	if err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	env := setenv(setenv(os.Environ(), envBinDir, dir), envLauncher, strings.TrimSuffix(self, " (deleted)"))
	main := filepath.Join(dir, program)
	err = unix.Exec(main, os.Args, env)
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("cannot start %s: %w: its file system may be mounted noexec; remount it with exec or choose another place with --data-dir", main, err)
	}
	return fmt.Errorf("cannot start %s: %w", main, err)
}

// ensure unpacks into the data directory, or, for a user who may not write
// there, into a folder of their own.
func ensure(p *payload.Payload) (string, error) {
	dataDir := payload.DataDir(os.Args, os.Getenv)
	progress := newProgress()
	// The lock is closed by the exec.
	dir, _, err := p.Ensure(context.Background(), dataDir, progress.report)
	if err != nil && os.Geteuid() != 0 && (errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS)) {
		cache, cacheErr := os.UserCacheDir()
		if cacheErr != nil {
			return "", fmt.Errorf("%w: run it as root, or set HOME so that it can unpack to a folder of yours", err)
		}
		dir, _, err = p.Ensure(context.Background(), filepath.Join(cache, "kombi"), progress.report)
	}
	progress.end()
	return dir, err
}

func setenv(env []string, key, value string) []string {
	out := env[:0]
	for _, kv := range env {
		if !strings.HasPrefix(kv, key+"=") {
			out = append(out, kv)
		}
	}
	return append(out, key+"="+value)
}

// progress draws one line on a terminal once unpacking has taken a second.
type progress struct {
	start time.Time
	show  bool
	steps chan [2]int64
	done  chan struct{}
}

func newProgress() *progress {
	_, err := unix.IoctlGetTermios(int(os.Stderr.Fd()), unix.TCGETS)
	p := &progress{start: time.Now(), show: err == nil, steps: make(chan [2]int64, 64), done: make(chan struct{})}
	go p.draw()
	return p
}

func (p *progress) report(done, total int64) {
	select {
	case p.steps <- [2]int64{done, total}:
	default: // the next step says more
	}
}

func (p *progress) draw() {
	defer close(p.done)
	drawn := false
	for step := range p.steps {
		if !p.show || time.Since(p.start) < time.Second {
			continue
		}
		const width = 30
		filled := int(width * step[0] / step[1])
		fmt.Fprintf(os.Stderr, "\runpacking kombi [%s%s] %d of %s", strings.Repeat("#", filled), strings.Repeat(" ", width-filled), (step[0]+500_000)/1_000_000, payload.Bytes(step[1]))
		drawn = true
	}
	if drawn {
		fmt.Fprint(os.Stderr, "\r\033[K")
	}
}

func (p *progress) end() {
	close(p.steps)
	<-p.done
}
