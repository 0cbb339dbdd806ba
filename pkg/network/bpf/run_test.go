package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// Verdicts of the tc programs.
const (
	pass     = 0xffffffff // TC_ACT_UNSPEC: others decide
	shot     = 2
	redirect = 7
)

// Test runs happen on the loopback device, which therefore plays all parts.
const loopback = 1

// addresses are those of one family.
type addresses struct {
	podA, podB, node, world, service, empty, dns, hairpin netip.Addr
	pods, services                                        netip.Prefix
}

var families = map[string]addresses{
	"IPv4": {
		netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("10.42.0.3"), netip.MustParseAddr("198.51.100.1"),
		netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("10.43.1.1"), netip.MustParseAddr("10.43.1.2"),
		netip.MustParseAddr("10.43.0.10"), netip.MustParseAddr("169.254.1.1"),
		netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16"),
	},
	"IPv6": {
		netip.MustParseAddr("fd42::2"), netip.MustParseAddr("fd42::3"), netip.MustParseAddr("2001:db8::1"),
		netip.MustParseAddr("2001:db8:9::9"), netip.MustParseAddr("fd43::1:1"), netip.MustParseAddr("fd43::1:2"),
		netip.MustParseAddr("fd43::a"), netip.MustParseAddr("fd6b:6f6d:6269::1"),
		netip.MustParsePrefix("fd42::/56"), netip.MustParsePrefix("fd43::/96"),
	},
}

// inFamilies runs a test with the addresses of each.
func inFamilies(t *testing.T, test func(t *testing.T, n addresses)) {
	for name, n := range families {
		t.Run(name, func(t *testing.T) { test(t, n) })
	}
}

var (
	macA, macB       = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}
	hostMacA, hostMB = [6]byte{2, 0, 0, 0, 1, 0xa}, [6]byte{2, 0, 0, 0, 1, 0xb}
)

func load(t *testing.T, n addresses) *KombiObjects {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: loads eBPF programs")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Logf("locked memory stays limited: %v", err)
	}
	spec, err := LoadKombi()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range spec.Maps {
		m.MaxEntries = min(m.MaxEntries, 1024)
	}
	o := &KombiObjects{}
	if err := spec.LoadAndAssign(o, nil); err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%+v", ve)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })

	put := func(m *ebpf.Map, k, v any) {
		t.Helper()
		if err := m.Put(k, v); err != nil {
			t.Fatal(err)
		}
	}
	put(o.Endpoints, be(n.podA), KombiEndpoint{Ifindex: loopback, Mac: macA, HostMac: hostMacA})
	put(o.Endpoints, be(n.podB), KombiEndpoint{Ifindex: loopback, Mac: macB, HostMac: hostMB})
	put(o.Devices, uint32(loopback), masquerade(n.node))
	put(o.Locals, be(n.node), uint32(1))
	put(o.Locals, be(n.dns), uint32(2))
	put(o.Prefixes, lpm(n.pods), uint32(1))
	put(o.Prefixes, lpm(n.services), uint32(2))
	id := uint32(0)
	front := func(addr netip.Addr, port uint16, scope uint8, flags uint32, backends ...netip.AddrPort) {
		t.Helper()
		id++
		for i, b := range backends {
			put(o.Slots, KombiSlotKey{Service: id, Index: uint32(i)}, KombiBackend{Addr: be(b.Addr()), Port: port16(b.Port())})
			put(o.Members, KombiMemberKey{Service: id, Addr: be(b.Addr()), Port: port16(b.Port())}, uint32(1))
		}
		for _, proto := range []uint8{6, 17} {
			put(o.Services, KombiServiceKey{Addr: be(addr), Port: port16(port), Proto: proto, Scope: scope},
				KombiService{Id: id, Count: uint32(len(backends)), Flags: flags})
		}
	}
	toB := netip.AddrPortFrom(n.podB, 8080)
	front(n.service, 80, 0, 0, toB)
	front(n.service, 81, 0, 0, netip.AddrPortFrom(n.podA, 8080)) // n.podA itself
	front(n.service, 82, 0, 0, netip.AddrPortFrom(n.node, 6443)) // the host
	front(n.empty, 80, 0, 0)
	front(unspecified(n.node), 30080, 1, 0, toB)
	front(unspecified(n.node), 30081, 1, 1) // policy Local, nobody here
	front(unspecified(n.node), 30082, 1, 0)
	return o
}

func run(t *testing.T, p *ebpf.Program, in []byte) (uint32, packet) {
	t.Helper()
	out := make([]byte, len(in)+256)
	opts := &ebpf.RunOptions{Data: in, DataOut: out}
	ret, err := p.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	return ret, parse(t, opts.DataOut)
}

func TestFromPod(t *testing.T) { inFamilies(t, testFromPod) }

func testFromPod(t *testing.T, n addresses) {
	for _, c := range []struct {
		name    string
		in      []byte
		verdict uint32
		want    func(t *testing.T, p packet)
		dropped int // index of the counter that must have moved, or -1
	}{
		{"another protocol passes", eth(0x0806, make([]byte, 28)), pass, nil, -1},
		{"a malformed header passes", eth(0x0800, make([]byte, 28)), pass, nil, -1},
		{"a foreign source is dropped", udp(n.podB.Next(), n.podB, 1, 2, "x"), shot, nil, 0},
		{"a foreign source with half a TCP header is dropped", ip(6, n.podB.Next(), n.podB, []byte{0, 1, 0, 2}), shot, nil, 0},
		{"pod to pod is redirected", tcp(n.podA, n.podB, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			p.is(t, n.podA, n.podB, 1000, 80)
			if p.dmac != macB || p.smac != hostMB {
				t.Errorf("link addresses %x to %x", p.smac, p.dmac)
			}
		}, -1},
		{"service by TCP", tcp(n.podA, n.service, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) { p.is(t, n.podA, n.podB, 1000, 8080) }, -1},
		{"service by UDP", udp(n.podA, n.service, 1000, 80, "hello"), redirect, func(t *testing.T, p packet) { p.is(t, n.podA, n.podB, 1000, 8080) }, -1},
		{"service with IP options", options(udp(n.podA, n.service, 1000, 80, "hello")), redirect, func(t *testing.T, p packet) { p.is(t, n.podA, n.podB, 1000, 8080) }, -1},
		{"UDP without checksum stays so", zeroSum(udp(n.podA, n.service, 1000, 80, "hello")), redirect, func(t *testing.T, p packet) {
			p.is(t, n.podA, n.podB, 1000, 8080)
			if p.sum != 0 {
				t.Errorf("checksum %#x", p.sum)
			}
		}, -1},
		{"service that is the pod itself", tcp(n.podA, n.service, 1000, 81, syn, "")(), redirect, func(t *testing.T, p packet) { p.is(t, n.hairpin, n.podA, 1000, 8080) }, -1},
		{"service of the host", tcp(n.podA, n.service, 1000, 82, syn, "")(), pass, func(t *testing.T, p packet) { p.is(t, n.podA, n.node, 1000, 6443) }, -1},
		{"node-local address is left alone", udp(n.podA, n.dns, 1000, 53, "q"), pass, func(t *testing.T, p packet) { p.is(t, n.podA, n.dns, 1000, 53) }, -1},
		{"no endpoints: reset", tcp(n.podA, n.empty, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			p.is(t, n.empty, n.podA, 80, 1000)
			if p.flags != rst|ack || p.seq != 0 || p.ack != 1000001 {
				t.Errorf("flags %#x seq %d ack %d", p.flags, p.seq, p.ack)
			}
		}, 3},
		{"no endpoints in mid-stream: reset", tcp(n.podA, n.empty, 1000, 80, ack, "data")(), redirect, func(t *testing.T, p packet) {
			p.is(t, n.empty, n.podA, 80, 1000)
			if p.flags != rst || p.seq != 77 {
				t.Errorf("flags %#x seq %d", p.flags, p.seq)
			}
		}, 3},
		{"a reset is not answered", tcp(n.podA, n.empty, 1000, 80, rst, "")(), shot, nil, 3},
		{"no endpoints: unreachable", udp(n.podA, n.empty, 1000, 80, "hello world, hello world"), redirect, func(t *testing.T, p packet) {
			proto, kind, code := byte(1), byte(3), byte(3)
			if p.src.Is6() {
				proto, kind, code = 58, 1, 4
			}
			if p.src != n.empty || p.dst != n.podA || p.proto != proto || p.payload[0] != kind || p.payload[1] != code {
				t.Errorf("got %+v", p)
			}
			quoted := parseIP(t, p.payload[8:])
			if quoted.src != n.podA || quoted.dst != n.empty || quoted.sport != 1000 || quoted.dport != 80 {
				t.Errorf("quoted %+v", quoted)
			}
		}, 3},
		{"unknown service address: reset", tcp(n.podA, n.empty.Next(), 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			if p.flags != rst|ack {
				t.Errorf("flags %#x", p.flags)
			}
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := load(t, n)
			got, p := run(t, o.FromPod, c.in)
			if got != c.verdict {
				t.Fatalf("verdict %d, want %d", got, c.verdict)
			}
			if c.want != nil {
				p.checkSums(t)
				c.want(t, p)
			}
			for i := range 11 {
				if count := dropped(t, o, i); (count > 0) != (i == c.dropped) {
					t.Errorf("counter %d is %d", i, count)
				}
			}
		})
	}
}

// dropped returns the packets of a counter.
func dropped(t *testing.T, o *KombiObjects, reason int) (count uint64) {
	t.Helper()
	var per []KombiCounter
	if err := o.Drops.Lookup(uint32(reason), &per); err != nil {
		t.Fatal(err)
	}
	for _, c := range per {
		count += c.Packets
	}
	return count
}

// Answers take the way back: the client sees the address it asked.
func TestRoundTrips(t *testing.T) { inFamilies(t, testRoundTrips) }

func testRoundTrips(t *testing.T, n addresses) {
	t.Run("service", func(t *testing.T) {
		o := load(t, n)
		run(t, o.FromPod, tcp(n.podA, n.service, 1000, 80, syn, "")())
		v, p := run(t, o.FromPod, tcp(n.podB, n.podA, 8080, 1000, syn|ack, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, n.service, n.podA, 80, 1000)
		p.checkSums(t)
	})
	t.Run("hairpin", func(t *testing.T) {
		o := load(t, n)
		run(t, o.FromPod, tcp(n.podA, n.service, 1000, 81, syn, "")())
		v, p := run(t, o.FromPod, tcp(n.podA, n.hairpin, 8080, 1000, syn|ack, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, n.service, n.podA, 81, 1000)
	})
	t.Run("host backend", func(t *testing.T) {
		o := load(t, n)
		run(t, o.FromPod, tcp(n.podA, n.service, 1000, 82, syn, "")())
		v, p := run(t, o.ToPod, tcp(n.node, n.podA, 6443, 1000, syn|ack, "")())
		if v != pass {
			t.Errorf("verdict %d", v)
		}
		p.is(t, n.service, n.podA, 82, 1000)
	})
	t.Run("node port", func(t *testing.T) {
		o := load(t, n)
		v, p := run(t, o.FromOutside, tcp(n.world, n.node, 1000, 30080, syn, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, n.world, n.podB, 1000, 8080)
		_, p = run(t, o.FromPod, tcp(n.podB, n.world, 8080, 1000, syn|ack, "")())
		p.is(t, n.node, n.world, 30080, 1000)
		p.checkSums(t)
	})
	t.Run("masquerade", func(t *testing.T) {
		for name, in := range map[string]func(src, dst netip.Addr, sport, dport uint16) []byte{
			"tcp": func(s, d netip.Addr, sp, dp uint16) []byte { return tcp(s, d, sp, dp, ack, "x")() },
			"udp": func(s, d netip.Addr, sp, dp uint16) []byte { return udp(s, d, sp, dp, "x") },
		} {
			t.Run(name, func(t *testing.T) {
				o := load(t, n)
				v, p := run(t, o.ToOutside, in(n.podA, n.world, 1000, 80))
				if v != pass {
					t.Errorf("verdict %d", v)
				}
				p.is(t, n.node, n.world, 1000, 80)
				p.checkSums(t)
				// The second pod with the same port gets another one.
				_, q := run(t, o.ToOutside, in(n.podB, n.world, 1000, 80))
				if q.src != n.node || q.sport == 1000 {
					t.Errorf("second pod leaves as %v:%d", q.src, q.sport)
				}
				v, p = run(t, o.FromOutside, in(n.world, n.node, 80, 1000))
				if v != redirect {
					t.Errorf("verdict %d", v)
				}
				p.is(t, n.world, n.podA, 80, 1000)
				_, p = run(t, o.FromOutside, in(n.world, n.node, 80, q.sport))
				p.is(t, n.world, n.podB, 80, 1000)
				p.checkSums(t)
			})
		}
	})
	t.Run("answers to direct connections are not masqueraded", func(t *testing.T) {
		o := load(t, n)
		v, _ := run(t, o.FromOutside, tcp(n.world, n.podA, 1000, 80, syn, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		_, p := run(t, o.ToOutside, tcp(n.podA, n.world, 80, 1000, syn|ack, "")())
		p.is(t, n.podA, n.world, 80, 1000)
	})
	t.Run("pods of the cluster are not masqueraded", func(t *testing.T) {
		o := load(t, n)
		other := n.podB.Next().Next()
		_, p := run(t, o.ToOutside, tcp(n.podA, other, 1000, 80, syn, "")())
		p.is(t, n.podA, other, 1000, 80)
	})
	t.Run("the host's own flow gives way to a pod's", func(t *testing.T) {
		o := load(t, n)
		run(t, o.ToOutside, udp(n.podA, n.world, 1000, 80, "x"))
		_, p := run(t, o.ToOutside, udp(n.node, n.world, 1000, 80, "x"))
		if p.src != n.node || p.sport == 1000 {
			t.Errorf("leaves as %v:%d", p.src, p.sport)
		}
		_, p = run(t, o.FromOutside, udp(n.world, n.node, 80, p.sport, "y"))
		p.is(t, n.world, n.node, 80, 1000)
	})
}

func TestFromOutside(t *testing.T) { inFamilies(t, testFromOutside) }

func testFromOutside(t *testing.T, n addresses) {
	o := load(t, n)
	for _, c := range []struct {
		name    string
		in      []byte
		verdict uint32
	}{
		{"to the host", tcp(n.world, n.node, 1000, 22, syn, "")(), pass},
		{"to a cluster address", tcp(n.world, n.service, 1000, 80, syn, "")(), pass},
		{"to a node-local address", udp(n.world, n.dns, 1000, 53, "q"), shot},
		{"to a node port without local endpoints", tcp(n.world, n.node, 1000, 30081, syn, "")(), shot},
		{"to a node port without endpoints", tcp(n.world, n.node, 1000, 30082, syn, "")(), redirect},
		{"to a pod", tcp(n.world, n.podA, 1000, 80, syn, "")(), redirect},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := run(t, o.FromOutside, c.in); got != c.verdict {
				t.Errorf("verdict %d, want %d", got, c.verdict)
			}
		})
	}
}

// be is an address as the programs see it.
func be(a netip.Addr) KombiAddr {
	b := a.As16()
	return KombiAddr{W: *(*[4]uint32)(unsafe.Pointer(&b))}
}

func lpm(p netip.Prefix) KombiPrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return KombiPrefixKey{Bits: uint32(bits), Addr: be(p.Addr())}
}

func masquerade(a netip.Addr) KombiDevice {
	if a.Is4() {
		return KombiDevice{Masquerade4: be(a)}
	}
	return KombiDevice{Masquerade6: be(a)}
}

func unspecified(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func port16(p uint16) uint16 {
	b := [2]byte{byte(p >> 8), byte(p)}
	return *(*uint16)(unsafe.Pointer(&b))
}

// BenchmarkFromPod measures a packet from pod to pod.
func BenchmarkFromPod(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("needs root")
	}
	for name, n := range families {
		for _, set := range []uint32{0, 1} {
			b.Run(fmt.Sprintf("%s/policy=%v", name, set != 0), func(b *testing.B) {
				o := &KombiObjects{}
				spec, err := LoadKombi()
				if err == nil {
					err = spec.LoadAndAssign(o, nil)
				}
				if err != nil {
					b.Fatal(err)
				}
				defer o.Close()
				_ = o.Counters.Put(uint32(0), uint32(1))
				_ = o.Rules.Put(KombiRuleKey{Bits: 64, Set: 1}, KombiRule{Allow: 1})
				_ = o.Endpoints.Put(be(n.podA), KombiEndpoint{Ifindex: loopback, Egress: set})
				_ = o.Endpoints.Put(be(n.podB), KombiEndpoint{Ifindex: loopback, Ingress: set})
				in := tcp(n.podA, n.podB, 1000, 80, ack, "x")()
				_, per, err := o.FromPod.Benchmark(in, b.N, b.ResetTimer)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(per.Nanoseconds()), "ns/packet")
			})
		}
	}
}
