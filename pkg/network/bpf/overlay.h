// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Pods of other nodes, through VXLAN (RFC 7348). One device takes the other node's
// address from each packet, so that nodes come and go by writes to a map.
#pragma once

#include "packet.h"

#define OVERLAY_ID 1

#define PACKET_HOST 0 // see linux/if_packet.h

// All frames are addressed to this device, which no node has: the kernel takes a frame
// from its own address for an echo, so these differ.
static const __u8 overlay_mac[6] = {0x02, 0x6b, 0x6d, 0x62, 0x69, 0x01};

static __always_inline struct remote *remote_find(const struct addr *addr)
{
	struct prefix_key key = {.bits = 128, .addr = *addr};

	return bpf_map_lookup_elem(&remotes, &key);
}

// address_tunnel tells the overlay's device where the packet goes.
static __always_inline int address_tunnel(struct __sk_buff *skb, const struct remote *r)
{
	struct bpf_tunnel_key key = {.tunnel_id = OVERLAY_ID, .tunnel_ttl = 64};
	__u64 flags = 0;

	if (addr_is4(&r->node)) {
		key.remote_ipv4 = bpf_ntohl(r->node.w[3]);
		flags = BPF_F_ZERO_CSUM_TX;
	} else {
		__builtin_memcpy(key.remote_ipv6, &r->node, sizeof(r->node));
		flags = BPF_F_TUNINFO_IPV6;
	}
	return bpf_skb_set_tunnel_key(skb, &key, sizeof(key), flags);
}

// too_large tells whether the packet does not fit. The stack says so to its sender.
static __always_inline bool too_large(struct __sk_buff *skb, const struct remote *r)
{
	if (skb->gso_size)
		return skb->gso_size + 120 > r->mtu; // with the headers of a segment
	return skb->len - ETH_HLEN > r->mtu;
}

// came_from tells whether the packet left the overlay as one of the node that owns
// its source.
static __always_inline bool came_from(struct __sk_buff *skb, const struct remote *r)
{
	struct bpf_tunnel_key key = {};
	struct addr node;

	if (addr_is4(&r->node)) {
		if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) < 0)
			return false;
		node = addr_from4(bpf_htonl(key.remote_ipv4));
	} else {
		if (bpf_skb_get_tunnel_key(skb, &key, sizeof(key), BPF_F_TUNINFO_IPV6) < 0)
			return false;
		__builtin_memcpy(&node, key.remote_ipv6, sizeof(node));
	}
	return addr_equal(&node, &r->node);
}
