package faults

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kombi-k8s/kombi/tests/e2e/harness"
)

// TestKill ends Kombi without notice, again and again, while 8 clients write.
func TestKill(t *testing.T) {
	harness.ServeOutside(t)
	k := newServer(t, "kill")
	t.Logf("node Ready after %s", start(t, k).Round(time.Millisecond))
	a := startApp(t, k, "kill")
	outside := connect(t, harness.OutsideClient(), nodePort+"/version")
	askedBefore, failedBefore := a.asked()
	w := startWriters(t, k.Config, k.Namespace(t, "writes", nil))

	var starts []time.Duration
	objects := 0
	for round := range rounds(t) {
		if err := w.waitAcknowledged(200); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		// Somewhere in a transaction, a checkpoint, an fsync.
		time.Sleep(rand.N(100 * time.Millisecond))
		logged := a.callerLog(t)
		held := w.hold() // and none of them overwrites what is to be verified
		k.Kill(t)
		<-held
		checkCopy(t, databaseFile(k))
		a.sameProcesses(t)
		took := start(t, k)
		starts = append(starts, took)

		var problems []string
		objects, problems = w.verify(k.Client, true)
		w.release()
		for _, p := range problems {
			t.Errorf("round %d: %s", round, p)
		}
		answer := a.answers(t)
		a.waitRunning(t)
		a.unchanged(t)
		a.waitCaller(t, logged)
		asks(t, []*longConnection{outside})
		if t.Failed() {
			t.Fatalf("failed in round %d", round)
		}
		t.Logf("round %d: Ready after %s, exec, DNS and Services %s later; %d writes acknowledged so far",
			round, took.Round(time.Millisecond), answer.Round(time.Millisecond), w.acknowledged.Load())
	}
	slices.Sort(starts)
	asked, failed := a.asked()
	t.Logf("%d kills, %d writes acknowledged and kept, %d failed, %d objects; Ready again after %s (median; %s to %s)", len(starts),
		w.acknowledged.Load(), w.failed.Load(), objects, starts[len(starts)/2].Round(time.Millisecond), starts[0].Round(time.Millisecond), starts[len(starts)-1].Round(time.Millisecond))
	t.Logf("%d of %d requests of a pod to the Service failed", failed-failedBefore, asked-askedBefore)
	if failed > failedBefore {
		t.Error("the Service did not answer a pod all the time")
	}
}
