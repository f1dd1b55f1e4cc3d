/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Which datagrams are ours to carry: headers, policy, entries. */
#ifndef SMCGW_DATAGRAM_POLICY_H
#define SMCGW_DATAGRAM_POLICY_H

#include "parse.h"
#include "policy.h"
#include "redirect.h"

struct udp {
	u16 src, dst, len, sum;
};

#define ROCE_PORT 4791
#define SECOND_NS 1000000000ull
#define DGRAM_FORGET_NS (60 * SECOND_NS) /* a tuple silent for so long counts as a new one */

enum { DATAGRAM_NONE, DATAGRAM_WHOLE, DATAGRAM_FRAGMENT };

/* parse_datagram finds the tuple of a UDP packet, its source as the local side.
 * A fragment is told by the first one of its datagram. Packets with IP options
 * or extension headers are none of ours. *at is the offset of the payload. */
static __always_inline int parse_datagram(struct __sk_buff *skb, u32 off, struct flow_key *k, u32 *at)
{
	struct { struct ip6 ip; struct udp udp; } h;
	__builtin_memset(k, 0, sizeof(*k));
	if (skb->protocol == be16(ETH_P_IP)) {
		struct { struct ip4 ip; struct udp udp; } *v4 = (void *)&h;
		if (bpf_skb_load_bytes(skb, off, v4, sizeof(*v4)) || v4->ip.proto != IPPROTO_UDP)
			return DATAGRAM_NONE;
		if (v4->ip.frag & be16(0x3fff))
			return v4->ip.frag & be16(0x1fff) ? DATAGRAM_NONE : DATAGRAM_FRAGMENT;
		if (v4->ip.ver_ihl != 0x45)
			return DATAGRAM_NONE;
		put4(k, v4->ip.src, v4->ip.dst);
		k->lport = v4->udp.src;
		k->rport = v4->udp.dst;
		*at = off + sizeof(*v4);
		return DATAGRAM_WHOLE;
	}
	if (skb->protocol != be16(ETH_P_IPV6) || bpf_skb_load_bytes(skb, off, &h, sizeof(h)))
		return DATAGRAM_NONE;
	if (h.ip.next == IPPROTO_FRAGMENT) { /* next header, reserved, offset and flags */
		return be16(h.udp.src) >> 8 == IPPROTO_UDP && !(h.udp.dst & be16(0xfff8)) ? DATAGRAM_FRAGMENT : DATAGRAM_NONE;
	}
	if (h.ip.next != IPPROTO_UDP)
		return DATAGRAM_NONE;
	put6(k, h.ip.src, h.ip.dst);
	k->lport = h.udp.src;
	k->rport = h.udp.dst;
	*at = off + sizeof(h);
	return DATAGRAM_WHOLE;
}

/* gateways_own tells what gateways and RoCE devices say themselves, by their ports or
 * their sockets. */
static __always_inline int gateways_own(struct __sk_buff *skb, const struct flow_key *k)
{
	struct bpf_sock *sk = skb->sk;
	if (sk) {
		sk = bpf_sk_fullsock(sk);
		if (sk && sk->priority == GATEWAY_PRIORITY)
			return 1;
	}
	return k->lport == datagram_port || k->rport == datagram_port || k->lport == be16(ROCE_PORT) ||
	       k->rport == be16(ROCE_PORT);
}

/* to_many tells a broadcast or multicast packet by its link header: a tuple does
 * not show a broadcast to a network. */
static __always_inline int to_many(struct __sk_buff *skb, u32 l2len)
{
	u8 first;
	if (l2len == IPOIB_LEN) /* after the queue pair's number: a GID (RFC 4391, 9.1.1) */
		return bpf_skb_load_bytes(skb, 4, &first, 1) || first == 0xff;
	return l2len == ETH_LEN && (bpf_skb_load_bytes(skb, 0, &first, 1) || first & 1);
}

/* users_rules are the rules that the owner of the packet's socket allows: its
 * user as of socket(), in the namespace's numbers, and the cgroup it was made in. */
static __always_inline u64 users_rules(struct __sk_buff *skb, struct policy_head *h, u32 policy)
{
	struct uid_key uk = { .policy = policy, .uid = bpf_get_socket_uid(skb) };
	u64 *m = bpf_map_lookup_elem(&smcgw_uids, &uk);
	u64 users = m ? *m : h->any_uid, groups = h->any_cgroup;
	for (int level = 0; level < 32; level++) {
		struct cgroup_key ck = { .id = bpf_skb_ancestor_cgroup_id(skb, level), .policy = policy };
		if (!ck.id)
			break;
		m = bpf_map_lookup_elem(&smcgw_cgroups, &ck);
		if (m)
			groups |= *m;
	}
	return users & groups;
}

struct choice {
	struct verdict v;
	u8 aged;    /* the choice may soon be another */
	u8 decided; /* the policy was asked */
};

/* untrue returns why a datagram that a rule selects cannot be carried. It goes by
 * the packet, not by the socket: a translation that leaves the source ours is
 * undone by conntrack for the answer, whichever way that comes. The port tells
 * packets of a tunnel, which keep the socket of what is inside. */
static __always_inline u8 untrue(struct __sk_buff *skb, const struct flow_key *k, u16 port)
{
	u32 ifindex = skb->ifindex;
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (port != k->lport || !is_own(k->laddr, k->family))
		return REASON_NAT;
	return d && d->flags & DEVICE_OFFER ? 0 : REASON_ADDRESS;
}

/* choose decides about a tuple. It fails if the packet is not of a UDP socket:
 * a raw or packet socket's, or a tunnel's. */
global int choose(struct __sk_buff *skb, u32 l2len, const struct flow_key *k, struct choice *ch)
{
	if (!k || !ch)
		return -1;
	struct bpf_sock *sk = skb->sk;
	if (!sk)
		return -1;
	sk = bpf_sk_fullsock(sk);
	if (!sk)
		return -1;
	u32 protocol = once(sk->protocol), type = once(sk->type), port = once(sk->src_port);
	struct control *c = control();
	if (protocol != IPPROTO_UDP || type != SOCK_DGRAM || !c)
		return -1;
	u32 policy = c->policy;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h)
		return -1;
	ch->v.rule = NO_RULE;
	ch->v.reason = REASON_ADDRESS;
	ch->aged = 1;
	ch->decided = 0;
	if (odd_address(k) || to_many(skb, l2len))
		return 0;
	u64 allowed = h->udp & h->outbound;
	if (h->watch_udp)
		allowed &= users_rules(skb, h, policy);
	judge(k, k->rport, policy, allowed, &ch->v);
	ch->decided = 1;
	ch->aged = h->watch_udp != 0;
	if (ch->v.reason)
		return 0;
	ch->v.reason = untrue(skb, k, be16(port));
	ch->aged |= ch->v.reason != 0;
	return 0;
}

/* tell counts and reports a tuple that is left to the kernel, once a reason. */
static __noinline int tell(const struct flow_key *k, struct dgram *d, u8 kind, u8 reason)
{
	if (!d)
		return 0;
	if (kind == EVENT_NATIVE) {
		if (d->told == reason)
			return 0;
		d->told = reason;
		count_native(SIDE_DATAGRAM | d->side, reason);
	}
	struct note n = { .key = k, .kind = kind, .reason = reason, .side = d->side, .rule = d->rule, .proto = PROTO_UDP };
	return emit(&n);
}

/* decide_datagram makes the tuple's entry, or a new one in place of the old. A
 * decision that is only renewed is not counted again. The old entry is not written
 * to: it may have been recycled for another tuple. */
static __noinline int decide_datagram(struct __sk_buff *skb, u32 l2len, struct flow_key *k, struct dgram *old, struct dgram *d)
{
	struct choice ch;
	if (!d || choose(skb, l2len, k, &ch))
		return -1;
	u64 now = bpf_ktime_get_ns();
	d->state = ch.v.reason ? DGRAM_NATIVE : DGRAM_SELECTED;
	d->rule = ch.v.rule;
	d->reason = ch.v.reason;
	d->until = ch.aged ? now + SECOND_NS : 0;
	d->seen = now;
	d->ifindex = skb->ifindex;
	d->side = SIDE_CLIENT;
	if (old) {
		d->packets = old->packets;
		d->bytes = old->bytes;
		d->asked = old->asked;
		if (old->state == d->state && old->rule == d->rule && now < old->seen + DGRAM_FORGET_NS) {
			d->told = old->told;
			return 0;
		}
	}
	if (ch.decided) {
		/* An obstacle found after the policy is not its decision. */
		if (ch.v.reason == REASON_NAT || ch.v.reason == REASON_ADDRESS)
			ch.v.reason = 0;
		count_decision(&ch.v);
	}
	return 0;
}

/* outdated: an entry of the gateway stays as it is. */
static __always_inline int outdated(struct dgram *d, u32 epoch, u64 now)
{
	if (d->state == DGRAM_OPEN)
		return 0;
	return (d->until && now >= d->until) || (d->epoch && d->epoch != epoch);
}

#endif
