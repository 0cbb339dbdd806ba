package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func at(ns, name, addr string, local bool, app string) Pod {
	return Pod{Namespace: ns, Name: name, Labels: map[string]string{"app": app}, Addrs: addrList(addr), Local: local}
}

// A changed label of a pod that no policy tells apart costs nothing, one that a
// policy asks for costs one write.
func TestLabelChangeIsOneWrite(t *testing.T) {
	e := small()
	load(t, e, `{spec: {podSelector: {matchLabels: {app: front}}, ingress: [{from: [{podSelector: {matchLabels: {app: back}}}]}]}}`)
	e.SetPod(at("web", "new", "10.0.0.7", false, "other"))
	e.Compile()
	e.SetPod(at("web", "new", "10.0.0.7", false, "another"))
	if u := e.Compile(); u != nil {
		t.Errorf("a label that nothing asks for: %+v", u)
	}
	e.SetPod(at("web", "new", "10.0.0.7", false, "back"))
	u := e.Compile()
	if u == nil || len(u.Peers) != 1 || len(u.AddRules)+len(u.Endpoints)+len(u.Settle)+len(u.DeleteRules) != 0 {
		t.Errorf("a label that makes it like another pod: %+v", u)
	}
}

func TestSetsAreSharedAndNeverReused(t *testing.T) {
	e := New(100)
	for i := range 3 {
		e.SetPod(at("web", fmt.Sprint("p", i), fmt.Sprintf("10.0.0.%d", i+1), true, "x"))
	}
	text := `{spec: {podSelector: {}, ingress: [{ports: [{port: %d}]}]}}`
	seen := map[uint32]bool{}
	for i := range 3 {
		load(t, e, fmt.Sprintf(text, 80+i%2))
		e.Compile()
		s, ok := e.Endpoint("web", "p0")
		if !ok || s.Ingress < 100 || s.Egress != 0 || seen[s.Ingress] {
			t.Errorf("round %d: %+v %v", i, s, ok)
		}
		seen[s.Ingress] = true
		if o, _ := e.Endpoint("web", "p1"); o != s {
			t.Errorf("pods that are governed alike have %+v and %+v", s, o)
		}
	}
	load(t, e, fmt.Sprintf(text, 80))
	if u := e.Compile(); u != nil {
		t.Errorf("the same policy again: %+v", u)
	}
	e.DeleteNetworkPolicy("web", "p0")
	if s, _ := e.Endpoint("web", "p0"); s.Ingress == 0 {
		t.Error("changed before Compile")
	}
	e.Compile()
	if s, _ := e.Endpoint("web", "p0"); s != (EndpointSets{}) || len(e.Tables().Rules) != 0 {
		t.Errorf("left: %+v, %v", s, e.Tables().Rules)
	}
}

// teams are isolated from each other by cluster policies, and move between them.
const teams = `{metadata: {name: a}, spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}, ingress: [
	{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}]}, {action: Deny, from: [{namespaces: {}}]}]}}
---
{metadata: {name: b}, spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}, ingress: [
	{action: Accept, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}]}, {action: Deny, from: [{namespaces: {}}]}]}}`

// Two pods that change sides together can talk to each other all the time, and no
// pod sees a mixture, even where one set is left by one pod, entered by another and
// kept by a third.
func TestMovesAreSeenWhole(t *testing.T) {
	for _, c := range []struct {
		name string
		// apps before and after, of pods p0, p1 and so on.
		before, after string
	}{
		{"together", "aa", "bb"},
		{"together, into a team that is there", "aab", "bbb"},
		{"exchange", "ab", "ba"},
		{"exchange with one that stays", "aab", "aba"},
		{"exchange with some that stay", "aaabbb", "aabbba"},
		{"merge and split", "aabbcc", "bacbca"},
		{"out and in", "aacc", "ccaa"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, k := New(1), newKernel()
			load(t, e, teams)
			set := func(apps string) {
				for i, app := range apps {
					e.SetPod(at("web", fmt.Sprint("p", i), fmt.Sprintf("10.0.0.%d", i+1), true, string(app)))
				}
			}
			set(c.before)
			k.apply(e.Compile(), func(string) {})
			var probes []probe
			for i := range c.before {
				for j := range c.before {
					probes = append(probes, probe{pod: fmt.Sprint("web/p", i), peer: netip.AddrFrom4([4]byte{10, 0, 0, byte(j + 1)}), proto: TCP, port: 80})
				}
			}
			ask := func() (out []bool) {
				for _, p := range probes {
					d, _ := decide(e, p)
					out = append(out, d.Allow)
				}
				return out
			}
			before := ask()
			set(c.after)
			after := ask()
			k.apply(e.Compile(), func(write string) {
				for i, p := range probes {
					v, err := k.judge(p.pod, p.dir, p.peer, p.proto, p.port)
					if err != nil || v.Allow != before[i] && v.Allow != after[i] {
						t.Errorf("after %s: %+v is %v %v, before %v, after %v", write, p, v, err, before[i], after[i])
					}
				}
			})
			compareTables(e.Tables(), k, t.Errorf)
		})
	}
}

// Prefixes say what the spans say, and a range is made of the fewest.
func TestPrefixes(t *testing.T) {
	no, yes := Verdict{}, Verdict{Allow: true}
	for _, c := range []struct {
		spans []span
		want  int
	}{
		{[]span{{0, no}}, 0},
		{[]span{{0, yes}}, 1},
		{[]span{{0, no}, {80, yes}, {81, no}}, 1},
		{[]span{{0, no}, {1024, yes}}, 2}, // all, but for the first 1024
		{[]span{{0, no}, {1, yes}}, 2},
		{[]span{{0, yes}, {65535, no}}, 2},
		{[]span{{0, no}, {30000, yes}, {32768, no}}, 5},
	} {
		if r := prefixes(TCP, c.spans, no); len(r) != c.want {
			t.Errorf("%v: %d entries, want %d: %v", c.spans, len(r), c.want, r)
		}
	}
	w := &world{Rand: rand.New(rand.NewPCG(1, 2))}
	for range 200 {
		var spans []span
		for first := uint32(0); first < 65536; first += uint32(1 + w.IntN(30000)) {
			spans = append(spans, span{first, Verdict{Policy: uint32(w.IntN(3))}})
		}
		k := newKernel()
		for _, r := range append(row{{depth: DepthClass, verdict: no}}, prefixes(TCP, spans, no)...).rules(1, 0, nil) {
			k.rules[r.RuleKey] = r.Verdict
		}
		for i, s := range spans {
			last := uint32(65535)
			if i+1 < len(spans) {
				last = spans[i+1].first - 1
			}
			for _, port := range []uint32{s.first, last, (s.first + last) / 2} {
				if v, _ := k.rule(1, 0, TCP, uint16(port)); v != s.verdict {
					t.Fatalf("%v: port %d has %v", spans, port, v)
				}
			}
		}
	}
}

// Nothing that objects say makes the engine panic.
func TestHostileObjects(t *testing.T) {
	e := New(0)
	w := &world{Rand: rand.New(rand.NewPCG(3, 4)), e: e, hostile: true}
	e.SetPod(Pod{Addrs: []netip.Addr{{}, netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1%eth0")}, Local: true, Ports: []NamedPort{{}, {"x", 1, 0}}})
	e.SetNode("", nil, []netip.Addr{{}})
	e.DeletePod("no", "no")
	e.DeleteNode("no")
	e.DeleteNamespace("no")
	e.DeleteNetworkPolicy("no", "no")
	e.DeleteClusterNetworkPolicy("no")
	errs := 0
	for range 2000 {
		if err := e.SetNetworkPolicy(w.networkPolicy()); err != nil {
			errs++
		}
		if err := e.SetClusterNetworkPolicy(w.clusterPolicy()); err != nil {
			errs++
		}
		w.change()
		e.Compile()
		p := w.probe()
		e.Decide("n1", "a", p.dir, netip.Addr{}, p.proto, p.port)
		e.Decide("n1", "a", p.dir, p.peer, p.proto, p.port)
	}
	if errs == 0 {
		t.Error("nothing was invalid")
	}
}
