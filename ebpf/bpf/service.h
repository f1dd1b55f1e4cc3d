/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the gateway has learned about services (the server's address and port)
 * that rules with action auto select: docs/ARCHITECTURE.md "Auto". */
#ifndef SMCGW_SERVICE_H
#define SMCGW_SERVICE_H

#include "policy.h"

static __always_inline u64 service_word(u64 until, u8 tokens, u8 state)
{
	return until << 16 | (u64)tokens << 8 | state;
}

/* What is done with a connection: its service is found to be worth it, or it is a
 * sample; or it stays native, and may be watched to compare with. */
enum service_step { SERVICE_OFFERS, SERVICE_SAMPLES, SERVICE_PASSES, SERVICE_WATCHES };

/* service_samples is the word of a service that a connection makes known: nothing
 * was, or what was known is old. It is the first sample, if it is one. */
static __always_inline u64 service_samples(u64 now)
{
	return service_word(now + sample_period, sample_tokens ? sample_tokens - 1 : 0, SERVICE_SAMPLING);
}

static __always_inline int service_first(void) { return sample_tokens ? SERVICE_SAMPLES : SERVICE_WATCHES; }

/* service_step decides, and takes a token where that needs one. Tokens are taken
 * by compare-and-swap, so that of many connections at once no more than those are
 * carried, or left native. When the samples have told nothing within their period,
 * because the peer has no gateway for instance, there are new ones. The entry may
 * just have been recycled for another service, which then loses a token. */
static __always_inline int service_step(struct service *s, u64 now)
{
	for (int try = 0; try < 4; try++) {
		u64 w = *(volatile u64 *)&s->word, next = w - service_word(0, 1, 0);
		u8 state = w, tokens = w >> 8;
		int step = SERVICE_SAMPLES;
		if (state == SERVICE_CARRY) {
			if (!tokens)
				return SERVICE_OFFERS;
			step = SERVICE_WATCHES;
		} else if (now >= w >> 16 && (sample_tokens || state != SERVICE_SAMPLING)) {
			next = service_samples(now);
			step = service_first();
		} else if (state != SERVICE_SAMPLING) {
			return SERVICE_PASSES;
		} else if (!tokens) {
			return SERVICE_WATCHES;
		}
		if (__sync_val_compare_and_swap(&s->word, w, next) == w)
			return step;
	}
	return SERVICE_PASSES;
}

static __always_inline void service_key(const struct flow_key *k, struct peer_key *key)
{
	peer_of(k, key);
	key->port = k->rport;
}

/* resting finds a service that is native now. */
static __always_inline struct service *resting(const struct flow_key *k)
{
	struct peer_key key;
	service_key(k, &key);
	struct service *s = bpf_map_lookup_elem(&smcgw_services, &key);
	if (!s)
		return NULL;
	u64 w = *(volatile u64 *)&s->word;
	return (u8)w != SERVICE_NATIVE || bpf_ktime_get_ns() / 1000000 >= w >> 16 ? NULL : s;
}

/* service_carries asks about a connection that is not offered anyway. */
global int service_carries(const struct flow_key *k)
{
	struct peer_key key;
	if (!k)
		return 0;
	service_key(k, &key);
	struct service *s = bpf_map_lookup_elem(&smcgw_services, &key);
	return s && (u8)*(volatile u64 *)&s->word == SERVICE_CARRY;
}

/* service_rests is all that is asked of a connection whose service is native. */
global int service_rests(const struct flow_key *k)
{
	if (!k)
		return 0;
	struct service *s = resting(k);
	if (!s)
		return 0;
	__sync_fetch_and_add(&s->passed, 1);
	return 1;
}

/* service_of decides about a connection that could be offered. */
global int service_of(const struct flow_key *k)
{
	if (!k)
		return SERVICE_OFFERS;
	struct peer_key key;
	u64 now = bpf_ktime_get_ns() / 1000000;
	service_key(k, &key);
	struct service *s = bpf_map_lookup_elem(&smcgw_services, &key);
	if (!s) {
		struct service fresh = { .word = service_samples(now) };
		int made = !bpf_map_update_elem(&smcgw_services, &key, &fresh, BPF_NOEXIST);
		if (made && sample_tokens)
			return SERVICE_SAMPLES;
		s = bpf_map_lookup_elem(&smcgw_services, &key);
		if (!s)
			return SERVICE_PASSES;
	}
	int step = service_step(s, now);
	if (step >= SERVICE_PASSES)
		__sync_fetch_and_add(&s->passed, 1);
	return step;
}

/* service_near notes whether a connection that is left native paces, for those that ask
 * why. */
global int service_near(const struct flow_key *k, int unpaced)
{
	struct peer_key key;
	if (!k)
		return 0;
	service_key(k, &key);
	struct service *s = bpf_map_lookup_elem(&smcgw_services, &key);
	if (s)
		s->unpaced = unpaced;
	return unpaced;
}

static __always_inline struct sk_note *note_of(struct bpf_sock_ops *s)
{
	struct bpf_sock *sk = s->sk;
	return sk ? bpf_sk_storage_get(&smcgw_sk, sk, 0, 0) : NULL;
}

/* service_watch has the end of a native connection told to service_ended. */
static __always_inline void service_watch(struct bpf_sock_ops *s, struct bpf_sock *sk)
{
	struct sk_note *n = bpf_sk_storage_get(&smcgw_sk, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!n || bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		return;
	n->phase = PHASE_WATCHED;
	n->began = bpf_ktime_get_ns();
}

/* service_ended adds up what watched connections did: whether carrying can be better,
 * and for bulk what it has to be better than. */
static __always_inline void service_ended(struct bpf_sock_ops *s, struct sk_note *n, const struct flow_key *k)
{
	u64 bytes = s->bytes_acked + s->bytes_received;
	struct peer_key key;
	n->phase = PHASE_NONE;
	service_key(k, &key);
	struct service *v = bpf_map_lookup_elem(&smcgw_services, &key);
	if (!v)
		return;
	u64 took = bpf_ktime_get_ns() - n->began;
	__sync_fetch_and_add(&v->moved, bytes);
	__sync_fetch_and_add(&v->segments, (u64)s->data_segs_in + s->data_segs_out);
	__sync_fetch_and_add(&v->took, took);
	__sync_fetch_and_add(&v->ended, 1);
	if (bytes < WATCHED_BYTES)
		return;
	__sync_fetch_and_add(&v->watched, 1);
	__sync_fetch_and_add(&v->bytes, bytes);
	__sync_fetch_and_add(&v->lasted, took);
}

#endif
