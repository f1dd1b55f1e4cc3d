/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What is remembered about destinations (docs/PROTOCOL.md "Memory of peers"): only
 * what an answer or its absence has shown, and until an answer shows otherwise. */
#ifndef SMCGW_PEERS_H
#define SMCGW_PEERS_H

#include "flow.h"

#define SECOND_NS 1000000000ull

/* How long a destination rests at first: one that refuses, one behind a box that
 * rejects the option, one that has answered offers and now does not. */
#define REFUSED_NS (2 * SECOND_NS)
#define REJECTED_NS (5 * SECOND_NS)
#define UNANSWERED_NS (5 * SECOND_NS)
#define REFUSED_DOUBLINGS 4
/* A host that once answered offers, and did not so often after a rest, is behind a
 * box by now. */
#define UNANSWERED_RESTS 5
#define MAX_DOUBLINGS 15

/* remembered_at returns why a peer is left alone now, or 0. */
static __always_inline u8 remembered_at(struct peer_key *k, u64 now)
{
	struct peer *p = bpf_map_lookup_elem(&smcgw_peers, k);
	return p && p->until > now ? p->reason : 0;
}

static __always_inline void peer_of(const struct flow_key *k, struct peer_key *pk)
{
	__builtin_memset(pk, 0, sizeof(*pk));
	__builtin_memcpy(pk->addr, k->raddr, 16);
	pk->family = k->family;
}

global int remembered(const struct flow_key *k)
{
	if (!k)
		return 0;
	struct peer_key pk;
	u64 now = bpf_ktime_get_ns();
	peer_of(k, &pk);
	u8 reason = remembered_at(&pk, now);
	if (reason)
		return reason;
	pk.port = k->rport;
	return remembered_at(&pk, now);
}

/* about_offers: what became of SYNs with the option on the way to an address. */
static __always_inline int about_offers(u8 reason)
{
	return reason == REASON_OPTION_BLACKHOLED || reason == REASON_OPTION_REJECTED || reason == REASON_OFFER_UNANSWERED;
}

/* answers forgets that a destination refuses connections: it does not. */
static __noinline int answers(const struct flow_key *k)
{
	struct peer_key pk;
	peer_of(k, &pk);
	pk.port = k->rport;
	struct peer *p = bpf_map_lookup_elem(&smcgw_peers, &pk);
	if (p && p->reason == REASON_PEER_REFUSED)
		bpf_map_delete_elem(&smcgw_peers, &pk);
	return 0;
}

/* option_passed: a SYN with the option was answered by its destination. That ends
 * all doubt about the way there. */
static __noinline int option_passed(const struct flow_key *k)
{
	struct peer_key pk;
	u8 yes = 1;
	discard(answers(k));
	peer_of(k, &pk);
	struct peer *p = bpf_map_lookup_elem(&smcgw_peers, &pk);
	if (p && about_offers(p->reason))
		bpf_map_delete_elem(&smcgw_peers, &pk);
	if (!bpf_map_lookup_elem(&smcgw_passed, &pk))
		bpf_map_update_elem(&smcgw_passed, &pk, &yes, BPF_ANY);
	return 0;
}

static __always_inline u64 doubled(u64 ns, u32 times, u64 most)
{
	times &= MAX_DOUBLINGS;
	return ns > most >> times ? most : ns << times;
}

/* rest leaves the whole address alone, for longer each time in a row. */
static __always_inline void rest(struct peer *p, u64 now, u64 first, u64 most)
{
	p->until = now + doubled(first < most ? first : most, p->backoff, most);
	if (p->backoff < MAX_DOUBLINGS)
		p->backoff++;
}

/* row_of takes over how often offers have failed in a row. It fails while the
 * address rests for any reason: an offer from before that adds nothing. */
static __always_inline int row_of(const struct peer_key *pk, u64 now, struct peer *p)
{
	struct peer *old = bpf_map_lookup_elem(&smcgw_peers, pk);
	if (!old)
		return 0;
	if (old->until > now)
		return -1;
	if (about_offers(old->reason)) {
		p->count = old->count;
		p->backoff = old->backoff;
	}
	return 0;
}

/* option_eaten counts a connection that came up only after the bare retry, and
 * returns why. The count stays when a rest ends, so the next one renews it at once,
 * for twice as long. A host that has answered offers is met by a way that lets them
 * pass: there a packet was lost, or the gateway is late, and it rests for seconds. */
static __noinline int option_eaten(const struct flow_key *k, struct control *c)
{
	struct peer_key pk;
	struct peer p = {};
	u64 now = bpf_ktime_get_ns();
	if (!c)
		return REASON_OPTION_BLACKHOLED;
	peer_of(k, &pk);
	int passed = bpf_map_lookup_elem(&smcgw_passed, &pk) != NULL;
	u64 retry = c->retry;
	int resting = row_of(&pk, now, &p);
	p.reason = passed && p.backoff < UNANSWERED_RESTS ? REASON_OFFER_UNANSWERED : REASON_OPTION_BLACKHOLED;
	if (resting)
		return p.reason;
	if (++p.count >= c->blackhole_after)
		rest(&p, now, passed && UNANSWERED_NS < retry ? UNANSWERED_NS : retry, retry << 5);
	bpf_map_update_elem(&smcgw_peers, &pk, &p, BPF_ANY);
	return p.reason;
}

/* option_rejected: the SYN with the option was refused, the bare one was answered. */
static __noinline int option_rejected(const struct flow_key *k, struct control *c)
{
	struct peer_key pk;
	struct peer p = {};
	u64 now = bpf_ktime_get_ns();
	peer_of(k, &pk);
	if (!c || row_of(&pk, now, &p))
		return 0;
	p.count++;
	p.reason = REASON_OPTION_REJECTED;
	rest(&p, now, REJECTED_NS, c->retry);
	bpf_map_update_elem(&smcgw_peers, &pk, &p, BPF_ANY);
	return 0;
}

/* peer_refused: both SYNs were refused, so the option makes no difference. Offers to
 * this port rest for seconds, until a connection to it succeeds. */
static __noinline int peer_refused(const struct flow_key *k)
{
	struct peer_key pk;
	struct peer p = { .reason = REASON_PEER_REFUSED };
	u64 now = bpf_ktime_get_ns();
	peer_of(k, &pk);
	pk.port = k->rport;
	struct peer *old = bpf_map_lookup_elem(&smcgw_peers, &pk);
	if (old && old->until > now)
		return 0;
	if (old && old->reason == REASON_PEER_REFUSED && old->until + (REFUSED_NS << REFUSED_DOUBLINGS) > now)
		p.backoff = old->backoff;
	p.until = now + (REFUSED_NS << (p.backoff & 7));
	if (p.backoff < REFUSED_DOUBLINGS)
		p.backoff++;
	bpf_map_update_elem(&smcgw_peers, &pk, &p, BPF_ANY);
	return 0;
}

#endif
