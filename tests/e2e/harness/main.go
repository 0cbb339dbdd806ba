// Package harness runs the end-to-end tests against the real program, on a
// machine of their own: new PID, mount, network and host name namespaces with a
// private /run, /sys and /etc/resolv.conf. The machine around them keeps its
// network, mounts and processes to itself, and when the tests end, however they
// end, the kernel takes away everything that they started.
//
// A second network namespace, "outside", plays the rest of the world.
package harness

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// The stages that the test program goes through by executing itself.
const (
	stageVar  = "KOMBI_E2E_STAGE"
	dirVar    = "KOMBI_E2E_DIR"
	stageInit = "init" // process 1 of the namespaces: prepares them, reaps
	stageTest = "test" // the tests
)

// Main is the body of TestMain. prepare runs once before the namespaces exist:
// it may use the network of the machine, to build what the tests need.
func Main(m *testing.M, prepare func() error) int {
	flag.Parse()
	var err error
	code := 0
	switch os.Getenv(stageVar) {
	case "":
		if reason := skipReason(); reason != "" {
			fmt.Println("end-to-end tests are skipped:", reason)
			return 0
		}
		if err = prepare(); err == nil {
			code, err = runInNamespaces()
		}
	case stageInit:
		code, err = runInit()
	case stageOutside:
		err = runOutside()
	case stageTest:
		// Most tests wait most of the time.
		if f := flag.Lookup("test.parallel"); f != nil && f.Value.String() == f.DefValue {
			_ = f.Value.Set("12")
		}
		return m.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "end-to-end tests:", err)
		return 1
	}
	return code
}

func skipReason() string {
	switch {
	case testing.Short():
		return "-short"
	case os.Geteuid() != 0:
		return "they need root, to run a node"
	}
	if _, err := os.Stat(Binary()); err != nil {
		return fmt.Sprintf("no program at %s: run make first, or set KOMBI_BIN", Binary())
	}
	return ""
}

// Binary is the program under test: KOMBI_BIN, or dist/kombi of the repository.
func Binary() string {
	if bin := os.Getenv("KOMBI_BIN"); bin != "" {
		if abs, err := filepath.Abs(bin); err == nil {
			return abs
		}
	}
	return filepath.Join(Repository(), "dist", "kombi")
}

// Repository is the folder that holds go.mod.
func Repository() string {
	dir, _ := os.Getwd()
	for d := dir; d != "/"; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
	}
	return dir
}

// Dir is the folder of this run; everything that the tests write is below it.
func Dir() string { return os.Getenv(dirVar) }

// runInNamespaces executes this program again as process 1 of new namespaces
// and cleans up after it.
func runInNamespaces() (code int, err error) {
	removeLeftovers()
	dir, owner, err := newRunDir()
	if err != nil {
		return 1, err
	}
	defer owner.Close()
	defer removeRun(dir)
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	// The kernel kills the child when this thread ends.
	runtime.LockOSThread()
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), stageVar+"="+stageInit, dirVar+"="+dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return exitCode(cmd.Run())
}

// runInit prepares the namespaces, runs the tests, and reaps what they orphan
// as any process 1 does. Its end ends every process of the namespace.
func runInit() (code int, err error) {
	// The cgroup namespace belongs to the thread.
	runtime.LockOSThread()
	if err := prepareMachine(); err != nil {
		return 1, fmt.Errorf("prepare the namespaces: %w", err)
	}
	if err := startOutside(); err != nil {
		return 1, fmt.Errorf("the outside: %w", err)
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = stageEnv(stageTest)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 1, fmt.Errorf("wait for the tests: %w", err)
		case pid == cmd.Process.Pid && status.Signaled():
			return 1, fmt.Errorf("the tests were ended by signal %s", status.Signal())
		case pid == cmd.Process.Pid && status.Exited():
			return status.ExitStatus(), nil
		}
	}
}

// stageEnv is the environment of a process of another stage.
func stageEnv(stage string) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, stageVar+"=") })
	return append(env, stageVar+"="+stage)
}

func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	}
	return 0, err
}
