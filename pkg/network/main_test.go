package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// The whole test process is the node: it runs in network and mount namespaces of
// its own. Pods and the world outside are namespaces that the tests make.
func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		os.Exit(helper(os.Args[1:]))
	}
	const inside = "KOMBI_TEST_NODE"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		if os.Getenv(inside) != "" {
			err := errors.Join(
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=0700"), // not the machine's
			)
			if err != nil {
				fmt.Fprintln(os.Stderr, "private mounts:", err)
				os.Exit(1)
			}
		}
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // the death signal is for the thread's end
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(exit.ExitCode())
	case err != nil:
		fmt.Fprintln(os.Stderr, "cannot make namespaces:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes network namespaces and loads eBPF programs")
	}
}
