package datapath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

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

// SetEndpoint makes the programs know a pod. Policy that it has already stays.
func (d *Datapath) SetEndpoint(addr netip.Addr, ep Endpoint) error {
	if !addr.IsValid() {
		return invalid("the pod", addr)
	}
	d.endpoints.Lock()
	defer d.endpoints.Unlock()
	key := addr16(addr)
	var v bpf.KombiEndpoint
	if err := ignoreMissing(d.objs.Endpoints.Lookup(key, &v)); err != nil {
		return fmt.Errorf("cannot look for pod %s: %w", addr, err)
	}
	v.Ifindex = uint32(ep.Ifindex)
	copy(v.Mac[:], ep.MAC)
	copy(v.HostMac[:], ep.HostMAC)
	if err := d.objs.Endpoints.Put(key, v); err != nil {
		return fmt.Errorf("cannot make pod %s known: %w", addr, err)
	}
	return nil
}

// EndpointIfindex returns the device of a known pod, or 0.
func (d *Datapath) EndpointIfindex(addr netip.Addr) int {
	var v bpf.KombiEndpoint
	if d.objs.Endpoints.Lookup(addr16(addr), &v) != nil {
		return 0
	}
	return int(v.Ifindex)
}

// DeleteEndpoint forgets a pod.
func (d *Datapath) DeleteEndpoint(addr netip.Addr) error {
	d.endpoints.Lock()
	defer d.endpoints.Unlock()
	return ignoreMissing(d.objs.Endpoints.Delete(addr16(addr)))
}

// KeepEndpoints forgets all pods that are not listed.
func (d *Datapath) KeepEndpoints(keep map[netip.Addr]bool) error {
	d.endpoints.Lock()
	defer d.endpoints.Unlock()
	var k bpf.KombiAddr
	var v bpf.KombiEndpoint
	var gone []bpf.KombiAddr
	for it := d.objs.Endpoints.Iterate(); it.Next(&k, &v); {
		if !keep[addrOf(k)] {
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
	want := map[bpf.KombiAddr]uint32{}
	for a, kind := range addrs {
		want[addr16(a)] = uint32(kind)
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
		want[prefix16(p)] = uint32(kind)
	}
	return replace(d.objs.Prefixes, want)
}

// Masquerade holds the addresses that pods' traffic gets at a device. Traffic of a
// family without one keeps its source.
type Masquerade struct {
	IPv4, IPv6 netip.Addr
	// Overlay4 and Overlay6 are for traffic from this device that goes on through the overlay.
	Overlay4, Overlay6 netip.Addr
}

func optional(a netip.Addr) (k bpf.KombiAddr) {
	if a.IsValid() {
		k = addr16(a)
	}
	return k
}

// SetDevices replaces the devices that lead out of the node.
func (d *Datapath) SetDevices(devices map[int]Masquerade) error {
	want := map[uint32]bpf.KombiDevice{}
	for i, m := range devices {
		want[uint32(i)] = bpf.KombiDevice{
			Masquerade4: optional(m.IPv4), Masquerade6: optional(m.IPv6),
			Overlay4: optional(m.Overlay4), Overlay6: optional(m.Overlay6),
		}
	}
	return replace(d.objs.Devices, want)
}

// Remote is the way to the pods of another node through the overlay.
type Remote struct {
	// Node is the address to which packets are sent.
	Node netip.Addr
	// Ifindex is the overlay's device, MTU what its packets may have.
	Ifindex, MTU int
}

// SetRemotes replaces the prefixes that are reached through the overlay.
func (d *Datapath) SetRemotes(remotes map[netip.Prefix]Remote) error {
	want := map[bpf.KombiPrefixKey]bpf.KombiRemote{}
	for p, r := range remotes {
		want[prefix16(p)] = bpf.KombiRemote{Node: addr16(r.Node), Ifindex: uint32(r.Ifindex), Mtu: uint32(r.MTU)}
	}
	return replace(d.objs.Remotes, want)
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
