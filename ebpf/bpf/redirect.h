/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Ways out of a program to another device. Marks live inside this host only and
 * change no bit outside mark_mask. */
#ifndef SMCGW_REDIRECT_H
#define SMCGW_REDIRECT_H

#include "flow.h"

#define ETH_LEN 14

static always_inline void set_mark(struct __sk_buff *skb, u32 bits)
{
	skb->mark = (skb->mark & ~mark_mask) | bits;
}

/* marked lets a packet of a gateway pass. The mark is taken away by the last of
 * two gateways: the other one has to see it too. */
static always_inline int marked(struct __sk_buff *skb)
{
	if (!smcgw_retired)
		set_mark(skb, 0);
	return TCX_NEXT;
}

static always_inline int drop(u32 stat)
{
	count_stat(stat);
	return TCX_DROP;
}

/* to_app gives an application's segment to the gateway socket, which the
 * ordinary 4-tuple lookup finds on A. */
static always_inline int to_app(void)
{
	return bpf_redirect(app_ifindex, BPF_F_INGRESS);
}

/* to_gateway puts a datagram in the queue that user space reads from A. The mark
 * tells A's program who sent it there. */
static always_inline int to_gateway(struct __sk_buff *skb)
{
	set_mark(skb, mark_pass);
	return bpf_redirect(app_ifindex, 0);
}

/* to_netstack puts a packet in the queue that user space reads from W. */
static always_inline int to_netstack(void)
{
	return bpf_redirect(wire_ifindex, 0);
}

/* to_wire sends a packet from a TUN to the network. redirect_neigh wants a link
 * header to replace; without change_head it drops in silence. */
static always_inline int to_wire(struct __sk_buff *skb, u32 ifindex)
{
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return drop(STAT_REDIRECT_FAILED);
	set_mark(skb, mark_pass);
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/* from_wire makes a packet from a TUN arrive on a wire device, so that firewall,
 * conntrack, rp_filter and application see what they see natively. The mark is
 * mark_inject, or mark_local for a SYN of a gateway socket, which the wire program
 * looks at once more. */
static always_inline int from_wire(struct __sk_buff *skb, u32 ifindex, u32 mark)
{
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (!d)
		return drop(STAT_REDIRECT_FAILED);
	if (d->l2len == ETH_LEN) {
		struct { u8 dst[6], src[6]; u16 proto; } eth;
		__builtin_memcpy(eth.dst, d->mac, 6);
		__builtin_memset(eth.src, 0, 6);
		eth.src[0] = 2; /* locally administered */
		eth.proto = skb->protocol;
		if (bpf_skb_change_head(skb, ETH_LEN, 0) || bpf_skb_store_bytes(skb, 0, &eth, sizeof(eth), 0))
			return drop(STAT_REDIRECT_FAILED);
	}
	set_mark(skb, mark);
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

/* to_listener lets a SYN arrive on lo, where the rule for mark_local makes its
 * destination local and smcgw_lookup picks the listener. lo's MAC is zero. */
static always_inline int to_listener(struct __sk_buff *skb)
{
	u16 proto = skb->protocol;
	if (bpf_skb_change_head(skb, ETH_LEN, 0) || bpf_skb_store_bytes(skb, 12, &proto, 2, 0))
		return drop(STAT_REDIRECT_FAILED);
	set_mark(skb, mark_local);
	return bpf_redirect(lo_ifindex, BPF_F_INGRESS);
}

#endif
