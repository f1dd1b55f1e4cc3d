/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* How long the connections of a rule take that the share of the rollout chose, beside
 * those that it left native. Both are looked at on the socket of the application: from
 * connect() to its end, so that what a negotiation, a fallback or a carrier costs is in
 * it. The share chooses by a hash, and nothing else tells them apart. */
#ifndef SMCGW_COMPARE_H
#define SMCGW_COMPARE_H

#include "policy.h"

/* compare_native: a connection outside of the share, which inside would be offered. What
 * stays native would be no measure of what is carried. */
static __always_inline int compare_native(const struct flow_key *k, struct control *c)
{
	return c->compare && !switched_off(c, liveness()) && !remembered(k);
}

/* compare_begins notes a connection that connect() makes. */
static __always_inline void compare_begins(struct sk_note *n, const struct control *c, u8 rule, u8 kind)
{
	n->compared = kind;
	n->rule = rule;
	n->epoch = c->epoch;
	n->began = bpf_ktime_get_ns();
}

/* compare_established has the end of it told to compare_ended. Connections that never
 * come up are not compared. */
static __always_inline int compare_established(struct bpf_sock_ops *s, struct sk_note *n)
{
	if (!n->compared || bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_STATE_CB_FLAG))
		return 0;
	n->phase = PHASE_COMPARED;
	return 1;
}

/* quarters is four times the binary logarithm, rounded down to a whole number. */
global u32 quarters(u64 v)
{
	u32 e = 0;
	u64 w = v;
	if (w < 4)
		return w;
	if (w >> 32) { e += 32; w >>= 32; }
	if (w >> 16) { e += 16; w >>= 16; }
	if (w >> 8) { e += 8; w >>= 8; }
	if (w >> 4) { e += 4; w >>= 4; }
	if (w >> 2) { e += 2; w >>= 2; }
	if (w >> 1) e += 1;
	return e << 2 | (v >> ((e - 2) & 63) & 3);
}

global u32 size_class(u64 bytes)
{
	u32 class = 0;
	bytes >>= 10;
	for (int i = 0; i < 5 && bytes; i++, bytes >>= 4)
		class++;
	return class;
}

/* compare_ended counts a connection. */
static __always_inline void compare_ended(struct bpf_sock_ops *s, struct sk_note *n)
{
	u64 bytes = s->bytes_acked + s->bytes_received, one = 1;
	n->phase = PHASE_NONE;
	struct compared_key key = {
		.epoch = n->epoch, .rule = n->rule, .kind = n->compared, .size = size_class(bytes),
		.lasted = quarters((bpf_ktime_get_ns() - n->began) / 1000),
	};
	u64 *v = bpf_map_lookup_elem(&smcgw_compared, &key);
	if (!v && !bpf_map_update_elem(&smcgw_compared, &key, &one, BPF_NOEXIST))
		return;
	if (!v)
		v = bpf_map_lookup_elem(&smcgw_compared, &key);
	if (v)
		__sync_fetch_and_add(v, 1);
}

#endif
