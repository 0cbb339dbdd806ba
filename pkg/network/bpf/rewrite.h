// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Changing packets of both families, with their checksums.
#pragma once

#include "packet.h"

// store_addresses writes the source and the destination of the IP header, which
// at points to, and returns what that does to sums over them in diff. In IPv4 the
// header's own checksum follows.
static __always_inline int store_addresses(struct __sk_buff *skb, bool v6, __u32 header, const struct addr *before,
					   const struct addr *after, __s64 *diff)
{
	// The first 12 bytes of mapped addresses do not change, so neither does the sum.
	*diff = bpf_csum_diff((__be32 *)before, 32, (__be32 *)after, 32, 0);
	if (v6)
		return bpf_skb_store_bytes(skb, header + 8, after, 32, 0);
	{
		__be32 pair[2] = {after[0].w[3], after[1].w[3]};

		if (bpf_l3_csum_replace(skb, header + 10, 0, *diff, 0) < 0)
			return -1;
		return bpf_skb_store_bytes(skb, header + 12, pair, sizeof(pair), 0);
	}
}

// rewrite gives the packet the addresses and ports of want, and keeps p in step.
static __always_inline int rewrite(struct __sk_buff *skb, struct packet *p, const struct flow *want)
{
	struct addr before[2] = {p->t.saddr, p->t.daddr};
	struct addr after[2] = {want->saddr, want->daddr};
	__u32 sum_at = 0, sport_at = p->l4, dport_at = p->l4 + 2;
	__u64 flags = 0, pseudo = BPF_F_PSEUDO_HDR;
	__s64 diff;

	if (store_addresses(skb, p->v6, ETH_HLEN, before, after, &diff) < 0)
		return -1;
	switch (p->t.proto) {
	case IPPROTO_TCP:
		sum_at = p->l4 + 16;
		break;
	case IPPROTO_UDP:
		sum_at = p->l4 + 6;
		flags = BPF_F_MARK_MANGLED_0;
		break;
	case IPPROTO_ICMP:
		pseudo = 0; // its sum does not count the addresses
		diff = 0;
		sum_at = p->l4 + 2;
		sport_at = dport_at = p->l4 + 4;
		break;
	case IPPROTO_ICMPV6:
		sum_at = p->l4 + 2;
		sport_at = dport_at = p->l4 + 4;
		break;
	}
	if (!p->later_part) {
		if (pseudo && bpf_l4_csum_replace(skb, sum_at, 0, diff, pseudo | flags) < 0)
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

	p->ttl--;
	if (p->v6)
		return bpf_skb_store_bytes(skb, IP6_HOPS, &p->ttl, 1, 0);
	// ttl and proto share the 16-bit word that the checksum counts.
	if (bpf_skb_load_bytes(skb, IP_TTL, &before, 2) < 0)
		return -1;
	after = bpf_htons(bpf_ntohs(before) - 0x100);
	if (bpf_l3_csum_replace(skb, IP_CSUM, before, after, 2) < 0 ||
	    bpf_skb_store_bytes(skb, IP_TTL, &after, 2, 0) < 0)
		return -1;
	return 0;
}
