package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"
)

func sortedKeys[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }

type probe struct {
	pod   string
	dir   Direction
	peer  netip.Addr
	proto uint8
	port  uint16
}

func (w *world) probe() probe {
	return probe{
		pod: pick(w, "n1/", "n2/", "n3/") + pick(w, "a", "b", "c", "d"), dir: pick(w, Ingress, Egress),
		peer: pick(w, worldAddrs...), proto: pick(w, TCP, TCP, UDP, SCTP, 1), port: pick(w, worldPorts...),
	}
}

// decide asks the reference, for local pods only.
func decide(e *Engine, p probe) (Decision, bool) {
	o := e.pods[p.pod]
	if o == nil || !o.isEndpoint() {
		return Decision{}, false
	}
	return e.Decide(o.Namespace, o.Name, p.dir, p.peer, p.proto, p.port), true
}

// The tables say the same as the reference, and on the way from one state to the
// next every packet is judged by one of them, after every single write.
func TestTablesAgreeWithTheReference(t *testing.T) {
	limit := 5 * time.Second
	if s := os.Getenv("POLICY_TEST_TIME"); s != "" {
		limit, _ = time.ParseDuration(s)
	}
	deadline := time.Now().Add(limit)
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("POLICY_TEST_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	var updates, passing, writes int
	for ; time.Now().Before(deadline) && !t.Failed(); seed++ {
		u, p, n := runWorld(t, seed)
		updates, passing, writes = updates+u, passing+p, writes+n
	}
	t.Logf("%d updates, %d with passing classes, %d writes", updates, passing, writes)
}

func runWorld(t *testing.T, seed uint64) (updates, passing, writes int) {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), e: New(uint32(seed % 1000)), hostile: seed%4 == 0}
	k := newKernel()
	log := []string{fmt.Sprintf("seed %d", seed)}
	fail := func(format string, args ...any) {
		t.Helper()
		for _, l := range log {
			t.Log(l)
		}
		t.Fatalf("seed %d: %s", seed, fmt.Sprintf(format, args...))
	}
	for range 40 {
		probes := make([]probe, 150)
		before := make([]*Decision, len(probes))
		for i := range probes {
			probes[i] = w.probe()
			if d, ok := decide(w.e, probes[i]); ok {
				before[i] = &d
			}
		}
		n := pick(w, 1, 1, 2, 5)
		if updates == 0 {
			n = 30
		}
		for range n {
			log = append(log, w.change())
		}
		log = append(log, "compiled")
		u := w.e.Compile()
		after := make([]*Decision, len(probes))
		for i := range probes {
			if d, ok := decide(w.e, probes[i]); ok {
				after[i] = &d
			}
		}
		look := func(write string, final bool) {
			for i, p := range probes {
				if before[i] == nil && !final || after[i] == nil {
					continue // the pod is only coming, or going
				}
				v, err := k.judge(p.pod, p.dir, p.peer, p.proto, p.port)
				got := Decision{v.Allow, w.e.Reason(v.Policy)}
				if err != nil || got != *after[i] && (final || got != *before[i]) {
					fail("after %s: %+v: got %+v %v, before %+v, after %+v", write, p, got, err, before[i], after[i])
				}
			}
		}
		if u != nil {
			updates++
			if len(u.Settle) > 0 {
				passing++
			}
			k.apply(u, func(write string) {
				writes++
				if write != "" {
					look(write, false)
				}
			})
		}
		look("all", true)
		if again := w.e.Compile(); again != nil {
			fail("compiled again: %+v", again)
		}
		compareTables(w.e.Tables(), k, fail)
	}
	// In the end nothing is left behind, but for what the last sets asked for.
	for _, key := range sortedKeys(w.e.pods) {
		p := w.e.pods[key]
		w.e.DeletePod(p.Namespace, p.Name)
	}
	for _, n := range sortedKeys(w.e.nodes) {
		w.e.DeleteNode(n)
	}
	w.e.Compile()
	w.e.SetPod(Pod{Namespace: "other", Name: "x"})
	w.e.Compile()
	if x := w.e.peers; len(x.traits)+len(x.names)+len(x.entries)+len(x.table)+len(x.classes)+len(x.blocks)+len(w.e.sets) > 0 {
		fail("left: %d traits %d names %d entries %d peers %d classes %d blocks %d sets", len(x.traits), len(x.names), len(x.entries), len(x.table), len(x.classes), len(x.blocks), len(w.e.sets))
	}
	return updates, passing, writes
}

func compareTables(tables Tables, k *kernel, fail func(string, ...any)) {
	peers := map[peerKey]uint32{}
	for p, c := range tables.Peers {
		peers[keyOf(p)] = c
	}
	if !reflect.DeepEqual(peers, k.peers) {
		fail("peers %v, want %v", k.peers, peers)
	}
	if !reflect.DeepEqual(tables.Endpoints, k.endpoints) {
		fail("endpoints %v, want %v", k.endpoints, tables.Endpoints)
	}
	if !reflect.DeepEqual(tables.Rules, k.rules) {
		fail("rules %v, want %v", k.rules, tables.Rules)
	}
}
