/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The offer on the application's own first SYN, by the kernel's header-option
 * API. The flags of that API belong to the socket, not to the program: every op
 * is filtered by namespace and by our note on the socket, and a flag that
 * another program set is left set.
 */
#ifndef SMCGW_OFFER_H
#define SMCGW_OFFER_H

#include "trace.h"
#include "compare.h"
#include "observe.h"
#include "room.h"

/* policy_masks notes which rules the caller of connect() may match. Only here
 * is the caller known; nothing is rewritten or refused. */
static __always_inline int note_caller(struct bpf_sock_addr *ctx)
{
	struct control *c = control();
	if (ctx->protocol != IPPROTO_TCP || !c)
		return 1;
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h || !h->watch || !ctx->sk || bpf_get_netns_cookie(ctx) != netns_cookie)
		return 1;
	struct uid_key uk = { .policy = policy, .uid = (u32)bpf_get_current_uid_gid() };
	u64 *m = bpf_map_lookup_elem(&smcgw_uids, &uk);
	u64 users = m ? *m : h->any_uid, groups = h->any_cgroup;
	for (int level = 0; level < 32; level++) {
		struct cgroup_key ck = { .id = bpf_get_current_ancestor_cgroup_id(level), .policy = policy };
		if (!ck.id)
			break;
		m = bpf_map_lookup_elem(&smcgw_cgroups, &ck);
		if (m)
			groups |= *m;
	}
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!n)
		return 1;
	n->mask = users & groups;
	n->policy_seen = policy + 1;
	return 1;
}

SEC("cgroup/connect4")
int smcgw_connect4(struct bpf_sock_addr *ctx)
{
	return note_caller(ctx);
}

SEC("cgroup/connect6")
int smcgw_connect6(struct bpf_sock_addr *ctx)
{
	return note_caller(ctx);
}

/* allowed_rules: without a rule that asks for the caller nothing was noted. A
 * note made under another policy means the policy changed during this
 * connect(): such a rule cannot match. */
static __always_inline u64 allowed_rules(struct sk_note *n, u32 policy)
{
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h)
		return 0;
	u64 allowed = h->tcp & h->outbound;
	if (!h->watch)
		return allowed;
	if (n && n->policy_seen == policy + 1)
		return n->mask & allowed;
	return h->anyone & allowed;
}

/* Beside a reason: the connection's end is of interest to compare_ended. */
#define COMPARE 0x100

static __always_inline u32 refused_for(const struct flow_key *k, struct sk_note *n, u8 *rule)
{
	struct verdict v;
	struct control *c = control();
	if (!c || never_remote(k))
		return REASON_ADDRESS;
	u32 policy = c->policy;
	judge(k, k->rport, policy, allowed_rules(n, policy), &v);
	/* Own addresses are a lookup more, for what the policy selects only. */
	if (!v.reason && is_own(k->raddr, k->family))
		return REASON_ADDRESS;
	count_decision(&v);
	*rule = v.rule;
	if (v.reason == REASON_CANARY && compare_native(k, c))
		return REASON_CANARY | COMPARE;
	if (v.reason)
		return v.reason;
	u8 reason = switched_off(c, liveness());
	return reason ? reason : remembered(k);
}

/* offer_refused is why a connection is not offered, with the rule above RULE_SHIFT. */
#define RULE_SHIFT 16
global u32 offer_refused(const struct flow_key *k, struct sk_note *n)
{
	u8 rule = NO_RULE;
	u32 reason = k ? refused_for(k, n, &rule) : REASON_ADDRESS;
	return (u32)rule << RULE_SHIFT | reason;
}

static __always_inline void want_option(struct bpf_sock_ops *s)
{
	bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void unwant_option(struct bpf_sock_ops *s, struct sk_note *n)
{
	if (!n->foreign)
		bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags & ~BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

/* doubt has the success of a native connection noticed: its destination does not
 * refuse any more. */
static __always_inline void doubt(struct bpf_sock *sk)
{
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (n)
		n->phase = PHASE_DOUBTED;
}

/* compare_outside notes a connection that the share leaves native. */
static __always_inline void compare_outside(struct bpf_sock *sk, const struct control *c, u8 rule)
{
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (n)
		compare_begins(n, c, rule, COMPARED_NATIVE);
}

/* unseen: the connection's packets leave by a device of a kind that the programs cannot
 * read. None would record the offer, or take it off again. */
static __always_inline int unseen(struct bpf_sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	struct dst_entry *dst = tp->inet_conn.icsk_inet.sk.sk_dst_cache;
	if (!dst)
		return 0;
	struct net_device *dev = dst->dev;
	if (!dev)
		return 0;
	u32 ifindex = dev->ifindex;
	return !bpf_map_lookup_elem(&smcgw_devices, &ifindex);
}

static __always_inline struct sk_note *note_of(struct bpf_sock_ops *s)
{
	struct bpf_sock *sk = s->sk;
	return sk ? bpf_sk_storage_get(&smcgw_sk, sk, 0, 0) : NULL;
}

static __always_inline int on_connect(struct bpf_sock_ops *s)
{
	struct bpf_sock *sk = s->sk;
	struct flow_key k;
	u8 rule;
	struct control *c = control();
	if (!sk || !c || smcgw_retired || sk->priority == GATEWAY_PRIORITY)
		return 1;
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, sk, 0, 0);
	if (n) /* a socket may connect again */
		n->phase = n->compared = 0;
	socket_key(s, &k);
	u32 answer = offer_refused(&k, n), reason = answer & ((1 << RULE_SHIFT) - 1);
	rule = answer >> RULE_SHIFT;
	if (reason == REASON_ADDRESS) /* on this host: nobody waits for it to be steered */
		return 1;
	if (counting) {
		observe(s, sk, &k, SIDE_CLIENT, rule, reason == REASON_MODE || reason == REASON_OFF);
		native(&k, 0, SIDE_CLIENT, reason, rule);
		return 1;
	}
	if (!reason && unseen(sk))
		reason = REASON_ADDRESS;
	if (!reason && !room_for(&k))
		reason = REASON_RATE_LIMIT;
	if (reason) {
		if (reason & COMPARE)
			compare_outside(sk, c, rule);
		else if (reason == REASON_PEER_REFUSED)
			doubt(sk);
		native(&k, 0, SIDE_CLIENT, reason, rule);
		return 1;
	}
	n = bpf_sk_storage_get(&smcgw_sk, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!n)
		return 1;
	n->foreign = !!(s->bpf_sock_ops_cb_flags & BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
	n->nonce = bpf_get_prandom_u32();
	n->rule = rule;
	n->phase = PHASE_WANT;
	if (c->compare)
		compare_begins(n, c, rule, COMPARED_OFFERED);
	want_option(s);
	return 1;
}

/* The note of a socket whose SYN is to carry the option, if this is that SYN. */
static __always_inline struct sk_note *wanting(struct bpf_sock_ops *s)
{
	struct sk_note *n;
	if ((s->skb_tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return NULL;
	n = note_of(s);
	return n && n->phase == PHASE_WANT ? n : NULL;
}

/* on_length and on_write: the flag stays for one SYN only, so a retransmission
 * goes bare without a state that could be misread. */
static __always_inline int on_length(struct bpf_sock_ops *s)
{
	struct sk_note *n = wanting(s);
	if (!n)
		return 1;
	int full = !s->total_retrans && bpf_reserve_hdr_opt(s, OPTION_LEN, 0);
	if (!full && !s->total_retrans)
		return 1;
	n->phase = PHASE_NONE;
	unwant_option(s, n);
	if (full) { /* by a Fast Open cookie, for instance */
		struct flow_key k;
		socket_key(s, &k);
		native(&k, 0, SIDE_CLIENT, REASON_SYN_OPTIONS, n->rule);
	}
	return 1;
}

/* Timestamps of the segment that an op is about. */
struct stamps {
	u8 kind, len;
	u8 val[4], echo[4];
};

static __always_inline int stamps_of(struct bpf_sock_ops *s, struct stamps *t)
{
	t->kind = 8;
	t->len = 0; /* as a search of a kind has to have it */
	return bpf_load_hdr_opt(s, t, sizeof(*t), 0) == sizeof(*t) ? 0 : -1;
}

/* What a SYN-ACK answers: the SYN with the offer, the same after a bare one has followed
 * that, or a bare one, so that the offer had no answer. */
enum answer_kind { ANSWERS_OFFER, ANSWERS_LATE, ANSWERS_BARE };

/* answers_of tells by what the SYN-ACK repeats. The time tells nothing: this host may have
 * been late as well as the other, or the way. */
static __always_inline u8 answers_of(struct bpf_sock_ops *s, const struct sk_note *n)
{
	struct stamps t = {};
	u32 echo;
	if (!s->total_retrans)
		return ANSWERS_OFFER;
	if (!n->stamp || stamps_of(s, &t))
		return ANSWERS_BARE;
	__builtin_memcpy(&echo, t.echo, sizeof(echo));
	return echo == n->stamp ? ANSWERS_LATE : ANSWERS_BARE;
}

static __always_inline int on_write(struct bpf_sock_ops *s)
{
	struct sk_note *n = wanting(s);
	struct stamps t = {};
	if (!n)
		return 1;
	n->stamp = 0;
	if (!stamps_of(s, &t))
		__builtin_memcpy(&n->stamp, t.val, sizeof(n->stamp));
	u8 o[OPTION_LEN] = { 254, OPTION_LEN, 'S', 'M', 'G', 'W', OPTION_OFFER, 0, n->nonce >> 8, (u8)n->nonce };
	n->phase = bpf_store_hdr_opt(s, o, OPTION_LEN, 0) ? PHASE_NONE : PHASE_WRITTEN;
	unwant_option(s, n);
	return 1;
}

/* local_leg: what the application sends goes to the gateway beside it. No network
 * is there whose capacity could be found out, and a congestion control that paces,
 * as bbr does, halves the throughput of memory. The kernel asks before it sets up
 * the host's own. */
static __always_inline void local_leg(struct bpf_sock_ops *s)
{
	char reno[] = "reno"; /* every kernel has it, and it loses nothing here */
	discard(bpf_setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno)));
}

/* on_accepted: the gateway has dialled the application in the client's name, or the
 * connection is native. */
static __always_inline int on_accepted(struct bpf_sock_ops *s)
{
	struct flow_key k;
	socket_key(s, &k);
	if (counting)
		return observe_accepted(s, &k);
	u8 state = word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &k)));
	if (state == FLOW_SERVING || state == FLOW_RAW)
		local_leg(s);
	return 1;
}

/* established learns from a connection that came up. One that was offered, is not ours
 * and has the answer to a SYN that was sent again did so only because that was bare. Dead
 * servers never get here. */
global int established(const struct flow_key *k, u8 phase, u8 answer, u8 state, u8 rule)
{
	struct control *c = control();
	if (!k)
		return 0;
	if (phase == PHASE_DOUBTED)
		return answers(k);
	if (phase == PHASE_REFUSED) {
		discard(option_rejected(k, c));
		native(k, 0, SIDE_CLIENT, REASON_OPTION_REJECTED, rule);
	} else if (answer != ANSWERS_BARE || phase == PHASE_ANSWERED) {
		discard(option_passed(k));
		if (answer == ANSWERS_LATE && phase == PHASE_WRITTEN && state == FLOW_NONE) /* no gateway has answered */
			native(k, 0, SIDE_CLIENT, REASON_PEER_NO_OPTION, rule);
	} else if (state == FLOW_NONE) {
		native(k, 0, SIDE_CLIENT, option_eaten(k, c), rule);
	}
	return 0;
}

static __always_inline int on_established(struct bpf_sock_ops *s)
{
	struct sk_note *n = note_of(s);
	struct flow_key k;
	if (!n)
		return 1;
	u8 phase = n->phase, rule = n->rule;
	if (phase == PHASE_SEEN)
		return 1;
	if (phase == PHASE_WANT)
		unwant_option(s, n);
	if (phase >= PHASE_WRITTEN) {
		socket_key(s, &k);
		u64 w = flow_word(bpf_map_lookup_elem(&smcgw_flows, &k));
		if (word_state(w) == FLOW_COMPLETING)
			local_leg(s);
		discard(established(&k, phase, answers_of(s, n), word_state(w), rule));
	}
	if (compare_established(s, n))
		return 1;
	struct bpf_sock *sk = s->sk;
	if (sk)
		bpf_sk_storage_delete(&smcgw_sk, sk);
	return 1;
}

/* on_state has the end of a connection counted. One that never came up moved nothing. */
static __always_inline int on_state(struct bpf_sock_ops *s)
{
	struct flow_key k;
	if (s->args[1] != BPF_TCP_CLOSE || s->args[0] == BPF_TCP_SYN_SENT)
		return 1;
	struct sk_note *n = note_of(s);
	if (!n)
		return 1;
	u8 phase = n->phase;
	if (phase == PHASE_COMPARED) {
		compare_ended(s, n);
	} else if (phase == PHASE_SEEN) {
		socket_key(s, &k);
		observe_end(s, n, &k);
	}
	return 1;
}

/* The ops we have anything to do with; the kernel has several more a connection. */
#define OPS                                                                                                  \
	(1u << BPF_SOCK_OPS_TCP_CONNECT_CB | 1u << BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB |                       \
	 1u << BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB | 1u << BPF_SOCK_OPS_HDR_OPT_LEN_CB |                      \
	 1u << BPF_SOCK_OPS_WRITE_HDR_OPT_CB | 1u << BPF_SOCK_OPS_STATE_CB)

SEC("sockops")
int smcgw_sockops(struct bpf_sock_ops *s)
{
	u32 op = s->op;
	if (op >= 32 || !(1u << op & OPS))
		return 1;
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && !counting && !traced(be16(s->local_port), be16(be32(s->remote_port))))
		return 1;
	if (bpf_get_netns_cookie(s) != netns_cookie)
		return 1;
	if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		return on_connect(s);
	if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		return on_accepted(s);
	if (op == BPF_SOCK_OPS_STATE_CB)
		return on_state(s);
	if (op == BPF_SOCK_OPS_HDR_OPT_LEN_CB)
		return on_length(s);
	if (op == BPF_SOCK_OPS_WRITE_HDR_OPT_CB)
		return on_write(s);
	return on_established(s);
}

#endif
