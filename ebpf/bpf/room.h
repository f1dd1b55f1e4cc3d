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

/* room_for takes a place for a connection that is about to be offered, if there is one. */
global int room_for(const struct flow_key *k)
{
	struct control *c = control();
	if (!c || !k)
		return 0;
	u32 places = c->setups;
	if (!places)
		return 1;
	u64 now = bpf_ktime_get_ns();
	u64 busy = smcgw_busy;
	if (busy && now < busy + BUSY_NS)
		places = (places + BUSY_SHARE - 1) / BUSY_SHARE;
	for (u32 i = 0; i < SETUPS && i < places; i++) {
		struct setup *s = bpf_map_lookup_elem(&smcgw_setups, &i);
		if (!s)
			return 0;
		u64 taken = *(volatile u64 *)&s->taken;
		if (taken && under_way(s, taken, now))
			continue;
		if (__sync_val_compare_and_swap(&s->taken, taken, now) != taken)
			continue;
		__builtin_memcpy(&s->key, k, sizeof(s->key));
		return 1;
	}
	return 0;
}

#endif
