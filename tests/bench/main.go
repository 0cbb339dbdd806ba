// Command bench measures what Kombi promises: how fast it starts and stops, what
// it costs at idle and for each pod, next to the same upstream components
// started as separate processes, in one run. It prints a table and writes the
// figures as JSON.
//
// It runs in PID, mount, network and host name namespaces of its own (those of
// the end-to-end tests): nothing of it is seen on the machine's network, and the
// kernel takes everything away when it ends, also when it is killed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// options are the flags; they reach the inner stages by the environment.
type options struct {
	Runs         int
	After        time.Duration
	Idle         time.Duration
	Settle       time.Duration
	Pods         int
	SkipUpstream bool
	QuietFor     time.Duration
	Out          string
	Readme       string

	// Load is the machine's load before the start; Noisy says that it was high.
	Load  float64
	Noisy bool
	// Archives of the test images.
	Archives []string
}

const optionsVar = "KOMBI_BENCH_OPTIONS"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run() error {
	// The harness executes this program again for its two inner stages.
	if kept := os.Getenv(optionsVar); kept != "" {
		var o options
		if err := json.Unmarshal([]byte(kept), &o); err != nil {
			return err
		}
		if os.Getenv("KOMBI_E2E_STAGE") == "test" {
			ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return measure(ctx, o)
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
		return fmt.Errorf("there is no program to measure at %s: run make first", harness.Binary())
	}
	return enter(func() error {
		if o.Archives, err = testImages(); err != nil {
			return err
		}
		if !o.SkipUpstream {
			if err := buildUpstream(); err != nil {
				return err
			}
		}
		o.Load, o.Noisy = awaitQuiet(o.QuietFor)
		kept, err := json.Marshal(o)
		if err != nil {
			return err
		}
		return os.Setenv(optionsVar, string(kept))
	})
}

// enter goes through the harness's stages; the last one calls this program's
// run again.
func enter(prepare func() error) error {
	testing.Init() // the harness looks at the flags of tests
	os.Args = os.Args[:1]
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		fmt.Fprintf(os.Stderr, "bench: ends everything, by the signal %s\n", <-signals)
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
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	f.IntVar(&o.Runs, "runs", 5, "starts of each kind; the median is printed")
	f.DurationVar(&o.Idle, "idle", 5*time.Minute, "how long CPU and writes are measured at idle")
	f.DurationVar(&o.After, "after", 5*time.Minute, "how long after Ready memory is read at idle and the measurement of CPU and writes begins")
	f.DurationVar(&o.Settle, "settle", 30*time.Second, "pause after pods started, before their memory is read")
	f.IntVar(&o.Pods, "pods", 10, "number of idle pods for the cost of a pod")
	f.BoolVar(&o.SkipUpstream, "skip-upstream", false, "measure Kombi only")
	f.DurationVar(&o.QuietFor, "wait-quiet", 5*time.Minute, "wait so long for a load below 1 before starting; then the figures are marked as noisy")
	f.StringVar(&o.Out, "out", "dist/bench.json", "where the figures go as JSON")
	f.StringVar(&o.Readme, "readme", "", "also put the table into this Markdown file, between its two lines <!-- bench -->")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not expected: there are only flags, see --help", f.Arg(0))
	}
	if o.Runs < 1 || o.Pods < 1 || o.Idle < time.Second {
		return o, errors.New("--runs and --pods begin at 1 and --idle at 1s")
	}
	return o, nil
}

// awaitQuiet waits until the machine has little else to do.
func awaitQuiet(patience time.Duration) (load float64, noisy bool) {
	deadline := time.Now().Add(patience)
	for told := false; ; told = true {
		if load = loadAverage(); load < 1 {
			return load, false
		}
		if time.Now().After(deadline) {
			return load, true
		}
		if !told {
			fmt.Printf("the load of this machine is %.1f: waiting up to %s for it to go below 1\n", load, patience)
		}
		time.Sleep(5 * time.Second)
	}
}
