/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The answer to an offered SYN, which leaves nothing behind on this host. What has
 * to be known of the SYN when its sender has proved its address is in the
 * sequence number and the timestamp of the SYN-ACK, which the sender repeats
 * (docs/PROTOCOL.md "Cookies"):
 *
 *	timestamp: nonce (31..16), tick bits 10..3 (15..8), window scale (7..4; 15: none), SACK permitted (3), MSS (2..0)
 *	sequence:  MAC (31..3), tick bits 2..0 (2..0)
 */
#ifndef SMCGW_COOKIE_H
#define SMCGW_COOKIE_H

#include "egress.h"

#define TICK_SHIFT 23 /* of ktime: 8.4 ms */
#define TICK_MASK 0x7ffull
#define MAC_MASK 0x1fffffffu
#define NO_SCALE 15
#define OWN_SCALE 8 /* enough for 16 MiB; user space translates its own (netstack/proof.go) */
#define ANSWER_TTL 64

#define ROTATE(x, n) ((x) << (n) | (x) >> (64 - (n)))
#define SIP_ROUND                                        \
	do {                                             \
		a += b; c += d;                          \
		b = ROTATE(b, 13) ^ a;                   \
		d = ROTATE(d, 16) ^ c;                   \
		a = ROTATE(a, 32);                       \
		c += b; a += d;                          \
		b = ROTATE(b, 17) ^ c;                   \
		d = ROTATE(d, 21) ^ a;                   \
		c = ROTATE(c, 32);                       \
	} while (0)

/* What a cookie is bound to. */
struct cookie_input {
	u8 laddr[16], raddr[16];
	u16 lport, rport;
	u32 isn;
	u64 stamp;
	u64 tick;
};

/* cookie_mac is SipHash-2-4 of the input, of which the caller takes as many bits as
 * there is room for. */
global int cookie_mac(const struct cookie_input *in)
{
	if (!in)
		return 0;
	const u64 *w = (const u64 *)in;
	u64 a = 0x736f6d6570736575ull ^ cookie_key[0], b = 0x646f72616e646f6dull ^ cookie_key[1];
	u64 c = 0x6c7967656e657261ull ^ cookie_key[0], d = 0x7465646279746573ull ^ cookie_key[1];
	for (u32 i = 0; i < sizeof(*in) / 8; i++) {
		d ^= w[i];
		SIP_ROUND;
		SIP_ROUND;
		a ^= w[i];
	}
	u64 last = (u64)sizeof(*in) << 56;
	d ^= last;
	SIP_ROUND;
	SIP_ROUND;
	a ^= last;
	c ^= 0xff;
	for (u32 i = 0; i < 4; i++)
		SIP_ROUND;
	return (u32)(a ^ b ^ c ^ d);
}

/* cookie_of is the sequence number of the SYN-ACK that carries stamp. */
static __noinline u32 cookie_of(const struct flow_key *k, u32 isn, u32 stamp, u64 tick)
{
	struct cookie_input in = { .lport = k->lport, .rport = k->rport, .isn = isn, .stamp = stamp, .tick = tick };
	__builtin_memcpy(in.laddr, k->laddr, 16);
	__builtin_memcpy(in.raddr, k->raddr, 16);
	return (u32)cookie_mac(&in) << 3 | (tick & 7);
}

/* mss_index finds the largest entry of the table that is not above mss. */
static __always_inline int mss_index(u32 mss)
{
	if (!mss)
		mss = 536; /* RFC 9293 3.7.1 */
	if (mss < 536)
		return -1;
	return (mss >= 1220) + (mss >= 1340) + (mss >= 1400) + (mss >= 1440) + (mss >= 1460) + (mss >= 8940) + (mss >= 8960);
}

/* spend takes one from what may be done in a second on this processor. */
static __always_inline int spend(u32 limit)
{
	u32 zero = 0;
	struct budget *b = bpf_map_lookup_elem(&smcgw_budget, &zero);
	if (!b)
		return -1;
	u64 second = bpf_ktime_get_ns() >> 30;
	if (b->second != second) {
		b->second = second;
		b->spent = 0;
	}
	return b->spent++ < limit ? 0 : -1;
}

/* crowded: as many connections were proved in this second as user space takes on. */
static __always_inline int crowded(struct control *c)
{
	u64 w = *(volatile u64 *)&smcgw_proved;
	return c->proofs && w >> 32 == (u32)(bpf_ktime_get_ns() >> 30) && (u32)w >= c->proofs;
}

/* count_proof counts those, of one second at a time. */
static __always_inline void count_proof(void)
{
	u64 second = (bpf_ktime_get_ns() >> 30) << 32;
	for (int try = 0; try < 4; try++) {
		u64 w = *(volatile u64 *)&smcgw_proved, next = w >> 32 == second >> 32 ? w + 1 : second + 1;
		if (__sync_val_compare_and_swap((u64 *)&smcgw_proved, w, next) == w)
			return;
	}
}

static __always_inline u16 fold(u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~((sum & 0xffff) + (sum >> 16));
}

/* put_answer4 and put_answer6 write the network header. */
static __always_inline long put_answer4(struct __sk_buff *skb, struct packet *p)
{
	struct ip4 ip = {
		.ver_ihl = 0x45, .len = be16(sizeof(ip) + ANSWER_LEN), .frag = be16(0x4000), .ttl = ANSWER_TTL,
		.proto = IPPROTO_TCP, .src = *(u32 *)p->key.laddr, .dst = *(u32 *)p->key.raddr,
	};
	ip.sum = fold((u32)sum_diff(NULL, 0, &ip, sizeof(ip)));
	return bpf_skb_store_bytes(skb, p->l3, &ip, sizeof(ip), 0);
}

static __always_inline long put_answer6(struct __sk_buff *skb, struct packet *p)
{
	struct ip6 ip = { .ver_class_label = be32(0x60000000), .len = be16(ANSWER_LEN), .next = IPPROTO_TCP, .hops = ANSWER_TTL };
	__builtin_memcpy(ip.src, p->key.laddr, 16);
	__builtin_memcpy(ip.dst, p->key.raddr, 16);
	return bpf_skb_store_bytes(skb, p->l3, &ip, sizeof(ip), 0);
}

/* turn_link swaps the link addresses: the answer goes back the way the SYN came. */
static __always_inline long turn_link(struct __sk_buff *skb, u32 l2len)
{
	struct { u16 dst[3], src[3]; } eth, back;
	if (l2len != ETH_LEN)
		return 0;
	if (bpf_skb_load_bytes(skb, 0, &eth, sizeof(eth)))
		return -1;
	__builtin_memcpy(back.dst, eth.src, 6);
	__builtin_memcpy(back.src, eth.dst, 6);
	return bpf_skb_store_bytes(skb, 0, &back, sizeof(back), 0);
}

/* fill_answer makes the TCP header, with the options that Linux gives a SYN-ACK, in
 * its order, and the accept after them. */
static __always_inline void fill_answer(u8 *b, struct packet *p, struct options *o, u32 seq, u32 stamp, u16 mss)
{
	struct tcp *t = (void *)b;
	t->src = p->key.lport;
	t->dst = p->key.rport;
	t->seq = be32(seq);
	t->ack = be32(p->seq + 1);
	t->off = ANSWER_LEN / 4 << 4;
	t->flags = TCP_SYN | TCP_ACK;
	t->window = 0xffff;
	t->sum = 0;
	t->urg = 0;
	b += sizeof(*t);
	u8 head[8] = { 2, 4, mss >> 8, (u8)mss, o->sack ? 4 : 1, o->sack ? 2 : 1, 8, 10 };
	u32 stamps[2] = { be32(stamp), be32(o->stamp) };
	u8 scale[4] = { 1, o->scale ? 3 : 1, o->scale ? 3 : 1, o->scale ? OWN_SCALE : 1 };
	u8 accept[12] = { 1, 1, 254, OPTION_LEN, 'S', 'M', 'G', 'W', OPTION_ACCEPT, 0, o->nonce >> 8, (u8)o->nonce };
	__builtin_memcpy(b, head, 8);
	__builtin_memcpy(b + 8, stamps, 8);
	__builtin_memcpy(b + 16, scale, 4);
	__builtin_memcpy(b + 20, accept, 12);
}

/* resum corrects the checksum of the SYN for what has become of its header. So it
 * is right where the SYN's was, and where the device is to compute it (a veth's
 * peer leaves that to us): the field holds the pseudo header only then. Addresses
 * and ports have changed places, which changes no sum. */
static __always_inline long resum(struct __sk_buff *skb, struct packet *p, struct answer *a)
{
	u32 at = p->l4 + 16;
	s64 diff = sum_diff(a->old, sizeof(a->old), a->next, sizeof(a->next));
	if (diff < 0 || bpf_skb_store_bytes(skb, at, &a->sum, 2, 0))
		return -1;
	if (bpf_l4_csum_replace(skb, at, 0, diff, 0))
		return -1;
	return bpf_l4_csum_replace(skb, at, be16(p->tcplen), be16(ANSWER_LEN), BPF_F_PSEUDO_HDR | 2);
}

/* turn_around makes the SYN-ACK out of the SYN. */
static __noinline int turn_around(struct __sk_buff *skb, struct packet *p, struct options *o, u32 l2len)
{
	u32 zero = 0;
	u64 n = p->tcplen, tick = bpf_ktime_get_ns() >> TICK_SHIFT; /* n as in scan_options */
	struct control *c = control();
	struct answer *a = bpf_map_lookup_elem(&smcgw_answer, &zero);
	if (!a || !c || n <= 20 || n > sizeof(a->old))
		return -1;
	u32 stamp = (u32)o->nonce << 16 | (u32)(tick >> 3 & 0xff) << 8 | (o->scale ? o->scale - 1 : NO_SCALE) << 4 |
		    (o->sack ? 8 : 0) | (mss_index(o->mss) & 7);
	u32 seq = cookie_of(&p->key, p->seq, stamp, tick);
	__builtin_memset(a, 0, sizeof(*a));
	n -= 21;
	barrier_var(n);
	n = (n & 63) + 1;
	if (n > sizeof(a->old) - 20 || bpf_skb_load_bytes(skb, p->l4, a->old, 20) || bpf_skb_load_bytes(skb, p->l4 + 20, a->old + 20, n))
		return -1;
	a->sum = *(u16 *)(a->old + 16);
	*(u16 *)(a->old + 16) = 0;
	u16 headers = p->key.family == 4 ? 40 : 60;
	fill_answer(a->next, p, o, seq, stamp, c->mtu > headers ? c->mtu - headers : 536);
	if (bpf_skb_change_tail(skb, p->l4 + ANSWER_LEN, 0) || turn_link(skb, l2len))
		return -1;
	if (p->key.family == 4 ? put_answer4(skb, p) : put_answer6(skb, p))
		return -1;
	return bpf_skb_store_bytes(skb, p->l4, a->next, ANSWER_LEN, 0) || resum(skb, p, a) ? -1 : 0;
}

/* route is the device by which the host reaches the peer, or 0. To the kernel the
 * packet comes from W, which forwards. */
static __noinline u32 route(struct __sk_buff *skb, const struct flow_key *k)
{
	struct bpf_fib_lookup f = { .l4_protocol = IPPROTO_TCP, .sport = k->lport, .dport = k->rport, .ifindex = wire_ifindex };
	if (k->family == 4) {
		f.family = AF_INET;
		f.ipv4_src = *(u32 *)k->laddr;
		f.ipv4_dst = *(u32 *)k->raddr;
	} else {
		f.family = AF_INET6;
		__builtin_memcpy(f.ipv6_src, k->laddr, 16);
		__builtin_memcpy(f.ipv6_dst, k->raddr, 16);
	}
	long rc = bpf_fib_lookup(skb, &f, sizeof(f), 0);
	return rc == BPF_FIB_LKUP_RET_SUCCESS || rc == BPF_FIB_LKUP_RET_NO_NEIGH ? f.ifindex : 0;
}

/* answerable tells whether the cookie has room for what the SYN asks for, and its
 * headers are where the answer's will be. */
static __always_inline int answerable(const struct packet *p, const struct options *o)
{
	return p->l4 - p->l3 == (p->key.family == 4 ? sizeof(struct ip4) : sizeof(struct ip6)) && mss_index(o->mss) >= 0;
}

/* answer sends the SYN-ACK out of the device the SYN came in by. Where the host's own
 * answers leave by it, too, it goes by their route: the host that brought the SYN need not
 * take the answer, as the director of a service whose servers answer themselves does not.
 * Elsewhere it goes back the way the SYN came: the route may be another one for what
 * rules of netfilter mark. From IPoIB the way is by W ingress, see to_legs. */
static __noinline int answer(struct __sk_buff *skb, struct packet *p, struct options *o, u32 l2len)
{
	if (untag(skb) || turn_around(skb, p, o, l2len))
		return drop(STAT_REDIRECT_FAILED);
	trace_answer(p->key.lport, p->key.rport);
	count_stat(STAT_ANSWERED);
	set_tag(skb, TAG_PASS);
	if (l2len == IPOIB_LEN) {
		skb->mark = skb->ifindex;
		return bpf_redirect(wire_ifindex, BPF_F_INGRESS);
	}
	if (l2len == ETH_LEN && route(skb, &p->key) == skb->ifindex)
		return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
	return bpf_redirect(skb->ifindex, 0);
}

/* proves tells whether a segment repeats what a SYN-ACK of ours has told its
 * sender: the tick in which we sent that, or 0. */
static __always_inline u64 proves(const struct packet *p, const struct options *o)
{
	u64 now = bpf_ktime_get_ns() >> TICK_SHIFT;
	u32 cookie = p->ack - 1, ticks = (o->echo >> 8 & 0xff) << 3 | (cookie & 7);
	u64 tick = now - ((now - ticks) & TICK_MASK);
	return cookie == cookie_of(&p->key, p->seq - 1, o->echo, tick) ? tick : 0;
}

/* speaks tells whether a segment holds a whole PROPOSAL, as one of a client's gateway
 * that starts at ISN + 1 does unless it only acknowledges. What proves an address
 * and says nothing of use would make user space wait. */
static __always_inline int speaks(struct __sk_buff *skb, const struct packet *p)
{
	struct { u8 eye[4], type, version; u16 len; } h;
	if (p->payload < sizeof(h) || bpf_skb_load_bytes(skb, p->l4 + p->tcplen, &h, sizeof(h)))
		return 0;
	return h.eye[0] == 'S' && h.eye[1] == 'M' && h.eye[2] == 'G' && h.eye[3] == 'W' && h.type == 1 && be16(h.len) <= p->payload;
}

/* prove_flow makes the entry, unless another segment has done so just now. The
 * rule is told from the policy of now; what it decides was decided. */
static __noinline int prove_flow(struct __sk_buff *skb, struct packet *p, struct options *o, u64 tick)
{
	u32 zero = 0, isn = p->seq - 1;
	struct verdict v = { .rule = NO_RULE };
	struct control *c = control();
	struct flow *f = bpf_map_lookup_elem(&smcgw_scratch, &zero);
	if (!f || !c)
		return -1;
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (h)
		judge(&p->key, p->key.lport, policy, h->inbound & h->tcp, &v);
	__builtin_memset(f, 0, sizeof(*f));
	f->word = make_word(isn, o->echo >> 16, WORD_SERVER | WORD_ACKED, FLOW_WIRE);
	if (o->role == OPTION_CONFIRM)
		f->word |= WORD_CONFIRMED;
	f->changed_at = bpf_ktime_get_ns();
	f->offered_at = (tick << TICK_SHIFT) + (1 << (TICK_SHIFT - 1)); /* give or take half a tick */
	if (f->offered_at > f->changed_at)
		f->offered_at = f->changed_at;
	f->ifindex = flow_value(isn, skb->ifindex);
	f->out = flow_value(isn, way_out(skb, &p->key));
	f->mark = f->bound = f->options = flow_value(isn, 0);
	f->rule = v.rule;
	long failed = bpf_map_update_elem(&smcgw_flows, &p->key, f, BPF_NOEXIST);
	if (failed)
		return failed == -EEXIST ? 0 : -1;
	leave_trace(p->key.lport, p->key.rport);
	count_stat(STAT_SERVED);
	count_proof();
	return 0;
}

#endif
