/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How many connections of this host are set up at a time. Each takes turns of several
 * processes, so that a burst of them waits for longer than the kernel takes to connect
 * them all: those beyond are native at once. */
#ifndef SMCGW_ROOM_H
#define SMCGW_ROOM_H

#include "flow.h"

/* A SYN has a place until it is answered, but no longer than this: one without an answer
 * costs nothing. Nor does a set-up that takes so long that it waits for its peer. */
#define OFFERED_NS 10000000ull
#define SETUP_NS 100000000ull

/* Where a step takes longer than this, besides four round trips of the network, the
 * processors are busy: for a while there is an eighth of the places. */
#define STEP_NS 20000000ull
#define BUSY_NS 5000000000ull
#define BUSY_SHARE 8

/* note_step notes when a step of a set-up that ends now has taken too long. Of NEGOTIATING
 * the SYN-ACK was the begin, of COMPLETING the recorded SYN's way to the listener. */
static __noinline int note_step(const struct flow *f, u8 state)
{
	u64 now = bpf_ktime_get_ns(), since, limit = STEP_NS;
	if (!f)
		return 0;
	since = f->changed_at;
	if (state == FLOW_NEGOTIATING)
		limit += 4 * (since - f->offered_at);
	else if (state != FLOW_COMPLETING)
		return 0;
	if (now > since + limit)
		smcgw_busy = now;
	return 0;
}

/* under_way tells whether the connection that took a place is still being set up. That
 * follows from its entry: nobody has to give a place back, and none is lost. */
static __always_inline int under_way(const struct setup *s, u64 taken, u64 now)
{
	if (now >= taken + SETUP_NS)
		return 0;
	switch (word_state(flow_word(bpf_map_lookup_elem(&smcgw_flows, &s->key)))) {
	case FLOW_NONE:
	case FLOW_OFFERED:
		return now < taken + OFFERED_NS;
	case FLOW_NEGOTIATING:
	case FLOW_COMPLETING:
		return 1;
	default:
		return 0;
	}
}

struct search {
	const struct flow_key *key;
	u64 now;
	u32 places, found;
};

/* try_place takes a place that is free; 1 ends the search. */
static int try_place(u32 i, struct search *x)
{
	struct setup *s;
	u64 taken;
	if (i >= x->places)
		return 1;
	s = bpf_map_lookup_elem(&smcgw_setups, &i);
	if (!s)
		return 1;
	taken = *(volatile u64 *)&s->taken;
	if (taken && under_way(s, taken, x->now))
		return 0;
	if (__sync_val_compare_and_swap(&s->taken, taken, x->now) != taken)
		return 0;
	__builtin_memcpy(&s->key, x->key, sizeof(s->key));
	x->found = 1;
	return 1;
}

/* room_for takes a place for a connection that is about to be offered, if there is one.
 * The loop is the helper's: the verifier would walk each turn of one of ours. */
global int room_for(const struct flow_key *k)
{
	struct control *c = control();
	struct search x = {};
	u64 busy = smcgw_busy;
	if (!c || !k)
		return 0;
	x.places = c->setups;
	if (!x.places)
		return 1;
	x.key = k;
	x.now = bpf_ktime_get_ns();
	if (busy && x.now < busy + BUSY_NS)
		x.places = (x.places + BUSY_SHARE - 1) / BUSY_SHARE;
	bpf_loop(SETUPS, try_place, &x, 0);
	return x.found;
}

#endif
