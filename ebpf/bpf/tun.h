/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The two TUN devices, and the pair of devices that leads to the legs. */
#ifndef SMCGW_TUN_H
#define SMCGW_TUN_H

#include "ingress.h"
#include "listener.h"

/* returned_syn: a SYN of the network that user space returns to the kernel. */
static __noinline int returned_syn(struct __sk_buff *skb, struct packet *p)
{
	reverse(&p->key);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p->key);
	u64 w = flow_word(f);
	u8 verdict = verdict_on(p, APP_PEER_SYN, word_state(w));
	if (!f || verdict != INJECT)
		return drop_of(verdict);
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
	if (has_tag(skb, TAG_LEG)) /* from an IPoIB device */
		return to_legs(skb, 0);
	if (parse(skb, 0, OUTBOUND, &p) != IPPROTO_TCP)
		return datagram_from_gateway(skb);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u64 w = flow_word(f);
	if (f && syn_only(&p) && word_isn(w) != p.seq)
		f = NULL;
	if (!f && syn_only(&p))
		return returned_syn(skb, &p);
	/* A segment is the probe of an application's kernel that was held (keepalive.h). */
	u8 verdict = verdict_on(&p, syn_only(&p) ? APP_SYN : APP_SEGMENT, word_state(w));
	switch (verdict) {
	case LEGS_LAST:
		return to_legs(skb, 0);
	case DELIVER:
		if (!listens(skb->protocol)) /* the application sends it again */
			return drop(STAT_APP_INGRESS_DROP);
		count_stat(STAT_SYN_DELIVERED);
		return to_legs(skb, 0);
	case WIRE:
		if (!f)
			return TCX_DROP;
		count_stat(STAT_SYN_RELEASED);
		return to_wire(skb, f->out, f->mark);
	default:
		return drop_of(verdict);
	}
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
	u32 class = LEG_SEGMENT;
	/* The answer to a SYN whose listener has gone with its gateway: the application's
	 * kernel sends the SYN again, to the network then. */
	if ((p.flags & (TCP_RST | TCP_ACK)) == (TCP_RST | TCP_ACK) && !p.seq)
		class = LEG_CLOSED;
	/* Resets of sockets acknowledge. The application may write on one processor while
	 * another takes its ACK, and makes the leg of the request: a look between the two
	 * finds neither. What the application has written comes again. */
	else if ((p.flags & (TCP_RST | TCP_ACK)) == TCP_RST)
		class = LEG_LOST;
	u8 verdict = verdict_on(&p, class, state);
	if (!f || verdict != HOST)
		return drop_of(verdict);
	if (state == FLOW_PROOF)
		discard(proof_comes(&p.key, f, PROOF_ANSWERED));
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

/* spoken notes that the client's gateway speaks, unless the entry changes under it. From
 * then on the application's SYN does not leave by itself: the server's gateway may dial
 * its application, which must not see a second connection. */
static __always_inline int spoken(struct flow *f, u64 w)
{
	return !(w & WORD_SPOKEN) && __sync_val_compare_and_swap(&f->word, w, w | WORD_SPOKEN) != w;
}

/* W ingress: netstack's segments. Of a released flow only the reset that closes
 * the old wire leg, and a bare SYN after it, may leave. On a tuple where the
 * application has begun anew meanwhile, only the reset of its old connection may:
 * the peer would wait for bytes of it, and a new connection refuses it. */
SEC("tcx/ingress")
int smcgw_wire_in(struct __sk_buff *skb)
{
	struct packet p;
	if (has_tag(skb, TAG_PASS)) /* an answer to a SYN of an IPoIB device */
		return to_wire(skb, skb->mark, 0);
	if (parse(skb, 0, OUTBOUND, &p) != IPPROTO_TCP)
		return drop(STAT_WIRE_INGRESS_DROP);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u64 w = flow_word(f);
	u8 verdict = verdict_on(&p, p.flags & TCP_RST ? NET_RESET : p.flags & TCP_SYN ? NET_SYN : NET_SEGMENT, word_state(w));
	if (!f || w & WORD_SILENT || (verdict != WIRE && verdict != SPEAK))
		return drop(STAT_WIRE_INGRESS_DROP);
	if (verdict == SPEAK && spoken(f, w)) /* it comes again */
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
	struct packet p = {}; /* of a SYN, which is all that gets here */
	u8 verdict = verdict_on(&p, LOOKUP, word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &k))));
	if (verdict == PASS)
		return SK_PASS; /* to a listener of its own */
	if (verdict != LISTENER)
		return SK_DROP;
	struct bpf_sock *sk = bpf_map_lookup_elem(&smcgw_listen, &slot);
	if (!sk)
		return SK_DROP;
	bpf_sk_assign(ctx, sk, 0);
	bpf_sk_release(sk);
	return SK_PASS;
}

#endif
