package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kombi-k8s/kombi/pkg/network/bpf"
	"github.com/kombi-k8s/kombi/pkg/network/services"
)

// Entries of the map of counters.
const (
	policyGeneration = uint32(0)
	lastService      = uint32(1)
)

// Flags of a service, with the numbers that the programs use.
const (
	serviceDrop    = 1
	serviceSources = 2
)

// ServiceMaps writes frontends and their backends.
//
// A packet may come between any two writes. So backends are put in place before
// the count that makes them visible, and taken away after it.
type ServiceMaps struct {
	m *bpf.KombiMaps

	mu     sync.Mutex
	have   map[bpf.KombiServiceKey]*installed
	nextID uint32
}

type installed struct {
	value   bpf.KombiService
	slots   []bpf.KombiBackend
	sources []bpf.KombiSourceKey
}

func newServiceMaps(m *bpf.KombiMaps) *ServiceMaps {
	return &ServiceMaps{m: m, have: map[bpf.KombiServiceKey]*installed{}, nextID: 1}
}

// Services returns the writer of frontends.
func (d *Datapath) Services() *ServiceMaps { return d.services }

// Sync makes the maps hold exactly what is wanted, starting from what a process
// before left in them. Frontends keep their identity, and so their flows.
func (s *ServiceMaps) Sync(want map[services.Frontend]services.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.read(); err != nil {
		return err
	}
	keep := map[bpf.KombiServiceKey]bool{}
	for f, e := range want {
		k := serviceKey(f)
		keep[k] = true
		if err := s.put(k, e); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	for k := range s.have {
		if !keep[k] {
			if err := s.remove(k); err != nil {
				return err
			}
		}
	}
	return s.sweep()
}

// Apply makes one change.
func (s *ServiceMaps) Apply(c services.Change) error {
	k := serviceKey(c.Frontend)
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if c.Entry == nil {
		err = s.remove(k)
	} else {
		err = s.put(k, *c.Entry)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.Frontend, err)
	}
	return nil
}

// IDs returns the numbers that the programs know services by.
func (s *ServiceMaps) IDs() (out []uint32, err error) {
	var k bpf.KombiServiceKey
	var v bpf.KombiService
	it := s.m.Services.Iterate()
	for it.Next(&k, &v) {
		out = append(out, v.Id)
	}
	return out, it.Err()
}

// Len returns the number of frontends and backends.
func (s *ServiceMaps) Len() (frontends, backends int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.have {
		backends += len(h.slots)
	}
	return len(s.have), backends
}

func (s *ServiceMaps) put(k bpf.KombiServiceKey, e services.Entry) error {
	h := s.have[k]
	if h == nil {
		h = &installed{value: bpf.KombiService{Id: s.nextID}}
		s.nextID++
		if err := s.m.Counters.Put(lastService, h.value.Id); err != nil {
			return fmt.Errorf("write the last service: %w", err)
		}
		s.have[k] = h
	}
	id := h.value.Id
	want := make([]bpf.KombiBackend, 0, len(e.Backends))
	member := map[bpf.KombiBackend]bool{}
	for _, b := range e.Backends {
		w := bpf.KombiBackend{Addr: addr16(b.Addr()), Port: port16(b.Port())}
		want = append(want, w)
		member[w] = true
		if err := s.m.Members.Put(memberKey(id, w), uint32(1)); err != nil {
			return fmt.Errorf("write backend %s: %w", b, err)
		}
	}
	for i, w := range want {
		if i < len(h.slots) && h.slots[i] == w {
			continue
		}
		if err := s.m.Slots.Put(bpf.KombiSlotKey{Service: id, Index: uint32(i)}, w); err != nil {
			return fmt.Errorf("write backend: %w", err)
		}
	}
	value := bpf.KombiService{Id: id, Count: uint32(len(want)), Affinity: uint32(e.Affinity.Seconds())}
	if e.DropIfEmpty {
		value.Flags |= serviceDrop
	}
	var sources []bpf.KombiSourceKey
	for _, p := range e.Sources {
		value.Flags |= serviceSources
		prefix := prefix16(p)
		source := bpf.KombiSourceKey{Bits: 32 + prefix.Bits, Service: id, Addr: prefix.Addr}
		if err := s.m.Sources.Put(source, uint32(1)); err != nil {
			return fmt.Errorf("write source range %s: %w", p, explainFull(err))
		}
		sources = append(sources, source)
	}
	if err := s.m.Services.Put(k, value); err != nil {
		return fmt.Errorf("write service: %w", err)
	}
	old, oldSources := h.slots, h.sources
	h.value, h.slots, h.sources = value, want, sources
	for _, k := range oldSources {
		if !slices.Contains(sources, k) {
			if err := ignoreMissing(s.m.Sources.Delete(k)); err != nil {
				return err
			}
		}
	}
	for i := len(want); i < len(old); i++ {
		if err := ignoreMissing(s.m.Slots.Delete(bpf.KombiSlotKey{Service: id, Index: uint32(i)})); err != nil {
			return err
		}
	}
	for _, b := range old {
		if !member[b] {
			if err := ignoreMissing(s.m.Members.Delete(memberKey(id, b))); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *ServiceMaps) remove(k bpf.KombiServiceKey) error {
	h := s.have[k]
	if h == nil {
		return nil
	}
	if err := ignoreMissing(s.m.Services.Delete(k)); err != nil {
		return err
	}
	delete(s.have, k)
	for i, b := range h.slots {
		if err := ignoreMissing(s.m.Slots.Delete(bpf.KombiSlotKey{Service: h.value.Id, Index: uint32(i)})); err != nil {
			return err
		}
		if err := ignoreMissing(s.m.Members.Delete(memberKey(h.value.Id, b))); err != nil {
			return err
		}
	}
	return deleteAll(s.m.Sources, h.sources)
}

// read learns what the maps hold.
func (s *ServiceMaps) read() error {
	clear(s.have)
	s.nextID = 1
	var k bpf.KombiServiceKey
	var v bpf.KombiService
	it := s.m.Services.Iterate()
	for it.Next(&k, &v) {
		h := &installed{value: v, slots: make([]bpf.KombiBackend, v.Count)}
		for i := range h.slots {
			_ = s.m.Slots.Lookup(bpf.KombiSlotKey{Service: v.Id, Index: uint32(i)}, &h.slots[i])
		}
		s.have[k] = h
		s.nextID = max(s.nextID, v.Id+1)
	}
	if err := it.Err(); err != nil {
		return err
	}
	// Flows, sockets and affinities remember numbers of services that are gone.
	var last uint32
	if err := s.m.Counters.Lookup(lastService, &last); err != nil {
		return err
	}
	s.nextID = max(s.nextID, last+1)
	return nil
}

// sweep removes slots and members that a process left behind when it died between two writes.
func (s *ServiceMaps) sweep() error {
	slots := map[bpf.KombiSlotKey]bool{}
	members := map[bpf.KombiMemberKey]bool{}
	for _, h := range s.have {
		for i, b := range h.slots {
			slots[bpf.KombiSlotKey{Service: h.value.Id, Index: uint32(i)}] = true
			members[memberKey(h.value.Id, b)] = true
		}
	}
	var sk bpf.KombiSlotKey
	var sv bpf.KombiBackend
	var oldSlots []bpf.KombiSlotKey
	for it := s.m.Slots.Iterate(); it.Next(&sk, &sv); {
		if !slots[sk] {
			oldSlots = append(oldSlots, sk)
		}
	}
	var mk bpf.KombiMemberKey
	var mv uint32
	var oldMembers []bpf.KombiMemberKey
	for it := s.m.Members.Iterate(); it.Next(&mk, &mv); {
		if !members[mk] {
			oldMembers = append(oldMembers, mk)
		}
	}
	sources := map[bpf.KombiSourceKey]bool{}
	for _, h := range s.have {
		for _, k := range h.sources {
			sources[k] = true
		}
	}
	var ck bpf.KombiSourceKey
	var cv uint32
	var oldSources []bpf.KombiSourceKey
	for it := s.m.Sources.Iterate(); it.Next(&ck, &cv); {
		if !sources[ck] {
			oldSources = append(oldSources, ck)
		}
	}
	return errors.Join(deleteAll(s.m.Slots, oldSlots), deleteAll(s.m.Members, oldMembers), deleteAll(s.m.Sources, oldSources))
}

func serviceKey(f services.Frontend) bpf.KombiServiceKey {
	return bpf.KombiServiceKey{Addr: addr16(f.Addr), Port: port16(f.Port), Proto: uint8(f.Proto), Scope: uint8(f.Scope)}
}

func memberKey(id uint32, b bpf.KombiBackend) bpf.KombiMemberKey {
	return bpf.KombiMemberKey{Service: id, Addr: b.Addr, Port: b.Port}
}

// Backends returns the backends of a frontend, and whether it is known.
func (s *ServiceMaps) Backends(f services.Frontend) ([]netip.AddrPort, bool) {
	k := serviceKey(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.have[k]
	if h == nil {
		return nil, false
	}
	var out []netip.AddrPort
	for _, b := range h.slots {
		out = append(out, netip.AddrPortFrom(addrOf(b.Addr), port16(b.Port)))
	}
	return out, true
}
