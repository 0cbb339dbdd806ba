// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Reading and rewriting IPv4 packets.
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

#define IP_SADDR (ETH_HLEN + 12)
#define IP_DADDR (ETH_HLEN + 16)
#define IP_CSUM (ETH_HLEN + 10)
#define IP_TTL (ETH_HLEN + 8)

enum packet_kind {
	PACKET_OTHER = 0,  // not IPv4, or not for us to look at
	PACKET_FLOW,       // has ports (or an echo identifier)
	PACKET_PLAIN,      // IPv4 without ports
	PACKET_ICMP_ERROR, // reports about a packet of another flow
};

struct packet {
	struct tuple t;
	__u32 l4;        // offset of the transport header
	__u8 tcp_flags;
	__u8 ttl;
	__u8 later_part; // a fragment without the transport header
	__u8 pad;
};

static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	struct iphdr4 ip;
	struct ports ports = {};
	__u32 ihl;
	__u16 frag;

	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present)
		return PACKET_OTHER;
	if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)) < 0)
		return PACKET_OTHER;
	ihl = (ip.ver_ihl & 0xf) * 4;
	if (ihl < 20)
		return PACKET_OTHER;

	p->t.saddr = ip.saddr;
	p->t.daddr = ip.daddr;
	p->t.proto = ip.proto;
	p->l4 = ETH_HLEN + ihl;
	p->ttl = ip.ttl;

	frag = bpf_ntohs(ip.frag);
	if (frag & 0x1fff) {
		struct fragment_key key = {.saddr = ip.saddr, .daddr = ip.daddr, .id = ip.id, .proto = ip.proto};
		struct ports *known = bpf_map_lookup_elem(&fragments, &key);

		p->later_part = 1;
		if (!known)
			return PACKET_PLAIN;
		p->t.sport = known->sport;
		p->t.dport = known->dport;
		return PACKET_FLOW;
	}

	// What is cut off has no ports, but still a source to check.
	switch (ip.proto) {
	case IPPROTO_TCP: {
		__u8 flags = 0;

		if (bpf_skb_load_bytes(skb, p->l4, &ports, sizeof(ports)) < 0 ||
		    bpf_skb_load_bytes(skb, p->l4 + 13, &flags, 1) < 0)
			return PACKET_PLAIN;
		p->tcp_flags = flags;
		break;
	}
	case IPPROTO_UDP:
		if (bpf_skb_load_bytes(skb, p->l4, &ports, sizeof(ports)) < 0)
			return PACKET_PLAIN;
		break;
	case IPPROTO_ICMP: {
		struct {
			__u8 type, code;
			__u16 csum;
			__be16 id, seq;
		} icmp;

		if (bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)) < 0)
			return PACKET_PLAIN;
		switch (icmp.type) {
		case 8: // echo request
			ports.sport = icmp.id;
			break;
		case 0: // echo reply
			ports.dport = icmp.id;
			break;
		case 3: // destination unreachable, and "fragmentation needed"
		case 11: // time exceeded
		case 12: // parameter problem
			return PACKET_ICMP_ERROR;
		default:
			return PACKET_PLAIN;
		}
		break;
	}
	default:
		return PACKET_PLAIN;
	}
	p->t.sport = ports.sport;
	p->t.dport = ports.dport;

	if (frag & 0x2000) {
		struct fragment_key key = {.saddr = ip.saddr, .daddr = ip.daddr, .id = ip.id, .proto = ip.proto};

		bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	}
	return PACKET_FLOW;
}

// is_syn tells whether the packet opens a TCP connection.
static __always_inline bool is_syn(const struct packet *p)
{
	return p->t.proto == IPPROTO_TCP && !p->later_part && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN;
}

// rewrite gives the packet the addresses and ports of want, and keeps p in step.
static __always_inline int rewrite(struct __sk_buff *skb, struct packet *p, const struct flow *want)
{
	__be32 before[2] = {p->t.saddr, p->t.daddr};
	__be32 after[2] = {want->saddr, want->daddr};
	__u32 sum_at = 0, sport_at = p->l4, dport_at = p->l4 + 2;
	__u64 flags = 0;
	__s64 diff = bpf_csum_diff(before, sizeof(before), after, sizeof(after), 0);

	switch (p->t.proto) {
	case IPPROTO_TCP:
		sum_at = p->l4 + 16;
		break;
	case IPPROTO_UDP:
		sum_at = p->l4 + 6;
		flags = BPF_F_MARK_MANGLED_0;
		break;
	case IPPROTO_ICMP:
		sum_at = p->l4 + 2;
		sport_at = dport_at = p->l4 + 4;
		break;
	}
	if (!p->later_part) {
		if (p->t.proto != IPPROTO_ICMP &&
		    bpf_l4_csum_replace(skb, sum_at, 0, diff, BPF_F_PSEUDO_HDR | flags) < 0)
			return -1;
		if (p->t.sport != want->sport) {
			if (bpf_l4_csum_replace(skb, sum_at, p->t.sport, want->sport, 2 | flags) < 0 ||
			    bpf_skb_store_bytes(skb, sport_at, &want->sport, 2, 0) < 0)
				return -1;
		}
		if (p->t.dport != want->dport) {
			if (bpf_l4_csum_replace(skb, sum_at, p->t.dport, want->dport, 2 | flags) < 0 ||
			    bpf_skb_store_bytes(skb, dport_at, &want->dport, 2, 0) < 0)
				return -1;
		}
	}
	if (bpf_l3_csum_replace(skb, IP_CSUM, 0, diff, 0) < 0 ||
	    bpf_skb_store_bytes(skb, IP_SADDR, after, sizeof(after), 0) < 0)
		return -1;
	p->t.saddr = want->saddr;
	p->t.daddr = want->daddr;
	p->t.sport = want->sport;
	p->t.dport = want->dport;
	return 0;
}

// decrement_ttl does for redirected packets what the stack does for forwarded ones.
static __always_inline int decrement_ttl(struct __sk_buff *skb, struct packet *p)
{
	__be16 before, after;

	// ttl and proto share the 16-bit word that the checksum counts.
	if (bpf_skb_load_bytes(skb, IP_TTL, &before, 2) < 0)
		return -1;
	after = bpf_htons(bpf_ntohs(before) - 0x100);
	if (bpf_l3_csum_replace(skb, IP_CSUM, before, after, 2) < 0 ||
	    bpf_skb_store_bytes(skb, IP_TTL, &after, 2, 0) < 0)
		return -1;
	p->ttl--;
	return 0;
}
