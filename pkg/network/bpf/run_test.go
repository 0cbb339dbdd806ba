package bpf

import (
	"errors"
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

var (
	podA    = netip.MustParseAddr("10.42.0.2")
	podB    = netip.MustParseAddr("10.42.0.3")
	node    = netip.MustParseAddr("198.51.100.1")
	world   = netip.MustParseAddr("203.0.113.9")
	service = netip.MustParseAddr("10.43.1.1")
	empty   = netip.MustParseAddr("10.43.1.2")
	dns     = netip.MustParseAddr("10.43.0.10")
	hairpin = netip.MustParseAddr("169.254.1.1")

	macA, macB       = [6]byte{2, 0, 0, 0, 0, 0xa}, [6]byte{2, 0, 0, 0, 0, 0xb}
	hostMacA, hostMB = [6]byte{2, 0, 0, 0, 1, 0xa}, [6]byte{2, 0, 0, 0, 1, 0xb}
)

func load(t *testing.T) *KombiObjects {
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
	put(o.Endpoints, be(podA), KombiEndpoint{Ifindex: loopback, Mac: macA, HostMac: hostMacA})
	put(o.Endpoints, be(podB), KombiEndpoint{Ifindex: loopback, Mac: macB, HostMac: hostMB})
	put(o.Devices, uint32(loopback), KombiDevice{Masquerade: be(node)})
	put(o.Locals, be(node), uint32(1))
	put(o.Locals, be(dns), uint32(2))
	put(o.Prefixes, KombiPrefixKey{Bits: 16, Addr: be(netip.MustParseAddr("10.42.0.0"))}, uint32(1))
	put(o.Prefixes, KombiPrefixKey{Bits: 16, Addr: be(netip.MustParseAddr("10.43.0.0"))}, uint32(2))
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
	toB := netip.AddrPortFrom(podB, 8080)
	front(service, 80, 0, 0, toB)
	front(service, 81, 0, 0, netip.AddrPortFrom(podA, 8080)) // podA itself
	front(service, 82, 0, 0, netip.AddrPortFrom(node, 6443)) // the host
	front(empty, 80, 0, 0)
	front(netip.IPv4Unspecified(), 30080, 1, 0, toB)
	front(netip.IPv4Unspecified(), 30081, 1, 1) // policy Local, nobody here
	front(netip.IPv4Unspecified(), 30082, 1, 0)
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

func TestFromPod(t *testing.T) {
	for _, c := range []struct {
		name    string
		in      []byte
		verdict uint32
		want    func(t *testing.T, p packet)
		dropped int // index of the counter that must have moved, or -1
	}{
		{"another protocol passes", eth(0x0806, make([]byte, 28)), pass, nil, -1},
		{"a malformed header passes", eth(0x0800, make([]byte, 28)), pass, nil, -1},
		{"a foreign source is dropped", udp(podB.Next(), podB, 1, 2, "x"), shot, nil, 0},
		{"a foreign source with half a TCP header is dropped", ip(6, podB.Next(), podB, []byte{0, 1, 0, 2}), shot, nil, 0},
		{"pod to pod is redirected", tcp(podA, podB, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			p.is(t, podA, podB, 1000, 80)
			if p.dmac != macB || p.smac != hostMB {
				t.Errorf("link addresses %x to %x", p.smac, p.dmac)
			}
		}, -1},
		{"service by TCP", tcp(podA, service, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) { p.is(t, podA, podB, 1000, 8080) }, -1},
		{"service by UDP", udp(podA, service, 1000, 80, "hello"), redirect, func(t *testing.T, p packet) { p.is(t, podA, podB, 1000, 8080) }, -1},
		{"service with IP options", options(udp(podA, service, 1000, 80, "hello")), redirect, func(t *testing.T, p packet) { p.is(t, podA, podB, 1000, 8080) }, -1},
		{"UDP without checksum stays so", zeroSum(udp(podA, service, 1000, 80, "hello")), redirect, func(t *testing.T, p packet) {
			p.is(t, podA, podB, 1000, 8080)
			if p.sum != 0 {
				t.Errorf("checksum %#x", p.sum)
			}
		}, -1},
		{"service that is the pod itself", tcp(podA, service, 1000, 81, syn, "")(), redirect, func(t *testing.T, p packet) { p.is(t, hairpin, podA, 1000, 8080) }, -1},
		{"service of the host", tcp(podA, service, 1000, 82, syn, "")(), pass, func(t *testing.T, p packet) { p.is(t, podA, node, 1000, 6443) }, -1},
		{"node-local address is left alone", udp(podA, dns, 1000, 53, "q"), pass, func(t *testing.T, p packet) { p.is(t, podA, dns, 1000, 53) }, -1},
		{"no endpoints: reset", tcp(podA, empty, 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			p.is(t, empty, podA, 80, 1000)
			if p.flags != rst|ack || p.seq != 0 || p.ack != 1000001 {
				t.Errorf("flags %#x seq %d ack %d", p.flags, p.seq, p.ack)
			}
		}, 3},
		{"no endpoints in mid-stream: reset", tcp(podA, empty, 1000, 80, ack, "data")(), redirect, func(t *testing.T, p packet) {
			p.is(t, empty, podA, 80, 1000)
			if p.flags != rst || p.seq != 77 {
				t.Errorf("flags %#x seq %d", p.flags, p.seq)
			}
		}, 3},
		{"a reset is not answered", tcp(podA, empty, 1000, 80, rst, "")(), shot, nil, 3},
		{"no endpoints: unreachable", udp(podA, empty, 1000, 80, "hello world, hello world"), redirect, func(t *testing.T, p packet) {
			if p.src != empty || p.dst != podA || p.proto != 1 || p.payload[0] != 3 || p.payload[1] != 3 {
				t.Errorf("got %+v", p)
			}
			quoted := parseIP(t, p.payload[8:])
			if quoted.src != podA || quoted.dst != empty || quoted.sport != 1000 || quoted.dport != 80 {
				t.Errorf("quoted %+v", quoted)
			}
		}, 3},
		{"unknown service address: reset", tcp(podA, netip.MustParseAddr("10.43.9.9"), 1000, 80, syn, "")(), redirect, func(t *testing.T, p packet) {
			if p.flags != rst|ack {
				t.Errorf("flags %#x", p.flags)
			}
		}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := load(t)
			got, p := run(t, o.FromPod, c.in)
			if got != c.verdict {
				t.Fatalf("verdict %d, want %d", got, c.verdict)
			}
			if c.want != nil {
				p.checkSums(t)
				c.want(t, p)
			}
			for i := range 8 {
				var per []KombiCounter
				if err := o.Drops.Lookup(uint32(i), &per); err != nil {
					t.Fatal(err)
				}
				n := uint64(0)
				for _, c := range per {
					n += c.Packets
				}
				if (n > 0) != (i == c.dropped) {
					t.Errorf("counter %d is %d", i, n)
				}
			}
		})
	}
}

// Answers take the way back: the client sees the address it asked.
func TestRoundTrips(t *testing.T) {
	t.Run("service", func(t *testing.T) {
		o := load(t)
		run(t, o.FromPod, tcp(podA, service, 1000, 80, syn, "")())
		v, p := run(t, o.FromPod, tcp(podB, podA, 8080, 1000, syn|ack, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, service, podA, 80, 1000)
		p.checkSums(t)
	})
	t.Run("hairpin", func(t *testing.T) {
		o := load(t)
		run(t, o.FromPod, tcp(podA, service, 1000, 81, syn, "")())
		v, p := run(t, o.FromPod, tcp(podA, hairpin, 8080, 1000, syn|ack, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, service, podA, 81, 1000)
	})
	t.Run("host backend", func(t *testing.T) {
		o := load(t)
		run(t, o.FromPod, tcp(podA, service, 1000, 82, syn, "")())
		v, p := run(t, o.ToPod, tcp(node, podA, 6443, 1000, syn|ack, "")())
		if v != pass {
			t.Errorf("verdict %d", v)
		}
		p.is(t, service, podA, 82, 1000)
	})
	t.Run("node port", func(t *testing.T) {
		o := load(t)
		v, p := run(t, o.FromOutside, tcp(world, node, 1000, 30080, syn, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		p.is(t, world, podB, 1000, 8080)
		_, p = run(t, o.FromPod, tcp(podB, world, 8080, 1000, syn|ack, "")())
		p.is(t, node, world, 30080, 1000)
		p.checkSums(t)
	})
	t.Run("masquerade", func(t *testing.T) {
		for name, in := range map[string]func(src, dst netip.Addr, sport, dport uint16) []byte{
			"tcp": func(s, d netip.Addr, sp, dp uint16) []byte { return tcp(s, d, sp, dp, ack, "x")() },
			"udp": func(s, d netip.Addr, sp, dp uint16) []byte { return udp(s, d, sp, dp, "x") },
		} {
			t.Run(name, func(t *testing.T) {
				o := load(t)
				v, p := run(t, o.ToOutside, in(podA, world, 1000, 80))
				if v != pass {
					t.Errorf("verdict %d", v)
				}
				p.is(t, node, world, 1000, 80)
				p.checkSums(t)
				// The second pod with the same port gets another one.
				_, q := run(t, o.ToOutside, in(podB, world, 1000, 80))
				if q.src != node || q.sport == 1000 {
					t.Errorf("second pod leaves as %v:%d", q.src, q.sport)
				}
				v, p = run(t, o.FromOutside, in(world, node, 80, 1000))
				if v != redirect {
					t.Errorf("verdict %d", v)
				}
				p.is(t, world, podA, 80, 1000)
				_, p = run(t, o.FromOutside, in(world, node, 80, q.sport))
				p.is(t, world, podB, 80, 1000)
				p.checkSums(t)
			})
		}
	})
	t.Run("answers to direct connections are not masqueraded", func(t *testing.T) {
		o := load(t)
		v, _ := run(t, o.FromOutside, tcp(world, podA, 1000, 80, syn, "")())
		if v != redirect {
			t.Errorf("verdict %d", v)
		}
		_, p := run(t, o.ToOutside, tcp(podA, world, 80, 1000, syn|ack, "")())
		p.is(t, podA, world, 80, 1000)
	})
	t.Run("pods of the cluster are not masqueraded", func(t *testing.T) {
		o := load(t)
		other := netip.MustParseAddr("10.42.7.7")
		_, p := run(t, o.ToOutside, tcp(podA, other, 1000, 80, syn, "")())
		p.is(t, podA, other, 1000, 80)
	})
	t.Run("the host's own flow gives way to a pod's", func(t *testing.T) {
		o := load(t)
		run(t, o.ToOutside, udp(podA, world, 1000, 80, "x"))
		_, p := run(t, o.ToOutside, udp(node, world, 1000, 80, "x"))
		if p.src != node || p.sport == 1000 {
			t.Errorf("leaves as %v:%d", p.src, p.sport)
		}
		_, p = run(t, o.FromOutside, udp(world, node, 80, p.sport, "y"))
		p.is(t, world, node, 80, 1000)
	})
}

func TestFromOutside(t *testing.T) {
	o := load(t)
	for _, c := range []struct {
		name    string
		in      []byte
		verdict uint32
	}{
		{"to the host", tcp(world, node, 1000, 22, syn, "")(), pass},
		{"to a cluster address", tcp(world, service, 1000, 80, syn, "")(), pass},
		{"to a node-local address", udp(world, dns, 1000, 53, "q"), shot},
		{"to a node port without local endpoints", tcp(world, node, 1000, 30081, syn, "")(), shot},
		{"to a node port without endpoints", tcp(world, node, 1000, 30082, syn, "")(), redirect},
		{"to a pod", tcp(world, podA, 1000, 80, syn, "")(), redirect},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, _ := run(t, o.FromOutside, c.in); got != c.verdict {
				t.Errorf("verdict %d, want %d", got, c.verdict)
			}
		})
	}
}

func be(a netip.Addr) uint32 {
	b := a.As4()
	return *(*uint32)(unsafe.Pointer(&b))
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
	o := &KombiObjects{}
	spec, err := LoadKombi()
	if err == nil {
		err = spec.LoadAndAssign(o, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer o.Close()
	_ = o.Endpoints.Put(be(podA), KombiEndpoint{Ifindex: loopback})
	_ = o.Endpoints.Put(be(podB), KombiEndpoint{Ifindex: loopback})
	in := tcp(podA, podB, 1000, 80, ack, "x")()
	_, per, err := o.FromPod.Benchmark(in, b.N, b.ResetTimer)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(per.Nanoseconds()), "ns/packet")
}
