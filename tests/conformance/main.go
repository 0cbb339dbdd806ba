// Command conformance runs the official end-to-end suite of Kubernetes against
// dist/kombi: it builds the suite and its images, starts a cluster, runs the specs
// that a regular expression selects, and writes a report. docs/conformance.md says
// how to use it.
//
// It runs in PID, mount, network and host name namespaces of its own, those of the
// end-to-end tests: the kernel takes everything away when it ends.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// options are the flags; they reach the inner stages by the environment.
type options struct {
	Focus, Skip string
	Nodes       int
	Procs       int
	Timeout     time.Duration
	Out         string
	NoSkipList  bool

	// Built before the namespaces exist.
	Suite, Ginkgo string
	Archives      []string
}

const optionsVar = "KOMBI_CONFORMANCE_OPTIONS"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run() error {
	// The harness executes this program again for its inner stages.
	if kept := os.Getenv(optionsVar); kept != "" {
		var o options
		if err := json.Unmarshal([]byte(kept), &o); err != nil {
			return err
		}
		if os.Getenv("KOMBI_E2E_STAGE") == "test" {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return conform(ctx, o)
		}
		return enter(nil)
	}
	o, err := flags(os.Args[1:])
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("it needs root, to run a node: run it again with sudo")
	}
	if _, err := os.Stat(harness.Binary()); err != nil {
		return fmt.Errorf("there is no program to test at %s: run make first", harness.Binary())
	}
	return enter(func() error {
		if err := build(&o); err != nil {
			return err
		}
		kept, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return os.Setenv(optionsVar, string(kept))
	})
}

// enter goes through the harness's stages; the last one calls this program's run
// again.
func enter(prepare func() error) error {
	testing.Init() // the harness looks at the flags of tests
	os.Args = os.Args[:1]
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		fmt.Fprintf(os.Stderr, "conformance: ends everything, by the signal %s\n", <-signals)
		// Everything ends with process 1 of the namespaces; then the harness tidies up.
		if killChildren() == 0 {
			os.Exit(1) // they are not there yet
		}
	}()
	if code := harness.Main(nil, prepare); code != 0 {
		os.Exit(code)
	}
	return nil
}

func killChildren() (n int) {
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, task := range tasks {
		children, _ := os.ReadFile("/proc/self/task/" + task.Name() + "/children")
		for _, child := range strings.Fields(string(children)) {
			if pid, err := strconv.Atoi(child); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
				n++
			}
		}
	}
	return n
}

func flags(args []string) (options, error) {
	var o options
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.StringVar(&o.Focus, "focus", `\[Conformance\]`, "regular expression: run the specs whose names match")
	f.StringVar(&o.Skip, "skip", "", "regular expression: but not those whose names match")
	f.IntVar(&o.Nodes, "nodes", 1, "number of nodes of the cluster")
	f.IntVar(&o.Procs, "procs", 4, "number of specs that run at the same time")
	f.DurationVar(&o.Timeout, "timeout", 2*time.Hour, "time limit of the suite")
	f.StringVar(&o.Out, "out", "dist/conformance", "folder for the reports")
	f.BoolVar(&o.NoSkipList, "no-skip-list", false, "also run what tests/conformance/skips.yaml leaves out")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not expected: there are only flags, see --help", f.Arg(0))
	}
	for _, e := range []struct{ name, value string }{{"--focus", o.Focus}, {"--skip", o.Skip}} {
		if _, err := regexp.Compile(e.value); err != nil {
			return o, fmt.Errorf("%s is no regular expression: %w", e.name, err)
		}
	}
	switch {
	case o.Nodes < 1 || o.Procs < 1:
		return o, errors.New("--nodes and --procs begin at 1")
	case o.Nodes > 1:
		return o, errors.New("the runner does not start agents yet: use --nodes 1")
	case o.Timeout < time.Minute:
		return o, errors.New("--timeout begins at 1m")
	}
	var err error
	o.Out, err = filepath.Abs(o.Out)
	return o, err
}
