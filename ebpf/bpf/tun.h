/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The two TUN devices, and the choice of the transparent listener. */
#ifndef SMCGW_TUN_H
#define SMCGW_TUN_H

#include "ingress.h"
#include "listener.h"

/* returned_syn: a SYN of the network that user space gives back to the kernel. */
static noinline int returned_syn(struct __sk_buff *skb, struct packet *p)
{
	reverse(&p->key);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p->key);
	u64 w = flow_word(f);
	if (!f || word_state(w) != FLOW_RETURNED)
		return drop(STAT_APP_INGRESS_DROP);
	u32 ifindex = f->ifindex;
	if (flow_drop(&p->key, f, w))
		return drop(STAT_APP_INGRESS_DROP);
	count_stat(STAT_SYN_RETURNED);
	return from_wire(skb, ifindex, mark_inject);
}

/* A ingress sees three kinds of packets: application segments the wire program
 * sent here, and the SYNs and datagrams user space writes. */
SEC("tcx/ingress")
int smcgw_app_in(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, 0, OUTBOUND, &p) != IPPROTO_TCP)
		return datagram_from_gateway(skb);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u64 w = flow_word(f);
	u8 state = word_state(w);
	if (!syn_only(&p))
		return state_has_leg(state) || state == FLOW_DEAD ? TCX_NEXT : drop(STAT_APP_INGRESS_DROP);
	if (f && word_isn(w) == p.seq && state == FLOW_COMPLETING) {
		if (!listens(skb->protocol)) /* the application sends it again */
			return drop(STAT_APP_INGRESS_DROP);
		count_stat(STAT_SYN_DELIVERED);
		return to_listener(skb);
	}
	if (f && word_isn(w) == p.seq && state == FLOW_RELEASED) {
		count_stat(STAT_SYN_RELEASED);
		return to_wire(skb, f->ifindex);
	}
	return returned_syn(skb, &p);
}

/* A egress: what gateway sockets send to the local application, and datagrams
 * the wire program sent here for user space to read. */
SEC("tcx/egress")
int smcgw_app_eg(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, 0, INBOUND, &p) != IPPROTO_TCP)
		return datagram_to_gateway(skb);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u8 state = word_state(flow_word(f));
	if (!f || !(state_has_leg(state) || state == FLOW_DEAD))
		return drop(STAT_APP_EGRESS_DROP);
	return from_wire(skb, f->ifindex, p.flags & TCP_SYN ? mark_local : mark_inject);
}

/* W ingress: netstack's segments. Of a released flow only the reset that closes
 * the old wire leg, and a bare SYN behind it, may leave. On a tuple where the
 * application has begun anew meanwhile, only the reset of its old connection may:
 * the peer would wait for bytes of it, and a new connection refuses it. */
SEC("tcx/ingress")
int smcgw_wire_in(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, 0, OUTBOUND, &p) != IPPROTO_TCP)
		return drop(STAT_WIRE_INGRESS_DROP);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u64 w = flow_word(f);
	u8 state = word_state(w);
	if (!f || !state || w & WORD_SILENT || (state == FLOW_OFFERED && !(p.flags & TCP_RST)))
		return drop(STAT_WIRE_INGRESS_DROP);
	if ((state == FLOW_RELEASED || state == FLOW_RETURNED) && !(p.flags & (TCP_RST | TCP_SYN)))
		return drop(STAT_WIRE_INGRESS_DROP);
	return to_wire(skb, f->ifindex);
}

/* The SYN given back through lo is for nobody's port here: its flow names the
 * gateway's listener. */
SEC("sk_lookup")
int smcgw_lookup(struct bpf_sk_lookup *ctx)
{
	struct flow_key k = {};
	u32 slot = 0;
	if (ctx->protocol != IPPROTO_TCP || ctx->ingress_ifindex != lo_ifindex)
		return SK_PASS;
	if (ctx->family == AF_INET) {
		put4(&k, ctx->remote_ip4, ctx->local_ip4);
	} else {
		u32 l[4] = { once(ctx->local_ip6[0]), once(ctx->local_ip6[1]), once(ctx->local_ip6[2]), once(ctx->local_ip6[3]) };
		u32 r[4] = { once(ctx->remote_ip6[0]), once(ctx->remote_ip6[1]), once(ctx->remote_ip6[2]), once(ctx->remote_ip6[3]) };
		put6(&k, r, l);
		slot = 1;
	}
	k.lport = ctx->remote_port;
	k.rport = be16(ctx->local_port);
	if (word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &k))) != FLOW_COMPLETING)
		return SK_PASS;
	struct bpf_sock *sk = bpf_map_lookup_elem(&smcgw_listen, &slot);
	if (!sk)
		return SK_DROP; /* not for a program on the same port */
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}

#endif
