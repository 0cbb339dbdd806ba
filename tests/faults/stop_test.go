package faults

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// stopLimit is how long `kombi stop` may take.
const stopLimit = 3 * time.Second

// TestStop stops Kombi in good order, without and with its pods.
func TestStop(t *testing.T) {
	harness.ServeOutside(t)
	k := newServer(t, "stop")
	t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
	a := startApp(t, k, "stop")

	t.Run("pods go on", func(t *testing.T) {
		connections := []*longConnection{
			connect(t, harness.OutsideClient(), nodePort+"/version"),
		}
		// A watch of somebody else must not hold it up.
		watch, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		go func() { _, _, _ = k.Run(watch, "", "kubectl", "get", "pods", "-A", "--watch") }()
		load := harness.StartLoad(t, harness.OutsideClient(), nodePort+"/version", 20*time.Millisecond)
		asked, failed := a.asked()

		stop(t, k)
		asks(t, connections)
		a.sameProcesses(t)
		logged := a.callerLog(t)
		t.Logf("node Ready again after %s", start(t, k).Round(time.Millisecond))
		t.Logf("exec, DNS and Services answer %s later", a.answers(t).Round(time.Millisecond))
		a.waitRunning(t)
		a.unchanged(t)
		asks(t, connections)
		a.waitCaller(t, logged)
		if n, _, failures := load.Stop(); len(failures) > 0 {
			t.Errorf("%d of %d requests failed:\n%s", len(failures), n, strings.Join(failures[:min(5, len(failures))], "\n"))
		} else {
			t.Logf("%d requests from outside over new connections, none failed", n)
		}
		nowAsked, nowFailed := a.asked()
		t.Logf("%d of %d requests of the pod client failed", nowFailed-failed, nowAsked-asked)
		if nowFailed > failed {
			t.Error("the Service did not answer a pod all the time")
		}
	})

	t.Run("pods end too", func(t *testing.T) {
		stop(t, k, "--pods")
		if left := firstProcesses("stop"); len(left) > 0 {
			t.Errorf("processes are left in the cgroups: %v", left)
		}
		note, err := os.ReadFile(filepath.Join(a.notes, "bye"))
		if err != nil || string(note) != "bye\n" {
			t.Errorf("the pod tool was not asked to end: %q, %v", note, err)
		}
		t.Logf("node Ready again after %s", start(t, k).Round(time.Millisecond))
		began := time.Now()
		a.waitNewProcesses(t)
		a.waitRunning(t)
		t.Logf("all pods Ready again %s later", time.Since(began).Round(time.Millisecond))
		a.answers(t)
	})
}

// stop runs `kombi stop` and holds it to its limit.
func stop(t *testing.T, k *harness.Kombi, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	began := time.Now()
	out, errOut, err := k.Run(ctx, "", "kombi", append([]string{"stop", "--data-dir", k.DataDir}, args...)...)
	took := time.Since(began)
	if err != nil {
		t.Fatalf("kombi stop: %v\n%s%s", err, out, errOut)
	}
	if k.Running() {
		t.Errorf("kombi still runs after kombi stop")
	}
	t.Logf("kombi stop %s took %s: %s", strings.Join(args, " "), took.Round(time.Millisecond), strings.TrimSpace(out))
	limit := stopLimit
	if len(args) > 0 {
		limit *= 2 // the pods have a grace period
	}
	if took > limit {
		t.Errorf("kombi stop took %s, more than %s", took.Round(time.Millisecond), limit)
	}
}

func asks(t *testing.T, connections []*longConnection) {
	t.Helper()
	for _, c := range connections {
		if err := c.ask(); err != nil {
			t.Errorf("established connection: %v", err)
		}
	}
}
