/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Policy: every lookup yields the set of rules that could match, as a mask; the
 * lowest bit of their intersection is the first match. All keys carry the policy
 * generation, so a new policy is complete before the one word that activates it. */
#ifndef SMCGW_POLICY_H
#define SMCGW_POLICY_H

#include "peers.h"

struct verdict {
	u8 reason; /* 0 = accelerate */
	u8 rule;
};

/* lowest_bit counts the zeros below the lowest bit of m, which has one. It has no branch: of
 * two calls with six each the verifier would look at thousands of ways. */
static __always_inline u32 lowest_bit(u64 m)
{
	u64 below = ~m & (m - 1);
	below -= below >> 1 & 0x5555555555555555ull;
	below = (below & 0x3333333333333333ull) + (below >> 2 & 0x3333333333333333ull);
	below = (below + (below >> 4)) & 0x0f0f0f0f0f0f0f0full;
	return below * 0x0101010101010101ull >> 56;
}

static __always_inline u64 rules_of_peer(struct policy_head *h, u32 policy, const struct flow_key *k)
{
	u64 *m;
	if (k->family == 4) {
		if (!h->prefixes4)
			return h->any4;
		struct lpm4 key = { .prefixlen = 64, .policy = policy };
		__builtin_memcpy(key.addr, k->raddr, 4);
		m = bpf_map_lookup_elem(&smcgw_lpm4, &key);
		return m ? *m : h->any4;
	}
	if (!h->prefixes6)
		return h->any6;
	struct lpm6 key = { .prefixlen = 160, .policy = policy };
	__builtin_memcpy(key.addr, k->raddr, 16);
	m = bpf_map_lookup_elem(&smcgw_lpm6, &key);
	return m ? *m : h->any6;
}

/* mix is the finalizer of MurmurHash3: every bit of x changes half of the result. */
static __always_inline u64 mix(u64 x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdull;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53ull;
	return x ^ x >> 33;
}

static __always_inline u64 mixed_end(const u8 *addr, u16 port, u64 seed)
{
	const u64 *w = (const u64 *)addr;
	return mix(mix(mix(seed ^ le64(w[0])) ^ le64(w[1])) ^ be16(port));
}

/* outside_share tells that the place of a connection is beyond the share that is carried.
 * The place is the same at both ends, and for a SYN that is sent again (Place in
 * ebpf/internal/policy). */
global int outside_share(const struct flow_key *k, u32 share)
{
	struct control *c = control();
	if (!k || !c)
		return 0;
	if (!share)
		share = c->share;
	if (share == SHARE_ALL)
		return 0;
	u64 at = mix(mixed_end(k->laddr, k->lport, 0) + mixed_end(k->raddr, k->rport, 0));
	return (u32)(at >> 32) >= share;
}

static __always_inline void judge(const struct flow_key *k, u16 port, u32 policy, u64 allowed, struct verdict *v)
{
	v->reason = REASON_POLICY;
	v->rule = NO_RULE;
	struct policy_head *h = bpf_map_lookup_elem(&smcgw_policy, &policy);
	if (!h)
		return;
	struct port_key pk = { .policy = policy, .port = port };
	struct port_rule *pr = bpf_map_lookup_elem(&smcgw_ports, &pk);
	u64 ports = pr ? pr->mask : h->any_port, excluded = pr ? pr->excluded : 0;
	u64 rest = allowed & rules_of_peer(h, policy, k);
	u64 match = rest & ports, taken = rest & excluded;
	u32 rule = match ? lowest_bit(match) : 64;
	if (match) {
		v->rule = rule;
		if (h->accelerate >> (rule & 63) & 1) {
			v->reason = outside_share(k, h->shares[rule & 63]) ? REASON_CANARY : 0;
			return;
		}
		if (h->unworthy >> (rule & 63) & 1)
			v->reason = REASON_NOT_WORTH_IT;
	}
	if (taken && lowest_bit(taken) < rule) {
		v->reason = REASON_NEVER_LIST;
		v->rule = lowest_bit(taken);
	}
}

static __always_inline void count_decision(const struct verdict *v)
{
	u32 slot = v->rule < RULE_SLOTS ? v->rule : RULE_SLOTS - 1;
	if (v->reason)
		slot += RULE_SLOTS;
	u64 *n = bpf_map_lookup_elem(&smcgw_decided, &slot);
	if (n)
		__sync_fetch_and_add(n, 1);
}

/* decide evaluates the policy for a peer and a server port (network byte order);
 * allowed are the rules that user, cgroup and direction leave. The never-list
 * takes accelerating rules out that do not name the port: if one of them would
 * have been first, that is the reason. Every decision is counted, also where
 * mode or heartbeat make it void. */
global int decide(const struct flow_key *k, u16 port, u32 policy, u64 allowed, struct verdict *v)
{
	if (!k || !v)
		return -1;
	judge(k, port, policy, allowed, v);
	count_decision(v);
	return 0;
}

static __always_inline struct own *own_of(const u8 *addr, u8 family)
{
	struct peer_key k = { .family = family };
	__builtin_memcpy(k.addr, addr, 16);
	return bpf_map_lookup_elem(&smcgw_own, &k);
}

static __always_inline int is_own(const u8 *addr, u8 family)
{
	return own_of(addr, family) != NULL;
}

/* never_remote: destinations that are no other host whatever addresses this one
 * has: loopback, multicast, and IPv6 link-local, which a tuple alone does not name. */
static __always_inline int never_remote(const struct flow_key *k)
{
	const u8 *a = k->raddr;
	if (k->family == 4) {
		if (a[0] == 127 || a[0] == 0 || a[0] >= 224)
			return 1;
	} else {
		const u64 *w = (const u64 *)a;
		if (a[0] == 0xff || (a[0] == 0xfe && (a[1] & 0xc0) == 0x80))
			return 1;
		if (!w[0] && (!w[1] || (!a[8] && !a[9] && !a[10] && !a[11] && !a[12] && !a[13] && !a[14] && a[15] == 1)))
			return 1;
	}
	return 0;
}

/* odd_address: destinations that are not another host. */
global int odd_address(const struct flow_key *k)
{
	if (!k)
		return 1;
	return never_remote(k) || is_own(k->raddr, k->family);
}

#endif
