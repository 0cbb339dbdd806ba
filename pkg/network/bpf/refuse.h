// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Answers to traffic that nobody serves: a TCP reset, or ICMP "port unreachable".
#pragma once

#include "packet.h"

// send_back swaps the sender and the receiver on the link and in the IP header.
static __always_inline int send_back(struct __sk_buff *skb, const struct packet *p)
{
	__u8 mac[12], swapped[12];
	struct addr addrs[2] = {p->t.daddr, p->t.saddr};
	__be32 four[2] = {p->t.daddr.w[3], p->t.saddr.w[3]};

	if (bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)) < 0)
		return -1;
	__builtin_memcpy(swapped, mac + 6, 6);
	__builtin_memcpy(swapped + 6, mac, 6);
	if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0) < 0)
		return -1;
	if (p->v6)
		return bpf_skb_store_bytes(skb, IP6_SADDR, addrs, sizeof(addrs), 0);
	return bpf_skb_store_bytes(skb, IP_SADDR, four, sizeof(four), 0);
}

// refuse_tcp turns the packet into the reset that answers it. The length and the
// options stay, so that the checksum can be carried over whatever state it is in.
static __always_inline int refuse_tcp(struct __sk_buff *skb, struct packet *p)
{
	struct {
		__be16 sport, dport;
		__be32 seq, ack;
		__be16 flags;
	} h;
	__be16 ports[2], flags;
	__be32 seq = 0, ack = 0;
	__u32 sum_at = p->l4 + 16;

	if (p->tcp_flags & TCP_RST)
		return -1;
	if (bpf_skb_load_bytes(skb, p->l4, &h, 14) < 0)
		return -1;
	if (p->tcp_flags & TCP_ACK) {
		seq = h.ack;
		flags = bpf_htons((bpf_ntohs(h.flags) & 0xf000) | TCP_RST);
	} else {
		__u32 len = skb->len - p->l4 - (bpf_ntohs(h.flags) >> 12) * 4;

		if (p->tcp_flags & TCP_SYN)
			len++;
		if (p->tcp_flags & TCP_FIN)
			len++;
		ack = bpf_htonl(bpf_ntohl(h.seq) + len);
		flags = bpf_htons((bpf_ntohs(h.flags) & 0xf000) | TCP_RST | TCP_ACK);
	}
	ports[0] = h.dport;
	ports[1] = h.sport;
	if (bpf_l4_csum_replace(skb, sum_at, h.seq, seq, 4) < 0 ||
	    bpf_l4_csum_replace(skb, sum_at, h.ack, ack, 4) < 0 ||
	    bpf_l4_csum_replace(skb, sum_at, h.flags, flags, 2) < 0)
		return -1;
	h.seq = seq;
	h.ack = ack;
	h.flags = flags;
	h.sport = ports[0];
	h.dport = ports[1];
	if (bpf_skb_store_bytes(skb, p->l4, &h, 14, 0) < 0)
		return -1;
	return send_back(skb, p);
}

static __always_inline __u16 fold(__s64 sum)
{
	__u32 s = sum;

	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return ~s;
}

// An IP header without options or extensions, and the start of what follows.
#define QUOTE4 28
#define QUOTE6 48

struct icmp_answer4 {
	struct iphdr4 ip;
	__u8 type, code;
	__u16 csum;
	__u32 unused;
};

struct icmp_answer6 {
	struct iphdr6 ip;
	__u8 type, code;
	__u16 csum;
	__u32 unused;
};

// put_answer makes room for the answer between the link header and the quote.
static __always_inline int put_answer(struct __sk_buff *skb, const void *answer, __u32 size, __u32 quote)
{
	__u8 mac[14], swapped[14];

	if (bpf_skb_load_bytes(skb, 0, mac, sizeof(mac)) < 0 || bpf_skb_change_tail(skb, ETH_HLEN + quote, 0) < 0 ||
	    bpf_skb_adjust_room(skb, size, BPF_ADJ_ROOM_MAC, 0) < 0)
		return -1;
	__builtin_memcpy(swapped, mac + 6, 6);
	__builtin_memcpy(swapped + 6, mac, 6);
	__builtin_memcpy(swapped + 12, mac + 12, 2);
	if (bpf_skb_store_bytes(skb, 0, swapped, sizeof(swapped), 0) < 0 ||
	    bpf_skb_store_bytes(skb, ETH_HLEN, answer, size, 0) < 0)
		return -1;
	return 0;
}

static __always_inline int refuse_icmp4(struct __sk_buff *skb, struct packet *p)
{
	__u8 quote[QUOTE4];
	struct icmp_answer4 a = {
		.ip = {
			.ver_ihl = 0x45,
			.len = bpf_htons(sizeof(a) + QUOTE4),
			.ttl = 64,
			.proto = IPPROTO_ICMP,
			.saddr = p->t.daddr.w[3],
			.daddr = p->t.saddr.w[3],
		},
		.type = 3,
		.code = 3,
	};

	if (p->l4 != ETH_HLEN + 20 || p->later_part || bpf_skb_load_bytes(skb, ETH_HLEN, quote, sizeof(quote)) < 0)
		return -1;
	a.ip.csum = fold(bpf_csum_diff(0, 0, (__be32 *)&a.ip, sizeof(a.ip), 0));
	a.csum = fold(bpf_csum_diff(0, 0, (__be32 *)quote, sizeof(quote),
				    bpf_csum_diff(0, 0, (__be32 *)&a.type, 8, 0)));
	return put_answer(skb, &a, sizeof(a), QUOTE4);
}

static __always_inline int refuse_icmp6(struct __sk_buff *skb, struct packet *p)
{
	__u8 quote[QUOTE6];
	struct icmp_answer6 a = {
		.ip = {
			.ver_flow = bpf_htonl(0x60000000),
			.len = bpf_htons(8 + QUOTE6),
			.next = IPPROTO_ICMPV6,
			.hops = 64,
			.saddr = p->t.daddr,
			.daddr = p->t.saddr,
		},
		.type = 1,
		.code = 4,
	};
	__be32 rest[2] = {bpf_htonl(8 + QUOTE6), bpf_htonl(IPPROTO_ICMPV6)}; // of the pseudo header
	__s64 sum;

	if (p->l4 != ETH_HLEN + 40 || p->later_part || bpf_skb_load_bytes(skb, ETH_HLEN, quote, sizeof(quote)) < 0)
		return -1;
	sum = bpf_csum_diff(0, 0, (__be32 *)&a.ip.saddr, 32, 0);
	sum = bpf_csum_diff(0, 0, rest, sizeof(rest), sum);
	sum = bpf_csum_diff(0, 0, (__be32 *)&a.type, 8, sum);
	a.csum = fold(bpf_csum_diff(0, 0, (__be32 *)quote, sizeof(quote), sum));
	return put_answer(skb, &a, sizeof(a), QUOTE6);
}

static __always_inline int refuse_icmp(struct __sk_buff *skb, struct packet *p)
{
	return p->v6 ? refuse_icmp6(skb, p) : refuse_icmp4(skb, p);
}

// refuse answers the packet through the device it came from.
static __always_inline int refuse(struct __sk_buff *skb, struct packet *p)
{
	int err = p->t.proto == IPPROTO_TCP && !p->later_part ? refuse_tcp(skb, p) : refuse_icmp(skb, p);

	count_drop(DROP_REFUSED, skb->len);
	if (err < 0)
		return TC_ACT_SHOT;
	return bpf_redirect(skb->ifindex, 0);
}
