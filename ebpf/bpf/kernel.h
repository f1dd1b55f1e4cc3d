/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The part of the kernel's BPF interface these programs use, and no more, so
 * that they compile the same everywhere, without kernel or libbpf headers.
 * Layouts and numbers are the stable user-space ABI of linux/bpf.h; the loader
 * tests would fail if one were wrong, since the verifier checks every access.
 */
#ifndef SMCGW_KERNEL_H
#define SMCGW_KERNEL_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed int s32;
typedef signed long long s64;

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define always_inline inline __attribute__((always_inline))
#define noinline __attribute__((__noinline__))
/* The verifier checks a global function once, by its types, instead of at every
 * call with every state: pointers must be compared with NULL in it. */
#define global __attribute__((__noinline__, visibility("default")))
#define NULL ((void *)0)

/* barrier_var keeps clang from undoing a bounds check the verifier needs. */
#define barrier_var(v) asm volatile("" : "+r"(v))

/* discard uses a result nobody needs. Without it clang turns the function into
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
#else
#define be16(x) ((u16)(x))
#define be32(x) ((u32)(x))
#endif


enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_SOCKMAP = 15,
	BPF_MAP_TYPE_SK_STORAGE = 24,
	BPF_MAP_TYPE_RINGBUF = 27,
};

#define BPF_ANY 0
#define BPF_NOEXIST 1
#define EEXIST 17
#define BPF_F_NO_PREALLOC 1
#define BPF_F_INGRESS 1
#define BPF_F_RECOMPUTE_CSUM 1
#define BPF_F_CURRENT_NETNS ((u64)-1)
#define BPF_RB_NO_WAKEUP 1
#define BPF_RB_FORCE_WAKEUP 2
#define BPF_SK_STORAGE_GET_F_CREATE 1

#define TCX_NEXT -1
#define TCX_DROP 2
#define SK_DROP 0
#define SK_PASS 1

#define BPF_TCP_CLOSE 7
#define BPF_TCP_LISTEN 10
#define SOCK_DGRAM 2
#define PACKET_OTHERHOST 3

#define BPF_SOCK_OPS_TCP_CONNECT_CB 3
#define BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB 4
#define BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB 5
#define BPF_SOCK_OPS_STATE_CB 10
#define BPF_SOCK_OPS_HDR_OPT_LEN_CB 14
#define BPF_SOCK_OPS_WRITE_HDR_OPT_CB 15
#define BPF_SOCK_OPS_STATE_CB_FLAG (1 << 2)
#define BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG (1 << 6)

#define AF_INET 2
#define AF_INET6 10
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define TCP_CONGESTION 13
#define IPPROTO_UDP 17
#define IPPROTO_FRAGMENT 44
#define IPPROTO_ICMPV6 58

#define md_ptr(type, name) union { type name; u64 : 64; } __attribute__((aligned(8)))

struct bpf_sock {
	u32 bound_dev_if;
	u32 family;
	u32 type;
	u32 protocol;
	u32 mark;
	u32 priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port; /* host byte order */
	u16 dst_port; /* network byte order */
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
	s32 rx_queue_mapping;
};

struct __sk_buff {
	u32 len;
	u32 pkt_type;
	u32 mark;
	u32 queue_mapping;
	u32 protocol;
	u32 vlan_present;
	u32 vlan_tci;
	u32 vlan_proto;
	u32 priority;
	u32 ingress_ifindex;
	u32 ifindex;
	u32 tc_index;
	u32 cb[5];
	u32 hash;
	u32 tc_classid;
	u32 data;
	u32 data_end;
	u32 napi_id;
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port;
	u32 local_port;
	u32 data_meta;
	md_ptr(void *, flow_keys);
	u64 tstamp;
	u32 wire_len;
	u32 gso_segs;
	md_ptr(struct bpf_sock *, sk);
};

struct bpf_sock_ops {
	u32 op;
	union {
		u32 args[4];
		u32 reply;
	};
	u32 family;
	u32 remote_ip4;
	u32 local_ip4;
	u32 remote_ip6[4];
	u32 local_ip6[4];
	u32 remote_port; /* network byte order, in the upper half where little-endian */
	u32 local_port;  /* host byte order */
	u32 is_fullsock;
	u32 snd_cwnd;
	u32 srtt_us;
	u32 bpf_sock_ops_cb_flags;
	u32 state;
	u32 rtt_min;
	u32 snd_ssthresh;
	u32 rcv_nxt;
	u32 snd_nxt;
	u32 snd_una;
	u32 mss_cache;
	u32 ecn_flags;
	u32 rate_delivered;
	u32 rate_interval_us;
	u32 packets_out;
	u32 retrans_out;
	u32 total_retrans;
	u32 segs_in;
	u32 data_segs_in;
	u32 segs_out;
	u32 data_segs_out;
	u32 lost_out;
	u32 sacked_out;
	u32 sk_txhash;
	u64 bytes_received;
	u64 bytes_acked;
	md_ptr(struct bpf_sock *, sk);
	md_ptr(void *, skb_data);
	md_ptr(void *, skb_data_end);
	u32 skb_len;
	u32 skb_tcp_flags;
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family;
	u32 type;
	u32 protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	md_ptr(struct bpf_sock *, sk);
};

struct bpf_sk_lookup {
	md_ptr(struct bpf_sock *, sk);
	u32 family;
	u32 protocol;
	u32 remote_ip4;
	u32 remote_ip6[4];
	u16 remote_port; /* network byte order */
	u16 : 16;
	u32 local_ip4;
	u32 local_ip6[4];
	u32 local_port; /* host byte order */
	u32 ingress_ifindex;
};

struct bpf_sock_tuple {
	union {
		struct {
			u32 saddr;
			u32 daddr;
			u16 sport;
			u16 dport;
		} ipv4;
		struct {
			u32 saddr[4];
			u32 daddr[4];
			u16 sport;
			u16 dport;
		} ipv6;
	};
};

struct bpf_redir_neigh;

/* IPv4 addresses are in the first element. */
struct bpf_fib_lookup {
	u8 family;
	u8 l4_protocol;
	u16 sport;
	u16 dport;
	u16 tot_len;
	u32 ifindex; /* in: by which it has come; out: by which it leaves */
	u32 tos;
	u32 src[4];
	u32 dst[4];
	u32 vlan;
	u8 smac[6], dmac[6];
};
#define BPF_FIB_LKUP_RET_SUCCESS 0
#define BPF_FIB_LKUP_RET_NO_NEIGH 7

/* Of the kernel's own structures; the loader finds out where these fields are. */
#define kernel_layout __attribute__((preserve_access_index))
struct inet_connection_sock {
	u32 icsk_user_timeout; /* milliseconds */
} kernel_layout;
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 snd_una;
} kernel_layout;

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_prandom_u32)(void) = (void *)7;
static long (*bpf_skb_store_bytes)(struct __sk_buff *skb, u32 off, const void *from, u32 len, u64 flags) = (void *)9;
static long (*bpf_l4_csum_replace)(struct __sk_buff *skb, u32 off, u64 from, u64 to, u64 flags) = (void *)11;
static u64 (*bpf_get_current_uid_gid)(void) = (void *)15;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*bpf_skb_load_bytes)(const void *skb, u32 off, void *to, u32 len) = (void *)26;
static s64 (*bpf_csum_diff)(void *from, u32 from_len, void *to, u32 to_len, u32 seed) = (void *)28;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)38;
static long (*bpf_skb_change_head)(struct __sk_buff *skb, u32 len, u64 flags) = (void *)43;
static struct tcp_sock *(*bpf_skc_to_tcp_sock)(void *sk) = (void *)137;
static u32 (*bpf_get_socket_uid)(struct __sk_buff *skb) = (void *)47;
static long (*bpf_setsockopt)(void *ctx, int level, int name, void *value, int len) = (void *)49;
static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) = (void *)59;
static u64 (*bpf_skb_ancestor_cgroup_id)(struct __sk_buff *skb, int level) = (void *)83;
static long (*bpf_sk_release)(void *sk) = (void *)86;
static struct bpf_sock *(*bpf_sk_fullsock)(struct bpf_sock *sk) = (void *)95;
static struct bpf_sock *(*bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, u32 size, u64 netns, u64 flags) = (void *)99;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *)108;
static u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)122;
static u64 (*bpf_get_current_ancestor_cgroup_id)(int level) = (void *)123;
static long (*bpf_sk_assign)(void *ctx, void *sk, u64 flags) = (void *)124;
static void *(*bpf_ringbuf_reserve)(void *ringbuf, u64 size, u64 flags) = (void *)131;
static void (*bpf_ringbuf_submit)(void *data, u64 flags) = (void *)132;
static u64 (*bpf_ringbuf_query)(void *ringbuf, u64 flags) = (void *)134;
static long (*bpf_store_hdr_opt)(struct bpf_sock_ops *ops, const void *from, u32 len, u64 flags) = (void *)143;
static long (*bpf_reserve_hdr_opt)(struct bpf_sock_ops *ops, u32 len, u64 flags) = (void *)144;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int plen, u32 flags) = (void *)69;
static long (*bpf_redirect_neigh)(u32 ifindex, struct bpf_redir_neigh *params, int plen, u64 flags) = (void *)152;
static long (*bpf_check_mtu)(void *ctx, u32 ifindex, u32 *mtu_len, s32 len_diff, u64 flags) = (void *)163;
static long (*bpf_loop)(u32 n, long (*step)(u32, void *), void *ctx, u64 flags) = (void *)181;

#endif
