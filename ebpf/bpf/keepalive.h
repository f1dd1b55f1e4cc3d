/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What an application's kernel does to find out that its peer is gone. */
#ifndef SMCGW_KEEPALIVE_H
#define SMCGW_KEEPALIVE_H

#include "parse.h"

/* about_leg tells user space something about a flow whose segments go to a leg. */
static __always_inline int about_leg(const struct packet *p, struct flow *f, u8 kind, u32 a, u32 b)
{
	u64 w = flow_word(f);
	struct note note = {
		.key = &p->key, .isn = word_isn(w), .kind = kind, .side = w & WORD_SERVER ? SIDE_SERVER : SIDE_CLIENT,
		.state = word_state(w), .rule = f->rule, .value = { a, b },
	};
	return emit(&note);
}

/* watched_out looks at an application's segment on its way to the gateway socket,
 * which would answer in the place of the peer. It returns 1 for a probe, of keepalive
 * or of a closed window: those are for the peer, and user space gives it to the
 * gateway socket when the peer has answered on the wire leg. A segment without a
 * socket has come a long way, and passes. */
static __noinline int watched_out(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	struct bpf_sock *sk = skb->sk;
	if (!f || !sk)
		return 0;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	u32 timeout = tp->inet_conn.icsk_user_timeout;
	if (timeout != f->user_timeout && !about_leg(p, f, EVENT_TIMEOUT, timeout, 0))
		f->user_timeout = timeout;
	if (p->payload || (p->flags & (TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK || p->seq + 1 != tp->snd_una)
		return 0;
	discard(about_leg(p, f, EVENT_PROBE, p->seq, p->ack));
	return 1;
}

/* hold takes a packet away as if it had left: a redirect to no device. Of TCX_DROP
 * the sender's TCP hears, which then counts no probe and finds the path congested. */
static __always_inline int hold(void)
{
	count_stat(STAT_PROBE_HELD);
	return bpf_redirect(0, 0);
}

#endif
