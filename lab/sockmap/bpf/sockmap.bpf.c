//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
//
// What shortens the way between sockets of one host: a sockops program puts every
// connection of a control group into a map by its addresses, and what one of them
// sends goes straight to the one with the same addresses the other way round, if
// there is one. Another map holds accepted connections only, and looks at what they
// receive.

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef AF_INET
#define AF_INET 2
#define AF_INET6 10
#endif

/* The end of a connection that has a socket. Ports are in host order. */
struct end {
	__u32 local[4];
	__u32 remote[4];
	__u32 local_port;
	__u32 remote_port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 65536);
	__type(key, struct end);
	__type(value, __u64);
} ends SEC(".maps"), accepted SEC(".maps");

enum counter { COUNT_SENT, COUNT_REDIRECTED, COUNT_RECEIVED, COUNTERS };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &what);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* Every field of a context is read once, in all cases: the verifier knows no access to
 * one of two. */
#define FIELD(ctx, name) (*(volatile __u32 *)&(ctx)->name)

/* An IPv4 socket, and an IPv6 one that talks to an IPv4 peer, have the same key. */
#define END_OF(e, ctx) do { \
	__u32 family = FIELD(ctx, family); \
	__u32 local4 = FIELD(ctx, local_ip4), remote4 = FIELD(ctx, remote_ip4); \
	(e).local[0] = FIELD(ctx, local_ip6[0]); \
	(e).local[1] = FIELD(ctx, local_ip6[1]); \
	(e).local[2] = FIELD(ctx, local_ip6[2]); \
	(e).local[3] = FIELD(ctx, local_ip6[3]); \
	(e).remote[0] = FIELD(ctx, remote_ip6[0]); \
	(e).remote[1] = FIELD(ctx, remote_ip6[1]); \
	(e).remote[2] = FIELD(ctx, remote_ip6[2]); \
	(e).remote[3] = FIELD(ctx, remote_ip6[3]); \
	if (family != AF_INET6 || (!(e).remote[0] && !(e).remote[1] && (e).remote[2] == bpf_htonl(0xffff))) { \
		(e).local[0] = (e).local[1] = (e).local[2] = 0; \
		(e).remote[0] = (e).remote[1] = (e).remote[2] = 0; \
		(e).local[3] = local4; \
		(e).remote[3] = remote4; \
	} \
	(e).local_port = FIELD(ctx, local_port); \
	(e).remote_port = bpf_ntohl(FIELD(ctx, remote_port)); \
} while (0)

static __always_inline void put(struct bpf_sock_ops *ctx, void *map)
{
	struct end e = {};
	END_OF(e, ctx);
	bpf_sock_hash_update(ctx, map, &e, BPF_ANY);
}

SEC("sockops")
int note(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB || ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		put(ctx, &ends);
	return 1;
}

SEC("sockops")
int note_accepted(struct bpf_sock_ops *ctx)
{
	if (ctx->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		put(ctx, &accepted);
	return 1;
}

SEC("sk_msg")
int redirect(struct sk_msg_md *msg)
{
	struct end e = {}, other = {};
	END_OF(e, msg);
	__builtin_memcpy(other.local, e.remote, sizeof(e.remote));
	__builtin_memcpy(other.remote, e.local, sizeof(e.local));
	other.local_port = e.remote_port;
	other.remote_port = e.local_port;
	count(COUNT_SENT);
	if (bpf_msg_redirect_hash(msg, &ends, &other, BPF_F_INGRESS) == SK_PASS)
		count(COUNT_REDIRECTED);
	return SK_PASS;
}

SEC("sk_msg")
int pass_sent(struct sk_msg_md *msg)
{
	count(COUNT_SENT);
	return SK_PASS;
}

SEC("sk_skb/stream_verdict")
int pass_received(struct __sk_buff *skb)
{
	count(COUNT_RECEIVED);
	return SK_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
