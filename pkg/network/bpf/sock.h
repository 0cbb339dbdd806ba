// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// Sockets are translated once, when they connect or send, so that their packets
// need no translation at all.
//
// In pods only TCP is: a connected UDP socket would keep a backend that is gone,
// while its packets can be given another one (service.h).
#pragma once

#include "service.h"

#define ALLOW 1
#define DENY 0
#define ECONNREFUSED 111
#define TO_SERVICE 0
#define TO_BACKEND 1

static __always_inline bool in_host(struct bpf_sock_addr *ctx)
{
	__u64 host = host_netns_cookie;

	if (!host)
		host = bpf_get_netns_cookie(0);
	return bpf_get_netns_cookie(ctx) == host;
}

static __always_inline int refuse_socket(void)
{
	count_drop(DROP_REFUSED, 0);
	if (have_set_retval)
		bpf_set_retval(-ECONNREFUSED);
	return DENY;
}

// target is where a socket connects or sends to, or whence it received.
struct target {
	struct addr addr;
	__be16 port;
};

// is_loopback tells whether the address is in 127.0.0.0/8, or is ::1.
static __always_inline bool is_loopback(const struct addr *a)
{
	if (addr_is4(a))
		return (a->w[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
	return a->w[0] == 0 && a->w[1] == 0 && a->w[2] == 0 && a->w[3] == bpf_htonl(1);
}

// translate gives the socket a backend instead of the service address.
static __always_inline int translate(struct bpf_sock_addr *ctx, struct target *to, bool connecting)
{
	struct socket_key key = {.cookie = bpf_get_socket_cookie(ctx)};
	struct socket_peer peer = {}, *known;
	struct backend b = {};
	struct service *s;
	struct target was = *to;
	struct addr client;
	__u64 cookie;
	__u8 proto = ctx->protocol;
	bool host = in_host(ctx);
	__u32 local;
	bool node;

	if (proto != IPPROTO_TCP && proto != IPPROTO_UDP)
		return ALLOW;
	if (proto == IPPROTO_UDP && !host)
		return ALLOW;
	local = local_kind(&was.addr);
	if (local == LOCAL_SERVICE)
		return ALLOW;
	node = local == LOCAL_NODE || (host && is_loopback(&was.addr));
	s = service_find(&was.addr, was.port, proto, SCOPE_INSIDE, node);
	if (!s) {
		if (prefix_kind(&was.addr) != PREFIX_SERVICES)
			return ALLOW;
		// From pods the packets are answered with a reset.
		return have_set_retval || host ? refuse_socket() : ALLOW;
	}

	key.addr = was.addr;
	key.port = was.port;
	key.dir = TO_BACKEND;
	if (!connecting) {
		// An unconnected socket stays with the backend of its last message.
		known = bpf_map_lookup_elem(&sockets, &key);
		if (known && is_member(s->id, &known->addr, known->port)) {
			to->addr = known->addr;
			to->port = known->port;
			return ALLOW;
		}
	}
	cookie = bpf_get_netns_cookie(ctx);
	client.w[0] = bpf_htonl(0xff000000);
	client.w[1] = 0;
	client.w[2] = cookie >> 32;
	client.w[3] = cookie;
	if (service_pick(s, &client, &b) < 0)
		return have_set_retval || host ? refuse_socket() : ALLOW;

	if (!connecting) {
		peer.addr = b.addr;
		peer.port = b.port;
		peer.service = s->id;
		bpf_map_update_elem(&sockets, &key, &peer, BPF_ANY);
	}
	key.addr = b.addr;
	key.port = b.port;
	key.dir = TO_SERVICE;
	peer.addr = was.addr;
	peer.port = was.port;
	peer.service = s->id;
	bpf_map_update_elem(&sockets, &key, &peer, BPF_ANY);
	to->addr = b.addr;
	to->port = b.port;
	return ALLOW;
}

// restore shows the program the address it asked for.
static __always_inline void restore(struct bpf_sock_addr *ctx, struct target *from)
{
	struct socket_key key = {
		.cookie = bpf_get_socket_cookie(ctx),
		.addr = from->addr,
		.port = from->port,
		.dir = TO_SERVICE,
	};
	struct socket_peer *peer = bpf_map_lookup_elem(&sockets, &key);

	if (peer) {
		from->addr = peer->addr;
		from->port = peer->port;
	}
}

static __always_inline int translate4(struct bpf_sock_addr *ctx, bool connecting)
{
	struct target to = {.addr = addr_from4(ctx->user_ip4), .port = ctx->user_port};
	int verdict = translate(ctx, &to, connecting);

	ctx->user_ip4 = to.addr.w[3];
	ctx->user_port = to.port;
	return verdict;
}

static __always_inline int restore4(struct bpf_sock_addr *ctx)
{
	struct target from = {.addr = addr_from4(ctx->user_ip4), .port = ctx->user_port};

	restore(ctx, &from);
	ctx->user_ip4 = from.addr.w[3];
	ctx->user_port = from.port;
	return ALLOW;
}

static __always_inline struct target target6(struct bpf_sock_addr *ctx)
{
	struct target t = {.port = ctx->user_port};

	t.addr.w[0] = ctx->user_ip6[0];
	t.addr.w[1] = ctx->user_ip6[1];
	t.addr.w[2] = ctx->user_ip6[2];
	t.addr.w[3] = ctx->user_ip6[3];
	return t;
}

static __always_inline void set_target6(struct bpf_sock_addr *ctx, const struct target *t)
{
	ctx->user_ip6[0] = t->addr.w[0];
	ctx->user_ip6[1] = t->addr.w[1];
	ctx->user_ip6[2] = t->addr.w[2];
	ctx->user_ip6[3] = t->addr.w[3];
	ctx->user_port = t->port;
}

// The addresses of IPv6 sockets may be mapped IPv4 ones, which is what the maps have too.
static __always_inline int translate6(struct bpf_sock_addr *ctx, bool connecting)
{
	struct target to = target6(ctx);
	int verdict = translate(ctx, &to, connecting);

	set_target6(ctx, &to);
	return verdict;
}

static __always_inline int restore6(struct bpf_sock_addr *ctx)
{
	struct target from = target6(ctx);

	restore(ctx, &from);
	set_target6(ctx, &from);
	return ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return translate4(ctx, true);
}

// IPv6 sockets that send to IPv4 addresses come here as well.
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return translate4(ctx, false);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return restore4(ctx);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return restore4(ctx);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return translate6(ctx, true);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return translate6(ctx, false);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return restore6(ctx);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return restore6(ctx);
}
