// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Remembered flows: looking them up, aging, and choosing ports for new ones.
#pragma once

#include "rewrite.h"

static __always_inline void reverse(const struct tuple *t, struct tuple *r)
{
	r->saddr = t->daddr;
	r->daddr = t->saddr;
	r->sport = t->dport;
	r->dport = t->sport;
	r->proto = t->proto;
	r->zone = t->zone;
	r->pad = 0;
}

// flow_idle tells whether a flow may be forgotten.
static __always_inline bool flow_idle(const struct flow *f, __u8 proto)
{
	__u32 age = now() - f->seen;

	if (proto == IPPROTO_TCP)
		return age > (f->flags & FLOW_CLOSED ? TCP_CLOSED : TCP_IDLE);
	return age > (proto == IPPROTO_UDP ? UDP_IDLE : ICMP_IDLE);
}

// flow_touch notes that the flow is in use, and marks both directions when TCP ends.
static __always_inline void flow_touch(const struct packet *p, struct flow *f)
{
	__u32 t = now();

	if (f->seen != t)
		f->seen = t;
	if (p->t.proto == IPPROTO_TCP && !p->later_part && (p->tcp_flags & (TCP_FIN | TCP_RST)) &&
	    !(f->flags & FLOW_CLOSED)) {
		struct tuple other = {
			.saddr = f->daddr,
			.daddr = f->saddr,
			.sport = f->dport,
			.dport = f->sport,
			.proto = p->t.proto,
			.zone = p->t.zone,
		};
		struct flow *o = bpf_map_lookup_elem(&flows, &other);

		f->flags |= FLOW_CLOSED;
		if (o)
			o->flags |= FLOW_CLOSED;
	}
}

// flow_remember stores a flow and, first, what its replies are turned into.
static __always_inline int flow_remember(const struct tuple *t, const struct flow *f, bool reply_too)
{
	if (reply_too) {
		struct tuple key = {
			.saddr = f->daddr,
			.daddr = f->saddr,
			.sport = f->dport,
			.dport = f->sport,
			.proto = t->proto,
			.zone = t->zone,
		};
		struct flow value = {
			.saddr = t->daddr,
			.daddr = t->saddr,
			.sport = t->dport,
			.dport = t->sport,
			.service = f->service,
			.seen = f->seen,
			.flags = FLOW_REPLY,
		};

		if (bpf_map_update_elem(&flows, &key, &value, BPF_ANY) < 0)
			return -1;
	}
	return bpf_map_update_elem(&flows, t, f, BPF_ANY) < 0 ? -1 : 0;
}

// port_taken_by_host asks whether a socket of the node itself would receive the replies.
static __always_inline bool port_taken_by_host(struct __sk_buff *skb, const struct tuple *reply)
{
	struct bpf_sock_tuple st = {};
	__u32 size = sizeof(st.ipv4);
	struct bpf_sock *sk;

	if (addr_is4(&reply->saddr)) {
		st.ipv4.saddr = reply->saddr.w[3];
		st.ipv4.daddr = reply->daddr.w[3];
		st.ipv4.sport = reply->sport;
		st.ipv4.dport = reply->dport;
	} else {
		size = sizeof(st.ipv6);
		__builtin_memcpy(st.ipv6.saddr, &reply->saddr, sizeof(reply->saddr));
		__builtin_memcpy(st.ipv6.daddr, &reply->daddr, sizeof(reply->daddr));
		st.ipv6.sport = reply->sport;
		st.ipv6.dport = reply->dport;
	}
	if (reply->proto == IPPROTO_TCP)
		sk = bpf_skc_lookup_tcp(skb, &st, size, BPF_F_CURRENT_NETNS, 0);
	else if (reply->proto == IPPROTO_UDP)
		sk = bpf_sk_lookup_udp(skb, &st, size, BPF_F_CURRENT_NETNS, 0);
	else
		return false;
	if (!sk)
		return false;
	bpf_sk_release(sk);
	return true;
}

#define PORT_TRIES 24

// choose_port finds a source port for f such that its replies can be told from
// those of all other flows, and reserves them. It keeps the port that f has if it can.
static __always_inline int choose_port(struct __sk_buff *skb, const struct tuple *t, struct flow *f, bool ask_host,
				       bool keep)
{
	__u32 span = (__u32)masquerade_to - masquerade_from + 1;
	bool echo = is_icmp(t->proto);
	struct flow value = {
		.saddr = t->daddr,
		.daddr = t->saddr,
		.sport = t->dport,
		.dport = t->sport,
		.service = f->service,
		.seen = f->seen,
		.flags = FLOW_REPLY,
	};
	struct tuple key = {
		.saddr = f->daddr,
		.daddr = f->saddr,
		.sport = f->dport,
		.dport = t->sport,
		.proto = t->proto,
		.zone = t->zone,
	};

	for (int i = 0; i < PORT_TRIES; i++) {
		struct flow *other;

		if (i > 0 || !keep)
			key.dport = bpf_htons(masquerade_from + bpf_get_prandom_u32() % span);
		other = bpf_map_lookup_elem(&flows, &key);
		if (other) {
			bool same = addr_equal(&other->daddr, &t->saddr) && other->dport == t->sport &&
				    addr_equal(&other->saddr, &t->daddr) && other->sport == t->dport;
			if (!same && !flow_idle(other, t->proto))
				continue;
			if (bpf_map_update_elem(&flows, &key, &value, BPF_ANY) < 0)
				return -1;
		} else {
			if (ask_host && !echo && port_taken_by_host(skb, &key))
				continue;
			// Another processor may have taken it since.
			if (bpf_map_update_elem(&flows, &key, &value, BPF_NOEXIST) < 0)
				continue;
		}
		f->sport = key.dport;
		return 0;
	}
	return -1;
}
