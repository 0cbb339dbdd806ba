// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The types that programs and maps share. Addresses and ports are in network
// byte order everywhere; times are seconds of the monotonic clock.
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_ARP 0x0806

#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17

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

// HAIRPIN is the pod's gateway. A pod that reaches itself through a service
// sees this source, because it would refuse packets from its own address.
#define HAIRPIN bpf_htonl(0xA9FE0101) // 169.254.1.1

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
	DROP_REASONS,
};

// tuple identifies a flow in one direction, as its packets look before translation.
struct tuple {
	__be32 saddr;
	__be32 daddr;
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
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 service; // id of the service, or 0
	__u32 seen;
	__u32 flags;
};

struct service_key {
	__be32 addr; // 0: any address of this node
	__be16 port;
	__u8 proto;
	__u8 scope;
};

#define SERVICE_DROP 1 // without backends: drop instead of refuse

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
	__be32 addr;
	__be16 port;
	__u16 flags;
};

// member_key exists for each backend of a service, to ask whether it still is one.
struct member_key {
	__u32 service;
	__be32 addr;
	__be16 port;
	__u16 pad;
};

struct affinity_key {
	__u64 client; // address, or cookie of the network namespace with the top bit set
	__u32 service;
	__u32 pad;
};

struct affinity {
	__be32 addr;
	__be16 port;
	__u16 pad;
	__u32 seen;
};

// endpoint is a pod of this node.
struct endpoint {
	__u32 ifindex; // host side of the pair
	__u32 flags;
	__u8 mac[6];
	__u8 host_mac[6];
};

// device is a network device at which traffic enters and leaves the node.
struct device {
	__be32 masquerade;
	__u32 flags;
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
	__u32 bits;
	__be32 addr;
};

struct fragment_key {
	__be32 saddr;
	__be32 daddr;
	__be16 id;
	__u8 proto;
	__u8 pad;
};

struct ports {
	__be16 sport;
	__be16 dport;
};

// socket_key finds what a socket's connection was translated from or to.
struct socket_key {
	__u64 cookie;
	__be32 addr;
	__be16 port;
	__u16 dir; // 0: backend to service, 1: service to backend
};

struct socket_peer {
	__be32 addr;
	__be16 port;
	__u16 pad;
	__u32 service;
};

struct counter {
	__u64 packets;
	__u64 bytes;
};
