// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Traffic of pods leaves the node under the node's own address.
#pragma once

#include "service.h"

// masquerade gives an outgoing packet the device's address.
// owner says that the packet comes from the node itself: it keeps its ports
// unless a pod's flow already uses them.
static __always_inline int masquerade(struct __sk_buff *skb, struct packet *p, const struct addr *addr, bool owner)
{
	struct flow *f, want = {};
	struct tuple reply;
	struct flow *other;

	p->t.zone = ZONE_MASQ;
	f = bpf_map_lookup_elem(&flows, &p->t);
	if (f && (f->flags & FLOW_DIRECT) && !is_syn(p) && !flow_idle(f, p->t.proto)) {
		flow_touch(p, f);
		return NOT_TRANSLATED;
	}
	if (f && !(f->flags & (FLOW_REPLY | FLOW_DIRECT)) && addr_equal(&f->saddr, addr) && !(is_syn(p) && (f->flags & FLOW_CLOSED))) {
		// The other direction may have been forgotten under pressure; then start over.
		struct tuple back = {
			.saddr = f->daddr, .daddr = f->saddr, .sport = f->dport, .dport = f->sport,
			.proto = p->t.proto, .zone = ZONE_MASQ,
		};
		other = bpf_map_lookup_elem(&flows, &back);
		if (other && addr_equal(&other->daddr, &p->t.saddr) && other->dport == p->t.sport) {
			flow_touch(p, f);
			other->seen = f->seen;
			want = *f;
			goto apply;
		}
	}
	if (owner) {
		if (p->t.proto == IPPROTO_TCP && !is_syn(p))
			return NOT_TRANSLATED;
		reverse(&p->t, &reply);
		other = bpf_map_lookup_elem(&flows, &reply);
		if (!other || flow_idle(other, p->t.proto))
			return NOT_TRANSLATED;
	}
	if (p->later_part && p->t.proto != IPPROTO_UDP) {
		count_drop(DROP_FRAGMENT, skb->len);
		return DROPPED;
	}
	want.saddr = *addr;
	want.sport = p->t.sport;
	want.daddr = p->t.daddr;
	want.dport = p->t.dport;
	want.seen = now();
	if (choose_port(skb, &p->t, &want, true, !owner) < 0) {
		count_drop(DROP_NO_PORT, skb->len);
		return DROPPED;
	}
	if (flow_remember(&p->t, &want, false) < 0) {
		count_drop(DROP_MAP_FULL, skb->len);
		return DROPPED;
	}
apply:
	if (rewrite(skb, p, &want) < 0) {
		count_drop(DROP_REWRITE, skb->len);
		return DROPPED;
	}
	return TRANSLATED;
}

// unmasquerade turns an answer from outside back to the pod that asked.
static __always_inline int unmasquerade(struct __sk_buff *skb, struct packet *p)
{
	struct flow *f, want;

	p->t.zone = ZONE_MASQ;
	f = bpf_map_lookup_elem(&flows, &p->t);
	if (!f || !(f->flags & FLOW_REPLY) || is_syn(p))
		return NOT_TRANSLATED;
	flow_touch(p, f);
	want = *f;
	if (rewrite(skb, p, &want) < 0) {
		count_drop(DROP_REWRITE, skb->len);
		return DROPPED;
	}
	return TRANSLATED;
}

// remember_direct notes that an outside host opened a flow to the pod's own
// address, so that the answers are not masqueraded.
static __always_inline void remember_direct(const struct packet *p)
{
	struct tuple key;
	struct flow same = {}, *known;

	reverse(&p->t, &key);
	key.zone = ZONE_MASQ;
	known = bpf_map_lookup_elem(&flows, &key);
	if (known) {
		if (known->flags & FLOW_DIRECT)
			known->seen = now();
		if (!is_syn(p))
			return;
	}
	same.flags = FLOW_DIRECT;
	same.saddr = key.saddr;
	same.daddr = key.daddr;
	same.sport = key.sport;
	same.dport = key.dport;
	same.seen = now();
	bpf_map_update_elem(&flows, &key, &same, BPF_ANY);
}
