package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestFullDisk fills the file system of the data directory while clients
// write. Kombi says so, goes on serving what it has, and recovers by itself
// when there is space again.
func TestFullDisk(t *testing.T) {
	harness.ServeOutside(t)
	d := newDisk(t, "full", dataDir("full"), 900)
	// 0% switches the kubelet's own eviction off: pods stay.
	k := newServer(t, "full", "--kubelet-arg", "eviction-hard=nodefs.available<0%,imagefs.available<0%")
	t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
	pid := k.PID()
	a := startApp(t, k, "full")
	w := startWriters(t, k.Config, k.Namespace(t, "writes", nil))
	if err := w.waitAcknowledged(200); err != nil {
		t.Fatal(err)
	}

	t.Run("says so and goes on", func(t *testing.T) {
		ballast := d.fill(t)
		saysFull(t, k, w)
		logBefore := logSize(k)
		fullFor(t, 20*time.Second, k)
		t.Logf("the log grew by %d KB in 20s on a full disk", (logSize(k)-logBefore)>>10)
		if out, err := harness.Get(harness.OutsideClient(), nodePort+"/version"); err != nil || out != "v1\n" {
			t.Errorf("the Service on a full disk: %q, %v", out, err)
		}
		if out, err := k.TryKubectl("-n", a.ns, "get", "pods", "-o", "name"); err != nil || len(strings.Fields(out)) != 5 {
			t.Errorf("reading on a full disk: %q, %v", out, err)
		}
		a.sameProcesses(t)
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		recovered(t, k, w, a)
		if k.PID() != pid || !k.Running() {
			t.Errorf("Kombi was started again: process %d, was %d", k.PID(), pid)
		}
	})
	t.Run("killed while full", func(t *testing.T) {
		ballast := d.fill(t)
		harness.Eventually(t, 60*time.Second, "the disk is full", func(ctx context.Context) error {
			if problem, err := firstProblem(ctx, k); err != nil || problem == "" {
				return fmt.Errorf("no problem, %w", err)
			}
			return nil
		})
		k.Kill(t)
		checkCopy(t, databaseFile(k))
		k.Start(t)
		harness.Eventually(t, 30*time.Second, "the start ends with a reason", func(context.Context) error {
			if k.Running() {
				return errors.New("it runs")
			}
			return nil
		})
		t.Logf("a start on a full disk: %s", lastLine(t, k.Log))
		if last := lastLine(t, k.Log); !strings.Contains(last, "is on a full file system; free some space there") && !strings.Contains(last, "MB left") {
			t.Error("it does not say that the disk is full and what to do")
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		t.Logf("node Ready again after %s", start(t, k).Round(time.Millisecond))
		recovered(t, k, w, a)
	})
	<-w.hold()
	objects, problems := w.verify(k.Client, false)
	w.release()
	for _, p := range problems {
		t.Error(p)
	}
	t.Logf("%d objects, %d writes acknowledged, %d failed", objects, w.acknowledged.Load(), w.failed.Load())
	k.Stop(t)
	checkCopy(t, databaseFile(k))
}

// saysFull waits until status, log, clients and kubectl tell of a full disk.
func saysFull(t *testing.T, k *harness.Kombi, w *writers) {
	t.Helper()
	began := time.Now()
	harness.Eventually(t, 60*time.Second, "kombi status says that the disk is full", func(ctx context.Context) error {
		problem, err := firstProblem(ctx, k)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(problem, "datastore: the disk of the datastore is full") || !strings.Contains(problem, "free some space there") {
			return fmt.Errorf("first problem: %q", problem)
		}
		t.Logf("kombi status after %s: %s", time.Since(began).Round(time.Millisecond), problem)
		return nil
	})
	told := map[string]int{}
	w.takeErrors()
	harness.Eventually(t, 60*time.Second, "writes fail with a reason", func(context.Context) error {
		for text, n := range w.takeErrors() {
			told[text] += n
		}
		for text, n := range told {
			if strings.Contains(text, "the disk of the datastore is full") {
				t.Logf("%d times clients are told: %s", n, text)
				return nil
			}
		}
		return fmt.Errorf("clients are told %v", told)
	})
	// Something small may still find a place in what the datastore has already.
	large := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"generateName":"large-"},"data":{"v":%q}}`, strings.Repeat("x", 500_000))
	harness.Eventually(t, 60*time.Second, "kubectl create fails with a reason", func(ctx context.Context) error {
		out, errOut, err := k.Run(ctx, large, "kubectl", "create", "-f", "-")
		if err == nil || !strings.Contains(errOut, "disk of the datastore is full") {
			return fmt.Errorf("%s%s%w", out, errOut, err)
		}
		t.Logf("kubectl prints: %s", strings.TrimSpace(errOut))
		return nil
	})
	if log, err := os.ReadFile(k.Log); err != nil || !strings.Contains(string(log), "changes to the cluster cannot be stored") {
		t.Errorf("the log does not tell of the full disk (%v)", err)
	}
}

// recovered waits until everything is as before the disk was full.
func recovered(t *testing.T, k *harness.Kombi, w *writers, a *app) {
	t.Helper()
	began := time.Now()
	if err := w.waitAcknowledged(200); err != nil {
		t.Fatalf("after there is space again: %v", err)
	}
	t.Logf("200 writes acknowledged %s after there was space again", time.Since(began).Round(time.Millisecond))
	harness.Eventually(t, 60*time.Second, "no problem left", func(ctx context.Context) error {
		problem, err := firstProblem(ctx, k)
		if err == nil && problem != "" {
			err = fmt.Errorf("first problem: %s", problem)
		}
		return err
	})
	a.waitRunning(t)
	a.unchanged(t)
	a.answers(t)
}

// fullFor makes sure that the server lives on a full disk for some time, the
// disk being filled again when somebody gives up space.
func fullFor(t *testing.T, d time.Duration, k *harness.Kombi) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if !k.Running() {
			t.Fatalf("kombi ended on a full disk: %s", lastLine(t, k.Log))
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(k.DataDir, &fs); err == nil {
		t.Logf("%d KB were left on the disk", fs.Bavail*uint64(fs.Bsize)>>10)
	}
}

// firstProblem is what `kombi status` says is wrong.
func firstProblem(ctx context.Context, k *harness.Kombi) (string, error) {
	out, errOut, err := k.Run(ctx, "", "kombi", "status", "--data-dir", k.DataDir, "-o", "json")
	if err != nil && out == "" {
		return "", fmt.Errorf("%w: %s", err, errOut)
	}
	var report struct{ Problem string }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return "", err
	}
	return report.Problem, nil
}

func logSize(k *harness.Kombi) int64 {
	info, err := os.Stat(k.Log)
	if err != nil {
		return 0
	}
	return info.Size()
}

func lastLine(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	// The reason, not what was logged around it.
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "kombi: ") {
			return line
		}
	}
	return lines[len(lines)-1]
}
