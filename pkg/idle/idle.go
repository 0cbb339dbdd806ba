// Package idle lets the threads of an idle process wake up together.
//
// A control plane at rest has some three hundred timers a second, each of which
// wakes a processor for a few microseconds of work; the waking costs more than
// the work. The kernel can put such wake-ups together when a thread allows its
// timers to be late (timer slack, prctl(2)): events of files and sockets are not
// delayed by it.
package idle

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// idleSlack is by how much timers may be late while the process is idle.
	idleSlack = 50 * time.Millisecond
	// busySlack is the kernel's default.
	busySlack = 50 * time.Microsecond

	// interval is how often the process looks at what it does.
	interval = time.Second
	// busyLoad is the part of one processor above which it is not idle.
	busyLoad = 0.2
	// quietIntervals is how many intervals below it make the process idle.
	quietIntervals = 3
)

// Run adapts the slack of all threads to the load until ctx ends, and then
// leaves them with the default.
func Run(ctx context.Context, log *slog.Logger) {
	g := governor{slack: busySlack, set: setSlack}
	defer func() { _ = setSlack(busySlack) }()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	used, at := cpuTime(), time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		usedNow, now := cpuTime(), time.Now()
		if err := g.observe(float64(usedNow-used) / float64(now.Sub(at))); err != nil {
			log.Debug("wake-ups of an idle process cannot be put together", "error", err)
			return
		}
		used, at = usedNow, now
	}
}

// governor decides about the slack.
type governor struct {
	slack time.Duration
	quiet int // intervals since the last busy one
	set   func(time.Duration) error
}

// observe takes the load of the last interval, as a part of one processor.
func (g *governor) observe(load float64) error {
	g.quiet++
	if load > busyLoad {
		g.quiet = 0
	}
	want := g.slack
	switch {
	case g.quiet == 0:
		want = busySlack
	case g.quiet >= quietIntervals:
		want = idleSlack
	}
	if want == g.slack {
		return nil
	}
	g.slack = want
	return g.set(want)
}

// cpuTime is the processor time that the process has used.
func cpuTime() time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// setSlack gives all threads a slack but the one that watches the others: it is
// the first that Go's runtime starts, so it has the smallest number after the
// main thread. Threads that are started later have the slack of those that
// start them.
func setSlack(slack time.Duration) error {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	var threads []int
	for _, entry := range entries {
		if id, err := strconv.Atoi(entry.Name()); err == nil {
			threads = append(threads, id)
		}
	}
	slices.Sort(threads)
	watcher := slices.Index(threads, os.Getpid()) + 1
	for i, id := range threads {
		if i == watcher {
			continue
		}
		err := os.WriteFile(filepath.Join("/proc", strconv.Itoa(id), "timerslack_ns"), strconv.AppendInt(nil, slack.Nanoseconds(), 10), 0)
		if err != nil && !os.IsNotExist(err) { // it may have ended
			return err
		}
	}
	return nil
}
