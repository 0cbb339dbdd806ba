package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// buildShim compiles the program into a folder, as the Makefile does.
func buildShim(t *testing.T) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler:", err)
	}
	program := filepath.Join(t.TempDir(), "shim")
	out, err := exec.Command(compiler, "-Os", "-Wall", "-Wextra", "-Werror", "-static", "-nostdlib", "-ffreestanding",
		"-fno-stack-protector", "-fno-pie", "-no-pie", "-o", program, "../../cmd/shim/shim.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

func TestShimBecomesItsNeighbourWithOrdinarySlack(t *testing.T) {
	program := buildShim(t)
	neighbour := filepath.Join(filepath.Dir(program), "containerd-shim-runc-v2")
	if err := os.WriteFile(neighbour, []byte("#!/bin/sh\necho \"$1 $2 $WORD $(cat /proc/$$/timerslack_ns)\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Children have the slack of the thread that starts them.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, 50_000_000, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 50_000, 0, 0, 0) }()
	cmd := exec.Command(program, "-namespace", "k8s.io")
	cmd.Env = append(os.Environ(), "WORD=word")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSpace(string(out)); got != "-namespace k8s.io word 50000" {
		t.Errorf("the neighbour saw %q", got)
	}
}

func TestShimSaysWhatIsMissing(t *testing.T) {
	out, err := exec.Command(buildShim(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "containerd-shim-runc-v2 beside it cannot be run") {
		t.Errorf("%v: %s", err, out)
	}
}
