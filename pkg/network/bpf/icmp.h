// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// ICMP errors quote the packet they are about as it was after translation.
// The one who sent it must see the quote as it was before.
#pragma once

#include "flow.h"

// quote is the start of the packet that an error is about.
struct quote {
	struct tuple t;
	__u32 header; // offset of its IP header
	__u32 ports;  // and of its ports or echo identifier
	bool echo;
};

// read_quote returns false if the quoted packet has no ports to know it by.
static __always_inline bool read_quote(struct __sk_buff *skb, const struct packet *p, struct quote *q)
{
	struct ports ports;

	q->header = p->l4 + 8;
	if (p->v6) {
		struct iphdr6 ip;

		if (bpf_skb_load_bytes(skb, q->header, &ip, sizeof(ip)) < 0)
			return false;
		q->t.saddr = ip.saddr;
		q->t.daddr = ip.daddr;
		q->t.proto = ip.next;
		q->ports = q->header + sizeof(ip);
	} else {
		struct iphdr4 ip;

		if (bpf_skb_load_bytes(skb, q->header, &ip, sizeof(ip)) < 0 || ip.ver_ihl != 0x45)
			return false;
		q->t.saddr = addr_from4(ip.saddr);
		q->t.daddr = addr_from4(ip.daddr);
		q->t.proto = ip.proto;
		q->ports = q->header + sizeof(ip);
	}
	q->echo = q->t.proto == (p->v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
	if (q->echo)
		q->ports += 4;
	else if (q->t.proto != IPPROTO_TCP && q->t.proto != IPPROTO_UDP)
		return false;
	if (bpf_skb_load_bytes(skb, q->ports, &ports, sizeof(ports)) < 0)
		return false;
	q->t.sport = ports.sport;
	q->t.dport = q->echo ? 0 : ports.dport;
	return true;
}

// restore_quote undoes the translation of zone in the quoted packet and
// addresses the error to the flow's origin. Returns 1 if it did, 0 if there is
// nothing to undo, -1 if the packet could not be changed.
static __always_inline int restore_quote(struct __sk_buff *skb, struct packet *p, __u8 zone)
{
	struct quote q = {};
	struct tuple reply;
	struct flow *f, was;
	struct addr before[2], after[2];
	__u32 sum_at = p->l4 + 2;
	__s64 diff;

	if (!read_quote(skb, p, &q))
		return 0;
	// What answers the quoted packet is turned into the answer to the packet as it was sent.
	reverse(&q.t, &reply);
	reply.zone = zone;
	f = bpf_map_lookup_elem(&flows, &reply);
	if (!f)
		return 0;
	was = *f;

	before[0] = q.t.saddr;
	before[1] = q.t.daddr;
	after[0] = was.daddr;
	after[1] = was.saddr;
	if (store_addresses(skb, p->v6, q.header, before, after, &diff) < 0)
		return -1;
	// In IPv4 the quoted header's own checksum keeps its sum, and so that of ICMP, the same.
	if (p->v6 && bpf_l4_csum_replace(skb, sum_at, 0, diff, 0) < 0)
		return -1;
	if (q.t.sport != was.dport && (bpf_l4_csum_replace(skb, sum_at, q.t.sport, was.dport, 2) < 0 ||
				       bpf_skb_store_bytes(skb, q.ports, &was.dport, 2, 0) < 0))
		return -1;
	if (!q.echo && q.t.dport != was.sport &&
	    (bpf_l4_csum_replace(skb, sum_at, q.t.dport, was.sport, 2) < 0 ||
	     bpf_skb_store_bytes(skb, q.ports + 2, &was.sport, 2, 0) < 0))
		return -1;

	// Errors from the backend itself come from the service; those of a router in between do not.
	before[0] = p->t.saddr;
	before[1] = p->t.daddr;
	after[0] = addr_equal(&p->t.saddr, &q.t.daddr) ? was.saddr : p->t.saddr;
	after[1] = was.daddr;
	if (store_addresses(skb, p->v6, ETH_HLEN, before, after, &diff) < 0)
		return -1;
	if (p->v6 && bpf_l4_csum_replace(skb, sum_at, 0, diff, BPF_F_PSEUDO_HDR) < 0)
		return -1;
	p->t.saddr = after[0];
	p->t.daddr = after[1];
	return 1;
}
