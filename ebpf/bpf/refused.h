/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An offered SYN that is refused, by a reset or an ICMP error: a box on the way may
 * have done so because of the option, so the bare SYN is asked before the application
 * is told. The kernel sends that itself, at once: a segment that acknowledges what
 * was never sent makes a connection request repeat its SYN within two ticks, and one
 * that is a reset is not answered (tcp_rcv_synsent_state_process). So the refusal is
 * turned into such a segment. No gateway is needed, and where the segment is lost
 * the kernel repeats its SYN a second later.
 */
#ifndef SMCGW_REFUSED_H
#define SMCGW_REFUSED_H

#include "egress.h"

/* RST with acknowledgement 0: what broken hosts answer to a SYN, and known as such to
 * conntrack, which lets it pass. */
static __noinline int acknowledge_nothing(struct __sk_buff *skb, struct packet *p)
{
	u32 zero = 0;
	if (!p || bpf_l4_csum_replace(skb, p->l4 + 16, be32(p->ack), 0, 4))
		return drop(STAT_REDIRECT_FAILED);
	if (bpf_skb_store_bytes(skb, p->l4 + 8, &zero, 4, 0))
		return drop(STAT_REDIRECT_FAILED);
	return TCX_NEXT;
}

static __always_inline u16 folded(s64 sum)
{
	u64 s = (u32)sum;
	s = (s & 0xffff) + (s >> 16);
	s = (s & 0xffff) + (s >> 16);
	return ~s;
}

static __always_inline void reset_header(struct tcp *t, const struct flow_key *k)
{
	t->src = k->rport;
	t->dst = k->lport;
	t->off = sizeof(*t) / 4 << 4;
	t->flags = TCP_RST | TCP_ACK;
}

/* put_back writes the segment over the start of the ICMP packet. */
#define put_back(h)                                                                                       \
	(bpf_skb_change_tail(skb, p->l3 + sizeof(h), 0) ||                                                 \
	 bpf_skb_store_bytes(skb, p->l3, &(h), sizeof(h), BPF_F_RECOMPUTE_CSUM))

/* reset_for_icmp puts the reset of the destination in the place of an ICMP error. */
static __noinline int reset_for_icmp4(struct __sk_buff *skb, struct packet *p)
{
	struct { struct ip4 ip; struct tcp tcp; } h = {};
	struct { u32 src, dst; u16 proto, len; struct tcp tcp; } sum = {};
	if (!p)
		return -1;
	h.ip.ver_ihl = 0x45;
	h.ip.len = be16(sizeof(h));
	h.ip.ttl = 64;
	h.ip.proto = IPPROTO_TCP;
	h.ip.src = sum.src = *(u32 *)p->key.raddr;
	h.ip.dst = sum.dst = *(u32 *)p->key.laddr;
	h.ip.sum = folded(sum_diff(NULL, 0, &h.ip, sizeof(h.ip)));
	reset_header(&h.tcp, &p->key);
	sum.proto = be16(IPPROTO_TCP);
	sum.len = be16(sizeof(h.tcp));
	sum.tcp = h.tcp;
	h.tcp.sum = folded(sum_diff(NULL, 0, &sum, sizeof(sum)));
	return put_back(h) ? -1 : 0;
}

static __noinline int reset_for_icmp6(struct __sk_buff *skb, struct packet *p)
{
	struct { struct ip6 ip; struct tcp tcp; } h = {};
	struct { u32 src[4], dst[4], len, proto; struct tcp tcp; } sum = {};
	if (!p)
		return -1;
	h.ip.ver_class_label = be32(0x60000000);
	h.ip.len = be16(sizeof(h.tcp));
	h.ip.next = IPPROTO_TCP;
	h.ip.hops = 64;
	__builtin_memcpy(h.ip.src, p->key.raddr, 16);
	__builtin_memcpy(h.ip.dst, p->key.laddr, 16);
	reset_header(&h.tcp, &p->key);
	__builtin_memcpy(sum.src, p->key.raddr, 16);
	__builtin_memcpy(sum.dst, p->key.laddr, 16);
	sum.len = be32(sizeof(h.tcp));
	sum.proto = be32(IPPROTO_TCP);
	sum.tcp = h.tcp;
	h.tcp.sum = folded(sum_diff(NULL, 0, &sum, sizeof(sum)));
	return put_back(h) ? -1 : 0;
}

/* ask_bare: from here on the answer to the bare SYN is the connection's. It fails
 * where that has left already, or the connection is another's. */
static __always_inline int ask_bare(struct packet *p, struct flow *f, u64 w)
{
	if (flow_turn(&p->key, f, w, WORD_REFUSED, FLOW_RELEASED))
		return -1;
	count_stat(STAT_OFFER_REFUSED);
	return 0;
}

/* offer_reset: a reset for an offered SYN. Acknowledging 0 is what it does already
 * where the sequence numbers come round. */
static __always_inline int offer_reset(struct __sk_buff *skb, struct packet *p, struct flow *f, u64 w)
{
	if (!p->ack) {
		flow_drop(&p->key, f, w);
		return TCX_NEXT;
	}
	if (ask_bare(p, f, w))
		return drop(STAT_RELEASED_DROP);
	return acknowledge_nothing(skb, p);
}

/* refused_twice: a copy of what answered the offered SYN is dropped, the answer to the
 * bare one is the connection's. */
static __always_inline int refused_twice(struct packet *p, struct flow *f, u64 w)
{
	if (w & WORD_REFUSED && !(w & WORD_BARE))
		return drop(STAT_RELEASED_DROP);
	if (w & WORD_REFUSED)
		discard(peer_refused(&p->key));
	flow_drop(&p->key, f, w);
	return TCX_NEXT;
}

/* offer_unreachable: an ICMP error about an offered SYN. */
static __noinline int offer_unreachable(struct __sk_buff *skb, struct packet *p, struct flow *f, u64 w)
{
	if (!f || ask_bare(p, f, w))
		return drop(STAT_RELEASED_DROP);
	int failed = p->key.family == 4 ? reset_for_icmp4(skb, p) : reset_for_icmp6(skb, p);
	return failed ? drop(STAT_REDIRECT_FAILED) : TCX_NEXT;
}

#endif
