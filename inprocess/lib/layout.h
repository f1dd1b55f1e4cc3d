// What two processes and their broker share: memory and records. docs/protocol/in-process.md is the text to it;
// package inprocess has the same numbers for Go, and a test compares them.
//
// Each word of shared memory has one writer. The end of a connection maps its own memory for writing and its
// peer's for reading only, so a hostile peer can spoil what it says, and nothing else.
#pragma once
#include <stdatomic.h>
#include <stdint.h>

#define SMCI_MAGIC 0x49434d53u // "SMCI"
#define SMCI_VERSION 1u

// A direction of a connection is a sequence of extents: kernel, ring, kernel, ring, ... Transition i ends extent i, so
// even ones lead into the ring and odd ones back. Two cursors name a place in the stream: r counts the bytes that went
// by the ring, k those of the kernel's TCP stream, tokens included.
struct smci_transition {
	_Atomic uint64_t r, k;
};

#define SMCI_TRANSITIONS 16u   // published and not passed, at most
#define SMCI_RING_AT 1024u     // where the ring begins in an end's memory
#define SMCI_ORDER_MIN 16u     // log2 of the smallest ring: 64 KiB
#define SMCI_ORDER_MAX 22u     // and of the largest: 4 MiB
#define SMCI_SLACK 64u         // bytes of a ring that a producer leaves free

// Flags of an end.
#define SMCI_ATTACHED 1u // both mappings are made, and the kernel's counts were equal to the library's: tokens are understood
#define SMCI_RECALL 2u   // asks the peer to send by the kernel from here on
#define SMCI_GONE 4u     // reads no more
#define SMCI_FROZEN 8u   // reads the ring no further than tail: the producer takes back what is beyond it
#define SMCI_RESET 16u   // ends by a reset on purpose: unread bytes, or SO_LINGER with no time, from when it is set
#define SMCI_SHUT 32u    // its FIN is of shutdown(): it reads on. Of a mirror: the peer's process has ended
#define SMCI_ASKS 64u    // between hosts: wants to know what the peer has given to the kernel. Of a mirror: it says so now

// Of a mirror, which stands for the memory of a peer on another host: what announces OPEN of the peer, and of this end.
#define SMCI_NONCES_AT 512u
#define SMCI_NONCE_SIZE 16u

// arm: 0 is disarmed. The low 8 bits say whom to wake, the others count, so that no two values follow each other.
#define SMCI_ARM_SELF 0xffu // a token for the next byte, or the bell of a mirror; smaller values name a slot of the end's desk
#define SMCI_ARM_READ 0xfeu // of a mirror: the bell also for the next byte that is read

// The memory of one end: what this end writes. The file is SMCI_RING_AT + the largest ring long, and sealed.
struct smci_end {
	uint32_t magic, version;
	uint64_t id;         // of the connection, the same at both ends
	uint32_t side;       // 0 or 1
	uint32_t order_max;  // log2 of the largest ring
	uint64_t reserved[5];
	// As the producer of its direction.
	_Alignas(64) _Atomic uint64_t head; // ring bytes published
	_Atomic uint64_t base;              // ring position of the ring's first byte; changes while the ring is empty only
	_Atomic uint64_t ksent;             // bytes sent by the kernel, tokens included; a token is counted before it is sent
	_Atomic uint32_t order;             // log2 of the ring in use; changes with base
	_Atomic uint32_t nx;                // transitions published
	_Atomic uint32_t want;              // counts up: wake me when there is room
	_Atomic uint32_t wish;              // log2 of the ring that this end would use
	// As the consumer of the other direction.
	_Alignas(64) _Atomic uint64_t tail; // ring bytes read
	_Atomic uint32_t cx;                // transitions passed
	_Atomic uint32_t arm;
	_Atomic uint32_t room;              // counts up: futex, the answer to want
	_Atomic uint32_t flags;
	_Atomic uint32_t reach;             // log2 of the ring that this end has mapped, 0: SMCI_ORDER_MIN; the producer uses no larger one
	_Alignas(64) struct smci_transition x[SMCI_TRANSITIONS]; // as the producer; transition i at i % SMCI_TRANSITIONS
};
_Static_assert(sizeof(struct smci_end) <= SMCI_RING_AT, "layout");

// A process's desk: one slot for each epoll set, where its peers look whether somebody sleeps there.
#define SMCI_SLOTS 63u
struct smci_slot {
	_Alignas(64) _Atomic uint32_t sleeps; // 0: awake. Otherwise counts the sleeps: the first byte after it needs a token
};
struct smci_desk {
	uint32_t magic, version;
	struct smci_slot slot[SMCI_SLOTS];
};
_Static_assert(sizeof(struct smci_desk) == 4096, "layout");

// What goes back to the kernel.
#define SMCI_OFF_ALL 1u  // everything, and nothing is promoted
#define SMCI_OFF_SOME 2u // the ends whose bit in kernel is set

#define SMCI_ENTRIES (1u << 17) // of a slab, at most

// What the broker tells a process without a message. The broker writes it.
struct smci_news {
	uint32_t magic, version;
	_Atomic uint32_t grants;  // messages sent to this process since its HELLO
	_Atomic uint32_t off;     // 0, SMCI_OFF_ALL, SMCI_OFF_SOME or both
	_Atomic uint32_t calls;   // a connection asks after so many calls that moved bytes
	_Atomic uint32_t spin;    // microseconds to look at the ring before sleeping; 0: none
	_Atomic uint64_t bytes;   // or after so many bytes
	_Atomic uint32_t policy;  // counts changes of policy and switch: what was refused is asked again
	_Atomic uint32_t questions; // ASKs since HELLO whose sockets the broker has closed
	_Alignas(4096) _Atomic uint32_t kernel[SMCI_ENTRIES / 32]; // of entry i of the slab bit i % 32 of word i / 32: its end sends by the kernel
};

// One end's own state as the broker may read it, the first bytes of its entry in the process's slab.
enum smci_state { SMCI_FREE, SMCI_NATIVE, SMCI_ASKED, SMCI_MAPPED, SMCI_PROMOTED, SMCI_NEVER };
struct smci_report {
	_Atomic uint32_t state;
	_Atomic uint32_t why;      // SMCI_WHY_*, for SMCI_NEVER and for what has gone back
	_Atomic uint64_t id;       // of the connection, from GRANT
	_Atomic uint64_t rx_ring, tx_ring;       // bytes
	_Atomic uint64_t rx_kernel, tx_kernel;   // bytes of data while promoted: spilled
	_Atomic uint64_t tokens_rx, tokens_tx;
	_Atomic uint32_t spills, returns;
	// Written before the state is SMCI_PROMOTED. What a process says of itself: for views, and never to decide by.
	uint64_t cookie;            // SO_COOKIE
	uint16_t family;            // AF_INET (also of IPv4 in IPv6) or AF_INET6
	uint16_t local_port, remote_port; // host byte order
	uint16_t pad;
	uint8_t local[16], remote[16];    // of AF_INET the first four
};
#define SMCI_ENTRY 640u // bytes of an entry in the slab

// Records of the control socket (SOCK_SEQPACKET): 64 bytes, host byte order, with the descriptors named.
enum smci_what {
	SMCI_HELLO = 1,   // library: fds [slab]; id = of the run (SMCGW_RUN) or 0, a = version, b = entries of the slab
	SMCI_WELCOME = 2, // broker: fds [desk, writable; news, readable]
	SMCI_ASK = 3,     // library: fds [socket]; tag; a = bytes read, b = bytes written so far
	SMCI_GRANT = 4,   // broker: fds [own memory, writable; the peer's, readable; the peer's desk, readable]; tag, id, side; a = number of the peer's process, or 0: it is on another host, and fds are [own memory, writable; mirror, readable; bell, writable]
	SMCI_DENY = 5,    // broker: tag, why. Answers HELLO (tag 0) or ASK, and takes a GRANT back that the peer did not get
	SMCI_CLOSED = 6,  // library: tag, id: a promoted or asking end is closed, or goes native for good; why; a, b = rx_ring, tx_ring
	SMCI_COUNT = 7,   // smcgw run: id = a run, why. Answer: why 0: a = connections promoted, b = their ring bytes, tag = processes; else a = ends native for it
	SMCI_SOCKET = 8,  // library: fds [socket]; tag, id: of a GRANT between hosts, whose memory it has
};
struct smci_record {
	uint32_t what;
	uint32_t tag; // index of the entry in the slab in the low 17 bits, a count above: tells uses of an entry apart; never 0
	uint32_t side, why;
	uint64_t id, a, b;
	uint64_t reserved[3];
};
_Static_assert(sizeof(struct smci_record) == 64, "layout");

// Why an end is or went native. Names are in package inprocess.
enum smci_why {
	SMCI_WHY_NONE,
	SMCI_WHY_POLICY,       // no rule selects it
	SMCI_WHY_OFF,          // the mode or the switch
	SMCI_WHY_NO_PEER,      // the other end never asked: it has no library, is on another host, or behind a proxy
	SMCI_WHY_RAW_CALLS,    // the program has system calls of its own that may read a socket
	SMCI_WHY_COUNTS,       // bytes went past the library
	SMCI_WHY_OPTION,       // a socket option or call that the ring cannot serve
	SMCI_WHY_SHARED,       // more than one process has the socket
	SMCI_WHY_PASSED,       // handed to another program: exec, a descriptor passed
	SMCI_WHY_PATH,         // the path shapes, or is no longer acknowledged
	SMCI_WHY_LIMIT,        // quota or table full
	SMCI_WHY_NO_MEMORY,    // the system refused memory
	SMCI_WHY_PROTOCOL_ERROR, // the peer's memory says what cannot be
	SMCI_WHY_RECALLED,     // the peer asked for it
	SMCI_WHY_DESCRIPTOR,   // no descriptor for the control socket
	SMCI_WHY_SANDBOX,      // the program has the kernel refuse it system calls that the library needs
	SMCI_WHY_UNSEEN,       // the broker cannot see the program
};
