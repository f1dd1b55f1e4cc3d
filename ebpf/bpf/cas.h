/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* User space changes flow entries through this program, by the same
 * compare-and-swap as the packet programs. */
#ifndef SMCGW_CAS_H
#define SMCGW_CAS_H

#include "room.h"

enum cas_result { CAS_OK, CAS_NO_FLOW, CAS_REPLACED, CAS_STATE };
enum cas_op { CAS_MOVE, CAS_DELETE, CAS_WAY };

struct cas_args {
	struct flow_key key;
	u32 isn;
	u32 from; /* bit n: state n is expected */
	u8 op;
	u8 to;
	u8 have;   /* out: the state found */
	u8 result; /* out */
	u32 ifindex; /* of CAS_WAY: those of struct flow */
	u32 out;
};

static __always_inline int cas_once(struct cas_args *a, struct flow_key *k)
{
	struct flow *f = bpf_map_lookup_elem(&smcgw_flows, k);
	u64 w = flow_word(f);
	a->have = word_state(w);
	if (!f || !word_state(w)) {
		a->result = CAS_NO_FLOW;
		return 0;
	}
	if (word_isn(w) != a->isn) {
		a->result = CAS_REPLACED;
		return 0;
	}
	if (!(a->from >> (word_state(w) & 31) & 1)) {
		a->result = CAS_STATE;
		return 0;
	}
	a->result = CAS_OK;
	if (a->op == CAS_WAY) {
		flow_set(&f->ifindex, a->isn, a->ifindex);
		flow_set(&f->out, a->isn, a->out);
		return 0;
	}
	discard(note_step(f, word_state(w)));
	return a->op == CAS_DELETE ? flow_drop(k, f, w) : flow_move(k, f, w, a->to);
}

SEC("syscall")
int smcgw_cas(struct cas_args *a)
{
	struct flow_key k;
	__builtin_memcpy(&k, &a->key, sizeof(k));
	/* Lost races are against ACKED or a state change; few can follow. */
	for (int try = 0; try < 8; try++)
		if (!cas_once(a, &k))
			return 0;
	a->result = CAS_STATE;
	return 0;
}

#endif
