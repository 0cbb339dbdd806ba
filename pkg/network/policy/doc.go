// Package policy decides which connections NetworkPolicies (networking.k8s.io/v1)
// and ClusterNetworkPolicies (policy.networking.k8s.io/v1alpha2) allow. It needs no
// kernel and no API server: everything in it is a function of what it was told.
//
// # The tables
//
// The decisions are compiled into three tables for the eBPF programs.
//
//   - Peers: the longest prefix of the peer's address → its class. Addresses that
//     no policy in use can tell apart share a class; 0 is the class of those that
//     no policy mentions, and the one of an address without an entry.
//   - Endpoints: local pod → the set of policies that governs its ingress and the
//     one that governs its egress. 0 means that none does, so all is allowed.
//   - Rules: the longest prefix of (set, class, protocol, port) → verdict.
//
// # The lookup
//
// For a connection of a local pod in one direction, the program does exactly this:
//
//	set = endpoints[pod].ingress or .egress
//	if set == 0: allow
//	class = peers[longest prefix of the peer's address], or 0 if there is none
//	verdict = rules[longest prefix of (set, class, proto, port)]
//	if there is none: verdict = rules[longest prefix of (set, 0, proto, port)]
//
// The address is looked up as 128 bits, IPv4 as ::ffff:a.b.c.d. The port is the
// connection's destination port (at ingress the pod's, at egress the peer's), in
// network byte order; protocols other than TCP, UDP and SCTP have no rules by port, so
// that theirs does not matter. The last lookup cannot miss: every set has an entry of
// [DepthClass] for class 0. A class without entries in a set is judged like class 0;
// one with entries has an entry of that depth as well, so that it never needs the
// second lookup.
//
// Two things are not the tables' business, and the programs allow them before the
// lookup: what a pod sends to itself, and what its own node sends to it.
//
// # Changes
//
// What an id stands for never changes, so neither do the rules of a (set, class): a
// changed policy makes a new set, and a pod with changed labels gets another class.
// An [Update] orders the writes so that between any two of them each packet is
// judged by the old or the new state of everything. What needs care is an endpoint
// that moves from one set to another while a peer's class changes from c to d: the
// old set must see c until the endpoint has moved, and the new one d from then on.
// Such a peer gets a passing class in between, for which the old sets have the rules
// of c and all others those of d.
package policy
