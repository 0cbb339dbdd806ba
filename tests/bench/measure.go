package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// readings are what was measured of one system.
type readings struct {
	size      int64
	cold      []time.Duration // empty data directory to node Ready
	answer    []time.Duration // empty data directory to the first answer of an application
	warm      []time.Duration // restart to node Ready
	stop      []time.Duration
	idle      usage   // the larger memory at the ends of the window; CPU and writes during it
	window    float64 // seconds
	parts     map[string]int64
	others    float64 // share of a core that everything else used during the window
	podMemory float64 // bytes for each pod
}

func measure(ctx context.Context, o options) error {
	k := newKombi()
	size, err := fileSize(harness.Binary())
	if err != nil {
		return err
	}
	r := &report{options: o, kombi: &readings{size: size}}
	if err := measureSystem(ctx, k, o, r.kombi, func() error { return nil }); err != nil {
		return err
	}
	if !o.SkipUpstream {
		u := newSeparate()
		r.separate = &readings{}
		for _, pattern := range []string{filepath.Join(programDir(), "*"), filepath.Join(payloadDir(), "runc"), filepath.Join(payloadDir(), "containerd-shim-runc-v2")} {
			files, _ := filepath.Glob(pattern)
			for _, file := range files {
				size, err := fileSize(file)
				if err != nil {
					return err
				}
				r.separate.size += size
			}
		}
		if err := measureSystem(ctx, u, o, r.separate, u.prepare); err != nil {
			// Kombi's own figures are not lost with those it is compared to.
			r.notes = append(r.notes, "the separate processes could not be measured to the end: "+strings.SplitN(err.Error(), "\n", 2)[0])
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return r.write()
}

func fileSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// measureSystem takes all readings of a system. fresh makes what is needed in
// an empty folder before the clock starts.
func measureSystem(ctx context.Context, s system, o options, r *readings, fresh func() error) error {
	empty := func() error {
		if err := wipe(s); err != nil {
			return fmt.Errorf("clean up after %s: %w", s.name(), err)
		}
		return fresh()
	}
	for i := range o.Runs {
		progress("%s: start %d of %d, from nothing and again", s.name(), i+1, o.Runs)
		if err := empty(); err != nil {
			return err
		}
		for _, to := range []*[]time.Duration{&r.cold, &r.warm} {
			took, _, err := startUntilReady(ctx, s, to == &r.warm)
			if err != nil {
				return err
			}
			*to = append(*to, took)
			// A system that has settled is stopped, not one that is still starting.
			if err := pause(ctx, 2*time.Second); err != nil {
				return err
			}
			began := time.Now()
			if err := s.stop(ctx); err != nil {
				return err
			}
			r.stop = append(r.stop, time.Since(began))
		}
	}

	for i := range min(o.Runs, 3) {
		progress("%s: application %d of %d", s.name(), i+1, min(o.Runs, 3))
		if err := empty(); err != nil {
			return err
		}
		if err := measureAnswer(ctx, s, o, r); err != nil {
			return err
		}
	}

	if err := empty(); err != nil {
		return err
	}
	_, c, err := startUntilReady(ctx, s, false)
	if err != nil {
		return err
	}
	if err := s.addImages(ctx, o.archive("busybox")); err != nil {
		return err
	}
	progress("%s: idle for %s after %s", s.name(), o.Idle, o.After)
	if err := measureIdle(ctx, s, o, r); err != nil {
		return err
	}
	progress("%s: %d pods", s.name(), o.Pods)
	if err := measurePods(ctx, s, c, o, r); err != nil {
		return err
	}
	return s.stop(ctx)
}

// startUntilReady starts the system and returns how long it took until its
// node was Ready. again says that it was there before.
func startUntilReady(ctx context.Context, s system, again bool) (time.Duration, *kubernetes.Clientset, error) {
	began := time.Now()
	if err := s.start(ctx); err != nil {
		return 0, nil, err
	}
	c, err := client(ctx, s)
	if err != nil {
		return 0, nil, err
	}
	var restarted *time.Time
	if again {
		restarted = &began
	}
	if err := awaitReady(ctx, s, c, restarted); err != nil {
		return 0, nil, err
	}
	return time.Since(began), c, nil
}

// measureIdle reads CPU and writes over the window, and the larger of the
// memory at its two ends.
func measureIdle(ctx context.Context, s system, o options, r *readings) error {
	if err := pause(ctx, o.After); err != nil {
		return err
	}
	began, before, busy := time.Now(), total(s), machineBusy()
	if err := pause(ctx, o.Idle); err != nil {
		return err
	}
	after := total(s)
	r.window = time.Since(began).Seconds()
	r.idle = usage{anon: max(before.anon, after.anon), cpu: after.cpu - before.cpu, written: after.written - before.written}
	r.others = (machineBusy() - busy - r.idle.cpu).Seconds() / r.window
	r.parts = map[string]int64{}
	for _, p := range s.processes() {
		if err := p.failure(); err != nil {
			return err
		}
		r.parts[p.name] = readUsage(p.pid()).anon
	}
	return nil
}

// total is what the processes of the system and the shims use together.
func total(s system) usage {
	var sum usage
	for _, p := range s.processes() {
		sum = sum.add(readUsage(p.pid()))
	}
	for _, pid := range shims() {
		sum = sum.add(readUsage(pid))
	}
	return sum
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

// flushRules removes what kube-proxy leaves in the kernel.
func flushRules() error {
	program, err := exec.LookPath("nft")
	if err != nil {
		return nil // then kube-proxy left nothing
	}
	if out, err := exec.Command(program, "flush", "ruleset").CombinedOutput(); err != nil {
		return fmt.Errorf("nft flush ruleset: %w: %s", err, out)
	}
	return nil
}
