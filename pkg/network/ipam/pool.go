// Package ipam hands out the addresses of a node's pods and remembers, through
// crashes, who has them.
package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// ErrFull says that every address of the node's prefix is in use.
var ErrFull = errors.New("all pod addresses of this node are in use")

// Pool hands out addresses of a prefix in turn, so that one that was freed is
// not given away again before all others were.
type Pool struct {
	mu     sync.Mutex
	prefix netip.Prefix
	last   netip.Addr
	used   map[netip.Addr]struct{}
}

// NewPool returns a pool of prefix, which has room for at least two addresses.
// The search starts after the one of the last addresses that is in it.
func NewPool(prefix netip.Prefix, lasts []netip.Addr) (*Pool, error) {
	if prefix != prefix.Masked() {
		return nil, fmt.Errorf("pod prefix %s has host bits set; use %s", prefix, prefix.Masked())
	}
	if room := prefix.Addr().BitLen() - prefix.Bits(); room < 2 {
		return nil, fmt.Errorf("pod prefix %s is too small; it needs at least 4 addresses", prefix)
	}
	last := prefix.Addr()
	for _, a := range lasts {
		if prefix.Contains(a) {
			last = a
		}
	}
	return &Pool{prefix: prefix, last: last, used: map[netip.Addr]struct{}{}}, nil
}

// Prefix returns the pool's prefix.
func (p *Pool) Prefix() netip.Prefix { return p.prefix }

// Reserve marks an address as used, whether it belongs to the prefix or not.
func (p *Pool) Reserve(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used[a] = struct{}{}
}

// Allocate returns the next free address.
func (p *Pool) Allocate() (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.last
	for {
		a = a.Next()
		if !p.prefix.Contains(a) {
			a = p.prefix.Addr()
		}
		if _, taken := p.used[a]; !taken && !p.edge(a) {
			p.used[a] = struct{}{}
			p.last = a
			return a, nil
		}
		if a == p.last {
			return netip.Addr{}, fmt.Errorf("%w (%s)", ErrFull, p.prefix)
		}
	}
}

// Release frees an address.
func (p *Pool) Release(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, a)
}

// edge tells whether a is the first or, for IPv4, the last address of the prefix;
// some software takes these for the network and for broadcast.
func (p *Pool) edge(a netip.Addr) bool {
	return a == p.prefix.Addr() || a.Is4() && !p.prefix.Contains(a.Next())
}
