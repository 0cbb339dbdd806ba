// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The types that programs and maps share. Addresses and ports are in network
// byte order everywhere; times are seconds of the monotonic clock. All addresses
// have 128 bits: IPv4 is ::ffff:a.b.c.d, which must never come in by IPv6.
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD

#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_ICMPV6 58

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

// TC_ACT_UNSPEC lets programs of others that are attached to the same hook run too.
#define TC_ACT_UNSPEC (-1)
#define TC_ACT_SHOT 2
#define TC_ACT_REDIRECT 7

#define bool _Bool
#define true 1
#define false 0

struct addr {
	__be32 w[4];
};

#define MAPPED bpf_htonl(0xffff)

// The source that a pod sees when it reaches itself through a service, because it
// would refuse packets from its own address: 169.254.1.1 and fd6b:6f6d:6269::1.
#define HAIRPIN4 {{0, 0, MAPPED, bpf_htonl(0xA9FE0101)}}
#define HAIRPIN6 {{bpf_htonl(0xfd6b6f6d), bpf_htonl(0x62690000), 0, bpf_htonl(1)}}

// Flows that are older than these seconds are forgotten when something else wants their place.
#define UDP_IDLE 120
#define ICMP_IDLE 30
#define TCP_IDLE 7440
#define TCP_CLOSED 60

enum zone {
	ZONE_SERVICE = 1, // service address <-> backend
	ZONE_MASQ = 2,    // pod <-> node address
};

enum scope {
	SCOPE_INSIDE = 0,  // clients are pods or this host
	SCOPE_OUTSIDE = 1, // clients come in through a node device
};

enum drop_reason {
	DROP_SPOOFED = 0,     // a pod used a source address that is not its own
	DROP_NO_PORT,         // every port for masquerading to this destination is taken
	DROP_NO_BACKEND,      // traffic policy Local without a local backend
	DROP_REFUSED,         // answered with a reset or "port unreachable"
	DROP_FRAGMENT,        // a fragment whose first part was not seen
	DROP_REWRITE,         // the packet could not be changed
	DROP_NODE_LOCAL,      // from outside to an address that serves only this node
	DROP_MAP_FULL,        // the flow could not be remembered
	DROP_POLICY,          // a network policy does not allow it
	DROP_NO_REMOTE,       // no node has this address of the overlay
	DROP_SOURCE,          // the client is not in the service's source ranges
	DROP_REASONS,
};

// tuple identifies a flow in one direction, as its packets look before translation.
struct tuple {
	struct addr saddr;
	struct addr daddr;
	__be16 sport; // ICMP echo: the identifier stands for the port of the one who asks
	__be16 dport;
	__u8 proto;
	__u8 zone;
	__u16 pad;
};

#define FLOW_REPLY 1  // translates what comes back
#define FLOW_CLOSED 2 // FIN or RST was seen
#define FLOW_DIRECT 4 // answers a host outside that asked the pod by its own address

// flow is what the packets of a tuple are turned into.
struct flow {
	struct addr saddr;
	struct addr daddr;
	__be16 sport;
	__be16 dport;
	__u32 service; // id of the service, or 0
	__u32 seen;
	__u32 flags;
};

struct service_key {
	struct addr addr; // 0.0.0.0 or ::: any address of this node
	__be16 port;
	__u8 proto;
	__u8 scope;
};

#define SERVICE_DROP 1    // without backends: drop instead of refuse
#define SERVICE_SOURCES 2 // only for clients with an entry in sources

struct service {
	__u32 id;
	__u32 count;    // number of backends
	__u32 affinity; // seconds that a client stays with a backend; 0: not at all
	__u32 flags;
};

struct slot_key {
	__u32 service;
	__u32 index;
};

struct backend {
	struct addr addr;
	__be16 port;
	__u16 flags;
};

// member_key exists for each backend of a service, to ask whether it still is one.
struct member_key {
	__u32 service;
	struct addr addr;
	__be16 port;
	__u16 pad;
};

struct source_key {
	__u32 bits; // 32 for the service and those of the address
	__u32 service;
	struct addr addr;
};

struct affinity_key {
	struct addr client; // or ff00::<cookie of the network namespace>
	__u32 service;
};

struct affinity {
	struct addr addr;
	__be16 port;
	__u16 pad;
	__u32 seen;
};

// endpoint is a pod of this node.
struct endpoint {
	__u32 ifindex; // host side of the pair
	__u32 ingress; // the set of policy rules for connections to it; 0: none
	__u32 egress;  // and from it
	__u8 mac[6];
	__u8 host_mac[6];
};

// device is a network device at which traffic enters and leaves the node.
struct device {
	struct addr masquerade4; // all zero: this family is not masqueraded
	struct addr masquerade6;
	struct addr overlay4; // the node's address in the overlay
	struct addr overlay6;
};

enum local_kind {
	LOCAL_NODE = 1,    // an address of this host, serving node ports
	LOCAL_SERVICE = 2, // a service address that this host answers itself
};

enum prefix_kind {
	PREFIX_PODS = 1,
	PREFIX_SERVICES = 2,
};

struct prefix_key {
	__u32 bits; // of 128; for IPv4 96 more than its own
	struct addr addr;
};

// remote is the way to a prefix of another node's pods through the overlay.
struct remote {
	struct addr node;
	__u32 ifindex; // of the overlay's device
	__u32 mtu;     // what a packet may have, without its link header
};

struct fragment_key {
	struct addr saddr;
	struct addr daddr;
	__be32 id;
	__u32 proto;
};

struct ports {
	__be16 sport;
	__be16 dport;
};

// socket_key finds what a socket's connection was translated from or to.
struct socket_key {
	__u64 cookie;
	struct addr addr;
	__be16 port;
	__u16 dir; // 0: backend to service, 1: service to backend
	__u32 pad;
};

struct socket_peer {
	struct addr addr;
	__be16 port;
	__u16 pad;
	__u32 service;
};

// class_key finds the class of an address, by longest prefix. The sets of each run of
// Kombi have an epoch in their first bits, and with it classes of their own.
#define EPOCH_SHIFT 28

struct class_key {
	__u32 bits; // 32 for the epoch and those of the address
	__u32 epoch;
	struct addr addr;
};

// rule_key finds what policy says, by longest prefix. The first 64 bits are a rule
// for all traffic with the class, then come the protocol and the port.
struct rule_key {
	__u32 bits;
	__u32 set;
	__u32 class; // of the peer's address; 0: it has none
	__be16 proto;
	__be16 port;
};

struct rule {
	__u32 allow;
	__u32 policy; // number of the policy that decided
};

// connection is what is remembered of a flow of a pod with policy, for both of its
// directions; low and high are its ends in the order of their addresses and ports.
struct connection_key {
	struct addr low;
	struct addr high;
	__be16 low_port;
	__be16 high_port;
	__u32 proto;
};

#define CONN_FROM_HIGH 1 // the high end opened it
#define CONN_CLOSED 2
#define CONN_EITHER 4 // either end may have opened it: its beginning was not seen

struct connection {
	__u32 flags;
	__u32 seen;
	__u32 egress;  // generation of policy in which its opener was found allowed, or 0
	__u32 ingress; // the same for its other end
};

struct counter {
	__u64 packets;
	__u64 bytes;
};
