// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Finding services and choosing backends, for packets and sockets alike.
#pragma once

#include "flow.h"

static __always_inline struct service *service_find(const struct addr *addr, __be16 port, __u8 proto, __u8 scope, bool local)
{
	struct service_key key = {.addr = *addr, .port = port, .proto = proto, .scope = scope};
	struct service *s = bpf_map_lookup_elem(&services, &key);

	if (!s && local) {
		if (addr_is4(addr)) {
			key.addr.w[3] = 0;
		} else {
			struct addr any = {};

			key.addr = any;
		}
		s = bpf_map_lookup_elem(&services, &key);
	}
	return s;
}

static __always_inline bool is_member(__u32 service, const struct addr *addr, __be16 port)
{
	struct member_key key = {.service = service, .addr = *addr, .port = port};

	return bpf_map_lookup_elem(&members, &key) != 0;
}

// in_sources tells whether the service is there for the client.
static __always_inline bool in_sources(const struct service *s, const struct addr *client)
{
	struct source_key key = {.bits = 160, .service = s->id, .addr = *client};

	return !(s->flags & SERVICE_SOURCES) || bpf_map_lookup_elem(&sources, &key);
}

// service_pick chooses a backend for a new flow.
static __always_inline int service_pick(const struct service *s, const struct addr *client, struct backend *out)
{
	struct affinity_key akey = {.client = *client, .service = s->id};
	struct slot_key skey = {.service = s->id};
	struct backend *b;

	if (s->affinity) {
		struct affinity *a = bpf_map_lookup_elem(&affinities, &akey);

		if (a && now() - a->seen <= s->affinity && is_member(s->id, &a->addr, a->port)) {
			a->seen = now();
			out->addr = a->addr;
			out->port = a->port;
			return 0;
		}
	}
	if (!s->count)
		return -1;
	skey.index = bpf_get_prandom_u32() % s->count;
	b = bpf_map_lookup_elem(&slots, &skey);
	if (!b) {
		// The list is just becoming shorter; the first one is there as long as any.
		skey.index = 0;
		b = bpf_map_lookup_elem(&slots, &skey);
		if (!b)
			return -1;
	}
	out->addr = b->addr;
	out->port = b->port;
	if (s->affinity) {
		struct affinity a = {.addr = b->addr, .port = b->port, .seen = now()};

		bpf_map_update_elem(&affinities, &akey, &a, BPF_ANY);
	}
	return 0;
}

enum translation {
	NOT_TRANSLATED = 0,
	TRANSLATED,
	REFUSE,      // nobody serves this
	DROPPED,     // counted already
};

// known_service_flow applies a flow that an earlier packet made.
static __always_inline int known_service_flow(struct __sk_buff *skb, struct packet *p)
{
	struct flow *f, want;

	p->t.zone = ZONE_SERVICE;
	f = bpf_map_lookup_elem(&flows, &p->t);
	if (!f)
		return NOT_TRANSLATED;
	if (f->flags & FLOW_REPLY) {
		// What opens a connection is no reply: the ports are being used again.
		if (is_syn(p) || (p->t.proto != IPPROTO_TCP && flow_idle(f, p->t.proto))) {
			bpf_map_delete_elem(&flows, &p->t);
			return NOT_TRANSLATED;
		}
		p->asked = p->t;
		p->reply = 1;
	} else if (p->t.proto == IPPROTO_TCP) {
		// Only new connections look at what became of the backend.
		if (is_syn(p) && ((f->flags & FLOW_CLOSED) || !is_member(f->service, &f->daddr, f->dport)))
			return NOT_TRANSLATED;
	} else {
		if (flow_idle(f, p->t.proto) || !is_member(f->service, &f->daddr, f->dport))
			return NOT_TRANSLATED;
	}
	flow_touch(p, f);
	want = *f;
	if (rewrite(skb, p, &want) < 0) {
		count_drop(DROP_REWRITE, skb->len);
		return DROPPED;
	}
	return TRANSLATED;
}

// service_flow translates a packet to a service or back from one.
// local says that node ports are served at the packet's destination.
static __always_inline int service_flow(struct __sk_buff *skb, struct packet *p, __u8 scope, bool local)
{
	struct backend b = {};
	struct service *s;
	struct flow want = {};
	bool self;
	int known = known_service_flow(skb, p);

	if (known != NOT_TRANSLATED)
		return known;
	if (p->t.proto != IPPROTO_TCP && p->t.proto != IPPROTO_UDP)
		return NOT_TRANSLATED;
	s = service_find(&p->t.daddr, p->t.dport, p->t.proto, scope, local);
	if (!s)
		return NOT_TRANSLATED;
	if (!in_sources(s, &p->t.saddr)) {
		count_drop(DROP_SOURCE, skb->len);
		return DROPPED;
	}
	if (service_pick(s, &p->t.saddr, &b) < 0) {
		if (s->flags & SERVICE_DROP) {
			count_drop(DROP_NO_BACKEND, skb->len);
			return DROPPED;
		}
		return REFUSE;
	}

	want.saddr = p->t.saddr;
	want.sport = p->t.sport;
	want.daddr = b.addr;
	want.dport = b.port;
	want.service = s->id;
	want.seen = now();
	self = addr_equal(&b.addr, &p->t.saddr);
	if (self) {
		want.saddr = hairpin(p->v6);
		if (choose_port(skb, &p->t, &want, false, true) < 0) {
			count_drop(DROP_NO_PORT, skb->len);
			return DROPPED;
		}
	}
	if (flow_remember(&p->t, &want, !self) < 0) {
		count_drop(DROP_MAP_FULL, skb->len);
		return DROPPED;
	}
	if (rewrite(skb, p, &want) < 0) {
		count_drop(DROP_REWRITE, skb->len);
		return DROPPED;
	}
	return TRANSLATED;
}

// forget_reused drops the memory of an old service flow whose ports a new direct
// connection uses, or its replies would seem to come from the service.
static __always_inline void forget_reused(const struct packet *p)
{
	struct tuple reply;

	if (!is_syn(p))
		return;
	reverse(&p->t, &reply);
	reply.zone = ZONE_SERVICE;
	if (bpf_map_lookup_elem(&flows, &reply))
		bpf_map_delete_elem(&flows, &reply);
}
