// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Reading packets of both families.
#pragma once

#include "maps.h"

struct iphdr4 {
	__u8 ver_ihl;
	__u8 tos;
	__be16 len;
	__be16 id;
	__be16 frag;
	__u8 ttl;
	__u8 proto;
	__u16 csum;
	__be32 saddr;
	__be32 daddr;
};

struct iphdr6 {
	__be32 ver_flow;
	__be16 len;
	__u8 next;
	__u8 hops;
	struct addr saddr;
	struct addr daddr;
};

#define IP_SADDR (ETH_HLEN + 12)
#define IP_CSUM (ETH_HLEN + 10)
#define IP_TTL (ETH_HLEN + 8)
#define IP6_SADDR (ETH_HLEN + 8)
#define IP6_HOPS (ETH_HLEN + 7)

// Extension headers of IPv6 (RFC 8200, section 4).
#define NEXT_HOP_BY_HOP 0
#define NEXT_ROUTING 43
#define NEXT_FRAGMENT 44
#define NEXT_AUTH 51
#define NEXT_OPTIONS 60
#define MAX_EXTENSIONS 4

enum packet_kind {
	PACKET_OTHER = 0,  // not IP, or between neighbours only: the stack knows what to do
	PACKET_FLOW,       // has ports (or an echo identifier)
	PACKET_PLAIN,      // IP without ports
	PACKET_ICMP_ERROR, // reports about a packet of another flow
	PACKET_BAD,        // IPv6 that would be taken for IPv4
};

struct packet {
	struct tuple t;
	struct tuple asked; // t before it was turned back into what the client asked for; see reply
	__u32 l4;           // offset of the transport header
	__u8 tcp_flags;
	__u8 ttl;
	__u8 later_part; // a fragment without the transport header
	__u8 v6;
	__u8 reply; // asked is set
	__u8 pad[3];
};

// scratch holds the packet that a processor is looking at. On the stack the verifier
// would follow each of its values, and so each way through a program many times.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet);
} scratch SEC(".maps");

static __always_inline struct packet *new_packet(void)
{
	__u32 zero = 0;
	struct packet *p = bpf_map_lookup_elem(&scratch, &zero);

	if (p)
		__builtin_memset(p, 0, sizeof(*p));
	return p;
}

static __always_inline bool is_icmp(__u8 proto)
{
	return proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6;
}

// policy_tuple is the flow as the pods at its ends see it.
static __always_inline const struct tuple *policy_tuple(const struct packet *p)
{
	return p->reply ? &p->asked : &p->t;
}

struct icmp_echo {
	__u8 type, code;
	__u16 csum;
	__be16 id, seq;
};

// parse_icmp reads the identifier of an echo as the port of the one who asks.
static __always_inline int parse_icmp(struct __sk_buff *skb, const struct packet *p, struct ports *ports)
{
	struct icmp_echo icmp;

	if (bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)) < 0)
		return PACKET_PLAIN;
	if (p->v6) {
		switch (icmp.type) {
		case 128: // echo request
			ports->sport = icmp.id;
			return PACKET_FLOW;
		case 129: // echo reply
			ports->dport = icmp.id;
			return PACKET_FLOW;
		case 1: // destination unreachable
		case 2: // packet too big
		case 3: // time exceeded
		case 4: // parameter problem
			return PACKET_ICMP_ERROR;
		case 130: // listener queries, reports and ends,
		case 131:
		case 132:
		case 143:
		case 133: // routers, neighbours and redirects
		case 134:
		case 135:
		case 136:
		case 137:
			return PACKET_OTHER;
		}
		return PACKET_PLAIN;
	}
	switch (icmp.type) {
	case 8: // echo request
		ports->sport = icmp.id;
		return PACKET_FLOW;
	case 0: // echo reply
		ports->dport = icmp.id;
		return PACKET_FLOW;
	case 3: // destination unreachable, and "fragmentation needed"
	case 11: // time exceeded
	case 12: // parameter problem
		return PACKET_ICMP_ERROR;
	}
	return PACKET_PLAIN;
}

// parse_transport reads the ports. What is cut off has none, but still a source to check.
static __always_inline int parse_transport(struct __sk_buff *skb, struct packet *p, struct ports *ports)
{
	switch (p->t.proto) {
	case IPPROTO_TCP: {
		__u8 flags = 0;

		if (bpf_skb_load_bytes(skb, p->l4, ports, sizeof(*ports)) < 0 ||
		    bpf_skb_load_bytes(skb, p->l4 + 13, &flags, 1) < 0)
			return PACKET_PLAIN;
		p->tcp_flags = flags;
		return PACKET_FLOW;
	}
	case IPPROTO_UDP:
		return bpf_skb_load_bytes(skb, p->l4, ports, sizeof(*ports)) < 0 ? PACKET_PLAIN : PACKET_FLOW;
	case IPPROTO_ICMP:
		return p->v6 ? PACKET_PLAIN : parse_icmp(skb, p, ports);
	case IPPROTO_ICMPV6:
		return p->v6 ? parse_icmp(skb, p, ports) : PACKET_PLAIN;
	}
	return PACKET_PLAIN;
}

struct fragment {
	__be32 id;
	bool later; // has no transport header
	bool more;  // others follow
};

// parse4 reads the header and returns false if it is none.
static __always_inline bool parse4(struct __sk_buff *skb, struct packet *p, struct fragment *f)
{
	struct iphdr4 ip;
	__u32 ihl;
	__u16 frag;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) < 0)
		return false;
	ihl = (ip.ver_ihl & 0xf) * 4;
	if (ihl < 20)
		return false;
	p->t.saddr = addr_from4(ip.saddr);
	p->t.daddr = addr_from4(ip.daddr);
	p->t.proto = ip.proto;
	p->l4 = ETH_HLEN + ihl;
	p->ttl = ip.ttl;
	frag = bpf_ntohs(ip.frag);
	f->id = ip.id;
	f->later = frag & 0x1fff;
	f->more = frag & 0x2000;
	return true;
}

// parse6 reads the header and its extensions and returns false if it is none.
static __always_inline bool parse6(struct __sk_buff *skb, struct packet *p, struct fragment *f)
{
	struct iphdr6 ip;
	__u32 at = ETH_HLEN + sizeof(ip);
	__u8 next;

	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) < 0)
		return false;
	p->t.saddr = ip.saddr;
	p->t.daddr = ip.daddr;
	p->ttl = ip.hops;
	p->v6 = 1;
	next = ip.next;
	for (int i = 0; i < MAX_EXTENSIONS; i++) {
		struct {
			__u8 next, len;
			__be16 offset;
			__be32 id;
		} h;

		if (next != NEXT_HOP_BY_HOP && next != NEXT_ROUTING && next != NEXT_FRAGMENT && next != NEXT_AUTH &&
		    next != NEXT_OPTIONS)
			break;
		if (f->later || bpf_skb_load_bytes(skb, at, &h, sizeof(h)) < 0)
			break;
		switch (next) {
		case NEXT_FRAGMENT:
			f->id = h.id;
			f->later = h.offset & bpf_htons(0xfff8);
			f->more = h.offset & bpf_htons(1);
			at += 8;
			break;
		case NEXT_AUTH:
			at += (h.len + 2) * 4;
			break;
		default:
			at += (h.len + 1) * 8;
		}
		next = h.next;
	}
	p->t.proto = next;
	p->l4 = at;
	return true;
}

static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	struct ports ports = {};
	struct fragment f = {};
	int kind;

	if (skb->vlan_present)
		return PACKET_OTHER;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (!parse4(skb, p, &f))
			return PACKET_OTHER;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (!parse6(skb, p, &f))
			return PACKET_OTHER;
		if (addr_is4(&p->t.saddr) || addr_is4(&p->t.daddr))
			return PACKET_BAD;
	} else {
		return PACKET_OTHER;
	}

	if (f.later) {
		struct fragment_key key = {.saddr = p->t.saddr, .daddr = p->t.daddr, .id = f.id, .proto = p->t.proto};
		struct ports *known = bpf_map_lookup_elem(&fragments, &key);

		p->later_part = 1;
		if (!known)
			return PACKET_PLAIN;
		p->t.sport = known->sport;
		p->t.dport = known->dport;
		return PACKET_FLOW;
	}
	kind = parse_transport(skb, p, &ports);
	if (kind != PACKET_FLOW)
		return kind;
	p->t.sport = ports.sport;
	p->t.dport = ports.dport;
	if (f.more) {
		struct fragment_key key = {.saddr = p->t.saddr, .daddr = p->t.daddr, .id = f.id, .proto = p->t.proto};

		bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	}
	return PACKET_FLOW;
}

// is_syn tells whether the packet opens a TCP connection.
static __always_inline bool is_syn(const struct packet *p)
{
	return p->t.proto == IPPROTO_TCP && !p->later_part && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}
