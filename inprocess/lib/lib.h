// libsmcgw: its source files, and the declarations that they share.
//
//   calls.c    the libc functions that the library interposes; they look up the descriptor and call stream.c, wait.c or libc
//   table.c    maps descriptors to ends; fork and close; the slab that holds the ends
//   stream.c   the bytes of a promoted connection: extents, rings, tokens
//   remote.c   the same for a connection between hosts: remote_rx.c reads, remote_tx.c writes
//   wait.c     epoll, poll and select
//   control.c  the broker: asking, grants, the switch
//   fault.c    faults in memory that the program passed
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifndef RWF_NOWAIT
#define RWF_NOWAIT 0x00000008 // linux/fs.h; musl lacks it
#endif
#ifndef SO_TIMESTAMP_NEW // asm/socket.h
#define SO_TIMESTAMP_NEW 63
#define SO_TIMESTAMPNS_NEW 64
#define SO_TIMESTAMPING_NEW 65
#define SO_BUF_LOCK 72
#endif

#include "layout.h"
#include "sys.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define fence() atomic_thread_fence(memory_order_seq_cst)
#define get(p) atomic_load_explicit(p, memory_order_relaxed)
#define get_acquire(p) atomic_load_explicit(p, memory_order_acquire)
#define put(p, v) atomic_store_explicit(p, v, memory_order_relaxed)
#define put_release(p, v) atomic_store_explicit(p, v, memory_order_release)
// Adds to a counter that has a single writer.
#define add(p, n) put(p, get(p) + (n))

#define MAX_FD (1 << 20)
#define MAX_ENDS 65536
#ifndef FIRST_CALLS
#define FIRST_CALLS 32 // calls of a connection before it asks, until the process has met a broker, which sets its own threshold
#endif
#define RETRY_AFTER 1000000000LL // nanoseconds until the library looks for the broker again
#define MAX_OWNERS 14
#define OTHERS_AT (MAX_OWNERS - 1)

// The desk of a peer process, mapped once for all connections with it. rung and rung_at: for each slot the sleep that was last rung for, and when.
struct peer_desk {
	uint64_t number;
	const struct smci_desk *desk;
	_Atomic int uses;
	_Atomic uint32_t rung[SMCI_SLOTS];
	_Atomic int64_t rung_at[SMCI_SLOTS];
};

struct set; // an epoll set: wait.c

// The state of one end, in memory that fork() shares and the peer cannot reach. Its pointers are valid in every process that
// has the end, because they point to mappings made before fork(). A word without _Atomic belongs to the lock named above it.
struct end {
	struct smci_report report;
	// Used by the table.
	_Atomic uint32_t use;              // counts uses of the entry; odd while it is in use
	_Atomic int refs;                  // number of descriptors, in all processes
	_Atomic uint64_t owner[MAX_OWNERS]; // a process that has descriptors (negative: a child being made), and in the low half how many
	_Atomic bool closing;              // the last descriptor is gone; the last thread inside releases the entry
	// Before promotion.
	_Atomic uint32_t ops;
	_Atomic int raw_rx, raw_tx;        // threads in a system call that moves bytes without the locks; once promoted, in one that only peeks
	_Atomic uint64_t kr, ks;           // positions in the kernel's stream, tokens included: read, written
	bool client;
	_Atomic bool nonblock, polled, edge, passed;
	_Atomic uint8_t options;           // counts calls that may have changed a timeout
	_Atomic uint8_t no_rcvtimeo, no_sndtimeo; // 0, or options + 1 when the kernel said that there is no timeout
	uint32_t tag;
	_Atomic uint32_t question;         // number of its ASK in this conversation; 0: it has not asked
	_Atomic uint32_t grants_seen;
	_Atomic uint32_t ask_at;           // when it may ask again, in ticks(), as smcgw_put_off sets it; 0: at once
	_Atomic uint32_t policy_seen;      // the policy count when it last asked
	int nodelay, cork, lowat, clamp;   // the values that the program set
	_Atomic uint8_t put_off;           // how often ask_at was set, one time soon after the other
	// Kept with the entry from one end to the next.
	bool locks;
	pthread_mutex_t rl, wl;            // robust, and shared between processes
	_Atomic int64_t pruned_at;
	// From GRANT, which clears all that follows, to close: both locks. This end publishes in its own memory, which only it writes, and
	// reads its own words back from there.
	struct smci_end *own;
	const struct smci_end *peer;
	struct peer_desk *desk;
	uint64_t looked_at;                // which process's desks the peer looks at, numbered as in wait.c; 0: none
	uint32_t mapped, whole;            // sizes: of the mappings of own and peer, with the smallest ring; of the whole files
	char *tx_ring, *rx_ring;           // within own and peer, or within mappings of the whole files
	uint32_t order_max;
	_Atomic bool violated;             // the peer's memory was inconsistent: it is not looked at any more
	_Atomic bool attached;             // until a demotion, which may lack wl
	bool repair_rx, repair_tx;         // a process died while it held rl, or wl
	// As the consumer: rl.
	uint64_t kbase;                    // position in the kernel's stream where the extent being read begins
	uint64_t acked;                    // the peer's kernel has acknowledged what this end sent up to here
	uint32_t answered;                 // the last value of want that was answered
	_Atomic uint32_t arms;             // number of armings so far
	bool stashed;
	char stash;                        // a byte of data that ended a sleep
	_Atomic bool ate;                  // a sleeper has taken a token, so no token may announce what is in the ring
	bool died;                         // the peer's process died without close()
	int rx_error;
	_Atomic int32_t sleeper;           // thread whose sleep consumes the byte that ends it
	_Atomic bool kernel_news;          // the kernel may have news that nothing has asked for yet
	bool skipped;                      // the last EAGAIN was returned without asking the kernel
	_Atomic bool recalled;             // the peer's recall was seen while a writer was inside
	// As the producer: wl.
	int64_t path_at;                   // when the path was last checked
	int64_t heeded_at;                 // when the library last checked for the broker that sends this end back
	uint64_t path_ks, path_head;       // the position of the token whose acknowledgement proves the path, and head at that time
	uint32_t rung;                     // the value of arm that was last answered
	bool first, grow, path_bad;
	uint8_t usual;                     // log2 of the ring to start with after the last one was read to its end
	uint64_t fits;                     // the kernel is sure to take tokens up to this position of its stream
	uint32_t owed;                     // tokens that are counted but that the kernel has refused so far
	uint32_t needed_at;                // when more than the smallest ring was last needed, in ticks()
	uint64_t back, back_end;           // ring bytes that were taken back and that the kernel has yet to take
	_Atomic bool at_risk;              // while some remain, SO_LINGER is set to reset; linger holds the program's value
	bool urgent;                       // an urgent byte was sent
	_Atomic bool around;               // the program may send around the library
	bool brief;                        // TCP_NOTSENT_LOWAT is low, to keep a spill short
	bool touched;                      // more than the smallest ring was used: see smcgw_give_back
	struct linger linger;
	enum { FIN_NONE, FIN_OWED, FIN_SENT } fin; // state of shutdown(): owed until the kernel has taken all up to back_end
	_Atomic int tx_error;              // an error that the program was not told of; the reader also takes a reset from here
	_Atomic bool eof;                  // the reader has met a FIN; the writer looks at this, too
	_Atomic bool forgives;             // a reset counted as the end: the next write succeeds, as after a FIN
	_Atomic bool read_ended;           // by shutdown(): the end of the stream need not be the peer's
	_Atomic bool write_ended;          // by shutdown(), or the peer died with bytes unread
	_Atomic int32_t tx_blocked;        // thread that sleeps in the kernel's send holding wl; 0: none
	struct remote *_Atomic remote;     // of an end whose peer is on another host (remote.c); also read without a lock
};
_Static_assert(sizeof(struct end) <= SMCI_ENTRY, "an entry of the slab");

struct smcgw_state {
	pthread_mutex_t control;           // protects the broker's socket and what comes over it; some of it is read without the lock
	_Atomic int socket;                // -1: none
	const struct smci_news *_Atomic news;
	_Atomic bool met;                  // this process or a parent has met a broker, so ends may be promoted
	_Atomic int64_t retry_at;
	char *slab;
	_Atomic int slab_fd;
	_Atomic int nudge;                 // an eventfd that is always readable: wakes one thread of an epoll set
	int pid;
	bool disabled;
	_Atomic bool apart;                // disabled, and no end is left: the library makes only the system calls that libc makes
};
extern struct smcgw_state smcgw;
extern _Atomic uint32_t smcgw_table[MAX_FD];

static inline struct end *entry(uint32_t i) { return (struct end *)(smcgw.slab + (size_t)i * SMCI_ENTRY); }
static inline uint32_t index_of(const struct end *e) { return (uint32_t)(((const char *)e - smcgw.slab) / SMCI_ENTRY); }

#define GOING (1u << 31) // a thread that holds the end's locks is closing this number: other threads that find it wait for the locks

// look returns the end of a descriptor, or 0. Every interposed call pays for it.
static inline struct end *look(int fd) {
	if (unlikely((unsigned)fd >= MAX_FD)) return 0;
	uint32_t i = get_acquire(&smcgw_table[fd]) & ~GOING;
	return likely(!i) ? 0 : entry(i - 1);
}

// look_open is look for calls that do not wait for another thread that is closing the number: it may be a new file already.
static inline struct end *look_open(int fd) { return (unsigned)fd < MAX_FD && unlikely(get_acquire(&smcgw_table[fd]) & GOING) ? 0 : look(fd); }

// The mappings that this process has of an end. The pointers in struct end are those of the processes that have the end now.
struct memory {
	void *own, *peer;                  // 0: not mapped
	void *tx, *rx;                     // mappings of whole files, or 0
	size_t mapped, whole;
	struct peer_desk *desk;
	void *remote;                      // struct remote of an end between hosts; bell is the eventfd that its gateway waits for, -1: none
	_Atomic int bell;
};

// A place holds what this process alone knows of an end. A child gets a copy. Words without a comment of their own belong to the wait
// lists and are protected by wait.c's lock.
struct place {
	_Atomic bool listed;
	_Atomic bool stray;                // no token announces its bytes, and any set or poll of this process may wait for them
	_Atomic bool late;                 // a settle was due while a reader was inside
	_Atomic bool sought;               // a thread has waited for it in poll or select
	_Atomic bool counted;              // in smcgw_remotes
	_Atomic bool back;                 // it came back from a connection between hosts, with memory that is no longer needed
	int fd;                            // one of its numbers, while it is listed
	struct set *_Atomic set;           // the set whose slot serves it; 0: none
	int registered;                    // number of registrations in sets, over all its descriptors
	int full;                          // its index in the table of full rings, plus 1; 0: not in it
	struct memory memory;              // both locks
};
extern struct place smcgw_places[MAX_ENDS];
static inline struct place *place_of(const struct end *e) { return &smcgw_places[index_of(e)]; }
// at_slot: the peer looks at a slot to see whether a thread sleeps in the set that has it.
static inline bool at_slot(const struct end *e) {
	uint32_t a = get(&e->own->arm);
	return a && (a & 0xff) != SMCI_ARM_SELF;
}
static inline bool listed(const struct end *e) { return get(&place_of(e)->listed); }

// smcgw_sleeps tells whether a thread is asleep in a read that will consume the next byte. A thread that asks for itself has left that
// sleep by longjmp; one that was killed there will not consume the byte in the processes that still have the end.
static inline bool smcgw_sleeps(struct end *e) {
	int32_t who = get(&e->sleeper);
	if (likely(!who)) return false;
	if (who != (int32_t)SYS(gettid) && SYS(kill, who, 0) != -ESRCH) return true;
	put(&e->sleeper, 0);
	return false;
}

static inline uint32_t state_of(const struct end *e) { return get_acquire(&e->report.state); }
// room_of returns how many bytes a producer may add to a ring with used bytes in it. A ring is never filled to its last page: a reader
// whose page-sized buffers are filled exactly cannot know whether there is more, and nginx then sets no timer and may exit.
static inline uint64_t room_of(uint64_t size, uint64_t used) { return used + SMCI_SLACK < size ? size - SMCI_SLACK - used : 0; }
static inline int64_t now_coarse(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static inline uint32_t ticks(void) { return (uint32_t)(now_coarse() >> 20); } // milliseconds, almost
static inline int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// is_time tells whether the kernel takes t for a duration.
static inline bool is_time(const struct timespec *t) { return t->tv_sec >= 0 && t->tv_nsec >= 0 && t->tv_nsec < 1000000000; }

#define FOREVER (INT64_MAX / 2)
static inline int64_t ns_of(const struct timespec *t) { // capped so that it can be added to a time
	return t->tv_sec < FOREVER / 1000000000 ? t->tv_sec * 1000000000LL + t->tv_nsec : FOREVER;
}
static inline struct timespec left_until(int64_t t) { // zero once t has passed
	int64_t ns = t - now();
	return ns > 0 ? (struct timespec){ns / 1000000000, ns % 1000000000} : (struct timespec){0, 0};
}

// ---- table.c: what a thread counts during a call, so that its destructor can undo the counts if it is cancelled there
struct counted {
	bool known;
	int n;
	_Atomic int *at[4]; // a signal handler may make a call of its own
};
extern __thread struct counted smcgw_counted __attribute__((tls_model("initial-exec"), visibility("hidden")));
void smcgw_thread(void);
static inline void smcgw_count_in(_Atomic int *at) {
	struct counted *c = &smcgw_counted;
	if (unlikely(!c->known)) smcgw_thread();
	if (likely(c->n < 4)) c->at[c->n] = at;
	c->n++;
	atomic_fetch_add(at, 1); // sequentially consistent: see attach and smcgw_defer
}
static inline void smcgw_count_out(_Atomic int *at) {
	smcgw_counted.n--;
	atomic_fetch_sub(at, 1);
}

// ---- fault.c
// GUARDED makes a call, in a function that returns false if the call faults within the memory of v. That function must not be inlined, and
// must hold nothing that needs releasing. The call must be a real one, or the compiler sees no point from which control may return.
struct guard {
	void *at[5];
	const struct iovec *v;
	int nv;
	struct guard *outer;
};
extern __thread struct guard *smcgw_guard __attribute__((tls_model("initial-exec"), visibility("hidden")));
#define GUARDED(memory, n, call)                                                   \
	do {                                                                       \
		struct guard guard;                                                \
		guard.v = memory;                                                  \
		guard.nv = n;                                                      \
		guard.outer = smcgw_guard;                                         \
		if (unlikely(__builtin_setjmp(guard.at))) return false;            \
		smcgw_guard = &guard;                                              \
		__asm__ volatile("" ::: "memory");                                 \
		call;                                                              \
		__asm__ volatile("" ::: "memory");                                 \
		smcgw_guard = guard.outer;                                         \
	} while (0)
void smcgw_catch(void);                   // installs the handlers: GUARDED works from then on
void smcgw_catch_forked(void);            // call in a child
int smcgw_sigaction(int s, const struct sigaction *a, struct sigaction *old);
bool smcgw_move(void *to, const void *from, size_t n); // memcpy() that returns false if the program's memory is not there
bool smcgw_touch(const void *p, size_t n);             // whether the memory can be read
static inline long fault(void) {
	errno = EFAULT;
	return -1;
}

// ---- table.c
// smcgw_track starts counting the bytes of a connection. Once the slab exists it makes no system call, so a short connection pays nothing.
void smcgw_track(int fd, bool client, int nonblock);
struct drop {
	struct end *of; // the end whose locks are held; 0: nothing to do after close()
	int fd;
};
struct drop smcgw_drop(int fd);           // call before a descriptor is closed
void smcgw_dropped(void *drop);           // call after it was closed
int smcgw_top(void);                      // highest descriptor that was ever a connection or a set
void smcgw_seen(int fd);
int smcgw_number(const struct end *e, int but); // a number of this end in this process, other than but; -1: none
// smcgw_keeps is called with a lock held by a call that has waited since it found the end by fd. It finds another number if that is not the
// end's any more, and returns false if this process has none, or the entry is another connection's.
bool smcgw_keeps(struct end *e, uint32_t use, int *fd);
void smcgw_same(int from, int to);        // to is a duplicate of from
void smcgw_never(struct end *e, uint32_t why);
bool smcgw_alone(struct end *e);          // whether no other process has it
bool smcgw_hold(struct end *e, uint64_t *mask);
void smcgw_let(uint64_t mask);
bool smcgw_ours(void);                    // false in the child of a vfork(), which shares our memory but has its own descriptors, and once apart
void smcgw_at_fork(void);                 // registers the fork handlers: from then on a fork gives the child the ends
void smcgw_forked(long child);            // call in the parent after fork
void smcgw_apart(void);                   // call when disabled, once all ends are native for good
void smcgw_cloned(bool native);           // call in a child that is not counted; native: it has no end that is not native for good
void smcgw_leaves(void);                  // call before an exec
void smcgw_returned(void);                // call if the exec failed
void smcgw_stale(int fd);                 // the number was closed behind our back and is another file now
bool smcgw_other(struct end *e, int fd);  // whether that has happened
bool smcgw_is(struct end *e, int fd);     // whether the number refers to the end, also in the child of a vfork()
// smcgw_lock returns false if this thread already holds the lock: it is in a signal handler, or has left one by longjmp.
bool smcgw_lock(struct end *e, pthread_mutex_t *m);
bool smcgw_try(struct end *e, pthread_mutex_t *m);
int smcgw_writer(struct end *e);        // locks wl; nonzero also if a writer sleeps in the kernel's send, maybe as long as the peer reads nothing
static inline bool smcgw_lock_writer(struct end *e) { return smcgw_writer(e) == 0; }
bool smcgw_lock_until(struct end *e, pthread_mutex_t *m, int64_t until);
void smcgw_unlock(struct end *e, pthread_mutex_t *m);
bool smcgw_has(struct end *e, int fd);    // call with a lock held: whether the descriptor is still this end's; if so, it stays so until unlock
bool smcgw_still(struct end *e, int fd);  // and promoted. Without that, after a lock was taken, the memory may be unmapped
void smcgw_release(struct end *e);        // frees the entry after the last close(), by the last thread inside
void smcgw_unmap(struct end *e);
bool smcgw_map_ring(struct end *e, char **ring, const struct smci_end *of);
void smcgw_unmap_tx(struct end *e);       // when the ring is the smallest again

// ---- control.c
void smcgw_hold_control(uint64_t *mask);
void smcgw_let_control(uint64_t mask);
void smcgw_ask(struct end *e, int fd);    // the threshold has been reached
void smcgw_put_off(struct end *e);
void smcgw_answers(struct end *e);         // takes what the broker has sent
void smcgw_closed(struct end *e);         // tells the broker
void smcgw_closed_as(struct end *e, uint32_t tag, uint64_t id);
void smcgw_rings(const struct end *e, int fd); // gives the gateway the socket
void smcgw_answered(void);                // returns once no thread is still processing an earlier answer
void smcgw_released(const struct end *e); // call before the last close() of an end that has asked
void smcgw_leave(struct end *e, uint32_t why);
bool smcgw_hidden(int fd);                // whether the descriptor is the library's own, hidden from the program
void smcgw_hide_from(int fd);             // the program is about to use this number: moves ours away
void smcgw_control_forked(bool own);
bool smcgw_broker_there(void);            // whether there is a socket to ask
int smcgw_move_away(int fd);              // moves it to a number that a program is unlikely to use
// While the library briefly has a descriptor open, the program believes its number unused: a caller that chooses a number itself waits here.
bool smcgw_numbers(void);                 // false: not held, since this thread is in a signal handler or another one has left by longjmp
void smcgw_numbers_go(bool held);
void smcgw_desk_put(struct peer_desk *d);
void smcgw_describe(struct end *e, int fd); // fills the report for the broker's views
void smcgw_heed(void);                    // now and then: checks that the broker is still there
extern _Atomic uint32_t smcgw_talk;       // counts conversations with brokers
bool smcgw_bell_is(struct end *e, int fd);
int smcgw_top_bell(void);                 // no bell has a higher number
void smcgw_bell_goes(int fd);
static inline bool switched_off(void) { return smcgw.news && (get(&smcgw.news->off) & SMCI_OFF_ALL); }
// sent_back: the broker wants this end to send through the kernel.
static inline bool sent_back(const struct end *e) {
	uint32_t off = smcgw.news ? get(&smcgw.news->off) : 0, i;
	if (likely(!off)) return false;
	i = index_of(e);
	return (off & SMCI_OFF_ALL) || (get(&smcgw.news->kernel[i / 32]) >> i % 32 & 1);
}

// ---- stream.c
// smcgw_enter says how to make a call that moves bytes: by libc alone, by libc and counted (smcgw_left follows), or by smcgw_rx and smcgw_tx.
enum path { PLAIN, COUNTED, LOCKED };
enum path smcgw_enter(struct end *e, int fd, _Atomic int *raw);
static inline ssize_t smcgw_left(_Atomic int *raw, _Atomic uint64_t *count, ssize_t n) {
	if (n > 0) atomic_fetch_add_explicit(count, (uint64_t)n, memory_order_relaxed);
	smcgw_count_out(raw);
	return n;
}
// smcgw_rx and smcgw_tx are recvmsg and sendmsg of a promoted connection: -1 and errno for
// an error, RETRY if the descriptor is no longer this end's.
#define RETRY (-2)
ssize_t smcgw_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_tx_file(struct end *e, int fd, int from, off_t *at, size_t n);
void smcgw_arm(struct end *e, uint32_t whom);
void smcgw_timeout_set(struct end *e);
bool smcgw_spin(bool (*ready)(void *), void *of);
bool smcgw_hot(struct end *e);            // whether the ring has bytes of the current extent
bool smcgw_genuine(struct end *e, int fd, bool told); // the kernel says readable: whether there is more than tokens
// smcgw_settled is called before a wait of this process. True: there are bytes that no token announces. While a reader is inside, it leaves
// the check to smcgw_late. smcgw_settle is called without the lists' lock, and waits for the reader.
bool smcgw_settled(struct end *e, int fd);
bool smcgw_settle(struct end *e, int fd);
bool smcgw_room(struct end *e);
uint32_t smcgw_beside(const struct end *e, int fd, bool room);
size_t smcgw_unread(struct end *e, int fd);
size_t smcgw_unsent(struct end *e, int fd); // bytes in the ring that the peer has not read
ssize_t smcgw_discard(struct end *e, int fd, size_t n, int flags); // recv() with MSG_TRUNC
void smcgw_later(struct end *e, int err); // keeps an error that the caller of a read was not told of for the next call
void smcgw_unsaid(struct end *e, int err); // likewise a reset, of a write
// smcgw_finish does the work of close(): the last bytes, and a reset for unread ones. rl is held; wl, too, unless a writer sleeps in the kernel.
void smcgw_finish(struct end *e, int fd, bool writes);
void smcgw_parts(struct end *e, int fd);   // call before connect() to AF_UNSPEC
bool smcgw_ended(struct end *e, int fd, int how); // shutdown(): false if the FIN has to follow bytes that the kernel still refuses
bool smcgw_demote(struct end *e, int fd, bool gives, int64_t until); // moves both directions to the kernel; false if the peer does not answer
void smcgw_give_back(struct end *e);
extern _Atomic bool smcgw_owing;          // the kernel may have refused something that is still to be sent
bool smcgw_pay(void);                     // tries to send it; true while some remains
int smcgw_lingers(struct end *e, int fd, const void *v, socklen_t n); // setsockopt() of SO_LINGER
void smcgw_recalled(struct end *e);       // call by a writer that has left

// ---- remote.c
bool smcgw_remote_grant(struct end *e, int bell);
bool smcgw_remote_ours(const struct end *e); // whether this process was granted it: no other can give the gateway its socket
void smcgw_remote_unmap(const struct end *e);
bool smcgw_remote_again(struct end *e);
void smcgw_remote_attached(struct end *e);
void smcgw_remote_tune(struct end *e, int fd);
void smcgw_remote_untune(struct end *e, int fd);
void smcgw_remote_leaves(struct end *e, int fd);
void smcgw_remote_left(struct end *e);
void smcgw_remote_never(struct end *e);
int smcgw_remote_error(struct end *e, int err); // for SO_ERROR
ssize_t smcgw_remote_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_remote_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_remote_tx_file(struct end *e, int fd, int from, off_t *at, size_t n);
bool smcgw_remote_genuine(struct end *e, int fd);
bool smcgw_remote_errs(struct end *e); // whether the library has taken an error from the kernel that no call has reported
size_t smcgw_remote_unread(struct end *e, int fd);
size_t smcgw_remote_unsent(const struct end *e);
bool smcgw_remote_room(struct end *e);
bool smcgw_remote_full(struct end *e, int fd, uint64_t *tail); // whether less than a quarter is free, or the ring cannot go on yet, and the peer may still read it
#define STANDS 100000000LL // nanoseconds: a peer that reads no byte for this long is taken to read nothing
bool smcgw_remote_pay(struct end *e, int fd);
bool smcgw_remote_ended(struct end *e, int fd, int how);
void smcgw_remote_told(struct end *e, int fd);
bool smcgw_remote_at_risk(const struct end *e);
void smcgw_remote_finish(struct end *e, int fd, bool writes);
bool smcgw_remote_demote(struct end *e, int fd, int64_t until);
extern _Atomic int smcgw_remotes;         // attached ends between hosts of this process
long smcgw_remote_round(void);            // called by waits now and then while there are any
void smcgw_remote_calm(unsigned often);

// ---- wait.c
void smcgw_token_taken(struct end *e);    // the token may have been meant for a sleeping thread of its set
void smcgw_left_slot(uint32_t slot);      // call by an end whose token may be on its way to a thread that sleeps at the slot
void smcgw_late(struct end *e);           // call by a reader that has left: a wait tried to settle the end meanwhile
bool smcgw_defer(struct end *e, int fd);  // leaves an empty ring listed and unarmed: the next wait of this process arms it
void smcgw_strand(struct end *e, int fd); // lists an end that has bytes
void smcgw_forget(struct end *e);
void smcgw_renumber(struct end *e, int fd); // fd no longer refers to it
void smcgw_attached(struct end *e, int fd);
void smcgw_unmap_waited(struct end *e);   // under the waits' lock, since waits look at the mappings
void smcgw_remind(struct end *e);         // makes the kernel report this end to its sets again
void smcgw_wait_before_fork(void);        // keeps other threads from changing what the child gets
void smcgw_wait_forked(bool child);       // after fork, in parent and child
bool smcgw_full(struct end *e, int fd);   // for a writer that must not wait: true if waits will report room; false if it must use the kernel
void smcgw_unfull(const struct end *e);
bool smcgw_waited(int fd);                // whether the number may be a set, or be in one
void smcgw_wait_closed(int fd);           // for this process, not for the child of a vfork()
void smcgw_wait_same(int from, int to);   // to is a duplicate of from, which may be a set
uint64_t smcgw_desk(struct smci_desk *d);   // adds a desk of this process
int smcgw_epoll_create(int fd);
int smcgw_kernel_epoll(int ep, struct epoll_event *v, int max, const struct timespec *t, const sigset_t *mask);
int smcgw_kernel_poll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask);
int smcgw_kernel_select(int n, fd_set *r, fd_set *w, fd_set *x, const struct timespec *t, const sigset_t *mask);
bool smcgw_knows_set(int ep);              // false: its waits do not look at rings
int smcgw_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev);
int smcgw_epoll_wait(int ep, struct epoll_event *v, int max, const struct timespec *timeout, const sigset_t *mask);
int smcgw_ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int smcgw_pselect(int n, fd_set *r, fd_set *w, fd_set *x, struct timespec *timeout, const sigset_t *mask);

// MOST is how many bytes a call moves at most, as in the kernel.
#define MOST 0x7ffff000

// total sums the lengths in v, up to MOST.
static inline size_t total(const struct iovec *v, int nv) {
	size_t n = 0;
	for (int i = 0; i < nv && n < MOST; i++) n += v[i].iov_len < MOST ? v[i].iov_len : MOST;
	return n < MOST ? n : MOST;
}

// result converts a raw system call's return value to libc's convention.
static inline long result(long r) {
	if (unlikely((unsigned long)r > -4096UL)) {
		errno = (int)-r;
		return -1;
	}
	return r;
}
