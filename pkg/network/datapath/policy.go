package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kombi-k8s/kombi/pkg/network/bpf"
	"github.com/kombi-k8s/kombi/pkg/network/policy"
)

const (
	// epochShift is where the number of a set has its epoch, and epochs is how many there are.
	epochShift = 28
	epochs     = 1 << (32 - epochShift)
)

// PolicyMaps writes network policy.
//
// Each run of Kombi has an epoch, which is part of the numbers of its sets. The
// classes of addresses are kept apart by it: until an endpoint gets a set of this
// run, the sets and classes of the run before decide about it, untouched.
//
// The order of writes within a run is the caller's, see [policy.Update].
type PolicyMaps struct {
	m     *bpf.KombiMaps
	epoch uint32
}

// newPolicyMaps chooses an epoch that no endpoint has a set of.
func newPolicyMaps(m *bpf.KombiMaps) (*PolicyMaps, error) {
	used := [epochs]bool{}
	var k bpf.KombiAddr
	var v bpf.KombiEndpoint
	it := m.Endpoints.Iterate()
	for it.Next(&k, &v) {
		used[v.Ingress>>epochShift], used[v.Egress>>epochShift] = true, true
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the policy of running pods: %w", err)
	}
	p := &PolicyMaps{m: m}
	for p.epoch = 1; p.epoch < epochs-1 && used[p.epoch]; p.epoch++ {
	}
	if err := p.NextGeneration(); err != nil {
		return nil, err
	}
	// A run that ended early may have left something of this epoch.
	return p, p.sweep(func(epoch uint32) bool { return epoch == p.epoch })
}

// Policy returns the writer of network policy.
func (d *Datapath) Policy() *PolicyMaps { return d.policy }

// FirstID is the first number that a set of this run may have.
func (p *PolicyMaps) FirstID() uint32 { return p.epoch<<epochShift | 1 }

// PutRule adds or replaces a rule.
func (p *PolicyMaps) PutRule(k policy.RuleKey, verdict policy.Verdict) error {
	v := bpf.KombiRule{Policy: verdict.Policy}
	if verdict.Allow {
		v.Allow = 1
	}
	if err := p.m.Rules.Put(ruleKey(k), v); err != nil {
		return fmt.Errorf("cannot write a policy rule: %w", explainFull(err))
	}
	return nil
}

// DeleteRule removes a rule; one that is not there is fine.
func (p *PolicyMaps) DeleteRule(k policy.RuleKey) error {
	return ignoreMissing(p.m.Rules.Delete(ruleKey(k)))
}

// PutClass gives the addresses of a prefix a class.
func (p *PolicyMaps) PutClass(prefix netip.Prefix, class uint32) error {
	if err := p.m.Classes.Put(p.classKey(prefix), class); err != nil {
		return fmt.Errorf("cannot write the policy class of %s: %w", prefix, explainFull(err))
	}
	return nil
}

// DeleteClass takes it away again.
func (p *PolicyMaps) DeleteClass(prefix netip.Prefix) error {
	return ignoreMissing(p.m.Classes.Delete(p.classKey(prefix)))
}

// DropOldEpochs removes what runs before this one wrote, once no endpoint has a set of theirs.
func (p *PolicyMaps) DropOldEpochs() error {
	return p.sweep(func(epoch uint32) bool { return epoch != p.epoch })
}

func (p *PolicyMaps) sweep(drop func(epoch uint32) bool) error {
	var rules []bpf.KombiRuleKey
	var rk bpf.KombiRuleKey
	var rv bpf.KombiRule
	it := p.m.Rules.Iterate()
	for it.Next(&rk, &rv) {
		if drop(rk.Set >> epochShift) {
			rules = append(rules, rk)
		}
	}
	var classes []bpf.KombiClassKey
	var ck bpf.KombiClassKey
	var cv uint32
	ic := p.m.Classes.Iterate()
	for ic.Next(&ck, &cv) {
		if drop(ck.Epoch) {
			classes = append(classes, ck)
		}
	}
	if err := errors.Join(it.Err(), ic.Err()); err != nil {
		return fmt.Errorf("cannot read the policy of the run before: %w", err)
	}
	return errors.Join(deleteAll(p.m.Rules, rules), deleteAll(p.m.Classes, classes))
}

// NextGeneration makes what was decided about open connections be decided again.
func (p *PolicyMaps) NextGeneration() error {
	var g uint32
	if err := p.m.Counters.Lookup(policyGeneration, &g); err != nil {
		return fmt.Errorf("cannot read the generation of policy: %w", err)
	}
	if g++; g == 0 {
		g = 1 // 0 means that nothing was decided
	}
	if err := p.m.Counters.Put(policyGeneration, g); err != nil {
		return fmt.Errorf("cannot write the generation of policy: %w", err)
	}
	return nil
}

func (p *PolicyMaps) classKey(prefix netip.Prefix) bpf.KombiClassKey {
	k := prefix16(prefix)
	return bpf.KombiClassKey{Bits: 32 + k.Bits, Epoch: p.epoch, Addr: k.Addr}
}

// ruleKey gives the protocol the 16 bits that it has in the map.
func ruleKey(k policy.RuleKey) bpf.KombiRuleKey {
	bits := uint32(k.Depth)
	if k.Depth >= policy.DepthProto {
		bits += 8
	}
	return bpf.KombiRuleKey{Bits: bits, Set: k.Set, Class: k.Class, Proto: port16(uint16(k.Proto)), Port: port16(k.Port)}
}

// explainFull explains the kernel's words for a map without room.
func explainFull(err error) error {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("there are too many rules or addresses for one node: %w", err)
	}
	return err
}

// SetEndpointPolicy gives a known pod its sets of rules. A pod that is not known is fine.
func (d *Datapath) SetEndpointPolicy(addr netip.Addr, sets policy.EndpointSets) error {
	d.endpoints.Lock()
	defer d.endpoints.Unlock()
	key := addr16(addr)
	var v bpf.KombiEndpoint
	if err := d.objs.Endpoints.Lookup(key, &v); err != nil {
		return ignoreMissing(err)
	}
	if v.Ingress == sets.Ingress && v.Egress == sets.Egress {
		return nil
	}
	v.Ingress, v.Egress = sets.Ingress, sets.Egress
	if err := d.objs.Endpoints.Put(key, v); err != nil {
		return fmt.Errorf("cannot give pod %s its policy: %w", addr, err)
	}
	return nil
}

// EndpointPolicy returns the sets of rules of a pod.
func (d *Datapath) EndpointPolicy(addr netip.Addr) policy.EndpointSets {
	var v bpf.KombiEndpoint
	if d.objs.Endpoints.Lookup(addr16(addr), &v) != nil {
		return policy.EndpointSets{}
	}
	return policy.EndpointSets{Ingress: v.Ingress, Egress: v.Egress}
}

// ForgetConnections forgets what policy remembers of an address, before somebody else gets it.
func (d *Datapath) ForgetConnections(addr netip.Addr) error {
	want := addr16(addr)
	var k bpf.KombiConnectionKey
	var v bpf.KombiConnection
	var gone []bpf.KombiConnectionKey
	it := d.objs.Connections.Iterate()
	for it.Next(&k, &v) {
		if k.Low == want || k.High == want {
			gone = append(gone, k)
		}
	}
	// A map that others write to meanwhile may end the iteration early; what is
	// left then is idle or about another pod.
	if err := it.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("cannot read the connections of %s: %w", addr, err)
	}
	return deleteAll(d.objs.Connections, gone)
}

// Connections lists what policy remembers of pods' connections, as "address:port address:port protocol".
func (d *Datapath) Connections() ([]string, error) {
	var out []string
	var k bpf.KombiConnectionKey
	var v bpf.KombiConnection
	it := d.objs.Connections.Iterate()
	for it.Next(&k, &v) {
		low, high := netip.AddrPortFrom(addrOf(k.Low), port16(k.LowPort)), netip.AddrPortFrom(addrOf(k.High), port16(k.HighPort))
		if v.Flags&1 != 0 { // the opener comes first
			low, high = high, low
		}
		out = append(out, fmt.Sprintf("%s %s %d", low, high, k.Proto))
	}
	return out, it.Err()
}

// WaitForPrograms returns when every program that is running now has ended. The
// kernel does it by waiting for a grace period of RCU, see membarrier(2).
func WaitForPrograms() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(5 * time.Millisecond) // not allowed here; a program takes a few microseconds
	}
}
