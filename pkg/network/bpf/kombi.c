//go:build ignore

// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The data plane of a Kombi node.
//
//	pod eth0 ── veth ── from_pod ──▶ another pod, the host's stack, or a node device
//	            veth ◀─ to_pod ───── the host's stack
//	node device ─────── from_outside ──▶ a pod, the host's stack, or another node
//	node device ◀────── to_outside ──── pods and the host's stack
//	overlay ─────────── from_overlay ──▶ a pod, or the host's stack
//	overlay ◀────────── to_overlay ──── pods and the host's stack
//
// Sockets are translated when they connect (sock.h), packets otherwise.
#include "icmp.h"
#include "masquerade.h"
#include "overlay.h"
#include "policy.h"
#include "refuse.h"
#include "service.h"
#include "sock.h"

// deliver hands the packet to a pod of this node, past the host's stack.
static __always_inline int deliver(struct __sk_buff *skb, const struct endpoint *ep)
{
	__u8 macs[12];

	__builtin_memcpy(macs, ep->mac, 6);
	__builtin_memcpy(macs + 6, ep->host_mac, 6);
	if (bpf_skb_store_bytes(skb, 0, macs, sizeof(macs), 0) < 0)
		return drop(skb, DROP_REWRITE);
	return bpf_redirect_peer(ep->ifindex, 0);
}

// leave sends a packet out through the overlay or a node device without asking the
// host's firewall, or lets the stack decide where it does not go to one.
static __always_inline int leave(struct __sk_buff *skb, struct packet *p)
{
	struct remote *r = remote_find(&p->t.daddr);
	struct bpf_fib_lookup fib = {
		.family = p->v6 ? 10 : 2, // AF_INET6, AF_INET
		.l4_protocol = p->t.proto,
		.ifindex = skb->ifindex,
	};
	__u32 out;
	long err;

	if (p->v6) {
		__builtin_memcpy(fib.ipv6_src, &p->t.saddr, sizeof(p->t.saddr));
		__builtin_memcpy(fib.ipv6_dst, &p->t.daddr, sizeof(p->t.daddr));
	} else {
		fib.ipv4_src = p->t.saddr.w[3];
		fib.ipv4_dst = p->t.daddr.w[3];
	}
	if (p->ttl <= 1)
		return TC_ACT_UNSPEC; // the stack reports it
	if (r) {
		if (too_large(skb, r))
			return TC_ACT_UNSPEC;
		if (decrement_ttl(skb, p) < 0)
			return drop(skb, DROP_REWRITE);
		return bpf_redirect(r->ifindex, 0);
	}
	err = bpf_fib_lookup(skb, &fib, sizeof(fib), 0);
	if (err != BPF_FIB_LKUP_RET_SUCCESS && err != BPF_FIB_LKUP_RET_NO_NEIGH)
		return TC_ACT_UNSPEC;
	out = fib.ifindex;
	if (!bpf_map_lookup_elem(&devices, &out))
		return TC_ACT_UNSPEC;
	if (decrement_ttl(skb, p) < 0)
		return drop(skb, DROP_REWRITE);
	return bpf_redirect_neigh(out, 0, 0, 0);
}

// pod_may applies policy to a packet. Reports about other packets follow what these
// had; without a memory of them they are judged like any packet.
static __always_inline bool pod_may(struct __sk_buff *skb, struct packet *p, int kind, int did,
				    const struct endpoint *ep, __u8 dir)
{
	if (!ep->ingress && !ep->egress)
		return true;
	if (kind == PACKET_ICMP_ERROR && (did == TRANSLATED || quotes_connection(skb, p)))
		return true;
	return policy_allows(p, ep, dir);
}

SEC("tc")
int from_pod(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct endpoint *ep, *to;
	int kind = p ? parse(skb, p) : PACKET_BAD;
	__u32 local;
	int did = NOT_TRANSLATED;

	if (kind == PACKET_OTHER)
		return TC_ACT_UNSPEC;
	ep = bpf_map_lookup_elem(&endpoints, &p->t.saddr);
	if (kind == PACKET_BAD || !ep || ep->ifindex != skb->ifindex)
		return drop(skb, DROP_SPOOFED);

	if (kind == PACKET_ICMP_ERROR) {
		did = restore_quote(skb, p, ZONE_SERVICE);
		if (did < 0)
			return drop(skb, DROP_REWRITE);
		did = did ? TRANSLATED : NOT_TRANSLATED;
	} else if (kind == PACKET_FLOW) {
		local = local_kind(&p->t.daddr);
		if (local != LOCAL_SERVICE) {
			did = service_flow(skb, p, SCOPE_INSIDE, local == LOCAL_NODE);
			if (did == DROPPED)
				return TC_ACT_SHOT;
			if (did == NOT_TRANSLATED && prefix_kind(&p->t.daddr) == PREFIX_SERVICES)
				did = REFUSE;
			if (did == REFUSE)
				return refuse(skb, p);
			if (did == NOT_TRANSLATED)
				forget_reused(p);
		}
	}
	if (!pod_may(skb, p, kind, did, ep, EGRESS))
		return drop(skb, DROP_POLICY);

	to = bpf_map_lookup_elem(&endpoints, &p->t.daddr);
	if (to) {
		if (!pod_may(skb, p, kind, did, to, INGRESS))
			return drop(skb, DROP_POLICY);
		return deliver(skb, to);
	}
	if (local_kind(&p->t.daddr))
		return TC_ACT_UNSPEC;
	return leave(skb, p);
}

SEC("tc")
int to_pod(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct endpoint *ep;
	int kind = p ? parse(skb, p) : PACKET_BAD;
	int did = NOT_TRANSLATED;

	if (kind == PACKET_OTHER)
		return TC_ACT_UNSPEC;
	if (kind == PACKET_BAD)
		return drop(skb, DROP_SPOOFED);
	// Answers of host backends, on their way to a pod that asked a service.
	if (kind == PACKET_FLOW) {
		did = known_service_flow(skb, p);
		if (did == DROPPED)
			return TC_ACT_SHOT;
	} else if (kind == PACKET_ICMP_ERROR) {
		did = restore_quote(skb, p, ZONE_SERVICE);
		if (did < 0)
			return drop(skb, DROP_REWRITE);
		did = did ? TRANSLATED : NOT_TRANSLATED;
	}
	ep = bpf_map_lookup_elem(&endpoints, &p->t.daddr);
	if (ep && !pod_may(skb, p, kind, did, ep, INGRESS))
		return drop(skb, DROP_POLICY);
	return TC_ACT_UNSPEC;
}

// arrive_in_pod hands a packet from another machine to a pod of this node.
static __always_inline int arrive_in_pod(struct __sk_buff *skb, struct packet *p, int kind, int did, struct endpoint *ep)
{
	if (ep->ingress || ep->egress) {
		// The stack drops packets with our own addresses from outside, but does not see this one.
		const struct addr *from = &policy_tuple(p)->saddr;

		if (local_kind(from) || bpf_map_lookup_elem(&endpoints, from))
			return drop(skb, DROP_SPOOFED);
		if (!pod_may(skb, p, kind, did, ep, INGRESS))
			return drop(skb, DROP_POLICY);
	}
	if (did == NOT_TRANSLATED && kind == PACKET_FLOW)
		remember_direct(p);
	if (p->ttl <= 1)
		return TC_ACT_UNSPEC;
	if (decrement_ttl(skb, p) < 0)
		return drop(skb, DROP_REWRITE);
	return deliver(skb, ep);
}

// answered turns what answers this node's pods, or its clients, back into what they
// asked for.
static __always_inline int answered(struct __sk_buff *skb, struct packet *p)
{
	int back = unmasquerade(skb, p);
	int did;

	if (back != TRANSLATED)
		return back;
	did = known_service_flow(skb, p);
	return did == NOT_TRANSLATED ? TRANSLATED : did;
}

static __always_inline int restore_quotes(struct __sk_buff *skb, struct packet *p)
{
	int one = restore_quote(skb, p, ZONE_MASQ);
	int two = one < 0 ? one : restore_quote(skb, p, ZONE_SERVICE);

	if (one < 0 || two < 0) {
		count_drop(DROP_REWRITE, skb->len);
		return DROPPED;
	}
	return one || two ? TRANSLATED : NOT_TRANSLATED;
}

SEC("tc")
int from_outside(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct endpoint *ep;
	struct device *dev;
	struct addr node;
	__u32 ifindex = skb->ifindex;
	int kind = p ? parse(skb, p) : PACKET_BAD;
	__u32 local;
	int did = NOT_TRANSLATED;

	if (kind == PACKET_OTHER)
		return TC_ACT_UNSPEC;
	if (kind == PACKET_BAD)
		return drop(skb, DROP_SPOOFED);
	local = local_kind(&p->t.daddr);
	if (local == LOCAL_SERVICE)
		return drop(skb, DROP_NODE_LOCAL);

	if (kind == PACKET_ICMP_ERROR) {
		did = restore_quotes(skb, p);
	} else if (kind == PACKET_FLOW) {
		did = answered(skb, p);
		if (did == NOT_TRANSLATED) {
			did = service_flow(skb, p, SCOPE_OUTSIDE, local == LOCAL_NODE);
			if (did == REFUSE)
				return refuse(skb, p);
		}
	}
	if (did == DROPPED)
		return TC_ACT_SHOT;

	ep = bpf_map_lookup_elem(&endpoints, &p->t.daddr);
	if (ep)
		return arrive_in_pod(skb, p, kind, did, ep);
	if (did != TRANSLATED || kind != PACKET_FLOW || local_kind(&p->t.daddr))
		return TC_ACT_UNSPEC;
	// To a backend elsewhere, which must answer to this node, or such an answer. The
	// stack would take our own address, coming in, for a lie.
	if (!local_kind(&p->t.saddr)) {
		dev = bpf_map_lookup_elem(&devices, &ifindex);
		if (!dev || p->reply)
			return TC_ACT_UNSPEC;
		node = remote_find(&p->t.daddr) ? (p->v6 ? dev->overlay6 : dev->overlay4)
						: (p->v6 ? dev->masquerade6 : dev->masquerade4);
		if (addr_is_zero(&node))
			return TC_ACT_UNSPEC;
		if (masquerade(skb, p, &node, false) == DROPPED)
			return TC_ACT_SHOT;
	}
	return leave(skb, p);
}

SEC("tc")
int from_overlay(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct endpoint *ep;
	struct remote *r;
	int kind = p ? parse(skb, p) : PACKET_BAD;
	int did = NOT_TRANSLATED;

	if (kind == PACKET_OTHER)
		return TC_ACT_SHOT;
	if (kind == PACKET_BAD)
		return drop(skb, DROP_SPOOFED);
	r = remote_find(&p->t.saddr);
	if (kind == PACKET_ICMP_ERROR ? 0 : !r || !came_from(skb, r)) // routers report under addresses of their own
		return drop(skb, DROP_SPOOFED);

	if (kind == PACKET_ICMP_ERROR) {
		did = restore_quotes(skb, p);
	} else if (kind == PACKET_FLOW) {
		did = answered(skb, p);
		if (did == NOT_TRANSLATED)
			did = known_service_flow(skb, p);
	}
	if (did == DROPPED)
		return TC_ACT_SHOT;
	ep = bpf_map_lookup_elem(&endpoints, &p->t.daddr);
	if (ep)
		return arrive_in_pod(skb, p, kind, did, ep);
	if (did == TRANSLATED && local_kind(&p->t.saddr))
		return leave(skb, p);
	// It is for this node, whatever device it is addressed to.
	if (bpf_skb_change_type(skb, PACKET_HOST) < 0)
		return drop(skb, DROP_REWRITE);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int to_overlay(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct remote *r;
	int kind = p ? parse(skb, p) : PACKET_BAD;

	if (kind == PACKET_OTHER)
		return TC_ACT_SHOT;
	if (kind == PACKET_BAD)
		return drop(skb, DROP_SPOOFED);
	r = remote_find(&p->t.daddr);
	if (!r)
		return drop(skb, DROP_NO_REMOTE);
	if (address_tunnel(skb, r) < 0 || bpf_skb_store_bytes(skb, 0, overlay_mac, sizeof(overlay_mac), 0) < 0)
		return drop(skb, DROP_REWRITE);
	return TC_ACT_UNSPEC;
}

SEC("tc")
int to_outside(struct __sk_buff *skb)
{
	struct packet *p = new_packet();
	struct device *dev;
	__u32 ifindex = skb->ifindex;
	int kind = p ? parse(skb, p) : PACKET_BAD;
	struct addr node;
	bool owner;

	if (kind == PACKET_OTHER)
		return TC_ACT_UNSPEC;
	if (kind == PACKET_BAD)
		return drop(skb, DROP_SPOOFED);
	dev = bpf_map_lookup_elem(&devices, &ifindex);
	if (!dev)
		return TC_ACT_UNSPEC;
	node = p->v6 ? dev->masquerade6 : dev->masquerade4;
	if (addr_is_zero(&node))
		return TC_ACT_UNSPEC;

	if (kind == PACKET_FLOW && !bpf_map_lookup_elem(&endpoints, &p->t.saddr)) {
		int did;

		// Answers of host backends to clients outside.
		did = known_service_flow(skb, p);
		if (did == DROPPED)
			return TC_ACT_SHOT;
		// What came in from another machine has its ports by masquerading already.
		if (did == TRANSLATED || skb->ingress_ifindex || !addr_equal(&p->t.saddr, &node))
			return TC_ACT_UNSPEC;
		owner = true;
	} else if (!bpf_map_lookup_elem(&endpoints, &p->t.saddr)) {
		// The host reports to a client outside about a packet to a host backend.
		if (kind == PACKET_ICMP_ERROR && restore_quote(skb, p, ZONE_SERVICE) < 0)
			return drop(skb, DROP_REWRITE);
		return TC_ACT_UNSPEC;
	} else {
		owner = false;
	}
	if (!owner && prefix_kind(&p->t.daddr) == PREFIX_PODS)
		return TC_ACT_UNSPEC;
	if (kind == PACKET_FLOW)
		return masquerade(skb, p, &node, owner) == DROPPED ? TC_ACT_SHOT : TC_ACT_UNSPEC;

	// Nothing tells the answers apart, so only what needs none may pass.
	if (kind == PACKET_ICMP_ERROR) {
		int did = restore_quote(skb, p, ZONE_MASQ);

		return did < 0 ? drop(skb, DROP_REWRITE) : TC_ACT_UNSPEC;
	}
	return p->later_part ? drop(skb, DROP_FRAGMENT) : drop(skb, DROP_NO_PORT);
}

char kombi_license[] SEC("license") = "Dual BSD/GPL";
