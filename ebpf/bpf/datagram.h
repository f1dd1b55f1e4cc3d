/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Datagrams of unmodified programs. Those of a tuple that a rule selects, or
 * that the gateway opened, go to the gateway while their peer is known to have
 * one; user space reads them from A. Addresses stay true, so each datagram may go
 * either way, and whatever is in doubt goes the native one.
 */
#ifndef SMCGW_DATAGRAM_H
#define SMCGW_DATAGRAM_H

#include "datagram_policy.h"

#define PEER_UNKNOWN 255

/* peer_reason returns 0 for a capable peer; what is known of a port goes before
 * what is known of the whole address. */
global int peer_reason(const struct flow_key *k)
{
	if (!k)
		return PEER_UNKNOWN;
	struct peer_key pk;
	u64 now = bpf_ktime_get_ns();
	peer_of(k, &pk);
	pk.port = k->rport;
	struct dgram_peer *p = bpf_map_lookup_elem(&smcgw_dgram_peers, &pk);
	if (!p || (p->until && now >= p->until)) {
		pk.port = 0;
		p = bpf_map_lookup_elem(&smcgw_dgram_peers, &pk);
	}
	if (!p || (p->until && now >= p->until))
		return PEER_UNKNOWN;
	return p->capable ? 0 : p->reason;
}

/* ask tells the gateway of a peer it might get to know, at most once a second
 * and address. */
static __noinline int ask(const struct flow_key *k, struct dgram *d, u64 now)
{
	struct peer_key pk;
	u64 next = now + SECOND_NS;
	if (!d || now < d->asked)
		return 0;
	d->asked = next;
	peer_of(k, &pk);
	u64 *asked = bpf_map_lookup_elem(&smcgw_dgram_asked, &pk);
	if (asked && now < *asked)
		return 0;
	bpf_map_update_elem(&smcgw_dgram_asked, &pk, &next, BPF_ANY);
	count_stat(STAT_DGRAM_ASKED);
	return tell(k, d, EVENT_DATAGRAM, REASON_PEER_UNRESOLVED);
}

/* native_now returns why a datagram of a selected or open tuple is not carried. */
static __always_inline u8 native_now(struct __sk_buff *skb, struct control *c, const struct flow_key *k, struct dgram *d, u64 now)
{
	u8 off = switched_off(c, liveness());
	if (off)
		return off;
	int reason = peer_reason(k);
	if (d->state == DGRAM_OPEN)
		return reason == PEER_UNKNOWN ? 0 : reason;
	if (reason == PEER_UNKNOWN) {
		discard(ask(k, d, now));
		return REASON_PEER_UNRESOLVED;
	}
	u32 ifindex = skb->ifindex;
	if (!reason && d->ifindex != ifindex) { /* the route has changed */
		struct device *dev = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
		if (!dev || !(dev->flags & DEVICE_OFFER))
			return REASON_ADDRESS;
		d->ifindex = ifindex;
	}
	return reason;
}

static __always_inline void count_datagram(struct __sk_buff *skb, struct dgram *d, u32 at, u64 now)
{
	u32 segments = skb->gso_segs, len = skb->len;
	__sync_fetch_and_add(&d->packets, segments ? segments : 1);
	__sync_fetch_and_add(&d->bytes, len > at ? len - at : 0);
	d->seen = now;
}

/* promote moves an entry to the map of the carried ones. */
static __noinline int promote(const struct flow_key *k, struct dgram *d)
{
	if (!d)
		return -1;
	struct dgram copy = *d;
	if (bpf_map_update_elem(&smcgw_dgrams, k, &copy, BPF_ANY)) {
		count_stat(STAT_DGRAM_TABLE_FULL);
		return -1;
	}
	bpf_map_delete_elem(&smcgw_dgram_natives, k);
	return 0;
}

/* entry_of finds the tuple's entry, made anew if need be, and whether it is in
 * the map of the carried ones. */
static __always_inline struct dgram *entry_of(struct __sk_buff *skb, u32 l2len, struct control *c, struct flow_key *k, u64 now, int *carried)
{
	struct dgram fresh = {};
	fresh.epoch = once(c->epoch); /* read before the policy: user space writes it after */
	struct dgram *d = bpf_map_lookup_elem(&smcgw_dgrams, k);
	*carried = d != NULL;
	if (!d)
		d = bpf_map_lookup_elem(&smcgw_dgram_natives, k);
	if (d && !outdated(d, fresh.epoch, now))
		return d;
	if (decide_datagram(skb, l2len, k, d, &fresh))
		return NULL;
	if (*carried) {
		bpf_map_update_elem(&smcgw_dgrams, k, &fresh, BPF_ANY);
		return bpf_map_lookup_elem(&smcgw_dgrams, k);
	}
	if (bpf_map_update_elem(&smcgw_dgram_natives, k, &fresh, BPF_ANY))
		count_stat(STAT_DGRAM_TABLE_FULL);
	return bpf_map_lookup_elem(&smcgw_dgram_natives, k);
}

/* datagram_out: a packet that is not TCP leaves on a wire device. Without a
 * socket it is forwarded, or not a host's own. */
global int datagram_out(struct __sk_buff *skb, u32 l2len)
{
	struct control *c = control();
	struct flow_key k;
	u32 at = 0;
	int carried;
	if (!c || !c->datagrams || !skb->sk || smcgw_retired)
		return TCX_NEXT;
	int kind = parse_datagram(skb, l2len, &k, &at);
	if (kind == DATAGRAM_FRAGMENT)
		count_stat(STAT_DGRAM_FRAGMENTED);
	if (kind != DATAGRAM_WHOLE || gateways_own(skb, &k))
		return TCX_NEXT;
	u64 now = bpf_ktime_get_ns();
	struct dgram *d = entry_of(skb, l2len, c, &k, now, &carried);
	if (!d)
		return TCX_NEXT;
	count_datagram(skb, d, at, now);
	if (d->state == DGRAM_NATIVE) {
		discard(tell(&k, d, EVENT_NATIVE, d->reason));
		return TCX_NEXT;
	}
	u8 reason = native_now(skb, c, &k, d, now);
	if (d->reason != reason)
		d->reason = reason;
	if (reason) {
		discard(tell(&k, d, EVENT_NATIVE, reason));
		return TCX_NEXT;
	}
	u32 mark = skb->mark;
	if (d->mark != mark)
		d->mark = mark;
	if (!carried && promote(&k, d))
		return TCX_NEXT;
	count_stat(STAT_DGRAM_STEERED);
	return to_gateway(skb);
}

/* known_datagram finds an entry with a device: one that was closed before any
 * datagram was seen has none. */
static __always_inline struct dgram *known_datagram(const struct flow_key *k)
{
	struct dgram *d = bpf_map_lookup_elem(&smcgw_dgrams, k);
	if (!d)
		d = bpf_map_lookup_elem(&smcgw_dgram_natives, k);
	return d && d->ifindex ? d : NULL;
}

/* datagram_from_gateway: a datagram of a peer arrives as if from the wire; one of
 * a local program, which could not be carried, is given to the network. Which it
 * is, the known tuple tells. A tuple that became native meanwhile is known too.
 * One that is longer than the device's MTU arrives as well: natively its sender
 * learns that MTU from an ICMP error and sends fragments, and no such error comes
 * back to the sender of a carried one. */
static __noinline int datagram_from_gateway(struct __sk_buff *skb)
{
	struct flow_key k;
	u32 at = 0;
	if (parse_datagram(skb, 0, &k, &at) != DATAGRAM_WHOLE)
		return drop(STAT_APP_INGRESS_DROP);
	reverse(&k);
	struct dgram *d = known_datagram(&k);
	if (d) {
		d->seen = bpf_ktime_get_ns();
		count_stat(STAT_DGRAM_DELIVERED);
		return from_wire(skb, 0, d->ifindex, TAG_INJECT);
	}
	reverse(&k);
	d = known_datagram(&k);
	if (!d)
		return drop(STAT_DGRAM_UNKNOWN_DROP);
	count_stat(STAT_DGRAM_RELEASED);
	return to_wire(skb, d->ifindex, d->mark);
}

#endif
