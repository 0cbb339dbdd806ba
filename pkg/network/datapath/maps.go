package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/kombi-k8s/kombi/pkg/network/bpf"
)

// Endpoint is where the packets of a pod of this node go.
type Endpoint struct {
	// Ifindex is the host's side of the pair.
	Ifindex int
	// MAC and HostMAC are the addresses of the two sides.
	MAC, HostMAC net.HardwareAddr
}

// SetEndpoint makes the programs know a pod.
func (d *Datapath) SetEndpoint(addr netip.Addr, ep Endpoint) error {
	key, err := ip4(addr)
	if err != nil {
		return err
	}
	v := bpf.KombiEndpoint{Ifindex: uint32(ep.Ifindex)}
	copy(v.Mac[:], ep.MAC)
	copy(v.HostMac[:], ep.HostMAC)
	if err := d.objs.Endpoints.Put(key, v); err != nil {
		return fmt.Errorf("cannot make pod %s known: %w", addr, err)
	}
	return nil
}

// EndpointIfindex returns the device of a known pod, or 0.
func (d *Datapath) EndpointIfindex(addr netip.Addr) int {
	key, err := ip4(addr)
	if err != nil {
		return 0
	}
	var v bpf.KombiEndpoint
	if d.objs.Endpoints.Lookup(key, &v) != nil {
		return 0
	}
	return int(v.Ifindex)
}

// DeleteEndpoint forgets a pod.
func (d *Datapath) DeleteEndpoint(addr netip.Addr) error {
	key, err := ip4(addr)
	if err != nil {
		return err
	}
	return ignoreMissing(d.objs.Endpoints.Delete(key))
}

// KeepEndpoints forgets all pods that are not listed.
func (d *Datapath) KeepEndpoints(keep map[netip.Addr]bool) error {
	var k uint32
	var v bpf.KombiEndpoint
	var gone []uint32
	for it := d.objs.Endpoints.Iterate(); it.Next(&k, &v); {
		if !keep[addr4(k)] {
			gone = append(gone, k)
		}
	}
	return deleteAll(d.objs.Endpoints, gone)
}

// LocalKind is what an address of the host is for.
type LocalKind uint32

// The kinds, with the numbers that the programs use.
const (
	// NodeAddr serves node ports.
	NodeAddr LocalKind = 1
	// ServiceAddr is a service address that the host answers itself.
	ServiceAddr LocalKind = 2
)

// SetLocals replaces the addresses of the host.
func (d *Datapath) SetLocals(addrs map[netip.Addr]LocalKind) error {
	want := map[uint32]uint32{}
	for a, kind := range addrs {
		if k, err := ip4(a); err == nil {
			want[k] = uint32(kind)
		}
	}
	return replace(d.objs.Locals, want)
}

// PrefixKind is what the addresses of a prefix are for.
type PrefixKind uint32

// The kinds, with the numbers that the programs use.
const (
	Pods     PrefixKind = 1
	Services PrefixKind = 2
)

// SetPrefixes replaces the prefixes that the programs know.
func (d *Datapath) SetPrefixes(prefixes map[netip.Prefix]PrefixKind) error {
	want := map[bpf.KombiPrefixKey]uint32{}
	for p, kind := range prefixes {
		if k, err := ip4(p.Addr()); err == nil {
			want[bpf.KombiPrefixKey{Bits: uint32(p.Bits()), Addr: k}] = uint32(kind)
		}
	}
	return replace(d.objs.Prefixes, want)
}

// SetDevices replaces the devices that lead out of the node; the values are the
// addresses that pods' traffic gets there.
func (d *Datapath) SetDevices(masquerade map[int]netip.Addr) error {
	want := map[uint32]bpf.KombiDevice{}
	for i, a := range masquerade {
		var v bpf.KombiDevice
		if a.IsValid() {
			v.Masquerade, _ = ip4(a)
		}
		want[uint32(i)] = v
	}
	return replace(d.objs.Devices, want)
}

// replace makes the map hold exactly want, adding before removing.
func replace[K, V comparable](m *ebpf.Map, want map[K]V) error {
	var k K
	var v V
	var gone []K
	have := map[K]V{}
	it := m.Iterate()
	for it.Next(&k, &v) {
		have[k] = v
		if _, ok := want[k]; !ok {
			gone = append(gone, k)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", m, err)
	}
	for k, v := range want {
		if old, ok := have[k]; ok && old == v {
			continue
		}
		if err := m.Put(k, v); err != nil {
			return fmt.Errorf("write map %s: %w", m, err)
		}
	}
	return deleteAll(m, gone)
}

func deleteAll[K any](m *ebpf.Map, keys []K) error {
	for _, k := range keys {
		if err := ignoreMissing(m.Delete(k)); err != nil {
			return fmt.Errorf("write map %s: %w", m, err)
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	return err
}

// ip4 returns an IPv4 address as the programs see it: in network byte order.
func ip4(a netip.Addr) (uint32, error) {
	a = a.Unmap()
	if !a.Is4() {
		return 0, fmt.Errorf("%s is not an IPv4 address; IPv6 is not supported yet", a)
	}
	b := a.As4()
	return *(*uint32)(unsafe.Pointer(&b)), nil
}

func addr4(k uint32) netip.Addr { return netip.AddrFrom4(*(*[4]byte)(unsafe.Pointer(&k))) }

// port16 returns a port as the programs see it.
func port16(p uint16) uint16 {
	b := [2]byte{byte(p >> 8), byte(p)}
	return *(*uint16)(unsafe.Pointer(&b))
}
