/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Types shared with the loader, maps, and the constants it sets before loading. */
#ifndef SMCGW_MAPS_H
#define SMCGW_MAPS_H

#include "kernel.h"

/* A connection from the local application's direction; IPv4 in the first four
 * bytes, so that a v4-mapped socket and an IPv4 packet have one key. */
struct flow_key {
	u8 laddr[16];
	u8 raddr[16];
	u16 lport; /* network byte order */
	u16 rport;
	u8 family; /* 4 or 6 */
	u8 pad[3];
};

/* The states of ebpf.State. */
enum flow_state {
	FLOW_NONE,
	FLOW_OFFERED,
	FLOW_NEGOTIATING,
	FLOW_COMPLETING,
	FLOW_CARRYING,
	FLOW_WIRE,
	FLOW_SERVING,
	FLOW_RAW,
	FLOW_RELEASED,
	FLOW_RETURNED,
	FLOW_DEAD,
	FLOW_PROOF, /* of no state of ebpf.State: a connection of our own through a leg (prove.go) */
};

/* How far a proof has come: bits of the nonce of its entry. */
enum proof_step { PROOF_LEFT, PROOF_ANSWERED, PROOF_CONFIRMED };

/* word: ISN (63..32), nonce (31..16), flags (15..8), state (7..0). It is changed
 * by compare-and-swap only, also by user space (cas.h): a decision on an old view
 * of a tuple cannot touch the next connection on it. So is what follows the connection
 * while it lives: ISN (63..32) and value (31..0) (flow_set). */
struct flow {
	u64 word;
	u64 offered_at; /* ktime */
	u64 changed_at;
	u64 ifindex;	  /* wire device: what arrives */
	u64 out;	  /* and what leaves; another one where a device is stacked on it, or routes differ */
	u64 mark;	  /* of the packets that the application's kernel sends, by which it routes them */
	u64 bound;	  /* device that the application's socket is bound to, 0: none; a VRF's is its master */
	u64 options;	  /* of the application's socket as user space knows them (keepalive.h) */
	u8 rule;
	u8 syn_len;
	u8 pad[6];
	u8 syn[120]; /* IP and TCP headers of the offered SYN: 60 and 60 bytes at most */
};

#define WORD_ACKED (1ull << 8)  /* server: an ACK followed the SYN; client: an accept answered the offer */
#define WORD_SERVER (1ull << 9) /* the local application is the server */
#define WORD_SILENT (1ull << 10) /* client: released by the programs; the gateway has nothing more to say */
#define WORD_REFUSED (1ull << 11) /* client: the offered SYN was refused; the answer to a bare one counts */
#define WORD_BARE (1ull << 12) /* client: the bare SYN has left after that */
#define WORD_CONFIRMED (1ull << 13) /* server: a gateway is the client's side */
#define WORD_SPOKEN (1ull << 14) /* client: the gateway has, and the server's may have dialled its application */
#define WORD_STATE 0xffull

/* SO_PRIORITY of the gateways' own sockets in the namespace of the host, of which
 * nothing is offered or steered; it takes a privilege to set it. To a queueing
 * discipline it is 0, best effort. */
#define GATEWAY_PRIORITY 0x534d4750

#define SIDE_CLIENT 0
#define SIDE_SERVER 1
#define SIDE_DATAGRAM 2 /* beside them, where counters tell UDP from TCP */
#define NO_RULE 255
#define RULE_SLOTS 65 /* the last one is for no rule */

enum reason {
	REASON_OFF = 1,
	REASON_POLICY = 2,
	REASON_NEVER_LIST = 3,
	REASON_GATEWAY_STALE = 4,
	REASON_NAT = 5,
	REASON_FORWARDED = 6,
	REASON_SYN_OPTIONS = 7,
	REASON_ADDRESS = 8,
	REASON_CANARY = 9,
	REASON_APP_LEG_BLOCKED = 10,
	REASON_PEER_NO_OPTION = 20,
	REASON_OPTION_MIRRORED = 21,
	REASON_OPTION_BLACKHOLED = 22,
	REASON_ACCEPT_LOST = 23,
	REASON_CLIENT_GONE = 24,
	REASON_PEER_UNRESOLVED = 25,
	REASON_OPTION_REJECTED = 26,
	REASON_PEER_REFUSED = 27,
	REASON_OFFER_UNANSWERED = 28,
	REASON_HANDSHAKE_TIMEOUT = 32,
	REASON_FLOW_LIMIT = 36,
	REASON_RATE_LIMIT = 37,
	REASON_MODE = 43,
	REASON_NOT_WORTH_IT = 50,
	REASON_SLOTS = 128,
};

enum event_kind { EVENT_NATIVE = 1, EVENT_REPLACED = 2, EVENT_DATAGRAM = 3, EVENT_PROBE = 4, EVENT_OPTIONS = 5 };

/* The values of ebpf.Proto. */
enum event_proto { PROTO_TCP, PROTO_UDP };

struct event {
	u64 at;
	struct flow_key key;
	u32 isn;
	u8 kind;
	u8 reason;
	u8 side;
	u8 rule;
	u8 proto;
	u8 pad[3];
	u32 value[2]; /* of a probe: its sequence number and acknowledgement; of a timeout: milliseconds */
	u8 pad2[4];
};

/* Order and names are those of statNames in counters.go. */
enum stat {
	STAT_OFFERED,
	STAT_ACCEPTED,
	STAT_SERVED,
	STAT_REPLACED,
	STAT_SYN_RETRANSMIT_DROP,
	STAT_OUT_DROP,
	STAT_APP_INGRESS_DROP,
	STAT_APP_EGRESS_DROP,
	STAT_LEG_INGRESS_DROP,
	STAT_LEG_EGRESS_DROP,
	STAT_WIRE_INGRESS_DROP,
	STAT_RELEASED_DROP,
	STAT_RETURNED_DROP,
	STAT_DEAD_DROP,
	STAT_EVENT_LOST,
	STAT_NEUTRALISED,
	STAT_NEUTRALISE_FAILED,
	STAT_ICMP_STEERED,
	STAT_STALE_DELETED,
	STAT_REDIRECT_FAILED,
	STAT_SYN_DELIVERED,
	STAT_SYN_RELEASED,
	STAT_SYN_RETURNED,
	STAT_STALE_DROPPED,
	STAT_DGRAM_STEERED,
	STAT_DGRAM_DELIVERED,
	STAT_DGRAM_RELEASED,
	STAT_DGRAM_UNKNOWN_DROP,
	STAT_DGRAM_FRAGMENTED,
	STAT_DGRAM_ASKED,
	STAT_DGRAM_TABLE_FULL,
	STAT_OFFER_REFUSED,
	STAT_PROBE_HELD,
	STAT_ANSWERED,
	STAT_SILENT_DROP,
	STAT_SLOTS,
};

enum gateway_mode { MODE_OFF, MODE_OBSERVE, MODE_ENFORCE };

struct control {
	u32 mode;
	u32 off;
	u32 native_reason; /* != 0: everything stays native for this reason */
	u32 policy;        /* active policy generation: 0 or 1 */
	u64 heartbeat_timeout;
	u64 retry;
	u32 blackhole_after;
	u32 epoch;     /* of the policy, never the same again; > 0 */
	u32 datagrams; /* 0: no UDP packet needs a look */
	u32 mtu;       /* of the wire devices */
	u64 handshake; /* the gateway ends a negotiation within it and four round trips */
	u32 proofs;    /* connections of peers that user space takes on in a second; 0: any number */
	u32 shed;      /* != 0: why it takes on none now */
	u32 share;     /* rules without a share of their own carry the places below it; SHARE_ALL: all */
	u32 compare;   /* 1: connections inside and outside of the share are compared (compare.h) */
	u32 setups;    /* connections of this host that may be set up at a time (room.h); 0: any number */
};

/* A place among the connections of this host that are being set up. */
#define SETUPS 1024
struct setup {
	u64 taken; /* ktime */
	struct flow_key key;
};

/* Also the key of the own-address map, with port 0. */
struct peer_key {
	u8 addr[16];
	u16 port; /* network byte order; 0 = the whole address */
	u8 family;
	u8 pad;
};

struct peer {
	u64 until; /* ktime; left alone before it */
	u32 count; /* options eaten in a row */
	u32 backoff; /* how often it was left alone in a row */
	u8 reason;
	u8 pad[7];
};

/* An address of this host: the macvlan device that has it, and the device below that.
 * Neighbours may know the address by the MAC of either. 0: any other device.
 * OWN_NOWHERE: an ipvlan device, whose packets nothing tells from those of the device
 * below. */
#define OWN_NOWHERE 0xffffffffu
struct own {
	u32 upper;
	u32 lower;
};

/* Connections with less say nothing about how fast bulk is. */
#define BULK_BYTES (1ull << 20)

#define DEVICE_OFFER 1
#define DEVICE_BLOCKED4 2 /* legs are not proved there */
#define DEVICE_BLOCKED6 4
#define DEVICE_IPSEC 16 /* what leaves by it is encrypted, and what arrives was */
#define DEVICE_ONE_WAY 8 /* a tunnel without a far end: what is redirected to it is lost */
#define DEVICE_TAGGED 32 /* a VLAN device of number 0 is above it */

/* The link address of the legs' end of the pair (legMAC in legs.go). */
#define LEG_MAC { 0x02, 'S', 'M', 'G', 'W', 0x02 }

struct device {
	u32 flags;
	u8 l2len; /* 14, 24 (IPoIB) or 0 */
	u8 mac[6];
	u8 pad;
};

/* One per policy generation. The masks any_* are what a lookup that misses means. */
struct policy_head {
	u64 any4;
	u64 any6;
	u64 any_port;
	u64 any_cgroup;
	u64 any_uid;
	u64 inbound;    /* rules for connections that come: they ask for no cgroup or user */
	u64 outbound;   /* rules for those that leave */
	u64 anyone;     /* rules that ask for no cgroup or user */
	u64 accelerate; /* rules that do not pass */
	u64 unworthy;   /* rules whose connections are native because nothing here is worth it */
	u64 tcp;        /* rules by protocol */
	u64 udp;
	u32 watch;      /* a rule about TCP asks for a cgroup or user */
	u32 watch_udp;
	u32 prefixes4;  /* a rule names addresses: else each has any4 */
	u32 prefixes6;
	u32 shares[64]; /* of each rule; 0: that of the control map */
};

#define SHARE_ALL 0xffffffffu

struct lpm4 { u32 prefixlen; u32 policy; u8 addr[4]; };
struct lpm6 { u32 prefixlen; u32 policy; u8 addr[16]; };
struct port_key { u32 policy; u16 port; u16 pad; };
struct port_rule { u64 mask; u64 excluded; /* accelerating rules the never-list takes out */ };
struct uid_key { u32 policy; u32 uid; };
struct cgroup_key { u64 id; u32 policy; u32 pad; };

enum dgram_state {
	DGRAM_NONE,
	DGRAM_NATIVE,   /* the policy, an address or the gateway wants it native */
	DGRAM_SELECTED, /* a rule selects it: carried while its peer is capable */
	DGRAM_OPEN,     /* the gateway wants it carried */
};

/* What is known about the datagrams of a tuple. Fields are written one by one
 * and without a lock: each is right alone, and the next datagram finds them all. */
struct dgram {
	u64 until; /* ktime; decided anew from then on; 0 = does not age */
	u64 seen;
	u64 asked; /* not before it the gateway is asked about the peer again */
	u64 packets;
	u64 bytes;
	u32 ifindex;
	u32 epoch; /* of the policy that decided; 0 = any */
	u8 state;
	u8 rule;
	u8 reason; /* why it is native now; 0 = carried */
	u8 told;   /* the last reason counted and reported */
	u8 side;
	u8 pad[3];
	u32 mark; /* with which the host routes the tuple's datagrams */
	u32 pad2;
};

struct dgram_peer {
	u64 until; /* ktime; 0 = for ever */
	u8 capable;
	u8 reason;
	u8 pad[6];
};

/* What an answer is made in (cookie.h): the TCP headers of SYN and SYN-ACK. */
#define ANSWER_LEN 52
struct answer {
	u8 old[60], next[60];
	u16 sum; /* of the SYN */
	u16 pad;
};

/* What a processor has done of something in this second. */
struct budget {
	u64 second;
	u64 spent;
};

/* Socket storage: what connect() and the SYN of a local socket are remembered by. */
enum offer_phase { PHASE_NONE, PHASE_WANT, PHASE_WRITTEN, PHASE_ANSWERED, PHASE_REFUSED, PHASE_DOUBTED, PHASE_SEEN, PHASE_COMPARED };

struct sk_note {
	u64 mask; /* rules the caller's user and cgroups allow */
	u32 policy_seen; /* policy generation of mask, plus 1 */
	u16 nonce;
	u8 phase;
	u8 foreign; /* another program wanted header options before us */
	u8 rule;
	u8 side;
	u8 carries;
	u8 pad;
	u32 epoch; /* of the policy that decided about a connection that is counted */
	u64 began; /* ktime; of a connection that is counted or compared */
	u8 compared; /* enum compared */
	u8 pad2[3];
	u32 stamp; /* TSval of the SYN with the offer, as on the wire; 0: none */
};

/* Connections of a rule, by what the share of the rollout made of them. */
enum compared {
	COMPARED_NOT,
	COMPARED_NATIVE,  /* outside, and would have been offered inside */
	COMPARED_OFFERED, /* inside: carried, or native after an attempt */
};

/* How long they took, told apart by what they moved. */
struct compared_key {
	u32 epoch; /* of the policy that says which rule it is */
	u8 rule;
	u8 kind;   /* enum compared */
	u8 size;   /* 0 below 1 KiB, one more for each factor of 16 */
	u8 lasted; /* log2 of microseconds, in quarters */
};

/* What connections of a service with a host have done while nothing was carried. */
struct seen_key {
	u8 addr[16]; /* of the other host */
	u16 port;    /* of the server, network byte order */
	u8 family;
	u8 side;
	u8 rule;
	u8 carries; /* the policy would have it carried */
	u8 pad[2];
	u32 epoch; /* of the policy that says which rule it is */
};

struct seen {
	u64 begun;
	u64 ended;
	u64 sent; /* bytes of those that have ended, as the rest */
	u64 received;
	u64 bulk;        /* connections of BULK_BYTES or more */
	u64 bulk_bytes;  /* which they moved, both ways */
	u64 bulk_lasted; /* nanoseconds, added up */
};

struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 8192); __type(key, struct seen_key); __type(value, struct seen); } smcgw_seen SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct compared_key); __type(value, u64); } smcgw_compared SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct flow_key); __type(value, struct flow); } smcgw_flows SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct peer_key); __type(value, struct peer); } smcgw_peers SEC(".maps");
/* Own ports without a socket of ours that something else answers for, until when. */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct peer_key); __type(value, u64); } smcgw_served SEC(".maps");
/* Addresses that have answered a SYN with the option: the way there lets it pass. */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct peer_key); __type(value, u8); } smcgw_passed SEC(".maps");
/* Carried tuples are in a map of their own, where native ones cannot evict them. */
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct flow_key); __type(value, struct dgram); } smcgw_dgrams SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct flow_key); __type(value, struct dgram); } smcgw_dgram_natives SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 16384); __type(key, struct peer_key); __type(value, struct dgram_peer); } smcgw_dgram_peers SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LRU_HASH); __uint(max_entries, 4096); __type(key, struct peer_key); __type(value, u64); } smcgw_dgram_asked SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 65536); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct peer_key); __type(value, struct own); } smcgw_own SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, u32); __type(value, struct device); } smcgw_devices SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, SETUPS); __type(key, u32); __type(value, struct setup); } smcgw_setups SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct control); } smcgw_control SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, u64); } smcgw_beat SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 4 * REASON_SLOTS); __type(key, u32); __type(value, u64); } smcgw_native SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 2 * RULE_SLOTS); __type(key, u32); __type(value, u64); } smcgw_decided SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, STAT_SLOTS); __type(key, u32); __type(value, u64); } smcgw_stats SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct flow); } smcgw_scratch SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct answer); } smcgw_answer SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, struct budget); } smcgw_budget SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_RINGBUF); __uint(max_entries, 1 << 19); } smcgw_events SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_SOCKMAP); __uint(max_entries, 2); __type(key, u32); __type(value, u64); } smcgw_listen SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_SK_STORAGE); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, int); __type(value, struct sk_note); } smcgw_sk SEC(".maps");

struct { __uint(type, BPF_MAP_TYPE_ARRAY); __uint(max_entries, 2); __type(key, u32); __type(value, struct policy_head); } smcgw_policy SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct lpm4); __type(value, u64); } smcgw_lpm4 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_LPM_TRIE); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct lpm6); __type(value, u64); } smcgw_lpm6 SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 131072); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct port_key); __type(value, struct port_rule); } smcgw_ports SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct uid_key); __type(value, u64); } smcgw_uids SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_HASH); __uint(max_entries, 16384); __uint(map_flags, BPF_F_NO_PREALLOC); __type(key, struct cgroup_key); __type(value, u64); } smcgw_cgroups SEC(".maps");

/* What may have an entry in smcgw_flows, by the ports of the tuple (trace.h). */
#define TRACES 65536
struct traces {
	u32 from; /* older traces are of entries that are gone */
	u32 apart[15]; /* from, which every packet reads, has a cache line without now */
	u32 now;  /* counts the sweeps of user space */
	u32 too[15];
	u32 at[TRACES];
};
volatile struct traces smcgw_traces;

/* Connections that peers have proved: the second (63..32) and how many in it (31..0). */
volatile u64 smcgw_proved;

/* SYNs that were forwarded last, by a hash of their tuple and number: one that is sent again is
 * the same connection. Two at once may take each other's place, and then count twice. */
#define FORWARDED_SLOTS 1024
volatile u64 smcgw_forwarded[FORWARDED_SLOTS];

/* When a step of a set-up last took too long (room.h), ktime. */
volatile u64 smcgw_busy;

/* Not 0: another gateway takes the new connections, and its programs come after
 * ours on every hook (docs/ARCHITECTURE.md "Two gateways side by side"). */
volatile u32 smcgw_retired;

/* Set by the loader; the verifier treats them as constants. */
const volatile u32 generation = 1;
const volatile u32 app_ifindex = 0;
const volatile u32 wire_ifindex = 0;
const volatile u32 leg_ifindex = 0;
const volatile u64 netns_cookie = 0;
const volatile u8 counting = 0; /* nothing is carried: connections are decided about and counted */
const volatile u8 has_xfrm = 0; /* the kernel has IPsec, and the helper that tells of it */
const volatile u64 cookie_key[2] = {}; /* random: no other host can make our cookies */
const volatile u32 answer_rate = 1; /* SYNs answered in a second, on a processor */
const volatile u16 datagram_port = 0; /* network byte order */

#endif
