// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// ICMP errors quote the packet they are about as it was after translation.
// The one who sent it must see the quote as it was before.
#pragma once

#include "flow.h"

// restore_quote undoes the translation of zone in the quoted packet and
// addresses the error to the flow's origin. Returns 1 if it did, 0 if there is
// nothing to undo, -1 if the packet could not be changed.
static __always_inline int restore_quote(struct __sk_buff *skb, struct packet *p, __u8 zone)
{
	__u32 at = p->l4 + 8, l4 = at + 20;
	struct iphdr4 ip;
	struct ports ports;
	struct tuple reply = {.zone = zone};
	struct flow *f, was;
	__be32 before[2], after[2];
	__be32 outer_before[2] = {p->t.saddr, p->t.daddr};
	__be32 outer_after[2];
	bool echo;

	if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) < 0 || ip.ver_ihl != 0x45)
		return 0;
	echo = ip.proto == IPPROTO_ICMP;
	if (echo)
		l4 += 4;
	else if (ip.proto != IPPROTO_TCP && ip.proto != IPPROTO_UDP)
		return 0;
	if (bpf_skb_load_bytes(skb, l4, &ports, sizeof(ports)) < 0)
		return 0;
	if (echo)
		ports.dport = 0;
	reply.saddr = ip.daddr;
	reply.daddr = ip.saddr;
	reply.sport = ports.dport;
	reply.dport = ports.sport;
	reply.proto = ip.proto;
	// What answers the quoted packet is turned into the answer to the packet as it was sent.
	f = bpf_map_lookup_elem(&flows, &reply);
	if (!f)
		return 0;
	was = *f;

	before[0] = ip.saddr;
	before[1] = ip.daddr;
	after[0] = was.daddr;
	after[1] = was.saddr;
	// The quoted header's own checksum keeps its sum, and so the ICMP checksum, the same.
	if (bpf_l3_csum_replace(skb, at + 10, 0, bpf_csum_diff(before, 8, after, 8, 0), 0) < 0 ||
	    bpf_skb_store_bytes(skb, at + 12, after, 8, 0) < 0)
		return -1;
	if (ports.sport != was.dport &&
	    (bpf_l4_csum_replace(skb, p->l4 + 2, ports.sport, was.dport, 2) < 0 ||
	     bpf_skb_store_bytes(skb, l4, &was.dport, 2, 0) < 0))
		return -1;
	if (!echo && ports.dport != was.sport &&
	    (bpf_l4_csum_replace(skb, p->l4 + 2, ports.dport, was.sport, 2) < 0 ||
	     bpf_skb_store_bytes(skb, l4 + 2, &was.sport, 2, 0) < 0))
		return -1;

	// Errors from the backend itself come from the service; those of a router in between do not.
	outer_after[0] = p->t.saddr == ip.daddr ? was.saddr : p->t.saddr;
	outer_after[1] = was.daddr;
	if (bpf_l3_csum_replace(skb, IP_CSUM, 0, bpf_csum_diff(outer_before, 8, outer_after, 8, 0), 0) < 0 ||
	    bpf_skb_store_bytes(skb, IP_SADDR, outer_after, 8, 0) < 0)
		return -1;
	p->t.saddr = outer_after[0];
	p->t.daddr = outer_after[1];
	return 1;
}
