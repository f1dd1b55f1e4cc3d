/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What arrives on a wire device (the tables of docs/ARCHITECTURE.md "Steering"). */
#ifndef SMCGW_INGRESS_H
#define SMCGW_INGRESS_H

#include "refused.h"
#include "cookie.h"

#define LINGER_NS 5000000000ull
#define CHALLENGE_NS 500000000ull

/* listening tells whether the kernel would answer this SYN from a listener; a
 * connection request, TIME_WAIT or live socket on the tuple keeps it native. */
global int listening(struct __sk_buff *skb, const struct flow_key *k)
{
	if (!k)
		return 0;
	struct bpf_sock_tuple t = {};
	struct bpf_sock *sk;
	if (k->family == 4) {
		t.ipv4.saddr = *(u32 *)k->raddr;
		t.ipv4.daddr = *(u32 *)k->laddr;
		t.ipv4.sport = k->rport;
		t.ipv4.dport = k->lport;
		sk = bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv4), BPF_F_CURRENT_NETNS, 0);
	} else {
		__builtin_memcpy(t.ipv6.saddr, k->raddr, 16);
		__builtin_memcpy(t.ipv6.daddr, k->laddr, 16);
		t.ipv6.sport = k->rport;
		t.ipv6.dport = k->lport;
		sk = bpf_skc_lookup_tcp(skb, &t, sizeof(t.ipv6), BPF_F_CURRENT_NETNS, 0);
	}
	if (!sk)
		return 0;
	int is = sk->state == BPF_TCP_LISTEN;
	bpf_sk_release(sk);
	return is;
}

/* served tells whether a port without a listener was answered for lately. */
global int served(const struct flow_key *k)
{
	if (!k)
		return 0;
	struct peer_key pk = { .port = k->lport, .family = k->family };
	__builtin_memcpy(pk.addr, k->laddr, sizeof(pk.addr));
	u64 *until = bpf_map_lookup_elem(&smcgw_served, &pk);
	return until && bpf_ktime_get_ns() < *until;
}

/* awaited tells whether the host would deliver this SYN: to a listener, or through
 * address translation to something that has answered before. For what is not known to
 * answer the kernel's answer is looked at as it leaves. */
static __always_inline int awaited(struct __sk_buff *skb, const struct flow_key *k)
{
	if (listening(skb, k) || served(k))
		return 1;
	leave_trace(k->lport, k->rport);
	return 0;
}

/* decrypted tells whether a packet came in a tunnel of IPsec by policy: it arrives on the
 * device of the tunnel once more. What we would answer goes past the policy, as plain text. */
static __always_inline int decrypted(struct __sk_buff *skb)
{
	struct bpf_xfrm_state by = {};
	return has_xfrm && !bpf_skb_get_xfrm_state(skb, 0, &by, sizeof(by), 0);
}

/* accept_refused returns why an offer of a peer is left to the kernel, which
 * ignores the option. A wildcard listener would match transit traffic too, so the
 * destination must be ours. */
static __noinline int accept_refused(struct __sk_buff *skb, struct packet *p, struct options *o, u8 *rule)
{
	struct control *c = control();
	struct verdict v;
	*rule = NO_RULE;
	if (!c)
		return REASON_GATEWAY_STALE;
	struct own *own = own_of(p->key.laddr, p->key.family);
	if (skb->pkt_type != PACKET_HOST || !own)
		return REASON_FORWARDED;
	if (own->upper == OWN_NOWHERE && own->lower != skb->ifindex)
		return REASON_SLOTS; /* the program of the device below has told */
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h || own->upper == OWN_NOWHERE || odd_address(&p->key))
		return REASON_ADDRESS;
	discard(decide(&p->key, p->key.lport, policy, h->inbound & h->tcp, &v));
	*rule = v.rule;
	if (v.reason)
		return v.reason;
	u8 off = switched_off(c, gateway_of(p));
	if (off || c->shed)
		return off ?: c->shed;
	if (!carriable(p, o) || !answerable(p, o))
		return REASON_SYN_OPTIONS;
	if (remembered(&p->key) == REASON_ACCEPT_LOST)
		return REASON_ACCEPT_LOST;
	u32 ifindex = skb->ifindex;
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (d && d->flags & DEVICE_ONE_WAY)
		return REASON_ADDRESS;
	if (p->l3 == IPOIB_LEN && route(skb, &p->key) != ifindex) /* the answer could not go back the way the SYN came */
		return REASON_ADDRESS;
	if (d && !(d->flags & DEVICE_IPSEC) && decrypted(skb))
		return REASON_ADDRESS;
	if (!d || legs_blocked(d, &p->key))
		return REASON_APP_LEG_BLOCKED;
	if (!awaited(skb, &p->key))
		return REASON_SLOTS;
	return crowded(c) || spend(answer_rate) ? REASON_RATE_LIMIT : 0;
}

/* offered_in: a SYN with an offer on a tuple without an entry worth keeping. Its
 * address is not proved: it is answered, and nothing is kept. */
static __noinline int offered_in(struct __sk_buff *skb, struct packet *p, struct options *o)
{
	u8 rule;
	u32 reason = accept_refused(skb, p, o, &rule);
	if (!reason)
		return answer(skb, p, o, p->l3);
	if (reason == REASON_RATE_LIMIT) /* there are many of these: no event */
		count_native(SIDE_SERVER, reason);
	/* No listener here, or transit: nothing of ours was decided. */
	else if (reason != REASON_SLOTS && reason != REASON_FORWARDED)
		native(&p->key, p->seq, SIDE_SERVER, reason, rule);
	return TCX_NEXT;
}

/* stale_in deletes the entry of a gateway that is gone. */
static __always_inline void stale_in(struct packet *p, struct flow *f, u64 w)
{
	count_stat(STAT_STALE_DELETED);
	discard(flow_end(&p->key, f, word_isn(w)));
}

/* given_up_in: the client's gateway has released the connection, and ours is late. The
 * kernel takes it over; the gateway finds no entry when it resumes. What it may have begun
 * at the application the kernel challenges (RFC 5961), and the client's reset ends. */
static __always_inline int given_up_in(struct packet *p, struct flow *f, u64 w)
{
	if (!f || flow_drop(&p->key, f, w))
		return drop(STAT_STALE_DROPPED);
	replaced(&p->key, f->rule, w, REASON_GATEWAY_STALE);
	native(&p->key, p->seq, SIDE_SERVER, REASON_GATEWAY_STALE, f->rule);
	return TCX_NEXT;
}

/* syn_in: a blind SYN on a tuple with an entry kills nothing: the wire endpoint
 * answers a challenge ACK (RFC 5961). */
static __noinline int syn_in(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	struct options o;
	u64 w = flow_word(f);
	discard(scan_options(skb, p, &o));
	int again = w & WORD_CONFIRMED && word_isn(w) == p->seq && o.role != OPTION_OFFER;
	u8 verdict = verdict_on(p, again ? IN_SYN_AGAIN : IN_SYN, word_state(w));
	if (verdict == NETSTACK)
		return to_netstack(skb);
	if (verdict == REPLACE)
		return given_up_in(p, f, w);
	if (verdict == STALE)
		stale_in(p, f, w);
	else if (verdict != NEW)
		return drop_of(verdict);
	else if (f && word_state(w))
		flow_drop(&p->key, f, w);
	return o.role == OPTION_OFFER && !smcgw_retired ? offered_in(skb, p, &o) : TCX_NEXT;
}

/* class_in tells the class of a segment that is no SYN; the options are read of a
 * SYN-ACK alone. */
static __always_inline u8 class_in(struct __sk_buff *skb, struct packet *p, u64 w, struct options *o)
{
	if (!(p->flags & (TCP_SYN | TCP_RST)))
		return (p->flags & (TCP_ACK | TCP_FIN)) == TCP_ACK ? IN_ACK : IN_SEGMENT;
	if (p->ack != word_isn(w) + 1 || !(p->flags & TCP_ACK)) /* no kernel believes a reset without */
		return IN_STRAY;
	if (p->flags & TCP_RST)
		return IN_RESET;
	discard(scan_options(skb, p, o));
	return o->role == OPTION_ACCEPT && o->nonce == word_nonce(w) ? IN_ACCEPT : IN_ANSWER;
}

/* accepted_in: the gateway takes the connection of an offer over. */
static __always_inline int accepted_in(struct __sk_buff *skb, struct packet *p, struct flow *f, u64 w)
{
	discard(option_passed(&p->key));
	if (flow_turn(&p->key, f, w, WORD_ACKED, FLOW_NEGOTIATING))
		return drop(STAT_RELEASED_DROP);
	count_stat(STAT_ACCEPTED);
	return to_netstack(skb);
}

/* late_accept: the accept is never the kernel's: what the server's gateway would be
 * told by it, that might not be there to hear. */
static __always_inline int late_accept(struct packet *p, struct flow *f, u64 w)
{
	discard(option_passed(&p->key));
	if (!flow_turn(&p->key, f, w, WORD_ACKED | WORD_SILENT, FLOW_RELEASED))
		native(&p->key, word_isn(w), SIDE_CLIENT, REASON_GATEWAY_STALE, f->rule);
	return drop(STAT_STALE_DROPPED);
}

/* native_in: a SYN-ACK without our accept is the kernel's, untouched. */
static __always_inline int native_in(struct packet *p, struct flow *f, u64 w, struct options *o)
{
	u8 reason = o->role == OPTION_OFFER ? REASON_OPTION_MIRRORED : REASON_PEER_NO_OPTION;
	native(&p->key, word_isn(w), SIDE_CLIENT, reason, f->rule);
	flow_drop(&p->key, f, w);
	return TCX_NEXT;
}

/* lingered: an entry of a connection that is over does not decide any more. Of a released
 * one it does about the accept, which is never the kernel's. */
static __always_inline int lingered(const struct flow *f, u8 state, u8 class)
{
	if (state != FLOW_DEAD && (state != FLOW_RELEASED || class == IN_ACCEPT))
		return 0;
	return f->changed_at + LINGER_NS < bpf_ktime_get_ns();
}

/* challenged: what is late has come within half a second after a release. An ACK is
 * then the challenge of a socket that a gateway left behind at the server, and the
 * kernel's reset ends it. */
static __always_inline int challenged(const struct flow *f)
{
	return f->changed_at + CHALLENGE_NS < bpf_ktime_get_ns();
}

/* segment_in does what is decided of a segment on a tuple with an entry. The kernel
 * never gets one of a wire leg: the gateway may only be late, and may have sent bytes of
 * its own where the application's first bytes would go. A client's connection is
 * released by the application's next SYN (egress.h). A server's kernel knows no such
 * connection and answers with a reset, upon which the client's gateway begins anew; a
 * client without one has no other server than ours, so a late one is waited for. */
static __noinline int segment_in(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	struct options o = {};
	u64 w = flow_word(f);
	u8 state = word_state(w);
	if (!f)
		return TCX_NEXT;
	u8 class = class_in(skb, p, w, &o);
	u8 verdict = lingered(f, state, class) ? FORGET : verdict_on(p, class, state);
	switch (verdict) {
	case NETSTACK:
		return to_netstack(skb);
	case ACCEPT:
		return accepted_in(skb, p, f, w);
	case TOO_LATE:
		return late_accept(p, f, w);
	case NATIVE:
		return native_in(p, f, w, &o);
	case REFUSED:
		return offer_reset(skb, p, f, w);
	case REFUSED_BARE:
		return refused_twice(p, f, w);
	case CHALLENGE:
		return challenged(f) ? TCX_NEXT : drop(STAT_RELEASED_DROP);
	case STALE:
		stale_in(p, f, w);
		return TCX_NEXT;
	case FORGET:
		flow_drop(&p->key, f, w);
		return TCX_NEXT;
	default:
		return drop_of(verdict);
	}
}

/* proof_in: a segment of a tuple without an entry, which may be what answers a
 * SYN-ACK of ours (cookie.h). One that does proves the address of its sender, and is
 * the first of a connection; it is the kernel's where that knows more of the
 * tuple than a listener. Of a gateway that is late, or gone, see segment_in. */
static __noinline int proof_in(struct __sk_buff *skb, struct packet *p)
{
	struct options o;
	if ((p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK)
		return TCX_NEXT;
	discard(scan_options(skb, p, &o));
	u64 tick = o.timestamps ? proves(p, &o) : 0;
	if (!tick || !(listening(skb, &p->key) || served(&p->key)))
		return TCX_NEXT;
	u8 gateway = gateway_of(p);
	if (gateway != ALIVE)
		return gateway == LATE ? drop(STAT_STALE_DROPPED) : TCX_NEXT;
	if (o.role == OPTION_CONFIRM && !speaks(skb, p))
		return drop(STAT_SILENT_DROP);
	return prove_flow(skb, p, &o, tick) ? TCX_NEXT : to_netstack(skb);
}

static __always_inline int icmp_in(struct __sk_buff *skb, struct packet *p)
{
	if (parse_quoted(skb, p))
		return TCX_NEXT;
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p->key);
	u64 w = flow_word(f);
	u8 verdict = verdict_on(p, p->fatal && p->seq == word_isn(w) ? IN_UNREACHABLE : IN_ERROR, word_state(w));
	if (f && verdict == REFUSED)
		return offer_unreachable(skb, p, f, w);
	if (f && verdict == REFUSED_BARE)
		return w & WORD_REFUSED ? refused_twice(p, f, w) : TCX_NEXT;
	if (verdict != NET_ERROR)
		return TCX_NEXT;
	count_stat(STAT_ICMP_STEERED);
	return to_netstack(skb);
}

/* leg_syn: a SYN or SYN-ACK of a leg. It has been in a queue since the program on the
 * pair saw it, and its connection may have fallen back since. */
static __always_inline int leg_syn(struct __sk_buff *skb, u32 l2len)
{
	struct packet p;
	if (parse(skb, l2len, INBOUND, &p) == IPPROTO_TCP) {
		u8 verdict = verdict_on(&p, LEG_QUEUED, word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &p.key))));
		if (verdict != PASS)
			return drop_of(verdict);
	}
	return let_pass(skb);
}

/* other_vlan tells of a tag that gives the packet to a VLAN device above this one. A tag
 * with number 0 has nothing but a priority (IEEE 802.1Q), and the kernel ignores it unless
 * a device has that number. */
static __always_inline int other_vlan(struct __sk_buff *skb)
{
	u32 ifindex = skb->ifindex;
	if (!skb->vlan_present || skb->vlan_tci & 0xfff)
		return skb->vlan_present;
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	return d && d->flags & DEVICE_TAGGED;
}

static __always_inline int wire_ingress(struct __sk_buff *skb, u32 l2len)
{
	struct packet p;
	if (has_tag(skb, TAG_LEG_SYN))
		return leg_syn(skb, l2len ? ETH_LEN : 0); /* see from_wire */
	if (tagged(skb))
		return let_pass(skb);
	/* Another host's MAC: that of a macvlan device above this one, if it is for us. */
	if (skb->pkt_type == PACKET_OTHERHOST || passes(skb, l2len) || other_vlan(skb))
		return TCX_NEXT;
	u8 proto = parse(skb, l2len, INBOUND, &p);
	if (!proto)
		return TCX_NEXT;
	if (proto != IPPROTO_TCP)
		return icmp_in(skb, &p);
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, &p.key);
	if (syn_only(&p))
		return syn_in(skb, &p, f);
	return word_state(flow_word(f)) ? segment_in(skb, &p, f) : proof_in(skb, &p);
}

SEC("tcx/ingress")
int smcgw_in_l2(struct __sk_buff *skb)
{
	return wire_ingress(skb, ETH_LEN);
}

SEC("tcx/ingress")
int smcgw_in_ipoib(struct __sk_buff *skb)
{
	return wire_ingress(skb, IPOIB_LEN);
}

SEC("tcx/ingress")
int smcgw_in_l3(struct __sk_buff *skb)
{
	return wire_ingress(skb, 0);
}

#endif
