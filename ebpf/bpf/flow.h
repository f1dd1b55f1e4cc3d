/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flow entries, counters, events, heartbeat. */
#ifndef SMCGW_FLOW_H
#define SMCGW_FLOW_H

#include "maps.h"

static __always_inline void count_stat(u32 stat)
{
	u64 *n = bpf_map_lookup_elem(&smcgw_stats, &stat);
	if (n)
		__sync_fetch_and_add(n, 1);
}

static __always_inline u8 word_state(u64 word) { return word & WORD_STATE; }
static __always_inline u32 word_isn(u64 word) { return word >> 32; }
static __always_inline u16 word_nonce(u64 word) { return word >> 16; }
static __always_inline u64 make_word(u32 isn, u16 nonce, u64 flags, u8 state)
{
	return (u64)isn << 32 | (u64)nonce << 16 | flags | state;
}

/* flow_word reads the word once: everything a program does to a packet follows
 * from this one view. */
static __always_inline u64 flow_word(struct flow *f)
{
	return f ? *(volatile u64 *)&f->word : 0;
}

/* flow_here tells that an entry is still that of key. The kernel makes the next entry in
 * the memory of a deleted one, also while a program looks at that. A word that was read
 * before is of a connection of key, or names none that the entry will ever have: so what
 * is done by compare-and-swap after it is done to the right connection, or fails. */
static __noinline int flow_here(const struct flow_key *key, const struct flow *f)
{
	return bpf_map_lookup_elem(&smcgw_flows, key) == f;
}

/* flow_value is what flow_set changes. */
static __always_inline u64 flow_value(u32 isn, u32 value) { return (u64)isn << 32 | value; }

/* flow_set changes something of the connection with this ISN. */
static __always_inline void flow_set(u64 *at, u32 isn, u32 value)
{
	u64 old = *(volatile u64 *)at;
	if (old >> 32 == isn)
		__sync_val_compare_and_swap(at, old, flow_value(isn, value));
}

/* flow_turn changes state and flags if nothing has changed since word was read. The
 * time is written first: a view of the new state never has the time of an old one, by
 * which a connection that has just ended would be forgotten. */
static __always_inline int flow_turn(const struct flow_key *key, struct flow *f, u64 word, u64 flags, u8 to)
{
	u64 next = (word & ~WORD_STATE) | flags | to;
	if (!flow_here(key, f))
		return -1;
	f->changed_at = bpf_ktime_get_ns();
	return __sync_val_compare_and_swap(&f->word, word, next) == word ? 0 : -1;
}

/* flow_move changes the state alone. */
static __always_inline int flow_move(const struct flow_key *key, struct flow *f, u64 word, u8 to)
{
	return flow_turn(key, f, word, 0, to);
}

/* flow_drop deletes the entry if nothing has changed since word was read. The
 * delete goes by key. No entry is made between the two steps: the key has one
 * until then, and a view of an element without a state changes nothing. */
static __always_inline int flow_drop(const struct flow_key *key, struct flow *f, u64 word)
{
	if (!flow_here(key, f) || __sync_val_compare_and_swap(&f->word, word, word & ~WORD_STATE) != word)
		return -1;
	bpf_map_delete_elem(&smcgw_flows, key);
	return 0;
}

/* flow_end deletes the entry of the connection with this ISN, whatever its state
 * has become meanwhile. It fails if the entry is another's by now. */
static __noinline int flow_end(const struct flow_key *key, struct flow *f, u32 isn)
{
	for (int try = 0; try < 4; try++) {
		u64 w = flow_word(f);
		if (!f || !word_state(w) || word_isn(w) != isn)
			return -1;
		if (!flow_drop(key, f, w))
			return 0;
	}
	return -1;
}

/* proof_comes notes a step of a proof. */
static __noinline int proof_comes(const struct flow_key *key, struct flow *f, u8 step)
{
	u64 bit = 1ull << 16 << (step & 3);
	for (int try = 0; try < 4; try++) {
		u64 w = flow_word(f);
		if (!f || word_state(w) != FLOW_PROOF || w & bit || !flow_turn(key, f, w, bit, FLOW_PROOF))
			return 0;
	}
	return -1;
}

struct note {
	const struct flow_key *key;
	u32 isn;
	u8 kind;
	u8 reason;
	u8 side;
	u8 rule;
	u8 proto;
	u32 value[2];
};

#define NATIVE_EVENTS (512 * (sizeof(struct event) + 8))

/* emit never waits and never wakes the gateway for a native decision: those are
 * collected by its timer. No more than 512 are told each time: the gateway keeps the
 * last ones only, and counts by the counters, while thousands a second would cost the
 * host more than the rest of this program, and leave no room for what must be told. */
static __noinline int emit(struct note *n)
{
	if (n->kind == EVENT_NATIVE && bpf_ringbuf_query(&smcgw_events, BPF_RB_AVAIL_DATA) >= NATIVE_EVENTS) {
		count_stat(STAT_EVENT_LOST);
		return 0;
	}
	struct event *e = bpf_ringbuf_reserve(&smcgw_events, sizeof(*e), 0);
	if (!e) {
		count_stat(STAT_EVENT_LOST);
		return -1;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->at = bpf_ktime_get_ns();
	__builtin_memcpy(&e->key, n->key, sizeof(e->key));
	e->isn = n->isn;
	e->kind = n->kind;
	e->reason = n->reason;
	e->side = n->side;
	e->rule = n->rule;
	e->proto = n->proto;
	e->value[0] = n->value[0];
	e->value[1] = n->value[1];
	bpf_ringbuf_submit(e, n->kind == EVENT_REPLACED || n->kind == EVENT_PROBE ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP);
	return 0;
}

/* count_native counts a connection, or with SIDE_DATAGRAM in its side a tuple of UDP, that
 * is left to the kernel. */
static __always_inline void count_native(u8 side, u8 reason)
{
	u32 slot = side * REASON_SLOTS + (reason & (REASON_SLOTS - 1));
	u64 *n = bpf_map_lookup_elem(&smcgw_native, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* native counts and reports that a connection is left to the kernel. */
static __always_inline void native(const struct flow_key *key, u32 isn, u8 side, u8 reason, u8 rule)
{
	count_native(side, reason);
	struct note note = { .key = key, .isn = isn, .kind = EVENT_NATIVE, .reason = reason, .side = side, .rule = rule };
	discard(emit(&note));
}

/* replaced tells the gateway that the connection it works on is over; reason, if
 * there is one, that it was recorded as native by that. */
static __always_inline void replaced(const struct flow_key *key, u8 rule, u64 word, u8 reason)
{
	count_stat(STAT_REPLACED);
	struct note note = {
		.key = key, .isn = word_isn(word), .kind = EVENT_REPLACED, .reason = reason,
		.side = word & WORD_SERVER ? SIDE_SERVER : SIDE_CLIENT, .rule = rule,
	};
	discard(emit(&note));
}

static __always_inline struct control *control(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&smcgw_control, &zero);
}

/* The guardian kills a daemon that is late by ten seconds at the latest, and stops the
 * heart of one that has ended at once. Until then the daemon may resume. */
#define LATE_NS 12000000000ull

/* A late gateway cannot be asked now, but may go on with what it has begun. */
enum liveness { ANY, ALIVE, LATE, GONE };

/* liveness tells from the age of the last beat how the gateway is. */
global int liveness(void)
{
	u32 zero = 0;
	struct control *c = control();
	u64 *beat = bpf_map_lookup_elem(&smcgw_beat, &zero);
	if (!beat || !c)
		return GONE;
	u64 at = *(volatile u64 *)beat, now = bpf_ktime_get_ns();
	if (!at)
		return GONE;
	if (now < at + c->heartbeat_timeout)
		return ALIVE;
	return now < at + LATE_NS ? LATE : GONE;
}

/* switched_off returns why no new connection may be offered or accepted now, the
 * gateway being as it is. */
static __always_inline u8 switched_off(struct control *c, u8 gateway)
{
	if (c->off)
		return REASON_OFF;
	if (c->mode != MODE_ENFORCE)
		return REASON_MODE;
	if (c->native_reason)
		return c->native_reason;
	if (gateway != ALIVE)
		return REASON_GATEWAY_STALE;
	return 0;
}

#endif
