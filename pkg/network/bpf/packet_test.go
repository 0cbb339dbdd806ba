package bpf

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// TCP flags.
const (
	syn = 0x02
	rst = 0x04
	ack = 0x10
)

// eth puts a payload into an Ethernet frame.
func eth(kind uint16, payload []byte) []byte {
	f := make([]byte, 14, 14+len(payload))
	copy(f, hostMacA[:])
	copy(f[6:], macA[:])
	binary.BigEndian.PutUint16(f[12:], kind)
	return append(f, payload...)
}

func ip(proto byte, src, dst netip.Addr, payload []byte) []byte {
	if src.Is6() {
		return ip6(proto, src, dst, payload)
	}
	h := make([]byte, 20)
	h[0], h[8], h[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(h[2:], uint16(20+len(payload)))
	copy(h[12:], src.AsSlice())
	copy(h[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return eth(0x0800, append(h, payload...))
}

func ip6(next byte, src, dst netip.Addr, payload []byte) []byte {
	h := make([]byte, 40)
	h[0], h[6], h[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(h[4:], uint16(len(payload)))
	copy(h[8:], src.AsSlice())
	copy(h[24:], dst.AsSlice())
	return eth(0x86dd, append(h, payload...))
}

func udp(src, dst netip.Addr, sport, dport uint16, data string) []byte {
	u := make([]byte, 8, 8+len(data))
	binary.BigEndian.PutUint16(u[0:], sport)
	binary.BigEndian.PutUint16(u[2:], dport)
	binary.BigEndian.PutUint16(u[4:], uint16(8+len(data)))
	u = append(u, data...)
	binary.BigEndian.PutUint16(u[6:], transportSum(17, src, dst, u))
	return ip(17, src, dst, u)
}

// tcp returns a function, because a packet is used up by a run.
func tcp(src, dst netip.Addr, sport, dport uint16, flags byte, data string) func() []byte {
	return func() []byte {
		h := make([]byte, 20, 20+len(data))
		binary.BigEndian.PutUint16(h[0:], sport)
		binary.BigEndian.PutUint16(h[2:], dport)
		binary.BigEndian.PutUint32(h[4:], 1000000)
		binary.BigEndian.PutUint32(h[8:], 77)
		h[12], h[13] = 5<<4, flags
		h = append(h, data...)
		binary.BigEndian.PutUint16(h[16:], transportSum(6, src, dst, h))
		return ip(6, src, dst, h)
	}
}

// options inserts four bytes of IP options, or eight of IPv6 destination options.
func options(f []byte) []byte {
	if f[12] == 0x86 {
		out := append([]byte(nil), f[:54]...)
		out = append(out, f[20], 0, 1, 4, 0, 0, 0, 0)
		out[20] = 60
		binary.BigEndian.PutUint16(out[18:], uint16(len(f)-54+8))
		return append(out, f[54:]...)
	}
	out := append([]byte(nil), f[:34]...)
	out = append(out, 1, 1, 1, 0)
	out = append(out, f[34:]...)
	h := out[14:38]
	h[0] = 0x46
	binary.BigEndian.PutUint16(h[2:], uint16(len(out)-14))
	h[10], h[11] = 0, 0
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return out
}

func zeroSum(f []byte) []byte {
	at := 40
	if f[12] == 0x86 {
		at = 60
	}
	f[at], f[at+1] = 0, 0
	return f
}

// packet is what a test wants to know of a frame.
type packet struct {
	dmac, smac   [6]byte
	src, dst     netip.Addr
	proto        byte
	sport, dport uint16
	seq, ack     uint32
	flags        byte
	sum          uint16
	header       []byte // of IP
	payload      []byte // of IP
}

func parse(t *testing.T, f []byte) packet {
	t.Helper()
	switch kind := binary.BigEndian.Uint16(f[12:]); {
	case kind == 0x0800 && len(f) >= 34 && f[14]>>4 == 4:
	case kind == 0x86dd && len(f) >= 54 && f[14]>>4 == 6:
	default:
		return packet{}
	}
	p := parseIP(t, f[14:])
	copy(p.dmac[:], f)
	copy(p.smac[:], f[6:])
	return p
}

func parseIP(t *testing.T, b []byte) (p packet) {
	t.Helper()
	if b[0]>>4 == 6 {
		n := 40
		p.proto = b[6]
		if p.proto == 60 {
			p.proto, n = b[40], 48
		}
		p.header, p.payload = b[:n], b[n:]
		p.src, _ = netip.AddrFromSlice(b[8:24])
		p.dst, _ = netip.AddrFromSlice(b[24:40])
	} else {
		n := int(b[0]&0xf) * 4
		p.header, p.payload = b[:n], b[n:]
		p.proto = b[9]
		p.src, _ = netip.AddrFromSlice(b[12:16])
		p.dst, _ = netip.AddrFromSlice(b[16:20])
	}
	l := p.payload
	if p.proto != 1 && p.proto != 58 && len(l) >= 8 {
		p.sport, p.dport = binary.BigEndian.Uint16(l), binary.BigEndian.Uint16(l[2:])
	}
	switch {
	case p.proto == 6 && len(l) >= 20:
		p.seq, p.ack, p.flags = binary.BigEndian.Uint32(l[4:]), binary.BigEndian.Uint32(l[8:]), l[13]
	case p.proto == 17 && len(l) >= 8:
		p.sum = binary.BigEndian.Uint16(l[6:])
	}
	return p
}

func (p packet) is(t *testing.T, src, dst netip.Addr, sport, dport uint16) {
	t.Helper()
	if p.src != src || p.dst != dst || p.sport != sport || p.dport != dport {
		t.Errorf("got %v:%d to %v:%d, want %v:%d to %v:%d", p.src, p.sport, p.dst, p.dport, src, sport, dst, dport)
	}
}

// checkSums verifies all checksums of the packet.
func (p packet) checkSums(t *testing.T) {
	t.Helper()
	if len(p.header) == 0 {
		return
	}
	if p.src.Is4() && checksum(p.header) != 0 {
		t.Error("the IP checksum is wrong")
	}
	switch {
	case p.proto == 1 && checksum(p.payload) != 0:
		t.Error("the ICMP checksum is wrong")
	case p.proto == 58 && transportSum(58, p.src, p.dst, p.payload) != 0:
		t.Error("the ICMPv6 checksum is wrong")
	case p.proto == 6 && transportSum(6, p.src, p.dst, p.payload) != 0:
		t.Error("the TCP checksum is wrong")
	case p.proto == 17 && p.sum != 0 && transportSum(17, p.src, p.dst, p.payload) != 0:
		t.Error("the UDP checksum is wrong")
	}
}

func transportSum(proto byte, src, dst netip.Addr, seg []byte) uint16 {
	pseudo := append(append([]byte(nil), src.AsSlice()...), dst.AsSlice()...)
	pseudo = append(pseudo, 0, proto, byte(len(seg)>>8), byte(len(seg)))
	return checksum(append(pseudo, seg...))
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
