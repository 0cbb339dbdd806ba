package bpf

import (
	"testing"
)

// Numbers of the drop counters.
const (
	dropSpoofed  = 0
	dropPolicy   = 8
	dropNoRemote = 9
)

// governed loads the programs with a policy for podB: its port 80 is for podA.
func governed(t *testing.T, n addresses) *KombiObjects {
	t.Helper()
	o := load(t, n)
	const set, class = 1, 5
	host := lpm(n.pods)
	host.Bits, host.Addr = 128, be(n.podA)
	for _, put := range []error{
		o.Counters.Put(uint32(0), uint32(1)),
		o.Endpoints.Put(be(n.podB), KombiEndpoint{Ifindex: loopback, Mac: macB, HostMac: hostMB, Ingress: set}),
		o.Classes.Put(KombiClassKey{Bits: 32 + 128, Addr: host.Addr}, uint32(class)),
		o.Rules.Put(KombiRuleKey{Bits: 64, Set: set}, KombiRule{}),
		o.Rules.Put(KombiRuleKey{Bits: 64, Set: set, Class: class}, KombiRule{}),
		o.Rules.Put(KombiRuleKey{Bits: 96, Set: set, Class: class, Proto: port16(6), Port: port16(80)}, KombiRule{Allow: 1}),
	} {
		if put != nil {
			t.Fatal(put)
		}
	}
	return o
}

func TestPolicyOfPackets(t *testing.T) { inFamilies(t, testPolicyOfPackets) }

func testPolicyOfPackets(t *testing.T, n addresses) {
	type step struct {
		name string
		in   []byte
		pass bool
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"a connection and its answers", []step{
			{"opened", tcp(n.podA, n.podB, 40000, 80, syn, "")(), true},
			{"answered", tcp(n.podB, n.podA, 80, 40000, syn|ack, "")(), true},
			{"used", tcp(n.podA, n.podB, 40000, 80, ack, "x")(), true},
		}},
		{"another port", []step{{"opened", tcp(n.podA, n.podB, 40000, 81, syn, "")(), false}}},
		{"another protocol", []step{{"sent", udp(n.podA, n.podB, 40000, 80, "x"), false}}},
		{"what the pod asks is answered", []step{
			{"asked", udp(n.podB, n.podA, 40000, 53, "q"), true},
			{"answered", udp(n.podA, n.podB, 53, 40000, "a"), true},
			{"not to another port", udp(n.podA, n.podB, 53, 40001, "a"), false},
		}},
		{"a question that was not let in does not keep the pod from asking", []step{
			{"sent", udp(n.podA, n.podB, 53, 40000, "x"), false},
			{"asked", udp(n.podB, n.podA, 40000, 53, "q"), true},
			{"answered", udp(n.podA, n.podB, 53, 40000, "a"), true},
		}},
		{"a connection from before the policy, first seen from its client", []step{
			{"allowed", tcp(n.podA, n.podB, 40000, 80, ack, "x")(), true},
			{"not allowed", tcp(n.podA, n.podB, 40001, 81, ack, "x")(), false},
		}},
		{"a connection from before the policy, first seen from its server", []step{
			{"allowed", tcp(n.podB, n.podA, 80, 40000, ack, "x")(), true},
			{"not allowed", tcp(n.podB, n.podA, 81, 40001, ack, "x")(), false},
			{"the pod's own", tcp(n.podB, n.podA, 40002, 443, ack, "x")(), true},
		}},
		{"a packet without ports", []step{{"sent", ip(47, n.podA, n.podB, make([]byte, 20)), false}}},
		{"the pod itself", []step{{"sent", udp(n.podB, n.podB, 1, 2, "x"), true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := governed(t, n)
			for _, s := range c.steps {
				before := dropped(t, o, dropPolicy)
				verdict, _ := run(t, o.FromPod, s.in)
				if counted := dropped(t, o, dropPolicy) > before; (verdict == redirect) != s.pass || counted == s.pass {
					t.Errorf("%s: verdict %d, counted %v; want to pass: %v", s.name, verdict, counted, s.pass)
				}
			}
		})
	}
}

// A decision counts until policy changes.
func TestPolicyChangesEndConnections(t *testing.T) {
	inFamilies(t, func(t *testing.T, n addresses) {
		o := governed(t, n)
		run(t, o.FromPod, tcp(n.podA, n.podB, 40000, 80, syn, "")())
		if err := o.Rules.Delete(KombiRuleKey{Bits: 96, Set: 1, Class: 5, Proto: port16(6), Port: port16(80)}); err != nil {
			t.Fatal(err)
		}
		if v, _ := run(t, o.FromPod, tcp(n.podA, n.podB, 40000, 80, ack, "x")()); v != redirect {
			t.Errorf("in the same generation: verdict %d", v)
		}
		if err := o.Counters.Put(uint32(0), uint32(2)); err != nil {
			t.Fatal(err)
		}
		if v, _ := run(t, o.FromPod, tcp(n.podA, n.podB, 40000, 80, ack, "x")()); v != shot {
			t.Errorf("in the next generation: verdict %d", v)
		}
		if v, _ := run(t, o.FromPod, tcp(n.podB, n.podA, 80, 40000, ack, "x")()); v != shot {
			t.Errorf("an answer in the next generation: verdict %d", v)
		}
	})
}

func TestOverlayRefusesStrangers(t *testing.T) {
	inFamilies(t, func(t *testing.T, n addresses) {
		o := load(t, n)
		if v, _ := run(t, o.FromOverlay, udp(n.world, n.podA, 1, 2, "x")); v != shot || dropped(t, o, dropSpoofed) != 1 {
			t.Errorf("a source that no node owns: verdict %d", v)
		}
		if err := o.Remotes.Put(lpm(n.services), KombiRemote{Node: be(n.world), Ifindex: loopback, Mtu: 1450}); err != nil {
			t.Fatal(err)
		}
		if v, _ := run(t, o.FromOverlay, udp(n.service, n.podA, 1, 2, "x")); v != shot || dropped(t, o, dropSpoofed) != 2 {
			t.Errorf("a source of a node that did not send it: verdict %d", v)
		}
		if v, _ := run(t, o.ToOverlay, udp(n.node, n.world, 1, 2, "x")); v != shot || dropped(t, o, dropNoRemote) != 1 {
			t.Errorf("to nobody: verdict %d", v)
		}
	})
}

// IPv6 that would be taken for IPv4 gets nowhere.
func TestMappedAddressesAreDropped(t *testing.T) {
	four, six := families["IPv4"], families["IPv6"]
	o := load(t, six)
	frame := udp(six.podA, six.podB, 1, 2, "x")
	mapped := four.podA.As16()
	copy(frame[14+8:], mapped[:])
	for name, p := range map[string]func() (uint32, packet){
		"from a pod":       func() (uint32, packet) { return run(t, o.FromPod, frame) },
		"to a pod":         func() (uint32, packet) { return run(t, o.ToPod, frame) },
		"from outside":     func() (uint32, packet) { return run(t, o.FromOutside, frame) },
		"to the outside":   func() (uint32, packet) { return run(t, o.ToOutside, frame) },
		"from the overlay": func() (uint32, packet) { return run(t, o.FromOverlay, frame) },
	} {
		if v, _ := p(); v != shot {
			t.Errorf("%s: verdict %d", name, v)
		}
	}
}
