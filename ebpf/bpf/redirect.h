/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Ways out of a program to another device. */
#ifndef SMCGW_REDIRECT_H
#define SMCGW_REDIRECT_H

#include "flow.h"

#define ETH_LEN 14
/* A packet of an IPoIB device has 20 bytes of link address, which are 0 inbound, and 4 of
 * protocol (drivers/infiniband/ulp/ipoib). No helper makes a link header shorter; a
 * redirection to a device that has none takes it off. */
#define IPOIB_LEN 24

/* A packet that a program sends on has its tag, by which the programs on the next
 * device know it. The tag is tc_index: no socket and no firewall can set it. It names
 * the gateway, of which there may be two, and what is to become of the packet. */
#define TAG_OURS 0x5300
#define TAG_GATEWAY 0xf0
enum tag {
	TAG_PASS = 1, /* to the wire: pass at egress */
	TAG_INJECT,   /* from the wire, as it seems: pass at ingress */
	TAG_LEG_SYN,  /* the same, of a leg's SYN: look at its entry again */
	TAG_LEG,      /* to the legs */
	TAG_DATAGRAM, /* to the queue that user space reads from A */
};

static __always_inline void set_tag(struct __sk_buff *skb, u32 tag)
{
	skb->tc_index = TAG_OURS | generation << 4 | tag;
}

/* tagged tells whether a packet comes from a program of a gateway. */
static __always_inline int tagged(struct __sk_buff *skb)
{
	return (skb->tc_index & 0xff00) == TAG_OURS;
}

/* has_tag tells whether it comes from one of this gateway, with that tag. */
static __always_inline int has_tag(struct __sk_buff *skb, u32 tag)
{
	return skb->tc_index == (TAG_OURS | generation << 4 | tag);
}

/* let_pass lets a packet of a gateway pass; another one's is left as it is. */
static __always_inline int let_pass(struct __sk_buff *skb)
{
	if ((skb->tc_index & TAG_GATEWAY) == generation << 4)
		skb->tc_index = 0;
	return TCX_NEXT;
}

static __always_inline int drop(u32 stat)
{
	count_stat(stat);
	return TCX_DROP;
}

/* hold takes a packet of the host's kernel away as if it had left: a redirect to no device.
 * Of TCX_DROP the kernel hears: it then counts no probe and finds the path congested, and
 * gives up a connection request within six seconds. */
static __always_inline int hold(u32 stat)
{
	count_stat(stat);
	return bpf_redirect(0, 0);
}

struct ethernet {
	u8 dst[6], src[6];
	u16 proto;
};

/* add_link_header puts one in front of a packet that has none. */
static __always_inline int add_link_header(struct __sk_buff *skb, struct ethernet *eth)
{
	eth->src[0] = 2; /* locally administered */
	eth->proto = skb->protocol;
	return bpf_skb_change_head(skb, ETH_LEN, 0) || bpf_skb_store_bytes(skb, 0, eth, sizeof(*eth), 0);
}

/* to_legs gives an application's segment, or a SYN for the listener, to the
 * namespace of the legs, where the ordinary lookup finds the socket. */
static __always_inline int to_legs(struct __sk_buff *skb, u32 l2len)
{
	struct ethernet eth = { .dst = LEG_MAC };
	if (l2len == IPOIB_LEN) { /* A ingress sends it on */
		set_tag(skb, TAG_LEG);
		return bpf_redirect(app_ifindex, BPF_F_INGRESS);
	}
	if (l2len == ETH_LEN ? bpf_skb_store_bytes(skb, 0, eth.dst, sizeof(eth.dst), 0) : add_link_header(skb, &eth))
		return drop(STAT_REDIRECT_FAILED);
	set_tag(skb, TAG_LEG);
	return bpf_redirect(leg_ifindex, 0);
}

/* to_gateway puts a datagram in the queue that user space reads from A. */
static __always_inline int to_gateway(struct __sk_buff *skb)
{
	set_tag(skb, TAG_DATAGRAM);
	return bpf_redirect(app_ifindex, 0);
}

/* untag takes a priority tag off a packet that does not go on to the kernel. */
static __always_inline long untag(struct __sk_buff *skb)
{
	return skb->vlan_present ? bpf_skb_vlan_pop(skb) : 0;
}

/* to_netstack puts a packet in the queue that user space reads from W, which would put a
 * tag into it. */
static __always_inline int to_netstack(struct __sk_buff *skb)
{
	return untag(skb) ? drop(STAT_REDIRECT_FAILED) : bpf_redirect(wire_ifindex, 0);
}

/* to_wire sends a packet from a TUN to the network; a rule about its mark routes it,
 * too. redirect_neigh wants a link header to replace; without change_head it drops in
 * silence. */
static __always_inline int to_wire(struct __sk_buff *skb, u32 ifindex, u32 mark)
{
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return drop(STAT_REDIRECT_FAILED);
	skb->mark = mark;
	set_tag(skb, TAG_PASS);
	return bpf_redirect_neigh(ifindex, NULL, 0, 0);
}

/* from_wire makes a packet arrive on a wire device, so that firewall, conntrack,
 * address translation, rp_filter and application see what they see natively. It comes
 * from a TUN, without a link header, or from the legs, with one. What the kernel has
 * arrive so has an Ethernet header, also on IPoIB, which it checks against the first bytes
 * of the device's address (eth_type_trans). */
static __always_inline int from_wire(struct __sk_buff *skb, u32 l2len, u32 ifindex, u32 tag)
{
	struct device *d = bpf_map_lookup_elem(&smcgw_devices, &ifindex);
	if (!d)
		return drop(STAT_REDIRECT_FAILED);
	if (d->l2len) {
		struct ethernet eth = {};
		__builtin_memcpy(eth.dst, d->mac, sizeof(eth.dst));
		if (l2len == ETH_LEN ? bpf_skb_store_bytes(skb, 0, eth.dst, sizeof(eth.dst), 0) : add_link_header(skb, &eth))
			return drop(STAT_REDIRECT_FAILED);
	}
	set_tag(skb, tag);
	return bpf_redirect(ifindex, BPF_F_INGRESS);
}

#endif
