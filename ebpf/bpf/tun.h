/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The two TUN devices, and the pair of devices that leads to the legs. */
#ifndef SMCGW_TUN_H
#define SMCGW_TUN_H

#include "ingress.h"
#include "listener.h"

/* returned_syn: a SYN of the network that user space gives back to the kernel. */
static __noinline int returned_syn(struct __sk_buff *skb, struct packet *p)
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
	return from_wire(skb, 0, ifindex, TAG_INJECT);
}

/* A ingress sees what user space writes: SYNs, probes and datagrams. */
SEC("tcx/ingress")
int smcgw_app_in(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, 0, OUTBOUND, &p) != IPPROTO_TCP)
		return datagram_from_gateway(skb);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u64 w = flow_word(f);
	u8 state = word_state(w);
	if (!syn_only(&p)) /* the probe of an application's kernel that was held (keepalive.h) */
		return state_has_leg(state) ? to_legs(skb, 0) : drop(STAT_APP_INGRESS_DROP);
	if (f && word_isn(w) == p.seq && state == FLOW_COMPLETING) {
		if (!listens(skb->protocol)) /* the application sends it again */
			return drop(STAT_APP_INGRESS_DROP);
		count_stat(STAT_SYN_DELIVERED);
		return to_legs(skb, 0);
	}
	if (f && word_isn(w) == p.seq && state == FLOW_RELEASED) {
		count_stat(STAT_SYN_RELEASED);
		return to_wire(skb, f->out, f->mark);
	}
	return returned_syn(skb, &p);
}

/* A egress: datagrams that the wire program sent here for user space to read. */
SEC("tcx/egress")
int smcgw_app_eg(struct __sk_buff *skb)
{
	if (!has_tag(skb, TAG_DATAGRAM))
		return drop(STAT_APP_EGRESS_DROP);
	skb->tc_index = 0;
	return TCX_NEXT;
}

/* The host's end of the pair, ingress: what legs send to the local application. */
SEC("tcx/ingress")
int smcgw_leg_in(struct __sk_buff *skb)
{
	struct packet p;
	if (parse(skb, ETH_LEN, INBOUND, &p) != IPPROTO_TCP)
		return drop(STAT_LEG_INGRESS_DROP);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u8 state = word_state(flow_word(f));
	if (!f || !(state_has_leg(state) || state == FLOW_DEAD))
		return drop(STAT_LEG_INGRESS_DROP);
	/* The answer to a SYN whose listener has gone with its gateway: the application's
	 * kernel sends the SYN again, to the network then. */
	if ((p.flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) && !p.seq)
		return drop(STAT_LEG_INGRESS_DROP);
	if (state == FLOW_PROOF)
		f->syn[PROOF_ANSWERED] = 1;
	return from_wire(skb, ETH_LEN, f->ifindex, p.flags & TCP_SYN ? TAG_LEG_SYN : TAG_INJECT);
}

/* The host's end of the pair, egress: only what our programs send reaches the legs. */
SEC("tcx/egress")
int smcgw_leg_eg(struct __sk_buff *skb)
{
	if (!has_tag(skb, TAG_LEG))
		return drop(STAT_LEG_EGRESS_DROP);
	skb->tc_index = 0;
	return TCX_NEXT;
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
	return to_wire(skb, f->out, f->mark);
}

/* In the namespace of the legs a SYN is for no port of a socket: its flow names
 * the gateway's listener. */
SEC("sk_lookup")
int smcgw_lookup(struct bpf_sk_lookup *ctx)
{
	struct flow_key k = {};
	u32 slot = 0;
	if (ctx->protocol != IPPROTO_TCP)
		return SK_DROP;
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
	u8 state = word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &k)));
	if (state == FLOW_PROOF)
		return SK_PASS; /* to a listener of its own */
	if (state != FLOW_COMPLETING)
		return SK_DROP;
	struct bpf_sock *sk = bpf_map_lookup_elem(&smcgw_listen, &slot);
	if (!sk)
		return SK_DROP;
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}

#endif
