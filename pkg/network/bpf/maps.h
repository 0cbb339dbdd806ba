// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)
// The maps. User space sets the sizes of the large ones before loading.
#pragma once

#include "types.h"

// Set before loading.
volatile const __u64 host_netns_cookie = 0; // 0: the initial network namespace
volatile const bool have_set_retval = false;
volatile const __u16 masquerade_from = 32768;
volatile const __u16 masquerade_to = 65535;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct tuple);
	__type(value, struct flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, struct service);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct slot_key);
	__type(value, struct backend);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_key);
	__type(value, __u32);
} sources SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinities SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, __u32);
} locals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 256);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, __u32);
} prefixes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix_key);
	__type(value, struct remote);
} remotes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct fragment_key);
	__type(value, struct ports);
} fragments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct socket_key);
	__type(value, struct socket_peer);
} sockets SEC(".maps");

// Policy. User space gives an address a class only after all sets have rules for the
// class, and an endpoint a set only after the set has rules for all classes.
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct class_key);
	__type(value, __u32);
} classes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1048576);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct rule_key);
	__type(value, struct rule);
} rules SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct connection_key);
	__type(value, struct connection);
} connections SEC(".maps");

// counters has the generation of policy, which changes with every change of it, and
// the number that the last service got, which only user space reads.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, DROP_REASONS);
	__type(key, __u32);
	__type(value, struct counter);
} drops SEC(".maps");

static __always_inline __u32 now(void)
{
	return bpf_ktime_get_ns() / 1000000000ULL;
}

static __always_inline void count_drop(__u32 reason, __u32 bytes)
{
	struct counter *c = bpf_map_lookup_elem(&drops, &reason);

	if (c) {
		c->packets++;
		c->bytes += bytes;
	}
}

static __always_inline int drop(struct __sk_buff *skb, __u32 reason)
{
	count_drop(reason, skb->len);
	return TC_ACT_SHOT;
}

static __always_inline bool addr_is4(const struct addr *a)
{
	return a->w[0] == 0 && a->w[1] == 0 && a->w[2] == MAPPED;
}

static __always_inline bool addr_is_zero(const struct addr *a)
{
	return (a->w[0] | a->w[1] | a->w[2] | a->w[3]) == 0;
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b)
{
	return ((a->w[0] ^ b->w[0]) | (a->w[1] ^ b->w[1]) | (a->w[2] ^ b->w[2]) | (a->w[3] ^ b->w[3])) == 0;
}

static __always_inline struct addr addr_from4(__be32 a)
{
	struct addr out = {{0, 0, MAPPED, a}};

	return out;
}

static __always_inline struct addr hairpin(bool v6)
{
	struct addr four = HAIRPIN4, six = HAIRPIN6;

	return v6 ? six : four;
}

static __always_inline __u32 prefix_kind(const struct addr *addr)
{
	struct prefix_key key = {.bits = 128, .addr = *addr};
	__u32 *kind = bpf_map_lookup_elem(&prefixes, &key);

	return kind ? *kind : 0;
}

static __always_inline __u32 local_kind(const struct addr *addr)
{
	__u32 *kind = bpf_map_lookup_elem(&locals, addr);

	return kind ? *kind : 0;
}
