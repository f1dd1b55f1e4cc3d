/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The listeners of the gateway. A SYN for one that is gone stays without answer: a
 * reset would tell the application that its server refuses. */
#ifndef SMCGW_LISTENER_H
#define SMCGW_LISTENER_H

#include "maps.h"

/* listens reports whether the listener for packets of a protocol is there. */
static __always_inline int listens(u16 proto)
{
	u32 slot = proto == be16(ETH_P_IPV6);
	struct bpf_sock *sk = bpf_map_lookup_elem(&smcgw_listen, &slot);
	if (!sk)
		return 0;
	bpf_sk_release(sk);
	return 1;
}

#endif
