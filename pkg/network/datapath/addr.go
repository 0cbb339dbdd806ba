package datapath

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/kombi-k8s/kombi/pkg/network/bpf"
)

// addr16 returns an address as the programs see it: 128 bits in network byte order.
func addr16(a netip.Addr) bpf.KombiAddr {
	b := a.As16()
	return bpf.KombiAddr{W: *(*[4]uint32)(unsafe.Pointer(&b))}
}

// addrOf is the inverse of addr16. IPv4 addresses come back as such.
func addrOf(k bpf.KombiAddr) netip.Addr {
	return netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&k.W))).Unmap()
}

// prefix16 returns a prefix as the programs see it.
func prefix16(p netip.Prefix) bpf.KombiPrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return bpf.KombiPrefixKey{Bits: uint32(bits), Addr: addr16(p.Masked().Addr())}
}

// port16 returns a port as the programs see it.
func port16(p uint16) uint16 {
	b := [2]byte{byte(p >> 8), byte(p)}
	return *(*uint16)(unsafe.Pointer(&b))
}

func invalid(what string, a netip.Addr) error {
	return fmt.Errorf("%s has no valid address: %q", what, a)
}
