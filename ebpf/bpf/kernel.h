/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * What the programs use of the kernel: linux/bpf.h and the helpers of libbpf,
 * types, protocol numbers that belong to no header without the C library, and
 * what later kernels than Debian 12's headers have.
 */
#ifndef SMCGW_KERNEL_H
#define SMCGW_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <linux/if_ether.h>
#include <linux/in.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

/* The verifier checks a global function once, by its types, instead of at every
 * call with every state: pointers must be compared with NULL in it. */
#define global __noinline

/* discard uses a result that is not needed. Without it clang turns the function into
 * one without result that may return with a stack pointer in R0, which the
 * verifier refuses. */
#define discard(call)                              \
	do {                                       \
		int result = (call);               \
		asm volatile("" : : "r"(result));  \
	} while (0)

/* once reads a context field by exactly one load of its own size: the verifier
 * allows no merged ones, and no arithmetic on the context pointer. */
#define once(x) (*(const volatile typeof(x) *)&(x))

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define be16(x) ((u16)__builtin_bswap16(x))
#define be32(x) ((u32)__builtin_bswap32(x))
#define le64(x) ((u64)(x))
#else
#define be16(x) ((u16)(x))
#define be32(x) ((u32)(x))
#define le64(x) ((u64)__builtin_bswap64(x))
#endif

/* sum_diff is bpf_csum_diff of what is no array of 32-bit words by its type. */
static __always_inline s64 sum_diff(void *from, u32 from_len, void *to, u32 to_len)
{
	return bpf_csum_diff(from, from_len, to, to_len, 0);
}

#define EEXIST 17

/* Of Linux 6.6. */
#define TCX_NEXT -1
#define TCX_DROP 2

#define SOCK_STREAM 1
#define SOCK_DGRAM 2
#define PACKET_HOST 0
#define PACKET_OTHERHOST 3
#define AF_INET 2
#define AF_INET6 10
#define TCP_CONGESTION 13
#define IPPROTO_HOPOPTS 0
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58

/* Of the kernel's own structures; the loader finds out where these fields are. */
#define kernel_layout __attribute__((preserve_access_index))
struct net_device {
	int ifindex;
} kernel_layout;
struct dst_entry {
	struct net_device *dev;
} kernel_layout;
struct netns_ipv4 {
	u8 sysctl_tcp_retries2;
} kernel_layout;
struct net {
	struct netns_ipv4 ipv4;
} kernel_layout;
typedef struct {
	struct net *net;
} kernel_layout possible_net_t;
struct sock_common {
	unsigned long skc_flags; /* bits, by enum sock_flags */
	possible_net_t skc_net;
} kernel_layout;
enum sock_flags { SOCK_KEEPOPEN = 3 };
struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
} kernel_layout;
struct inet_sock {
	struct sock sk;
} kernel_layout;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	u32 icsk_user_timeout; /* milliseconds */
} kernel_layout;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_una;
} kernel_layout;

#endif
