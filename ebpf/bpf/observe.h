/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What a gateway would carry that carries nothing: connections are decided about when
 * they begin and counted when they end, and nothing else is done to them. */
#ifndef SMCGW_OBSERVE_H
#define SMCGW_OBSERVE_H

#include "policy.h"

static __always_inline void seen_key(const struct flow_key *k, const struct sk_note *n, struct seen_key *key)
{
	__builtin_memset(key, 0, sizeof(*key));
	__builtin_memcpy(key->addr, k->raddr, 16);
	key->port = n->side == SIDE_SERVER ? k->lport : k->rport;
	key->family = k->family;
	key->side = n->side;
	key->rule = n->rule;
	key->carries = n->carries;
	key->epoch = n->epoch;
}

static __always_inline struct seen *seen_of(const struct seen_key *key)
{
	struct seen *v = bpf_map_lookup_elem(&smcgw_seen, key);
	if (v)
		return v;
	struct seen fresh = {};
	discard(bpf_map_update_elem(&smcgw_seen, key, &fresh, BPF_NOEXIST));
	return bpf_map_lookup_elem(&smcgw_seen, key);
}

/* observe counts a connection that begins, and has its end told to observe_end. */
static __always_inline void observe(struct bpf_sock_ops *s, struct bpf_sock *sk, const struct flow_key *k, u8 side, u8 rule, u8 carries)
{
	struct seen_key key;
	struct control *c = control();
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c || !n)
		return;
	n->rule = rule;
	n->side = side;
	n->carries = carries;
	n->epoch = c->epoch;
	n->began = bpf_ktime_get_ns();
	seen_key(k, n, &key);
	struct seen *v = seen_of(&key);
	if (!v)
		return;
	__sync_fetch_and_add(&v->begun, 1);
	if (!bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		n->phase = PHASE_SEEN;
}

/* observe_accepted: a connection of a peer, which may or may not have a gateway. */
static __always_inline int observe_accepted(struct bpf_sock_ops *s, const struct flow_key *k)
{
	struct verdict v;
	struct control *c = control();
	struct bpf_sock *sk = s->sk;
	if (!c || !sk || smcgw_retired || sk->priority == GATEWAY_PRIORITY || odd_address(k))
		return 1;
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h || decide(k, k->lport, policy, h->inbound & h->tcp, &v))
		return 1;
	observe(s, sk, k, SIDE_SERVER, v.rule, !v.reason);
	if (!v.reason)
		native(k, 0, SIDE_SERVER, switched_off(c, ALIVE), v.rule);
	return 1;
}

/* observe_end adds up what a connection has done. */
static __always_inline void observe_end(struct bpf_sock_ops *s, struct sk_note *n, const struct flow_key *k)
{
	struct seen_key key;
	u64 sent = s->bytes_acked, received = s->bytes_received;
	n->phase = PHASE_NONE;
	seen_key(k, n, &key);
	struct seen *v = seen_of(&key);
	if (!v)
		return;
	__sync_fetch_and_add(&v->ended, 1);
	__sync_fetch_and_add(&v->sent, sent);
	__sync_fetch_and_add(&v->received, received);
	if (sent + received < BULK_BYTES)
		return;
	__sync_fetch_and_add(&v->bulk, 1);
	__sync_fetch_and_add(&v->bulk_bytes, sent + received);
	__sync_fetch_and_add(&v->bulk_lasted, bpf_ktime_get_ns() - n->began);
}

#endif
