/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What leaves on a wire device: offered SYNs are recorded or blanked, the
 * segments of a carried application go to the legs, everything else passes. */
#ifndef SMCGW_EGRESS_H
#define SMCGW_EGRESS_H

#include "offer.h"
#include "datagram.h"
#include "keepalive.h"
#include "verdict.h"

/* socket_differs compares the socket's addresses with the packet's: address
 * translation has happened in between. */
static __always_inline int socket_differs(struct bpf_sock *sk, const struct flow_key *k)
{
	u32 s4 = once(sk->src_ip4), d4 = once(sk->dst_ip4), sport = once(sk->src_port), family = k->family;
	u32 s0 = once(sk->src_ip6[0]), s1 = once(sk->src_ip6[1]), s2 = once(sk->src_ip6[2]), s3 = once(sk->src_ip6[3]);
	u32 d0 = once(sk->dst_ip6[0]), d1 = once(sk->dst_ip6[1]), d2 = once(sk->dst_ip6[2]), d3 = once(sk->dst_ip6[3]);
	u16 dport = once(sk->dst_port);
	const u32 *l = (const u32 *)k->laddr, *r = (const u32 *)k->raddr;
	if (dport != k->rport || be16(sport) != k->lport)
		return 1;
	if (family == 4)
		return s4 != l[0] || d4 != r[0];
	return s0 != l[0] || s1 != l[1] || s2 != l[2] || s3 != l[3] || d0 != r[0] || d1 != r[1] || d2 != r[2] || d3 != r[3];
}

/* legs_blocked: what legs send on this device is not known to reach applications. */
static __always_inline int legs_blocked(const struct device *d, const struct flow_key *k)
{
	return d->flags & (k->family == 4 ? DEVICE_BLOCKED4 : DEVICE_BLOCKED6);
}

static __always_inline u8 obstacle_of(struct __sk_buff *skb, struct packet *p, struct options *o, struct bpf_sock *sk)
{
	if (socket_differs(sk, &p->key))
		return REASON_NAT;
	if (!carriable(p, o))
		return REASON_SYN_OPTIONS;
	u32 ifindex = skb->ifindex;
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (!d || !(d->flags & DEVICE_OFFER))
		return REASON_ADDRESS;
	return legs_blocked(d, &p->key) ? REASON_APP_LEG_BLOCKED : 0;
}

/* socket_addresses puts the socket's tuple in the place of the translated one:
 * that is how the host lists the connection. */
static __always_inline void socket_addresses(struct __sk_buff *skb, struct flow_key *k)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return;
	u32 s4 = once(sk->src_ip4), d4 = once(sk->dst_ip4), sport = once(sk->src_port);
	u32 src[4] = { once(sk->src_ip6[0]), once(sk->src_ip6[1]), once(sk->src_ip6[2]), once(sk->src_ip6[3]) };
	u32 dst[4] = { once(sk->dst_ip6[0]), once(sk->dst_ip6[1]), once(sk->dst_ip6[2]), once(sk->dst_ip6[3]) };
	k->rport = once(sk->dst_port);
	k->lport = be16(sport);
	if (k->family == 4)
		put4(k, s4, d4);
	else
		put6(k, src, dst);
}

/* bound_to is the device that the packet's socket is bound to, 0: none. */
static __always_inline u32 bound_to(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	return sk ? once(sk->bound_dev_if) : 0;
}

/* note_behind returns what is remembered of the packet's socket, if anything. */
static __always_inline struct sk_note *note_behind(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return NULL;
	sk = bpf_sk_fullsock(sk);
	return sk ? bpf_sk_storage_get(&smcgw_sk, sk, 0, 0) : NULL;
}

/* own_offer returns the note on the socket if it proves that we wrote this offer. A SYN of
 * another namespace's gateway (macvlan keeps skb->sk) has none. */
static __always_inline struct sk_note *own_offer(struct __sk_buff *skb, struct options *o)
{
	struct sk_note *n = note_behind(skb);
	return n && n->phase == PHASE_WRITTEN && n->nonce == o->nonce ? n : NULL;
}

/* offer_obstacle returns why a SYN that carries an offer must not go out with it; n is
 * that of own_offer. */
static __always_inline u8 offer_obstacle(struct __sk_buff *skb, struct packet *p, struct options *o, struct sk_note *n)
{
	struct bpf_sock *sk = n ? skb->sk : NULL;
	if (!sk)
		return REASON_FORWARDED;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return REASON_FORWARDED;
	u8 reason = obstacle_of(skb, p, o, sk);
	if (reason)
		n->phase = PHASE_NONE; /* no hop on the way will see an option */
	return reason;
}

/* way_out is the device by which the answers to what arrives leave. */
static __noinline u32 way_out(struct __sk_buff *skb, const struct flow_key *k)
{
	struct own *o = own_of(k->laddr, k->family);
	return o && o->upper && o->lower == skb->ifindex ? o->upper : skb->ifindex;
}

/* create_flow makes the entry of an offer, after the end of the old one, if there is
 * one: no view of that is one of the new. An end that is under way elsewhere leaves
 * no room. */
static __noinline int create_flow(struct __sk_buff *skb, struct packet *p, u64 word, u8 rule, struct flow *old)
{
	u32 zero = 0;
	u64 len = p->l4 - p->l3 + p->tcplen; /* checked as the helper takes it: verifiers before 6.18 lose the bounds of a u32 */
	struct flow *f = bpf_map_lookup_elem(&smcgw_scratch, &zero);
	if (!f)
		return -1;
	__builtin_memset(f, 0, sizeof(*f));
	f->word = word;
	f->offered_at = bpf_ktime_get_ns();
	f->changed_at = f->offered_at;
	f->ifindex = f->out = flow_value(p->seq, skb->ifindex);
	f->mark = flow_value(p->seq, skb->mark);
	f->bound = flow_value(p->seq, bound_to(skb));
	f->options = flow_value(p->seq, 0);
	f->rule = rule;
	barrier_var(len);
	if (len < 40 || len > sizeof(f->syn))
		return -1;
	if (bpf_skb_load_bytes(skb, p->l3, f->syn, len))
		return -1;
	f->syn_len = len;
	if (old)
		discard(flow_end(&p->key, old, word_isn(flow_word(old))));
	if (bpf_map_update_elem(&smcgw_flows, &p->key, f, BPF_NOEXIST))
		return -1;
	leave_trace(p->key.lport, p->key.rport);
	return 0;
}

static __noinline int offered_out(struct __sk_buff *skb, struct packet *p, struct options *o, struct flow *f, u64 w)
{
	u64 word = make_word(p->seq, o->nonce, 0, FLOW_OFFERED);
	if (f && w == word && (u32)f->ifindex != skb->ifindex)
		return TCX_NEXT; /* the lower device of a stack: recorded above it */
	struct sk_note *n = own_offer(skb, o);
	u8 rule = n ? n->rule : NO_RULE;
	if (smcgw_retired && !n) { /* its own last ones leave while another gateway takes over */
		if (f)
			discard(flow_end(&p->key, f, word_isn(w)));
		return TCX_NEXT;
	}
	/* One that passes through belongs to a gateway behind this host. Translated, it has an own address. */
	if (!n && !is_own(p->key.laddr, p->key.family))
		return TCX_NEXT;
	u8 reason = offer_obstacle(skb, p, o, n);
	if (!reason && create_flow(skb, p, word, rule, f))
		reason = REASON_FLOW_LIMIT;
	if (!reason) {
		count_stat(STAT_OFFERED);
		return TCX_NEXT;
	}
	if (f)
		discard(flow_end(&p->key, f, word_isn(w)));
	count_stat(blank_option(skb, p, o) ? STAT_NEUTRALISE_FAILED : STAT_NEUTRALISED);
	if (reason == REASON_NAT)
		socket_addresses(skb, &p->key);
	native(&p->key, p->seq, SIDE_CLIENT, reason, rule);
	return TCX_NEXT;
}

/* A kernel whose repetitions are dropped under it gives up after about six seconds. */
#define OVERDUE_NS 3000000000ull

/* overdue: the gateway should have begun this negotiation long ago. It does not know of
 * it: its queue had no room for the accept, for instance. Or it is so busy that the
 * application is better served without it. */
static __always_inline int overdue(const struct flow *f)
{
	struct control *c = control();
	if (!c)
		return 0;
	u64 changed = f->changed_at, limit = c->handshake + 4 * (changed - f->offered_at);
	if (limit > OVERDUE_NS)
		limit = OVERDUE_NS;
	return bpf_ktime_get_ns() > changed + limit;
}

/* offer_answered keeps the socket's retransmissions from being taken for the loss of
 * its offer. */
static __always_inline void offer_answered(struct __sk_buff *skb)
{
	struct sk_note *n = note_behind(skb);
	if (n && n->phase == PHASE_WRITTEN)
		n->phase = PHASE_ANSWERED;
}

/* asked_again: the bare SYN after a refusal of the offered one. What the socket sends
 * again for that reason is no loss of its offer. */
static __always_inline int asked_again(struct __sk_buff *skb, struct packet *p, struct flow *f, u64 w)
{
	if (!(w & WORD_REFUSED) || w & WORD_BARE)
		return TCX_NEXT; /* the kernel's own retransmission of a native SYN */
	struct sk_note *n = note_behind(skb);
	if (n && n->phase == PHASE_WRITTEN)
		n->phase = PHASE_REFUSED;
	return flow_turn(&p->key, f, w, WORD_BARE, FLOW_RELEASED) ? drop(STAT_SYN_RETRANSMIT_DROP) : TCX_NEXT;
}

/* give_back gives a negotiation back to the kernel that has not begun in time, or that
 * nothing works on. The entry stays, as that of a released one: the gateway may have
 * spoken already, in the place of the application's first bytes, so that the
 * kernel must never get the SYN-ACK it has spoken upon. Nor may it speak again: its
 * reset would meet the kernel's handshake. */
static __noinline int give_back(struct packet *p, struct flow *f, u64 w, u8 reason)
{
	if (!f)
		return TCX_NEXT;
	discard(note_step(f, word_state(w)));
	if (flow_turn(&p->key, f, w, WORD_SILENT, FLOW_RELEASED))
		return drop(STAT_SYN_RETRANSMIT_DROP);
	replaced(&p->key, f->rule, w, reason);
	native(&p->key, p->seq, SIDE_CLIENT, reason, f->rule);
	return TCX_NEXT;
}

/* sent_again tells that a SYN was forwarded already. */
static __always_inline int sent_again(const struct packet *p)
{
	u64 place = mix(mixed_end(p->key.laddr, p->key.lport, p->seq) ^ mixed_end(p->key.raddr, p->key.rport, 1));
	volatile u64 *slot = &smcgw_forwarded[place % FORWARDED_SLOTS];
	if (*slot == place)
		return 1;
	*slot = place;
	return 0;
}

/* forwarded tells of a connection that a rule selects, and that no socket makes which we
 * could see: of a container, for instance. Rules that ask who calls do not select it. */
static __noinline int forwarded(struct __sk_buff *skb, struct packet *p)
{
	struct verdict v;
	struct control *c = control();
	if (!c || skb->sk || smcgw_retired || odd_address(&p->key) || sent_again(p))
		return TCX_NEXT;
	u32 policy = c->policy;
	discard(decide(&p->key, p->key.rport, policy, allowed_rules(NULL, policy), &v));
	if (!v.reason || v.reason == REASON_CANARY)
		native(&p->key, p->seq, SIDE_CLIENT, REASON_FORWARDED, v.rule);
	return TCX_NEXT;
}

/* bare_out does what is decided of a SYN without offer. Where the entry changes
 * under the decision the SYN is dropped: it will be sent again. */
static __noinline int bare_out(struct __sk_buff *skb, struct packet *p, struct flow *f, u64 w, u8 verdict)
{
	if (!f)
		return forwarded(skb, p);
	switch (verdict) {
	case ASK:
		return asked_again(skb, p, f, w);
	case RELEASE: /* an accept that comes late is dropped: the server has given it up */
		return flow_move(&p->key, f, w, FLOW_RELEASED) ? drop(STAT_SYN_RETRANSMIT_DROP) : TCX_NEXT;
	case HOLD:
		return hold(STAT_SYN_RETRANSMIT_DROP);
	case WAIT:
		if (w & WORD_SPOKEN)
			return hold(STAT_SYN_RETRANSMIT_DROP);
		return overdue(f) ? give_back(p, f, w, REASON_HANDSHAKE_TIMEOUT) : drop(STAT_SYN_RETRANSMIT_DROP);
	case YIELD:
		return w & WORD_SPOKEN ? hold(STAT_SYN_RETRANSMIT_DROP) : give_back(p, f, w, REASON_GATEWAY_STALE);
	case GIVE_BACK:
		return give_back(p, f, w, REASON_GATEWAY_STALE);
	case REPLACE:
		replaced(&p->key, f->rule, w, 0);
		return flow_end(&p->key, f, word_isn(w)) ? drop(STAT_SYN_RETRANSMIT_DROP) : TCX_NEXT;
	case FORGET:
		return flow_end(&p->key, f, word_isn(w)) ? drop(STAT_SYN_RETRANSMIT_DROP) : TCX_NEXT;
	default:
		return drop_of(verdict);
	}
}

static __noinline int syn_out(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	struct options o;
	u64 w = flow_word(f);
	u8 class = OUT_OTHER_SYN;
	discard(scan_options(skb, p, &o));
	if (o.role == OPTION_OFFER) {
		class = OUT_OFFER;
	} else if (word_state(w) && word_isn(w) == p->seq && !(w & WORD_SERVER)) {
		class = OUT_SYN;
		if (w & WORD_ACKED)
			offer_answered(skb);
	}
	u8 verdict = verdict_on(p, class, word_state(w));
	if (f && verdict == REOFFER)
		replaced(&p->key, f->rule, w, 0);
	if (class == OUT_OFFER)
		return offered_out(skb, p, &o, f, w);
	return bare_out(skb, p, f, w, verdict);
}

#define SERVED_NS 60000000000ull

/* note_server remembers that something answers for an own port on which this host
 * has no listener that a SYN would show: address translation leads to it, or it is of
 * a VRF, whose sockets are not found by the device of a packet. Only ports that an
 * offer asked for get here, and connections through our legs. */
static __noinline int note_server(struct __sk_buff *skb, struct packet *p, u8 state)
{
	struct bpf_sock *sk = skb->sk;
	struct peer_key k = { .port = p->key.lport, .family = p->key.family };
	u64 until = bpf_ktime_get_ns() + SERVED_NS;
	if (state != FLOW_NONE && state != FLOW_SERVING)
		return 0;
	if (sk) {
		u32 port = once(sk->src_port), bound = once(sk->bound_dev_if);
		if (be16(port) == p->key.lport && (!bound || bound == skb->ifindex))
			return 0;
	}
	__builtin_memcpy(k.addr, p->key.laddr, sizeof(k.addr));
	return bpf_map_update_elem(&smcgw_served, &k, &until, BPF_ANY);
}

/* icmp_out: an error of this host about a segment of a leg, which the host takes
 * for one of the peer, is the leg's: it tells why a dial fails, and a path's MTU. */
static __always_inline int icmp_out(struct __sk_buff *skb, u32 l2len, struct packet *p)
{
	if (parse_quoted(skb, p))
		return TCX_NEXT;
	reverse(&p->key);
	if (verdict_on(p, OUT_ERROR, word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &p->key)))) != LEGS_ERROR)
		return TCX_NEXT;
	count_stat(STAT_ICMP_STEERED);
	return to_legs(skb, l2len);
}

/* stacked tells whether a packet comes from a macvlan device above this one, whose
 * program has seen it: it has another MAC than ours. */
static __noinline int stacked(struct __sk_buff *skb, struct flow *f, u32 l2len)
{
	u32 ifindex = skb->ifindex;
	u8 src[6];
	if (!f || (u32)f->out == ifindex || l2len != ETH_LEN)
		return 0;
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (!d || bpf_skb_load_bytes(skb, 6, src, sizeof(src)))
		return 0;
	for (int i = 0; i < 6; i++)
		if (src[i] != d->mac[i])
			return 1;
	return 0;
}

/* follow_way: netstack's segments leave by the device and the mark by which the host
 * sends the application's, whatever becomes of its routes. What legs send comes from
 * there, too, where the peer's came by the device that was left. The SYN-ACK shows the
 * way out for the first time, and nothing about the way in. A reset shows no way: a kernel
 * sends it for a socket that has gone, without the mark and the device of that. */
static __noinline int follow_way(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	u32 ifindex = skb->ifindex, mark = skb->mark, out = f->out, bound = bound_to(skb), isn = word_isn(flow_word(f));
	if (p->flags & TCP_RST || (out == ifindex && (u32)f->mark == mark && (u32)f->bound == bound))
		return 0;
	if (!flow_here(&p->key, f))
		return 0;
	if (!(p->flags & TCP_SYN) && (u32)f->ifindex == out)
		flow_set(&f->ifindex, isn, ifindex);
	flow_set(&f->mark, isn, mark);
	flow_set(&f->bound, isn, bound);
	flow_set(&f->out, isn, ifindex);
	return 0;
}

static __always_inline int wire_egress(struct __sk_buff *skb, u32 l2len)
{
	struct packet p;
	if (tagged(skb))
		return let_pass(skb);
	/* A tagged packet on the parent device has passed the VLAN device's program. */
	enum passing passing = passes(skb, l2len);
	if (skb->vlan_present || passing == PASSES || (passing == PASSES_SYN && skb->sk))
		return TCX_NEXT;
	u8 proto = parse(skb, l2len, OUTBOUND, &p);
	if (proto && proto != IPPROTO_TCP)
		return icmp_out(skb, l2len, &p);
	if (!proto)
		return datagram_out(skb, l2len);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	u8 state = word_state(flow_word(f));
	u8 verdict = verdict_on(&p, OUT_SEGMENT, state);
	if (f && verdict == LEGS_PROOF) { /* of every segment */
		discard(proof_comes(&p.key, f, syn_only(&p) ? PROOF_LEFT : PROOF_CONFIRMED));
		return to_legs(skb, l2len);
	}
	if (stacked(skb, f, l2len))
		return TCX_NEXT;
	if (syn_only(&p))
		return syn_out(skb, &p, f);
	if ((p.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
		discard(note_server(skb, &p, state));
	if (verdict == PASS)
		return TCX_NEXT;
	if (f && verdict == LEGS) {
		discard(follow_way(skb, &p, f));
		return watched_out(skb, &p, f) ? hold(STAT_PROBE_HELD) : to_legs(skb, l2len);
	}
	return verdict == LEGS_LAST ? to_legs(skb, l2len) : drop_of(verdict);
}

SEC("tcx/egress")
int smcgw_eg_l2(struct __sk_buff *skb)
{
	return wire_egress(skb, ETH_LEN);
}

SEC("tcx/egress")
int smcgw_eg_ipoib(struct __sk_buff *skb)
{
	return wire_egress(skb, IPOIB_LEN);
}

SEC("tcx/egress")
int smcgw_eg_l3(struct __sk_buff *skb)
{
	return wire_egress(skb, 0);
}

#endif
