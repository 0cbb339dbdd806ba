// Package services turns Services and EndpointSlices into the desired contents of
// the data plane's maps. It needs no kernel: everything in it is a pure function of what it was told.
package services

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that services are translated for.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// Scope tells clients of this node and its pods from those outside.
type Scope uint8

// The scopes, with the numbers that the programs use.
const (
	Inside Scope = iota
	Outside
)

// Frontend is an address that clients use.
type Frontend struct {
	// Addr is the address; the unspecified one stands for any address of the node.
	Addr  netip.Addr
	Port  uint16
	Proto Protocol
	Scope Scope
}

func (f Frontend) String() string {
	s := fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), f.Proto)
	if f.Scope == Outside {
		s += " from outside"
	}
	return s
}

// Entry is what a frontend is translated to.
type Entry struct {
	// Backends are sorted and distinct.
	Backends []netip.AddrPort
	// Affinity is how long a client stays with its backend; 0 is not at all.
	Affinity time.Duration
	// DropIfEmpty drops traffic instead of refusing it when there is no backend.
	DropIfEmpty bool
	// Sources are the clients that may use the frontend; none is everybody.
	Sources []netip.Prefix
}

// Equal reports whether both are translated alike.
func (e Entry) Equal(o Entry) bool {
	return e.Affinity == o.Affinity && e.DropIfEmpty == o.DropIfEmpty && slices.Equal(e.Backends, o.Backends) &&
		slices.Equal(e.Sources, o.Sources)
}

// Change is one step towards the desired state; without an Entry the frontend is to go.
type Change struct {
	Frontend Frontend
	Entry    *Entry
}
