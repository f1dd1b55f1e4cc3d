/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What is no concern of ours, told from as few bytes as possible: most packets of
 * a host belong to connections without an entry. Making an entry leaves a trace
 * under the ports of its tuple; without one, a packet needs no key and no lookup.
 */
#ifndef SMCGW_TRACE_H
#define SMCGW_TRACE_H

#include "parse.h"

/* trace_of is the same for both directions. Ports are in network byte order. */
static __always_inline u32 trace_of(u16 port, u16 other)
{
	return (u16)(port ^ other);
}

/* traced tells whether a tuple with these ports may have an entry. */
static __always_inline int traced(u16 port, u16 other)
{
	return smcgw_traces.at[trace_of(port, other)] >= smcgw_traces.from;
}

/* leave_trace is called when the entry is in the map. User space counts now up
 * before it walks the map, leaves traces of what it finds there, and lets from
 * follow by one walk (ebpf/trace.go). So either the walk finds the entry, or its
 * trace is as new as the walk. No trace gets older: one that is newer is left. */
static __always_inline void leave_trace_for(u16 port, u16 other, u32 sweeps)
{
	u32 *at = (u32 *)&smcgw_traces.at[trace_of(port, other)];
	/* With a result it is a full barrier: the entry is there before now is read. */
	u32 now = __sync_fetch_and_add((u32 *)&smcgw_traces.now, 0) + sweeps;
	for (int try = 0; try < 4; try++) {
		u32 old = *(volatile u32 *)at;
		if (old >= now || __sync_val_compare_and_swap(at, old, now) == old)
			return;
	}
}

static __always_inline void leave_trace(u16 port, u16 other)
{
	leave_trace_for(port, other, 0);
}

/* trace_answer is for a SYN-ACK that nothing else remembers: what answers it comes
 * within so many sweeps, a second each at least, or is the kernel's. */
#define ANSWER_SWEEPS 8
static __always_inline void trace_answer(u16 port, u16 other)
{
	leave_trace_for(port, other, ANSWER_SWEEPS);
}

/* usual_syn recognises the options of the SYN that Linux sends, all of them: MSS,
 * SACK permitted, timestamps, NOP, window scale. It has none of our options. */
static __always_inline int usual_syn(const struct tcp *t, const void *end)
{
	const struct { u16 mss, size; u32 sack_and_stamps, value, echo; u8 nop, scale, len, shift; } *o = (const void *)(t + 1);
	if ((t->off >> 4) * 4 != sizeof(*t) + sizeof(*o) || (const void *)(o + 1) > end)
		return 0;
	return o->mss == be16(0x0204) && o->sack_and_stamps == be32(0x0402080a) && o->nop == 1 && o->scale == 3 && o->len == 3;
}

/* What passes answers. MAY_CONCERN is no answer: the segment may be none of ours all the
 * same, or its headers not where they can be read directly. */
enum passing { MAY_CONCERN, PASSES, PASSES_SYN };

/* passes tells whether a packet is a TCP segment that we have nothing to do with, and
 * of a SYN that it is one. */
static __always_inline enum passing passes(struct __sk_buff *skb, u32 off)
{
	const void *data = (const void *)(long)skb->data, *end = (const void *)(long)skb->data_end;
	const struct tcp *t;
	if (skb->protocol == be16(ETH_P_IP)) {
		const struct ip4 *ip = data + off;
		t = (const void *)(ip + 1);
		if ((const void *)(t + 1) > end)
			return 0;
		if (ip->ver_ihl != 0x45 || ip->proto != IPPROTO_TCP || ip->frag & be16(0x1fff))
			return 0;
	} else if (skb->protocol == be16(ETH_P_IPV6)) {
		const struct ip6 *ip = data + off;
		t = (const void *)(ip + 1);
		if ((const void *)(t + 1) > end || ip->next != IPPROTO_TCP)
			return 0;
	} else {
		return 0;
	}
	if (traced(t->src, t->dst))
		return 0;
	if ((t->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_SYN)
		return PASSES;
	return usual_syn(t, end) ? PASSES_SYN : MAY_CONCERN;
}

#endif
