/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packet headers, TCP options, our option (docs/PROTOCOL.md "TCP option"). */
#ifndef SMCGW_PARSE_H
#define SMCGW_PARSE_H

#include "flow.h"

struct ip4 {
	u8 ver_ihl, tos;
	u16 len, id, frag;
	u8 ttl, proto;
	u16 sum;
	u32 src, dst;
};

struct ip6 {
	u32 ver_class_label;
	u16 len;
	u8 next, hops;
	u32 src[4], dst[4];
};

struct tcp {
	u16 src, dst;
	u32 seq, ack;
	u8 off, flags;
	u16 window, sum, urg;
};

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80

struct packet {
	struct flow_key key;
	u32 l3, l4;   /* offsets of the headers */
	u32 seq, ack; /* host byte order */
	u32 payload;
	u8 tcplen, flags, proto;
	u8 fatal; /* of an ICMP error: it ends a connection request */
	u8 gateway; /* enum liveness; ANY: not looked at yet */
	u8 pad[3];
};

enum { OUTBOUND, INBOUND };

/* gateway_of is the liveness of the gateway to this packet: one to all that is decided
 * about it. */
static __always_inline u8 gateway_of(struct packet *p)
{
	if (p->gateway == ANY)
		p->gateway = liveness();
	return p->gateway & 3;
}

static __always_inline int syn_only(const struct packet *p)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
}

/* What carries the length of an IPv6 packet of more than 64 KiB: a hop-by-hop header with
 * nothing but the jumbo option (RFC 2675). The kernel makes such packets where a device's
 * gso_max_size or gro_max_size lets it (BIG TCP), and takes the header away before a network. */
struct jumbo {
	u8 next, len, option, size;
	u32 length;
};

static __always_inline int is_jumbo(const struct jumbo *j)
{
	return j->next == IPPROTO_TCP && !j->len && j->option == 0xc2 && j->size == 4;
}

static __always_inline void put_tcp(struct packet *p, const struct tcp *t, u32 total, int dir)
{
	p->key.lport = dir == INBOUND ? t->dst : t->src;
	p->key.rport = dir == INBOUND ? t->src : t->dst;
	p->seq = be32(t->seq);
	p->ack = be32(t->ack);
	p->flags = t->flags;
	p->tcplen = (t->off >> 4) * 4;
	u32 headers = p->l4 - p->l3 + p->tcplen;
	p->payload = total > headers ? total - headers : 0;
}

static __always_inline void put4(struct flow_key *k, u32 local, u32 remote)
{
	k->family = 4;
	*(u32 *)k->laddr = local;
	*(u32 *)k->raddr = remote;
}

static __always_inline void put6(struct flow_key *k, const u32 *local, const u32 *remote)
{
	k->family = 6;
	__builtin_memcpy(k->laddr, local, 16);
	__builtin_memcpy(k->raddr, remote, 16);
}

/* reverse turns the key of a packet that travels towards the local application
 * into the key of its flow. */
static __always_inline void reverse(struct flow_key *k)
{
	struct flow_key r = *k;
	__builtin_memcpy(k->laddr, r.raddr, 16);
	__builtin_memcpy(k->raddr, r.laddr, 16);
	k->lport = r.rport;
	k->rport = r.lport;
}

/* parse reads the headers at off by one load: 40 bytes of IPv4 or 60 of IPv6 are
 * the least a TCP segment, or an ICMP error we care for, can have. It returns the
 * IP protocol if that is TCP or ICMP, else 0. The key has the local side first. A length
 * of 0 is that of a packet of more than 64 KiB. */
static __always_inline u8 parse(struct __sk_buff *skb, u32 off, int dir, struct packet *p)
{
	struct { struct ip6 ip; struct tcp tcp; } h;
	__builtin_memset(p, 0, sizeof(*p));
	p->l3 = off;
	if (skb->protocol == be16(ETH_P_IP)) {
		struct { struct ip4 ip; struct tcp tcp; } *v4 = (void *)&h;
		if (bpf_skb_load_bytes(skb, off, v4, sizeof(*v4)))
			return 0;
		if (v4->ip.frag & be16(0x1fff))
			return 0;
		p->proto = v4->ip.proto;
		p->l4 = off + (v4->ip.ver_ihl & 15) * 4;
		if (p->proto == IPPROTO_ICMP)
			return p->proto;
		if (p->proto != IPPROTO_TCP)
			return 0;
		u32 total = v4->ip.len ? be16(v4->ip.len) : skb->len - off;
		put4(&p->key, dir == INBOUND ? v4->ip.dst : v4->ip.src, dir == INBOUND ? v4->ip.src : v4->ip.dst);
		if (p->l4 != off + sizeof(struct ip4) && bpf_skb_load_bytes(skb, p->l4, &v4->tcp, sizeof(struct tcp)))
			return 0;
		put_tcp(p, &v4->tcp, total, dir);
		return IPPROTO_TCP;
	}
	if (skb->protocol != be16(ETH_P_IPV6) || bpf_skb_load_bytes(skb, off, &h, sizeof(h)))
		return 0;
	u32 total = h.ip.len ? sizeof(struct ip6) + be16(h.ip.len) : skb->len - off;
	p->proto = h.ip.next;
	p->l4 = off + sizeof(struct ip6);
	if (p->proto == IPPROTO_HOPOPTS && !h.ip.len && is_jumbo((void *)&h.tcp)) {
		p->proto = IPPROTO_TCP;
		p->l4 += sizeof(struct jumbo);
		if (bpf_skb_load_bytes(skb, p->l4, &h.tcp, sizeof(h.tcp)))
			return 0;
	}
	if (p->proto == IPPROTO_ICMPV6)
		return p->proto;
	if (p->proto != IPPROTO_TCP)
		return 0;
	put6(&p->key, dir == INBOUND ? h.ip.dst : h.ip.src, dir == INBOUND ? h.ip.src : h.ip.dst);
	put_tcp(p, &h.tcp, total, dir);
	return IPPROTO_TCP;
}

/* parse_quoted finds the connection an ICMP error is about: the quoted packet
 * is one of ours, so its source is the local side. Returns 0 if there is one. */
global int parse_quoted(struct __sk_buff *skb, struct packet *p)
{
	if (!p)
		return -1;
	struct { u8 type, code; } icmp;
	struct { u16 ports[2]; u32 seq; } tcp;
	u32 at = p->l4 + 8;
	if (bpf_skb_load_bytes(skb, p->l4, &icmp, sizeof(icmp)))
		return -1;
	if (p->proto == IPPROTO_ICMP) {
		struct ip4 ip;
		if (icmp.type != 3 && icmp.type != 11 && icmp.type != 12)
			return -1;
		p->fatal = icmp.type != 3 || icmp.code != 4; /* a SYN is never too big */
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return -1;
		if (ip.proto != IPPROTO_TCP || ip.frag & be16(0x1fff))
			return -1;
		put4(&p->key, ip.src, ip.dst);
		at += (ip.ver_ihl & 15) * 4;
	} else {
		struct ip6 ip;
		if (icmp.type < 1 || icmp.type > 4)
			return -1;
		p->fatal = icmp.type != 2;
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)))
			return -1;
		if (ip.next != IPPROTO_TCP)
			return -1;
		put6(&p->key, ip.src, ip.dst);
		at += sizeof(ip);
	}
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return -1;
	p->key.lport = tcp.ports[0];
	p->key.rport = tcp.ports[1];
	p->seq = be32(tcp.seq);
	return 0;
}

#define OPTION_LEN 10
#define OPTION_OFFER 0x11 /* version 1, role 1 */
#define OPTION_ACCEPT 0x12
#define OPTION_CONFIRM 0x13

struct options {
	u8 role; /* version and role of our option, 0 = none */
	u8 at;   /* its offset in the options area */
	u16 nonce;
	u8 timestamps;
	u8 obstacle; /* MPTCP, MD5, AO or TFO */
	u16 mss;     /* 0 = none */
	u8 sack;     /* permitted */
	u8 scale;    /* of windows, plus 1; 0 = none */
	u16 pad;
	u32 stamp, echo; /* the timestamps, as the sender numbers them; host byte order */
};

struct walk {
	u8 b[64];
	u32 i, n;
	struct options o;
};

/* walk_step looks at one option; it returns 1 at the end. Malformed options end
 * the walk, as they do in the kernel. */
static long walk_step(u32 step, void *ctx)
{
	struct walk *w = ctx;
	u32 i = w->i;
	if (i >= w->n || i >= 40)
		return 1;
	u8 *b = w->b + i;
	if (b[0] == 0)
		return 1;
	if (b[0] == 1) {
		w->i = i + 1;
		return 0;
	}
	u32 len = b[1];
	if (len < 2 || i + len > w->n)
		return 1;
	w->i = i + len;
	if (b[0] == 8 && len == 10) {
		w->o.timestamps = 1;
		w->o.stamp = (u32)b[2] << 24 | (u32)b[3] << 16 | (u32)b[4] << 8 | b[5];
		w->o.echo = (u32)b[6] << 24 | (u32)b[7] << 16 | (u32)b[8] << 8 | b[9];
	}
	if (b[0] == 2 && len == 4)
		w->o.mss = (u16)b[2] << 8 | b[3];
	if (b[0] == 3 && len == 3)
		w->o.scale = b[2] > 14 ? 15 : b[2] + 1; /* RFC 7323 2.3 */
	if (b[0] == 4 && len == 2)
		w->o.sack = 1;
	if (b[0] == 30 || b[0] == 19 || b[0] == 29 || b[0] == 34)
		w->o.obstacle = 1;
	if (b[0] != 254)
		return 0;
	if (len >= 4 && b[2] == 0xf9 && b[3] == 0x89)
		w->o.obstacle = 1; /* TFO before it had a kind, RFC 7413 section 4.1.1 */
	if (len == OPTION_LEN && !w->o.role && b[2] == 'S' && b[3] == 'M' && b[4] == 'G' && b[5] == 'W' &&
	    b[6] >= OPTION_OFFER && b[6] <= OPTION_CONFIRM) { /* of a later version there may be another */
		w->o.role = b[6];
		w->o.nonce = (u16)b[8] << 8 | b[9];
		w->o.at = i;
	}
	return 0;
}

/* scan_options walks the options area, at most 40 bytes, so at most 40 steps. */
global int scan_options(struct __sk_buff *skb, struct packet *p, struct options *o)
{
	if (!p || !o)
		return -1;
	struct walk w = {};
	u64 n = p->tcplen; /* as in create_flow */
	if (n > 20 && n <= 60) {
		/* Verifiers before 6.8 learn nothing from a comparison with 0. */
		n -= 21;
		barrier_var(n);
		n = (n & 63) + 1;
		w.n = bpf_skb_load_bytes(skb, p->l4 + 20, w.b, n) ? 0 : n;
		bpf_loop(40, walk_step, &w, 0);
	}
	*o = w.o;
	return 0;
}

/* carriable tells whether netstack could take over the connection of a SYN. */
static __always_inline int carriable(const struct packet *p, const struct options *o)
{
	return !p->payload && !(p->flags & (TCP_ECE | TCP_CWR)) && o->timestamps && !o->obstacle;
}

/* The two window sizes are needed as constants by the verifier. */
#define blank_window(size)                                                             \
	do {                                                                           \
		u8 old[size], new[size];                                               \
		if (bpf_skb_load_bytes(skb, start, old, size))                         \
			return -1;                                                     \
		for (u32 j = 0; j < size; j++)                                         \
			new[j] = j >= lead && j < lead + OPTION_LEN ? 1 : old[j];      \
		s64 diff = sum_diff(old, size, new, size);                     \
		if (bpf_l4_csum_replace(skb, p->l4 + 16, 0, diff, 0))                  \
			return -1;                                                     \
		return bpf_skb_store_bytes(skb, start, new, size, 0) ? -1 : 0;         \
	} while (0)

/* blank_option overwrites our option by NOPs and keeps the checksum right. The
 * checksum is summed over 16-bit words, so the window starts 4-aligned; options
 * end 4-aligned too, so it lies inside them. With CHECKSUM_PARTIAL the field
 * holds the pseudo header only and bpf_l4_csum_replace leaves it alone. */
global int blank_option(struct __sk_buff *skb, struct packet *p, struct options *o)
{
	if (!p || !o)
		return -1;
	u32 lead = o->at & 3, start = p->l4 + 20 + (o->at & ~3u);
	if (lead == 3)
		blank_window(16);
	blank_window(12);
}

/* socket_key treats a v4-mapped socket as the IPv4 connection it makes. */
static __always_inline void socket_key(struct bpf_sock_ops *s, struct flow_key *k)
{
	__builtin_memset(k, 0, sizeof(*k));
	k->lport = be16(s->local_port);
	k->rport = be16(be32(s->remote_port));
	u32 r0 = once(s->remote_ip6[0]), r1 = once(s->remote_ip6[1]), r2 = once(s->remote_ip6[2]);
	if (s->family == AF_INET || (!r0 && !r1 && r2 == be32(0xffff))) {
		put4(k, s->local_ip4, s->remote_ip4);
		return;
	}
	u32 local[4] = { once(s->local_ip6[0]), once(s->local_ip6[1]), once(s->local_ip6[2]), once(s->local_ip6[3]) };
	u32 remote[4] = { r0, r1, r2, once(s->remote_ip6[3]) };
	put6(k, local, remote);
}

#endif
