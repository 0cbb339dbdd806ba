// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Network policy: whether a pod may have a connection. The decision is about who
// opened it; packets of both directions live by it.
#pragma once

#include "icmp.h"

#define RULE_BITS 96 // of rule_key: set, class, protocol and port

enum direction {
	INGRESS = 0,
	EGRESS = 1,
};

// policy_rule asks the set about a peer. Peers without a class, and those whose class
// means nothing to the set, have the set's rules for class 0. Nothing found means that
// user space broke its promise, and nothing is allowed.
static __always_inline bool policy_rule(__u32 set, const struct addr *peer, __u8 proto, __be16 port)
{
	struct class_key ckey = {.bits = 160, .epoch = set >> EPOCH_SHIFT, .addr = *peer};
	struct rule_key key = {.bits = RULE_BITS, .set = set, .proto = bpf_htons(proto), .port = port};
	__u32 *class = bpf_map_lookup_elem(&classes, &ckey);
	struct rule *r = 0;

	if (class && *class) {
		key.class = *class;
		r = bpf_map_lookup_elem(&rules, &key);
		key.class = 0;
	}
	if (!r)
		r = bpf_map_lookup_elem(&rules, &key);
	return r && r->allow;
}

// policy_opens tells whether the pod may have a connection that was opened in the
// direction opened. The node itself always reaches its pods.
static __always_inline bool policy_opens(const struct endpoint *ep, __u8 opened, const struct addr *peer, __u8 proto,
					 __be16 port)
{
	__u32 set = opened == EGRESS ? ep->egress : ep->ingress;

	return !set || (opened == INGRESS && local_kind(peer)) || policy_rule(set, peer, proto, port);
}

static __always_inline __u32 policy_generation(void)
{
	__u32 zero = 0;
	__u32 *g = bpf_map_lookup_elem(&counters, &zero);

	return g ? *g : 0;
}

// connection_end orders the ends. It returns true if the packet comes from the low one.
static __always_inline bool connection_end(const struct tuple *t, struct connection_key *k)
{
	__u64 from[2], to[2];
	bool low;

	__builtin_memcpy(from, &t->saddr, sizeof(from));
	__builtin_memcpy(to, &t->daddr, sizeof(to));
	if (from[0] != to[0])
		low = from[0] < to[0];
	else if (from[1] != to[1])
		low = from[1] < to[1];
	else
		low = t->sport <= t->dport;
	k->proto = t->proto;
	if (low) {
		k->low = t->saddr;
		k->high = t->daddr;
		k->low_port = t->sport;
		k->high_port = t->dport;
	} else {
		k->low = t->daddr;
		k->high = t->saddr;
		k->low_port = t->dport;
		k->high_port = t->sport;
	}
	return low;
}

static __always_inline bool connection_idle(const struct connection *c, __u8 proto)
{
	struct flow f = {.seen = c->seen, .flags = c->flags & CONN_CLOSED ? FLOW_CLOSED : 0};

	return flow_idle(&f, proto);
}

// judge decides about a packet of a known connection, and remembers it for this
// generation of policy.
static __always_inline bool judge(struct connection *c, const struct endpoint *ep, const struct tuple *t, __u8 dir,
				  bool opener)
{
	const struct addr *peer = dir == EGRESS ? &t->daddr : &t->saddr;
	__u8 opened = opener ? dir : !dir;
	__u32 *allowed_in = opened == EGRESS ? &c->egress : &c->ingress;
	__u32 gen = policy_generation();

	if (gen && *allowed_in == gen)
		return true;
	if (!policy_opens(ep, opened, peer, t->proto, opener ? t->dport : t->sport)) {
		if (!(c->flags & CONN_EITHER) ||
		    !policy_opens(ep, !opened, peer, t->proto, opener ? t->sport : t->dport))
			return false;
	}
	*allowed_in = gen;
	return true;
}

// first_port is where clients' ports begin on most systems.
#define FIRST_PORT 32768

// policy_allows decides about a packet of a pod: one that it sent (EGRESS) or is to
// receive (INGRESS).
static __always_inline bool policy_allows(const struct packet *p, const struct endpoint *ep, __u8 dir)
{
	const struct tuple *t = policy_tuple(p);
	struct connection_key key = {};
	struct connection *c, fresh = {};
	struct addr itself;
	bool low, opener = true;

	if (!ep->ingress && !ep->egress)
		return true;
	// A pod always reaches itself.
	itself = hairpin(p->v6);
	if (addr_equal(&t->saddr, &t->daddr) || addr_equal(&t->saddr, &itself) || addr_equal(&t->daddr, &itself))
		return true;

	low = connection_end(t, &key);
	c = bpf_map_lookup_elem(&connections, &key);
	if (c && !connection_idle(c, t->proto)) {
		opener = low == !(c->flags & CONN_FROM_HIGH);
		// Otherwise the ports are being used again.
		if (!is_syn(p) || (opener && !(c->flags & CONN_CLOSED))) {
			bool was_allowed = dir == (opener ? EGRESS : INGRESS) ? c->egress : c->ingress;

			if (judge(c, ep, t, dir, opener)) {
				__u32 n = now();

				if (c->seen != n)
					c->seen = n;
				if (t->proto == IPPROTO_TCP && !p->later_part && (p->tcp_flags & (TCP_FIN | TCP_RST)))
					c->flags |= CONN_CLOSED;
				return true;
			}
			// What answers nothing that was let through may be a question of its own.
			if (opener || was_allowed || t->proto == IPPROTO_TCP)
				return false;
		}
		opener = true;
	} else if (t->proto == IPPROTO_TCP && !p->later_part && !is_syn(p)) {
		// A connection that began before the policy, or was forgotten under pressure.
		bool from = bpf_ntohs(t->sport) >= FIRST_PORT, to = bpf_ntohs(t->dport) >= FIRST_PORT;

		if (from == to)
			fresh.flags = CONN_EITHER;
		else
			opener = from;
	}
	if (low != opener)
		fresh.flags |= CONN_FROM_HIGH;
	fresh.seen = now();
	if (!judge(&fresh, ep, t, dir, opener))
		return false;
	return bpf_map_update_elem(&connections, &key, &fresh, BPF_ANY) == 0;
}

// quotes_connection tells whether an error is about a connection that policy knows.
static __always_inline bool quotes_connection(struct __sk_buff *skb, const struct packet *p)
{
	struct connection_key key = {};
	struct quote q = {};

	if (!read_quote(skb, p, &q))
		return false;
	connection_end(&q.t, &key);
	return bpf_map_lookup_elem(&connections, &key) != 0;
}
