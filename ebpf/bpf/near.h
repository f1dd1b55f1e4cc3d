/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Connections of rules with action auto that stay native between hosts of one kernel:
 * docs/ARCHITECTURE.md "Auto". */
#ifndef SMCGW_NEAR_H
#define SMCGW_NEAR_H

#include "policy.h"

/* is_near: the host of this address was met under this kernel. */
global int is_near(const struct flow_key *k)
{
	struct peer_key key;
	struct control *c = control();
	if (!k || !c || !c->near)
		return 0;
	peer_of(k, &key);
	struct near *near = bpf_map_lookup_elem(&smcgw_near, &key);
	return near && bpf_ktime_get_ns() < near->until;
}

/* paces tells whether the host's default has the socket use a congestion control that
 * paces: bbr in its versions. A program that has chosen one knows why. */
static __always_inline int paces(struct bpf_sock_ops *s)
{
	char name[16] = {};
	struct bpf_sock *sk = s->sk;
	if (!sk)
		return 0;
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);
	if (!tp)
		return 0;
	struct inet_connection_sock *icsk = &tp->inet_conn;
	if (BPF_CORE_READ_BITFIELD(icsk, icsk_ca_setsockopt))
		return 0;
	return !bpf_getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name)) && name[0] == 'b' && name[1] == 'b' && name[2] == 'r';
}

static __always_inline int set_congestion(struct bpf_sock_ops *s, const volatile char *from)
{
	char name[16];
	for (int i = 0; i < sizeof(name); i++)
		name[i] = from[i];
	return bpf_setsockopt(s, IPPROTO_TCP, TCP_CONGESTION, name, sizeof(name));
}

/* So many connections in a row that take too long to come up are not for want of a
 * processor. */
#define NEAR_LATE 8

/* comes_late tells whether a handshake took longer than it can within a kernel. An address
 * is forgotten after some. */
global int comes_late(const struct flow_key *k, u32 rtt)
{
	struct peer_key key;
	if (!k)
		return 1;
	peer_of(k, &key);
	struct near *near = bpf_map_lookup_elem(&smcgw_near, &key);
	if (!near)
		return 1;
	if (rtt <= near_rtt) {
		near->late = 0;
		return 0;
	}
	if (++near->late >= NEAR_LATE)
		bpf_map_delete_elem(&smcgw_near, &key);
	return 1;
}

/* unpace has a connection that comes up use a congestion control that does not pace.
 * The kernel asks before it sets up the host's own. Without success it returns 0. */
static __always_inline int unpace(struct bpf_sock_ops *s, const struct flow_key *k)
{
	return !comes_late(k, s->srtt_us >> 3) && !set_congestion(s, unpaced);
}

/* near_rule is the rule with action auto, plus 1, of a connection that comes from near. */
global int near_rule(const struct flow_key *k)
{
	struct verdict v;
	struct control *c = control();
	if (!k || !c || smcgw_retired || !is_near(k) || switched_off(c, liveness()))
		return 0;
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h)
		return 0;
	judge(k, k->lport, policy, h->inbound & h->tcp, &v);
	return !v.reason && v.automatic ? v.rule + 1 : 0;
}

/* near_accepted: an application of this host has accepted a native connection. */
static __always_inline int near_accepted(struct bpf_sock_ops *s, const struct flow_key *k)
{
	struct bpf_sock *sk = s->sk;
	if (!sk || sk->priority == GATEWAY_PRIORITY)
		return 1;
	int rule = near_rule(k);
	if (rule && paces(s) && unpace(s, k))
		native(k, 0, SIDE_SERVER, REASON_SAME_KERNEL, rule - 1, FLOW_NONE);
	return 1;
}

#endif
