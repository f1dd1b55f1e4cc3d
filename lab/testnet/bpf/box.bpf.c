//go:build ignore

// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0
//
// The middlebox of the test networks: a tcx program on the ingress of every
// port of the switch, that is, on what each host sends. What it does to a port
// is read from a map for every packet, so tests switch it while traffic flows.

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef TCX_NEXT
#define TCX_NEXT -1
#define TCX_DROP 2
#endif

/* A copy re-enters the hook it was made in; the mark tells it from the
 * original. Marks do not leave the switch: veth scrubs them. */
#define MARK_COPY 0x7e57c0de

/* What a middlebox does to what one host sends. Flags are BOX_*. */
struct box {
	__u32 flags;
	__u16 loss; /* per mille, IP packets */
	__u16 dup;  /* per mille, IP packets */
	__u16 port; /* only TCP segments from or to this port; 0: everything */
	__u16 udp_port; /* datagrams from or to this port take the hop; 0: none */
};

enum box_flag {
	BOX_EAT_OFFERS = 1,    /* drop SYNs with our option */
	BOX_STRIP_SYN = 2,     /* our option becomes NOPs on SYNs */
	BOX_STRIP_SYNACK = 4,  /* ... on SYN-ACKs */
	BOX_STRIP_REST = 8,    /* ... on all segments without SYN */
	BOX_DROP_ACCEPTS = 16, /* drop SYN-ACKs with our option */
	BOX_BLACKHOLE = 32,    /* drop all IP but neighbour discovery */
	BOX_HOP = 64,          /* all unicast IP takes the user space hop */
	BOX_HOP_SYN = 128,     /* segments with SYN take it */
	BOX_DROP_REST = 256,   /* drop all segments without SYN */
};

enum box_counter {
	BOX_SEEN,      /* TCP segments */
	BOX_OFFERS,    /* SYNs with an offer */
	BOX_ACCEPTS,   /* SYN-ACKs with an accept */
	BOX_CONFIRMS,  /* segments without SYN with a confirm */
	BOX_SYNS,      /* SYNs, with or without the option */
	BOX_LOST,
	BOX_DUPLICATED,
	BOX_EATEN,     /* SYNs, by BOX_EAT_OFFERS */
	BOX_STRIPPED,
	BOX_DROPPED_ACCEPTS,
	BOX_BLACKHOLED,
	BOX_HOPPED,
	BOX_ERRORS,    /* a helper failed: the test network itself is broken */
	BOX_COUNTERS,
};

/* bpf2go makes Go declarations from types that are used. */
const enum box_flag *unused_flag __attribute__((unused));
const enum box_counter *unused_counter __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32); /* ifindex of the port */
	__type(value, struct box);
} boxes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BOX_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

struct mac {
	__u8 b[6];
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, struct mac);
	__type(value, __u32); /* ifindex of the port a host is on */
} ports SEC(".maps");

volatile const __u32 hop_ifindex = 0;

static __always_inline void count(__u32 which)
{
	__u64 *n = bpf_map_lookup_elem(&counters, &which);
	if (n)
		__sync_fetch_and_add(n, 1);
}

struct segment {
	__u32 l4;      /* offset of the TCP header; 0: no TCP */
	__u32 options; /* length of the options */
	__u16 sport, dport;
	__u8 syn, ack;
	__u16 udp_sport, udp_dport; /* 0: no UDP */
};

/* 0 for IP that the middlebox may touch. */
static __always_inline int parse(struct __sk_buff *skb, struct segment *s)
{
	__u8 proto;
	__u32 l4;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return -1;
		proto = ip.protocol;
		l4 = ETH_HLEN + ip.ihl * 4;
		if (ip.frag_off & bpf_htons(0x1fff))
			return 0;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr ip;
		__u8 type;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return -1;
		proto = ip.nexthdr;
		l4 = ETH_HLEN + sizeof(ip);
		/* Neighbour discovery (133..137) and multicast listener
		 * reports, which start with a hop-by-hop header, pass. */
		if (proto == IPPROTO_HOPOPTS)
			return -1;
		if (proto == IPPROTO_ICMPV6 &&
		    (bpf_skb_load_bytes(skb, l4, &type, 1) || (type >= 133 && type <= 137)))
			return -1;
	} else {
		return -1;
	}
	if (proto == IPPROTO_UDP) {
		struct udphdr uh;
		if (bpf_skb_load_bytes(skb, l4, &uh, sizeof(uh)))
			return 0;
		s->udp_sport = bpf_ntohs(uh.source);
		s->udp_dport = bpf_ntohs(uh.dest);
		return 0;
	}
	if (proto != IPPROTO_TCP)
		return 0;

	struct tcphdr th;
	if (bpf_skb_load_bytes(skb, l4, &th, sizeof(th)))
		return 0;
	s->l4 = l4;
	s->options = th.doff >= 5 ? th.doff * 4 - 20 : 0;
	s->sport = bpf_ntohs(th.source);
	s->dport = bpf_ntohs(th.dest);
	s->syn = th.syn;
	s->ack = th.ack;
	return 0;
}

/* The walk over a header's options, for bpf_loop: written as an ordinary loop
 * it has more paths than the verifier cares to follow. */
struct walk {
	__u8 o[64];
	__u32 end; /* length of the options */
	__u32 next;
	__s32 found; /* offset of our option, or -1 */
	__u8 role;
};

static long walk_step(__u32 step, struct walk *w)
{
	__u32 at = w->next;

	if (at > 30 || at + 10 > w->end)
		return 1;
	/* The compiler knows that at is small, the verifier does not. */
	asm volatile("%0 &= 0x1f" : "+r"(at));
	__u8 *p = &w->o[at];
	if (p[0] == 0)
		return 1;
	if (p[0] == 1) {
		w->next = at + 1;
		return 0;
	}
	if (p[1] < 2)
		return 1;
	if (p[0] == 254 && p[1] == 10 && p[2] == 'S' && p[3] == 'M' && p[4] == 'G' && p[5] == 'W') {
		w->found = at;
		w->role = p[6] & 0xf;
		return 1;
	}
	w->next = at + p[1];
	return 0;
}

/* Offset of our option in the options area and its role, or -1. */
static __always_inline int find_option(struct __sk_buff *skb, struct segment *s, __u8 *role)
{
	struct walk w = { .end = s->options, .found = -1 };
	__u32 last = s->options - 1;

	if (last < 9 || last > 39)
		return -1;
	asm volatile("%0 &= 0x3f" : "+r"(last)); /* for the verifier, as above */
	if (bpf_skb_load_bytes(skb, s->l4 + 20, w.o, last + 1))
		return -1;
	bpf_loop(40, walk_step, &w, 0);
	*role = w.role;
	return w.found;
}

/* Overwrites n bytes (a multiple of 4) at off and mends the TCP checksum.
 * With a checksum still to be completed by hardware (CHECKSUM_PARTIAL) the
 * header holds the pseudo header's sum only, and the helper knows that nothing
 * is to be done. */
#define NOP_WINDOW(n)                                                              \
	static __always_inline int nop_##n(struct __sk_buff *skb, __u32 l4, __u32 off, __u32 skip) \
	{                                                                          \
		__u8 old[n], nops[n];                                              \
		if (bpf_skb_load_bytes(skb, off, old, n))                          \
			return -1;                                                 \
		for (__u32 j = 0; j < n; j++)                                      \
			nops[j] = j >= skip && j < skip + 10 ? 1 : old[j];         \
		__s64 diff = bpf_csum_diff((__be32 *)old, n, (__be32 *)nops, n, 0); \
		if (bpf_l4_csum_replace(skb, l4 + 16, 0, diff, 0))                 \
			return -1;                                                 \
		return bpf_skb_store_bytes(skb, off, nops, n, 0);                  \
	}

NOP_WINDOW(12)
NOP_WINDOW(16)

/* The options area is a whole number of 32-bit words, so the aligned window
 * around our ten bytes always lies inside. */
static __always_inline void strip(struct __sk_buff *skb, struct segment *s, __u32 at)
{
	__u32 skip = at & 3, off = s->l4 + 20 + at - skip;
	int err = skip < 3 ? nop_12(skb, s->l4, off, skip) : nop_16(skb, s->l4, off, skip);

	count(err ? BOX_ERRORS : BOX_STRIPPED);
}

static __always_inline int unicast(struct __sk_buff *skb)
{
	__u8 first;
	return !bpf_skb_load_bytes(skb, 0, &first, 1) && !(first & 1);
}

static __always_inline int chance(__u32 per_mille)
{
	return per_mille && bpf_get_prandom_u32() % 1000 < per_mille;
}

static __always_inline int to_hop(struct __sk_buff *skb)
{
	count(BOX_HOPPED);
	return bpf_redirect(hop_ifindex, 0);
}

/* Options: nonzero when the segment is to be dropped. */
static __always_inline int mangle(struct __sk_buff *skb, struct box *b, struct segment *s)
{
	__u8 role = 0;
	int at = find_option(skb, s, &role);

	if (at < 0 || at > 30)
		return 0;
	if (s->syn && !s->ack) {
		if (role == 1)
			count(BOX_OFFERS);
		if (b->flags & BOX_EAT_OFFERS) {
			count(BOX_EATEN);
			return 1;
		}
		if (b->flags & BOX_STRIP_SYN)
			strip(skb, s, at);
	} else if (s->syn) {
		if (role == 2)
			count(BOX_ACCEPTS);
		if (b->flags & BOX_DROP_ACCEPTS) {
			count(BOX_DROPPED_ACCEPTS);
			return 1;
		}
		if (b->flags & BOX_STRIP_SYNACK)
			strip(skb, s, at);
	} else {
		if (role == 3)
			count(BOX_CONFIRMS);
		if (b->flags & BOX_STRIP_REST)
			strip(skb, s, at);
	}
	return 0;
}

SEC("tcx/ingress")
int testnet_box(struct __sk_buff *skb)
{
	struct segment s = {};
	__u32 ifindex = skb->ifindex;
	struct box *b = bpf_map_lookup_elem(&boxes, &ifindex);

	if (!b || parse(skb, &s))
		return TCX_NEXT;
	int datagram = b->udp_port && (b->udp_port == s.udp_sport || b->udp_port == s.udp_dport);
	if (b->port && datagram)
		goto forward;
	if (b->port && b->port != s.sport && b->port != s.dport)
		return TCX_NEXT;
	if (skb->mark == MARK_COPY) {
		skb->mark = 0;
		goto forward;
	}
	if (b->flags & BOX_BLACKHOLE) {
		count(BOX_BLACKHOLED);
		return TCX_DROP;
	}
	if (s.l4) {
		count(BOX_SEEN);
		if (s.syn && !s.ack)
			count(BOX_SYNS);
		if (mangle(skb, b, &s))
			return TCX_DROP;
		if (!s.syn && b->flags & BOX_DROP_REST) {
			count(BOX_BLACKHOLED);
			return TCX_DROP;
		}
	}
	if (chance(b->loss)) {
		count(BOX_LOST);
		return TCX_DROP;
	}
	if (chance(b->dup)) {
		skb->mark = MARK_COPY;
		count(bpf_clone_redirect(skb, ifindex, BPF_F_INGRESS) ? BOX_ERRORS : BOX_DUPLICATED);
		skb->mark = 0;
	}
forward:
	if (unicast(skb) && (datagram || (b->flags & BOX_HOP) || ((b->flags & BOX_HOP_SYN) && s.syn)))
		return to_hop(skb);
	return TCX_NEXT;
}

/* What the user space hop returns goes to the port of its destination,
 * around the bridge: that must not learn that the sender moved to the hop. */
SEC("tcx/ingress")
int testnet_hop(struct __sk_buff *skb)
{
	struct mac m = {};

	if (bpf_skb_load_bytes(skb, 0, m.b, 6))
		return TCX_DROP;
	__u32 *port = bpf_map_lookup_elem(&ports, &m);
	if (!port)
		return TCX_DROP;
	return bpf_redirect(*port, 0);
}

char _license[] SEC("license") = "Dual MIT/GPL";
