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
		.rule = f->rule, .value = { a, b },
	};
	return emit(&note);
}

#define RETRIES2_DEFAULT 15 /* 924 seconds: a leg ends by itself no later than about then */
#define RETRIES2_DOUBLED 9  /* retransmissions until their distance is TCP_RTO_MAX */
#define RTO_MIN_MS 200
#define RTO_MAX_MS 120000

/* user_timeout is for how long the application's kernel would repeat bytes without an
 * answer, in milliseconds; 0: as long as kernels do. TCP_USER_TIMEOUT says it, or a
 * tcp_retries2 of its namespace below the default, as tcp_model_timeout() counts. */
static __always_inline u32 user_timeout(struct tcp_sock *tp)
{
	u32 timeout = tp->inet_conn.icsk_user_timeout;
	struct net *net = tp->inet_conn.icsk_inet.sk.__sk_common.skc_net.net;
	if (timeout || !net || !bpf_core_field_exists(net->ipv4.sysctl_tcp_retries2))
		return timeout;
	u32 n = net->ipv4.sysctl_tcp_retries2;
	if (n >= RETRIES2_DEFAULT)
		return 0;
	if (n > RETRIES2_DOUBLED)
		return ((2 << RETRIES2_DOUBLED) - 1) * RTO_MIN_MS + (n - RETRIES2_DOUBLED) * RTO_MAX_MS;
	return ((2 << n) - 1) * RTO_MIN_MS;
}

/* What user space is told of the application's socket. */
#define OPTION_KEPT 1 /* SO_KEEPALIVE */
#define OPTION_OWN 2  /* the timeout is TCP_USER_TIMEOUT */
#define OPTION_SENT 4 /* of the segment: bytes or their end are on their way */
#define OPTION_BITS 30 /* of the timeout in struct flow; both flags that last are above */

static __always_inline u32 options_of(struct tcp_sock *tp)
{
	u32 flags = tp->inet_conn.icsk_user_timeout ? OPTION_OWN : 0;
	if (tp->inet_conn.icsk_inet.sk.__sk_common.skc_flags & 1UL << bpf_core_enum_value(enum sock_flags, SOCK_KEEPOPEN))
		flags |= OPTION_KEPT;
	u32 timeout = user_timeout(tp);
	if (timeout >> OPTION_BITS)
		timeout = (1 << OPTION_BITS) - 1;
	return flags << OPTION_BITS | timeout;
}

/* watched_out looks at an application's segment on its way to the gateway socket,
 * which would answer in the place of the peer. It returns 1 for a probe, of keepalive
 * or of a closed window: those are for the peer, and user space gives it to the
 * gateway socket when the peer has answered on the wire leg. A segment without a
 * socket has come a long way, and passes. So does one of a raw socket: by its own the
 * kernel answers for a socket that has gone (bpf_skc_to_tcp_sock looks at the protocol only). */
static __noinline int watched_out(struct __sk_buff *skb, struct packet *p, struct flow *f)
{
	struct bpf_sock *sk = skb->sk;
	if (!f || !sk)
		return 0;
	sk = bpf_sk_fullsock(sk);
	if (!sk || once(sk->type) != SOCK_STREAM)
		return 0;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	u32 options = options_of(tp), isn = word_isn(flow_word(f));
	if (options != (u32)f->options && flow_here(&p->key, f)) {
		u32 sent = p->payload || p->flags & TCP_FIN ? OPTION_SENT : 0;
		if (!about_leg(p, f, EVENT_OPTIONS, options & ((1 << OPTION_BITS) - 1), options >> OPTION_BITS | sent))
			flow_set(&f->options, isn, options);
	}
	if (p->payload || (p->flags & (TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK || p->seq + 1 != tp->snd_una)
		return 0;
	discard(about_leg(p, f, EVENT_PROBE, p->seq, p->ack));
	return 1;
}

#endif
