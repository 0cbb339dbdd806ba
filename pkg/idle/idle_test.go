package idle

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestGovernor(t *testing.T) {
	var slack time.Duration
	g := governor{slack: busySlack, set: func(d time.Duration) error { slack = d; return nil }}
	for _, step := range []struct {
		load float64
		want time.Duration
	}{
		{0.01, 0}, {0.01, 0}, {0.01, idleSlack}, // three quiet intervals
		{0.01, idleSlack},
		{0.5, busySlack},                    // at once
		{0.01, busySlack}, {0.5, busySlack}, // starts over
		{0.01, busySlack}, {0.01, busySlack}, {0.01, idleSlack},
	} {
		if err := g.observe(step.load); err != nil {
			t.Fatal(err)
		}
		if slack != step.want {
			t.Fatalf("load %v: slack %v, want %v", step.load, slack, step.want)
		}
	}
}

// slacks of all threads of this process, in nanoseconds.
func slacks(t *testing.T) map[string]int {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, task := range tasks {
		if data, err := os.ReadFile(filepath.Join("/proc", filepath.Base(task), "timerslack_ns")); err == nil {
			found[strings.TrimSpace(string(data))]++
		}
	}
	return found
}

func TestIdleProcessGetsSlackAndGivesItBack(t *testing.T) {
	if err := setSlack(busySlack); err != nil {
		t.Skip("the slack of threads cannot be set here (it takes CAP_SYS_NICE on some kernels):", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		Run(ctx, slog.New(slog.DiscardHandler))
		close(ended)
	}()
	deadline := time.Now().Add(30 * time.Second)
	for {
		found := slacks(t)
		if found["50000000"] > 0 {
			if len(found) == 1 {
				t.Errorf("the thread that watches the others has slack too: %v", found)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no thread got slack: %v", found)
		}
		time.Sleep(100 * time.Millisecond)
	}
	cancel()
	<-ended
	if found := slacks(t); found["50000000"] != 0 {
		t.Errorf("threads kept their slack: %v", found)
	}
}
