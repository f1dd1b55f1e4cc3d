/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What the gateway has learned about services (the server's address and port)
 * that rules with action auto select: docs/ARCHITECTURE.md "Auto". */
#ifndef SMCGW_SERVICE_H
#define SMCGW_SERVICE_H

#include "policy.h"

static always_inline u64 service_word(u64 until, u8 tokens, u8 state)
{
	return until << 16 | (u64)tokens << 8 | state;
}

/* service_samples is the word of a service of which a first sample is being taken:
 * nothing is known, or what was known is old. */
static always_inline u64 service_samples(u64 now)
{
	return service_word(now + sample_period, sample_tokens - 1, SERVICE_SAMPLING);
}

/* service_taken asks for a sample of a service that is there. Tokens are taken by
 * compare-and-swap, so that of many connections at once no more than those are
 * carried. When the samples have told nothing within their period, because the
 * peer has no gateway for instance, there are new ones. The entry may just have
 * been recycled for another service, which then loses a token. */
static always_inline int service_taken(struct service *s, u64 now)
{
	for (int try = 0; try < 4; try++) {
		u64 w = *(volatile u64 *)&s->word, next;
		u8 state = w, tokens = w >> 8;
		if (state == SERVICE_CARRY)
			return 1;
		if (now >= w >> 16)
			next = service_samples(now);
		else if (state == SERVICE_SAMPLING && tokens)
			next = w - service_word(0, 1, 0);
		else
			return 0;
		if (__sync_val_compare_and_swap(&s->word, w, next) == w)
			return 1;
	}
	return 0;
}

/* service_refused returns why a connection to this service is not offered now, or
 * 0. One lookup, for connections only that a rule with action auto selects. */
global int service_refused(const struct flow_key *k)
{
	if (!k)
		return 0;
	struct peer_key key;
	u64 now = bpf_ktime_get_ns() / 1000000;
	peer_of(k, &key);
	key.port = k->rport;
	struct service *s = bpf_map_lookup_elem(&smcgw_services, &key);
	if (!s) {
		struct service fresh = { .word = service_samples(now) };
		if (!bpf_map_update_elem(&smcgw_services, &key, &fresh, BPF_NOEXIST))
			return 0;
		s = bpf_map_lookup_elem(&smcgw_services, &key);
		if (!s)
			return REASON_NOT_WORTH_IT;
	}
	if (service_taken(s, now))
		return 0;
	__sync_fetch_and_add(&s->passed, 1);
	return REASON_NOT_WORTH_IT;
}

#endif
