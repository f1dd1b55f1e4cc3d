// The shared memory of two processes and their broker, and the broker's records. docs/protocol/in-process.md specifies both;
// package inprocess has the same numbers for Go, and a test compares them.
//
// Each word of shared memory has one writer. An end maps its own memory for writing and its peer's for reading only, so a
// hostile peer can lie about itself and do no other harm.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

#define SMCI_MAGIC 0x49434d53u // "SMCI"
#define SMCI_VERSION 1u

// A direction of a connection is a sequence of extents: kernel, ring, kernel, ring, ... Transition i ends extent i, so
// even transitions lead into the ring and odd ones back to the kernel. Two cursors name a place in the stream: r counts the
// bytes sent through the ring, k those of the kernel's TCP stream, tokens included.
struct smci_transition {
	_Atomic uint64_t r, k;
};

#define SMCI_TRANSITIONS 16u   // most transitions that may be published and not yet passed
#define SMCI_RING_AT 1024u     // offset of the ring in an end's memory
#define SMCI_ORDER_MIN 16u     // log2 of the smallest ring: 64 KiB
#define SMCI_ORDER_MAX 22u     // log2 of the largest ring: 4 MiB
#define SMCI_SPILL (4u << 20)  // bytes that the library keeps to give to the kernel again, at most, beside its ring
#define SMCI_SLACK 64u         // bytes of a ring that a producer always leaves free

// Flags of an end.
#define SMCI_ATTACHED 1u // both mappings exist and the kernel's byte counts equalled the library's: this end understands tokens
#define SMCI_RECALL 2u   // asks the peer to send through the kernel from now on
#define SMCI_GONE 4u     // this end reads no more
#define SMCI_FROZEN 8u   // this end reads the ring no further than tail: the producer takes back what is beyond it
#define SMCI_RESET 16u   // this end resets on purpose: unread bytes at close(), SO_LINGER with zero time once it is set, an unacknowledged frame
#define SMCI_SHUT 32u    // the FIN is from shutdown(); this end still reads. In a mirror: the peer's process has ended
#define SMCI_ASKS 64u    // between hosts: asks how much the peer gave to the kernel. In a mirror: the answer is there
#define SMCI_LEFT 128u   // in a mirror between hosts: the peer will not open its direction any more, if nx does not say that it has
#define SMCI_WHOLE 256u  // with RESET for an unacknowledged frame: the kernel has all of it. If the process ends now, its gateway sees to it

// In a mirror, which stands for the memory of a peer on another host: the nonces that announce OPEN, the peer's and this end's.
#define SMCI_NONCES_AT 512u
#define SMCI_NONCE_SIZE 16u

// arm: 0 is disarmed. The low 8 bits say whom to wake; the others count, so that no two successive values are equal.
#define SMCI_ARM_SELF 0xffu // wake by a token, or in a mirror by the bell; smaller values name a slot of the end's desk
#define SMCI_ARM_READ 0xfeu // in a mirror: ring the bell also when the next byte is read

// The memory of one end, which only this end writes. The file is sealed, and SMCI_RING_AT + the largest ring long.
struct smci_end {
	uint32_t magic, version;
	uint64_t id;         // of the connection; equal at both ends
	uint32_t side;       // 0 or 1
	uint32_t order_max;  // log2 of the largest ring
	uint64_t reserved[5];
	// Written as the producer of its direction.
	_Alignas(64) _Atomic uint64_t head; // ring bytes published
	_Atomic uint64_t base;              // ring position of the ring's first byte; changes only while the ring is empty
	_Atomic uint64_t ksent;             // bytes sent through the kernel, tokens included; a token is counted before it is sent
	_Atomic uint32_t order;             // log2 of the ring in use; changes with base, and may grow while head - base is at most the ring's size
	_Atomic uint32_t nx;                // transitions published
	_Atomic uint32_t want;              // incremented to ask for a wake-up when there is room
	_Atomic uint32_t wish;              // log2 of the ring that this end would like to use
	// Written as the consumer of the other direction.
	_Alignas(64) _Atomic uint64_t tail; // ring bytes read
	_Atomic uint32_t cx;                // transitions passed
	_Atomic uint32_t arm;
	_Atomic uint32_t room;              // futex, incremented to answer want
	_Atomic uint32_t flags;
	_Atomic uint32_t reach;             // log2 of the ring that this end has mapped; 0 means SMCI_ORDER_MIN. The producer uses no larger one
	_Atomic uint64_t got;               // between hosts: 1 more than the bytes read from ring and frames; 0: not said. In a mirror: when the peer's process ended
	_Alignas(64) struct smci_transition x[SMCI_TRANSITIONS]; // as the producer; transition i is at i % SMCI_TRANSITIONS
};
_Static_assert(sizeof(struct smci_end) <= SMCI_RING_AT, "layout");

// The desk of a process: one slot for each epoll set, where peers look whether a thread sleeps in that set.
#define SMCI_SLOTS 63u
struct smci_slot {
	_Alignas(64) _Atomic uint32_t sleeps; // 0: awake. Otherwise a count of sleeps: the first byte after each needs a token
};
struct smci_desk {
	uint32_t magic, version;
	struct smci_slot slot[SMCI_SLOTS];
};
_Static_assert(sizeof(struct smci_desk) == 4096, "layout");

// Values of off: what goes back to the kernel.
#define SMCI_OFF_ALL 1u  // every end, and no end is promoted
#define SMCI_OFF_SOME 2u // the ends whose bit in kernel is set

#define SMCI_ENTRIES (1u << 17) // most entries of a slab

// What the broker tells a process without sending a message. Only the broker writes it.
struct smci_news {
	uint32_t magic, version;
	_Atomic uint32_t grants;  // messages sent to this process since its HELLO
	_Atomic uint32_t off;     // 0, SMCI_OFF_ALL, SMCI_OFF_SOME or both
	_Atomic uint32_t calls;   // a connection asks for promotion after this many calls that moved bytes
	_Atomic uint32_t spin;    // microseconds to poll the ring before sleeping; 0: do not poll
	_Atomic uint64_t bytes;   // or after this many bytes
	_Atomic uint32_t policy;  // counts changes of policy and switch: after one, refused connections ask again
	_Atomic uint32_t questions; // ASKs since HELLO whose sockets the broker has closed; a SOCKET counts on receipt, though it is kept
	_Alignas(4096) _Atomic uint32_t kernel[SMCI_ENTRIES / 32]; // bit i % 32 of word i / 32: the end in entry i sends through the kernel
};

// The state of one end as the broker may read it: the first bytes of its entry in the process's slab.
enum smci_state { SMCI_FREE, SMCI_NATIVE, SMCI_ASKED, SMCI_MAPPED, SMCI_PROMOTED, SMCI_NEVER };
struct smci_report {
	_Atomic uint32_t state;
	_Atomic uint32_t why;      // SMCI_WHY_*, for SMCI_NEVER and for an end that went back to the kernel
	_Atomic uint64_t id;       // of the connection, from GRANT
	_Atomic uint64_t rx_ring, tx_ring;       // bytes
	_Atomic uint64_t rx_kernel, tx_kernel;   // bytes of data sent through the kernel while promoted
	_Atomic uint64_t tokens_rx, tokens_tx;
	_Atomic uint32_t spills, returns;
	// Written before the state becomes SMCI_PROMOTED. These are the process's own claims: show them, never decide by them.
	uint64_t cookie;            // SO_COOKIE
	uint16_t family;            // AF_INET (also for IPv4-mapped IPv6) or AF_INET6
	uint16_t local_port, remote_port; // host byte order
	uint16_t side;              // as in its ASK: 0, it has connected; 1, it has accepted
	uint8_t local[16], remote[16];    // AF_INET uses the first four bytes
};
#define SMCI_ENTRY 640u // bytes of an entry in the slab

// Records of the control socket (SOCK_SEQPACKET): 64 bytes, host byte order, sent with the descriptors listed.
enum smci_what {
	SMCI_HELLO = 1,   // library: fds [slab]; id = of the run (SMCGW_RUN) or 0, a = version, b = entries of the slab
	SMCI_WELCOME = 2, // broker: fds [desk, writable; news, readable]
	SMCI_ASK = 3,     // library: fds [socket]; tag; side; why = of its last denial; a = bytes read, b = bytes written so far
	SMCI_GRANT = 4,   // broker: fds [own memory, writable; the peer's, readable; the peer's desk, readable]; tag, id, side; a = number of the peer's process; a = 0: the peer is on another host, and fds are [own memory, writable; mirror, readable; bell, writable]
	SMCI_DENY = 5,    // broker: tag, why. Answers HELLO (tag 0) or ASK, or revokes a GRANT that the peer did not get
	SMCI_CLOSED = 6,  // library: tag, id: a promoted or asking end was closed, or is native for good; why; a, b = rx_ring, tx_ring
	SMCI_COUNT = 7,   // smcgw run: id = a run, why. The answer for why 0: a = connections promoted, b = their ring bytes, tag = processes; otherwise a = ends that are native for that reason
	SMCI_SOCKET = 8,  // library: fds [socket]; tag, id of a GRANT between hosts whose memory the library has mapped
};
struct smci_record {
	uint32_t what;
	uint32_t tag; // low 17 bits: index of the entry in the slab; above: a count that tells uses of the entry apart. Never 0
	uint32_t side, why;
	uint64_t id, a, b;
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct smci_record) == 64, "layout");

// Why an end is native or went back to the kernel. The names are in package inprocess.
enum smci_why {
	SMCI_WHY_NONE,
	SMCI_WHY_POLICY,       // no rule selects it
	SMCI_WHY_OFF,          // the mode or the switch
	SMCI_WHY_NO_PEER,      // the other end never asked: it has no library, is on another host, or is behind a proxy
	SMCI_WHY_RAW_CALLS,    // the program makes system calls of its own that may read a socket
	SMCI_WHY_COUNTS,       // bytes bypassed the library
	SMCI_WHY_OPTION,       // a socket option or call that the ring cannot serve
	SMCI_WHY_SHARED,       // more than one process has the socket
	SMCI_WHY_PASSED,       // handed to another program by exec or in a message
	SMCI_WHY_PATH,         // the path is shaped, or no longer acknowledged
	SMCI_WHY_LIMIT,        // a quota or table is full
	SMCI_WHY_NO_MEMORY,    // the system refused memory
	SMCI_WHY_PROTOCOL_ERROR, // the peer's memory is inconsistent
	SMCI_WHY_RECALLED,     // the peer asked for the kernel
	SMCI_WHY_DESCRIPTOR,   // no descriptor was free for the control socket
	SMCI_WHY_SANDBOX,      // the program has denied itself system calls that the library needs (seccomp)
	SMCI_WHY_UNSEEN,       // the broker cannot see the program
	SMCI_WHY_SLOW_CARRIER, // the carrier, or the gateway, delivered nothing
	SMCI_WHY_UNREADABLE,   // the broker could not examine the program
	SMCI_WHY_ENDED,        // one side had shut down or closed before the switch
};
