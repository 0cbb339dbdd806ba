package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// conform starts a cluster, runs the suite on it and writes the reports.
func conform(ctx context.Context, o options) (err error) {
	flag.Parse() // the harness asks whether tests are verbose
	if err := os.RemoveAll(o.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(o.Out, 0o755); err != nil {
		return err
	}
	list, err := readSkips()
	if err != nil {
		return err
	}
	if o.NoSkipList {
		list.Skips = nil
	}
	t := new(steps)
	defer t.end()
	var c *cluster
	if err := t.try(func() { c = startCluster(t, o) }); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, keepLogs(c, o.Out)) }()

	began := time.Now()
	suiteErr := runSuite(ctx, c, o, list)
	s, err := report(o, list, time.Since(began))
	if err := errors.Join(err, c.failure()); err != nil {
		return errors.Join(err, suiteErr)
	}
	s.print(os.Stdout)
	switch {
	case s.Failed > 0:
		return fmt.Errorf("%d of %d specs failed: see %s", s.Failed, s.Failed+s.Passed, filepath.Join(o.Out, failuresFile))
	case suiteErr != nil:
		return suiteErr
	case s.Passed == 0:
		return errors.New("no spec ran: look at the regular expressions")
	}
	return nil
}

// runSuite runs ginkgo with the suite. Its error says how it ended; the report says
// what failed.
func runSuite(ctx context.Context, c *cluster, o options, list *skipList) error {
	log, err := os.Create(filepath.Join(o.Out, "e2e.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	progress := newProgress(os.Stdout)
	stop := progress.every(30 * time.Second)
	defer stop()

	// Ginkgo ends by its own limit; this one is for when it does not.
	ctx, cancel := context.WithTimeout(ctx, o.Timeout+5*time.Minute)
	defer cancel()
	k := c.server()
	cmd := k.Command(ctx, o.Ginkgo, suiteArgs(c, o, list)...)
	cmd.Dir = harness.Dir()
	cmd.Stdout = io.MultiWriter(log, progress)
	cmd.Stderr = cmd.Stdout
	fmt.Printf("runs specs that match %s, %d at the same time\n", o.Focus, o.Procs)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("the suite ended with %w: see %s", err, log.Name())
	}
	return nil
}

// suiteArgs are the arguments of ginkgo and, after --, of the suite.
func suiteArgs(c *cluster, o options, list *skipList) []string {
	args := []string{
		"run", "--procs=" + strconv.Itoa(o.Procs), "--timeout=" + o.Timeout.String(), "--no-color", "-v",
		"--keep-going", "--focus=" + o.Focus,
	}
	if o.Skip != "" {
		args = append(args, "--skip="+o.Skip)
	}
	for _, s := range list.Skips {
		args = append(args, "--skip="+s.Pattern)
	}
	k := c.server()
	return append(args, o.Suite, "--",
		"--kubeconfig="+k.Kubeconfig,
		"--provider=skeleton",
		"--node-os-distro=custom",
		"--num-nodes="+strconv.Itoa(len(c.nodes)),
		"--allowed-not-ready-nodes=0",
		"--kubectl-path="+filepath.Join(filepath.Dir(k.Kubeconfig), "tools", "kubectl"),
		"--kubelet-root-dir="+filepath.Join(k.DataDir, "kubelet"),
		"--report-dir="+o.Out,
		"--e2e-output-dir="+harness.Dir(),
		"--repo-root="+harness.Dir(),
		"--disable-log-dump",
	)
}

// keepLogs copies what the nodes logged to the reports.
func keepLogs(c *cluster, dir string) error {
	var errs []error
	for i, k := range c.nodes {
		name := "kombi.log"
		if i > 0 {
			name = fmt.Sprintf("kombi-%d.log", i)
		}
		data, err := os.ReadFile(k.Log)
		errs = append(errs, err, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	return errors.Join(errs...)
}
