// libsmcgw: the parts and what they share.
//
//   calls.c    the functions of libc that it stands before; they look into the table and go to stream.c, wait.c or libc
//   table.c    descriptors to ends, fork, close; the slab that ends live in
//   stream.c   the bytes of a promoted connection: extents, rings, tokens
//   remote.c   those of one between hosts
//   wait.c     epoll, poll and select
//   control.c  the broker: asking, grants, the switch
//   fault.c    memory of the program that is not there
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

#include "layout.h"
#include "sys.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define fence() atomic_thread_fence(memory_order_seq_cst)
#define get(p) atomic_load_explicit(p, memory_order_relaxed)
#define get_acquire(p) atomic_load_explicit(p, memory_order_acquire)
#define put(p, v) atomic_store_explicit(p, v, memory_order_relaxed)
#define put_release(p, v) atomic_store_explicit(p, v, memory_order_release)
// For counters with one writer.
#define add(p, n) put(p, get(p) + (n))

#define MAX_FD (1 << 20)
#define MAX_ENDS 65536
#ifndef FIRST_CALLS
#define FIRST_CALLS 32 // of a connection before its process meets a broker, which says how many it wants
#endif
#define RETRY_AFTER 1000000000LL // nanoseconds until the broker is looked for again
#define MAX_OWNERS 14
#define OTHERS_AT (MAX_OWNERS - 1)

// A desk of a peer process: one mapping for all connections with it. rung is what was last rung for, for each slot, and when.
struct peer_desk {
	uint64_t number;
	const struct smci_desk *desk;
	_Atomic int uses;
	_Atomic uint32_t rung[SMCI_SLOTS];
	_Atomic int64_t rung_at[SMCI_SLOTS];
};

struct set; // of epoll: wait.c

// The state of one end, in memory that fork() shares and the peer cannot reach. Pointers are good in every process that has
// the end, because what they point to was made before fork(). Words without _Atomic belong to the lock that their line names.
struct end {
	struct smci_report report;
	// Of the table.
	_Atomic uint32_t use;              // counts uses of the entry; odd while in use
	_Atomic int refs;                  // descriptors, in all processes
	_Atomic uint64_t owner[MAX_OWNERS]; // a process that has descriptors, and in the low half how many; negative: a child that is being made
	_Atomic bool closing;              // the last descriptor is gone; what it holds goes with the last thread
	// Before promotion.
	_Atomic uint32_t ops;
	_Atomic int raw_rx, raw_tx;        // threads in a system call that moves bytes without the locks; once promoted, in one that looks at them
	_Atomic uint64_t kr, ks;           // the kernel's stream, tokens included: read, written
	bool client;
	_Atomic bool nonblock, polled, edge, passed;
	uint32_t tag;
	_Atomic uint32_t question;         // the number of its ASK in the conversation; 0: it has not asked
	_Atomic uint32_t grants_seen, again;
	_Atomic uint32_t policy_seen;      // when it last asked
	int nodelay, cork, lowat, clamp;   // what the program set
	// Of the entry, whatever end it is.
	bool locks;
	pthread_mutex_t rl, wl;            // robust and shared between processes
	_Atomic int64_t pruned_at;
	// From GRANT, which clears it, to close: both locks. What this end publishes is in its own memory, which only it writes, and read back
	// there.
	struct smci_end *own;
	const struct smci_end *peer;
	struct peer_desk *desk;
	uint64_t looked_at;                // by the peer: desks of which process, as wait.c has it; 0: none
	uint32_t mapped, whole;            // bytes: of own and peer, which have the smallest ring; of the files
	char *tx_ring, *rx_ring;           // in own and peer, or in mappings of the whole files
	uint32_t order_max;
	_Atomic bool violated;             // the peer said what cannot be: nothing of it is looked at any more
	_Atomic bool attached;             // until a demotion, which may not have wl
	bool repair;                       // a process died inside a lock
	// As the consumer: rl.
	uint64_t kbase;                    // position in the kernel's stream where the extent begins that is being read
	uint64_t acked;                    // what this end sent by the kernel up to here its peer's kernel has
	uint32_t answered, arms;           // the want that was answered; armings so far
	bool stashed;
	char stash;                        // a byte of data that woke a sleeper
	_Atomic bool ate;                  // a sleeper has taken a token: no other may speak of what is in the ring
	bool died;                         // the peer, without a close
	int rx_error;
	_Atomic int32_t sleeper;           // the thread whose sleep takes the byte that ends it
	_Atomic bool kernel_news;          // the kernel may have something to say that nothing has asked for
	bool skipped;                      // the last EAGAIN was given without asking it
	_Atomic bool recalled;             // the peer's recall was met while a writer was inside
	// As the producer: wl.
	int64_t path_at;                   // when the path was last looked at
	int64_t heeded_at;                 // when the broker was last looked for that sends it back
	uint64_t path_ks, path_head;       // the token whose acknowledgement shows it, and head at that time
	uint32_t rung;                     // the arm that was last answered
	bool first, grow, path_bad;
	uint8_t usual;                     // log2 of the ring that begins where the last one was read to its end
	uint64_t fits;                     // the position in the kernel's stream up to which tokens have room for sure
	uint32_t owed;                     // tokens that are counted, and that the kernel has refused
	uint64_t back, back_end;           // ring bytes that were taken back, and that the kernel has not taken yet
	_Atomic bool at_risk;              // while there are such, SO_LINGER resets; linger is the program's
	bool urgent;                       // an urgent byte was sent
	bool brief;                        // the kernel takes little of a spill
	bool touched;                      // more of the ring than the least was used: give_back
	struct linger linger;
	enum { FIN_NONE, FIN_OWED, FIN_SENT } fin; // of shutdown(): owed while back is not back_end
	_Atomic int tx_error;              // of a call that the program did not see; the reader takes a reset from here, too
	_Atomic bool eof;                  // the reader has met a FIN; the writer looks at it, too
	_Atomic bool forgives;             // a reset was an end: the next write is taken, as after a FIN
	_Atomic bool read_ended;           // by shutdown(): an end that is read need not be the peer's
	_Atomic bool write_ended;          // shutdown(), or the peer has died with bytes unread
	_Atomic int32_t tx_blocked;        // the thread that sleeps in the kernel's send with wl held, 0: none
	struct remote *_Atomic remote;     // of an end whose peer is on another host: remote.c; looked at without a lock, too
};
_Static_assert(sizeof(struct end) <= SMCI_ENTRY, "an entry of the slab");

struct smcgw_state {
	pthread_mutex_t control;           // the socket to the broker and what it gives; read without it, too
	_Atomic int socket;                // -1: none
	const struct smci_news *_Atomic news;
	_Atomic bool met;                  // this process or a parent has met a broker: ends may be promoted
	_Atomic int64_t retry_at;
	char *slab;
	_Atomic int slab_fd;
	_Atomic int nudge;                 // an eventfd that is always readable: wakes one thread of an epoll set
	int pid;
	bool disabled;
};
extern struct smcgw_state smcgw;
extern _Atomic uint32_t smcgw_table[MAX_FD];

static inline struct end *entry(uint32_t i) { return (struct end *)(smcgw.slab + (size_t)i * SMCI_ENTRY); }
static inline uint32_t index_of(const struct end *e) { return (uint32_t)(((const char *)e - smcgw.slab) / SMCI_ENTRY); }

#define GOING (1u << 31) // the number is being closed by a thread that has the locks of its end: who finds it waits for them

// look is the end of a descriptor, 0 for none: what every call costs.
static inline struct end *look(int fd) {
	if (unlikely((unsigned)fd >= MAX_FD)) return 0;
	uint32_t i = get_acquire(&smcgw_table[fd]) & ~GOING;
	return likely(!i) ? 0 : entry(i - 1);
}

// What of an end's memory a process has mapped: the words of struct end are those of the processes that have it now.
struct memory {
	void *own, *peer;                  // 0: nothing
	void *tx, *rx;                     // of whole files, or 0
	size_t mapped, whole;
	struct peer_desk *desk;
	void *remote;                      // and the eventfd that its gateway waits for; -1: none
	_Atomic int bell;
};

// A place is what of an end is this process's own. A child has a copy. Words without a line of their own are of the lists of the
// process's waits: wait.c's lock.
struct place {
	_Atomic bool listed;
	_Atomic bool stray;                // no token speaks of its bytes, and any set or poll may be waited in for them
	_Atomic bool late;                 // it was to be settled while a reader was inside
	_Atomic bool sought;               // a thread has waited for it in poll or select
	_Atomic bool back;                 // from another host, with memory that nobody needs any more
	int fd;                            // one of its numbers, while it is listed
	struct set *_Atomic set;           // whose slot serves it, 0: none
	int registered;                    // how often it is in a set, by any of its descriptors
	int full;                          // its number among those whose rings are full, from one on; 0: it is not
	struct memory memory;              // both locks
};
extern struct place smcgw_places[MAX_ENDS];
static inline struct place *place_of(const struct end *e) { return &smcgw_places[index_of(e)]; }
// at_slot: its peer looks whether a thread sleeps in the set that has the slot.
static inline bool at_slot(const struct end *e) {
	uint32_t a = get(&e->own->arm);
	return a && (a & 0xff) != SMCI_ARM_SELF;
}
static inline bool listed(const struct end *e) { return get(&place_of(e)->listed); }

// sleeps tells whether a thread is asleep in a read, and takes the next byte. This one is not: it has left its sleep by longjmp. One that
// was killed there does so no more for the processes that have the end still.
static inline bool smcgw_sleeps(struct end *e) {
	int32_t who = get(&e->sleeper);
	if (likely(!who)) return false;
	if (who != (int32_t)SYS(gettid) && SYS(kill, who, 0) != -ESRCH) return true;
	put(&e->sleeper, 0);
	return false;
}

static inline uint32_t state_of(const struct end *e) { return get_acquire(&e->report.state); }
// room_of is what a producer may write to a ring of which so much is used: never so much that it is full to the last page. A reader with
// buffers of whole pages that are filled exactly cannot know whether there is more, and nginx sets no timer then: it may exit on that.
static inline uint64_t room_of(uint64_t size, uint64_t used) { return used + SMCI_SLACK < size ? size - SMCI_SLACK - used : 0; }
static inline int64_t now_coarse(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static inline int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

#define FOREVER (INT64_MAX / 2)
static inline int64_t ns_of(const struct timespec *t) { // as long as can be added to a time
	return t->tv_sec < FOREVER / 1000000000 ? t->tv_sec * 1000000000LL + t->tv_nsec : FOREVER;
}
static inline struct timespec left_until(int64_t t) { // none after it
	int64_t ns = t - now();
	return ns > 0 ? (struct timespec){ns / 1000000000, ns % 1000000000} : (struct timespec){0, 0};
}

// ---- table.c: what a thread counts while it is in a call, so that it counts no longer after its end if it is cancelled there
struct counted {
	bool known;
	int n;
	struct {
		_Atomic int *at;
		struct end *of; // 0: none
		uint32_t use;
	} call[4]; // a signal handler may be in a call of its own
};
extern __thread struct counted smcgw_counted __attribute__((tls_model("initial-exec"), visibility("hidden")));
void smcgw_thread(void);
static inline void smcgw_count_in(_Atomic int *at, struct end *of) {
	struct counted *c = &smcgw_counted;
	if (unlikely(!c->known)) smcgw_thread();
	if (likely(c->n < 4)) {
		c->call[c->n].at = at;
		c->call[c->n].of = of;
		c->call[c->n].use = of ? get(&of->use) : 0;
	}
	c->n++;
	atomic_fetch_add(at, 1); // sequentially consistent: see attach and smcgw_defer
}
static inline void smcgw_count_out(_Atomic int *at) {
	smcgw_counted.n--;
	atomic_fetch_sub(at, 1);
}

// ---- fault.c
// GUARDED makes a call in a function that returns false where the call faults at the memory of v. The function is not inlined
// and holds nothing that must be let go; the call is one, or the compiler sees nothing that may come back.
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
void smcgw_catch(void);                   // from here on GUARDED is in force
int smcgw_sigaction(int s, const struct sigaction *a, struct sigaction *old);
bool smcgw_move(void *to, const void *from, size_t n); // memcpy(): false where the program's memory is not there
bool smcgw_touch(const void *p, size_t n);             // can it be read?
static inline long fault(void) {
	errno = EFAULT;
	return -1;
}

// ---- table.c
// track begins to count the bytes of a connection. It makes no system call, so a short connection pays nothing.
void smcgw_track(int fd, bool client, int nonblock);
struct drop {
	struct end *of; // whose locks are held, 0: nothing follows
	int fd;
};
struct drop smcgw_drop(int fd);           // the descriptor is about to be closed
void smcgw_dropped(void *drop);           // it is
int smcgw_top(void);                      // the highest descriptor that was ever a connection or a set
void smcgw_seen(int fd);
int smcgw_number(const struct end *e, int but); // a number that this process has of it, other than but; -1: none
void smcgw_same(int from, int to);        // to is a duplicate of from
void smcgw_never(struct end *e, uint32_t why);
bool smcgw_alone(struct end *e);          // no other process has it
bool smcgw_hold(struct end *e, uint64_t *mask);
void smcgw_let(uint64_t mask);
bool smcgw_ours(void);                    // not the child of a vfork(), which has our memory and its own descriptors
void smcgw_at_fork(void);                 // from here on a fork gives the child the ends
void smcgw_forked(long child);            // after it, in the parent
void smcgw_leaves(void);                  // before an exec
void smcgw_returned(void);                // it has failed
void smcgw_stale(int fd);                 // the number was closed past us, and is another file's now
bool smcgw_other(struct end *e, int fd);  // is it?
bool smcgw_is(struct end *e, int fd);     // does the number mean the end, also for the child of a vfork()?
// lock is false where this thread has the lock already: it is in a signal handler, or has left one by longjmp.
bool smcgw_lock(struct end *e, pthread_mutex_t *m);
bool smcgw_try(struct end *e, pthread_mutex_t *m);
int smcgw_writer(struct end *e);        // locks wl: not 0, too, where a writer sleeps in the kernel's send, for as long as the peer reads nothing
static inline bool smcgw_lock_writer(struct end *e) { return smcgw_writer(e) == 0; }
bool smcgw_lock_until(struct end *e, pthread_mutex_t *m, int64_t until);
void smcgw_unlock(struct end *e, pthread_mutex_t *m);
bool smcgw_still(struct end *e, int fd);  // after the lock was taken: the descriptor is this end's, and stays so until it is let go
void smcgw_release(struct end *e);        // after the last close(), by the last thread inside
void smcgw_unmap(struct end *e);
bool smcgw_map_ring(struct end *e, char **ring, const struct smci_end *of);
void smcgw_unmap_tx(struct end *e);       // the ring is the smallest again

// ---- control.c
void smcgw_hold_control(uint64_t *mask);
void smcgw_let_control(uint64_t mask);
void smcgw_ask(struct end *e, int fd);    // threshold reached
void smcgw_answers(struct end *e);         // takes what the broker has sent
void smcgw_closed(struct end *e);         // tells it
void smcgw_rings(const struct end *e, int fd); // gives the gateway the socket
void smcgw_answered(void);                // no answer is being taken that came before
void smcgw_released(const struct end *e); // before the last close() of one that has asked
void smcgw_leave(struct end *e, uint32_t why);
bool smcgw_hidden(int fd);                // ours, and not the program's to see
void smcgw_hide_from(int fd);             // the program is about to use this number: ours moves away
void smcgw_control_forked(void);
bool smcgw_broker_there(void);            // is there a socket to ask?
int smcgw_move_away(int fd);              // to a number that a program will not meet
// Descriptors that are open here for a moment have numbers that the program takes for free: who chooses one itself waits for them.
bool smcgw_numbers(void);                 // false: not held, this thread is in a signal handler or another has left by longjmp
void smcgw_numbers_go(bool held);
void smcgw_desk_put(struct peer_desk *d);
void smcgw_describe(struct end *e, int fd); // for the broker's views
void smcgw_heed(void);                    // once in a while: is the broker there?
extern _Atomic uint32_t smcgw_talk;       // counts conversations with brokers
void smcgw_bell_is(struct end *e, int fd);
void smcgw_bell_goes(int fd);
static inline bool switched_off(void) { return smcgw.news && (get(&smcgw.news->off) & SMCI_OFF_ALL); }
// sent_back: the broker has what this end sends go by the kernel.
static inline bool sent_back(const struct end *e) {
	uint32_t off = smcgw.news ? get(&smcgw.news->off) : 0, i;
	if (likely(!off)) return false;
	i = index_of(e);
	return (off & SMCI_OFF_ALL) || (get(&smcgw.news->kernel[i / 32]) >> i % 32 & 1);
}

// ---- stream.c
// enter says how a call that moves bytes goes: by libc alone, by libc and counted (smcgw_left follows), or by rx and tx.
enum path { PLAIN, COUNTED, LOCKED };
enum path smcgw_enter(struct end *e, int fd, _Atomic int *raw);
static inline ssize_t smcgw_left(_Atomic int *raw, _Atomic uint64_t *count, ssize_t n) {
	if (n > 0) atomic_fetch_add_explicit(count, (uint64_t)n, memory_order_relaxed);
	smcgw_count_out(raw);
	return n;
}
// rx and tx are recvmsg and sendmsg of a promoted connection: -1 and errno for an error, RETRY when the descriptor is another's now.
#define RETRY (-2)
ssize_t smcgw_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_tx_file(struct end *e, int fd, int from, off_t *at, size_t n);
void smcgw_arm(struct end *e, uint32_t whom);
bool smcgw_spin(bool (*ready)(void *), void *of);
bool smcgw_hot(struct end *e);            // the ring has bytes, or a transition to pass
bool smcgw_genuine(struct end *e, int fd, bool told); // the kernel says readable: is it more than tokens?
// settled is before its process waits: true, if there are bytes that no token speaks of. While a reader is inside it leaves that to
// smcgw_late; settle, which is called without the lock of the lists, waits for the reader.
bool smcgw_settled(struct end *e, int fd);
bool smcgw_settle(struct end *e, int fd);
bool smcgw_room(struct end *e);
uint32_t smcgw_beside(const struct end *e, int fd, bool room);
size_t smcgw_unread(struct end *e, int fd);
size_t smcgw_unsent(struct end *e);       // in the ring, and not read by the peer
ssize_t smcgw_discard(struct end *e, int fd, size_t n, int flags); // recv() with MSG_TRUNC
void smcgw_later(struct end *e, int err); // an error that the caller was not told of: the next call is
// finish is close(): the last bytes, the reset for unread ones. rl is held; wl, too, but for a writer that sleeps in the kernel's send.
void smcgw_finish(struct end *e, int fd, bool writes);
void smcgw_parts(struct end *e, int fd);   // connect() to nobody
bool smcgw_ended(struct end *e, int fd, int how); // shutdown(): false, if its FIN follows bytes that the kernel has refused so far
bool smcgw_demote(struct end *e, int fd, int64_t until); // both directions by the kernel; false when the peer does not answer
void smcgw_give_back(struct end *e);
extern _Atomic bool smcgw_owing;          // the kernel may have refused something that is to be sent
bool smcgw_pay(void);                     // sends it; true while there is more
int smcgw_lingers(struct end *e, int fd, const void *v, socklen_t n); // setsockopt() of SO_LINGER
void smcgw_recalled(struct end *e);       // by a writer that has left

// ---- remote.c
bool smcgw_remote_grant(struct end *e, int bell);
void smcgw_remote_unmap(void *m);
bool smcgw_remote_again(struct end *e);
void smcgw_remote_attached(struct end *e);
void smcgw_remote_left(struct end *e);
int smcgw_remote_error(struct end *e);    // SO_ERROR
ssize_t smcgw_remote_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_remote_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags);
ssize_t smcgw_remote_tx_file(struct end *e, int fd, int from, off_t *at, size_t n);
bool smcgw_remote_genuine(struct end *e, int fd);
size_t smcgw_remote_unread(struct end *e, int fd);
bool smcgw_remote_room(struct end *e);
bool smcgw_remote_full(struct end *e, uint64_t *tail); // less than a quarter is free, and the peer may read it
#define STANDS 100000000LL // nanoseconds: a peer that reads no byte for so long reads nothing
bool smcgw_remote_pay(struct end *e, int fd);
bool smcgw_remote_ended(struct end *e, int fd, int how);
bool smcgw_remote_at_risk(const struct end *e);
void smcgw_remote_finish(struct end *e, int fd, bool writes);
bool smcgw_remote_demote(struct end *e, int fd, int64_t until);
extern _Atomic int smcgw_remotes;         // attached ends of this process
long smcgw_remote_round(void);            // by waits, now and then, while there are such
void smcgw_remote_calm(unsigned often);

// ---- wait.c
void smcgw_token_taken(struct end *e);    // it may have been meant to wake a thread of its set
void smcgw_left_slot(uint32_t slot);      // by an end whose token may be on its way to a thread that sleeps there
void smcgw_late(struct end *e);           // by a reader that has left: somebody waits for it meanwhile
bool smcgw_defer(struct end *e, int fd);  // leaves an empty ring without arming it: the next wait of this process does
void smcgw_strand(struct end *e, int fd); // lists one with bytes
void smcgw_forget(struct end *e);
void smcgw_renumber(struct end *e, int fd); // fd is its number no longer
void smcgw_attached(struct end *e, int fd);
void smcgw_unmap_waited(struct end *e);   // waits look at it under their own lock
void smcgw_remind(struct end *e);         // has the kernel tell the sets of this end anew
void smcgw_wait_before_fork(void);        // no other thread changes what the child gets
void smcgw_wait_forked(bool child);       // after it, in both
bool smcgw_full(struct end *e, int fd);   // of the writer that must not wait: it is told when there is room; false: it uses the kernel
void smcgw_unfull(const struct end *e);
bool smcgw_waited(int fd);                // the number may be that of a set, or in one
void smcgw_wait_closed(int fd);           // of this process, not of the child of a vfork()
void smcgw_wait_same(int from, int to);   // a duplicate, also of a set
uint64_t smcgw_desk(struct smci_desk *d);   // one more of this process
int smcgw_epoll_create(int fd);
int smcgw_kernel_epoll(int ep, struct epoll_event *v, int max, const struct timespec *t, const sigset_t *mask);
int smcgw_kernel_poll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask);
int smcgw_kernel_select(int n, fd_set *r, fd_set *w, fd_set *x, const struct timespec *t, const sigset_t *mask);
int smcgw_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev);
int smcgw_epoll_wait(int ep, struct epoll_event *v, int max, const struct timespec *timeout, const sigset_t *mask);
int smcgw_ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int smcgw_pselect(int n, fd_set *r, fd_set *w, fd_set *x, struct timespec *timeout, const sigset_t *mask);

// total adds up what v asks for: false for memory that no program has.
static inline bool total(const struct iovec *v, int nv, size_t *n) {
	*n = 0;
	if (unlikely(nv > 1) && !smcgw_touch(v, (size_t)nv * sizeof *v)) return false;
	for (int i = 0; i < nv; i++) {
#ifdef __x86_64__
		if (unlikely((intptr_t)v[i].iov_base < 0 || (intptr_t)((uintptr_t)v[i].iov_base + v[i].iov_len) < 0) && v[i].iov_len) return false;
#endif
		*n += v[i].iov_len;
	}
	return true;
}

// result turns the kernel's answer into libc's.
static inline long result(long r) {
	if (unlikely((unsigned long)r > -4096UL)) {
		errno = (int)-r;
		return -1;
	}
	return r;
}
