// What stream.c and the files of remote.h share.
#pragma once
#include <sched.h>

#include "lib.h"

#define PARTS 64                       // of an iovec that are moved at once
#define NUMBER_ROUND 100000000LL       // nanoseconds between looks at a number that another thread may close
#define WAY_BYTES (16 << 10)           // a call of this many bytes may be part of a bulk transfer
#define WAY_CALL (1 << 20)             // a call that sends more also yields on its way
#define WAY_EVERY 200000LL             // nanoseconds between yields
#define WAY_LONG 1000000LL             // nanoseconds: longer than a peer on the same processor takes to fill or empty a ring
#define WAY_SHARE 50                   // after a yield that took longer, the next one is not before this many times as long

struct tcp_info;
bool smcgw_measured(const struct end *e, int fd, struct tcp_info *a, uint64_t *kr, uint64_t *ks);
bool smcgw_copy(char *ring, uint64_t mask, uint64_t at, const struct iovec *v, int nv, size_t skip, size_t n, bool out);
int smcgw_part(struct iovec *d, const struct iovec *v, int nv, size_t skip, size_t n);
void smcgw_violated(struct end *e);
void smcgw_says(struct end *e, long n);
bool smcgw_heard(int fd);
bool smcgw_over(int fd);
int smcgw_told(struct end *e);
int smcgw_reports(struct end *e, int fd);
long smcgw_peek(int fd);
short smcgw_polled(int fd, short events);

// A call is a read or write of the program that is under way: done of want bytes are moved.
struct call {
	struct end *e;
	int fd;                // of the end, as of the last look: see smcgw_keeps
	const struct iovec *v; // 0: bytes of file, from *at on or, without at, from its own offset on
	int nv, file;
	off_t *at;
	int flags;
	bool reads, peek, all, nowait;
	size_t want, done;
	uint32_t use;          // of the entry, when the call began
	int64_t until;         // deadline; 0: not known yet
	int err;               // which it reports if nothing is done
	bool waited;           // it has slept or, between hosts, found the copy of frames full
	bool unlocked;         // it ends, and has given up its lock
	bool goes_on;          // it ends in smcgw_go_on
	bool last;             // the last bytes read came from the kernel
	unsigned rounds;
	// Between hosts:
	bool some;             // the program's call has moved other bytes before
	bool full;             // a wait for room in the ring was in vain
	bool told;             // the kernel has reported the end of the stream, or an error
	unsigned woken;        // times in a row that the call woke up, and there was nothing
};

// What a call does next.
enum next { AGAIN, WAIT, OVER };

// smcgw_fails ends a call with an error if it has moved nothing.
static inline enum next smcgw_fails(struct call *c, int err) {
	c->err = err;
	return OVER;
}
// smcgw_quits does so at once, without the reader's lock.
static inline enum next smcgw_quits(struct call *c, int err) {
	smcgw_unlock(c->e, &c->e->rl);
	c->unlocked = true;
	return smcgw_fails(c, err);
}
static inline struct call smcgw_reading(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	struct call c = {.e = e, .fd = fd, .v = v, .nv = nv, .flags = flags, .want = total(v, nv), .reads = true, .peek = flags & MSG_PEEK};
	c.all = (flags & MSG_WAITALL) && !c.peek;
	c.nowait = (flags & MSG_DONTWAIT) || get(&e->nonblock);
	return c;
}
static inline struct call smcgw_writing(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	return (struct call){.e = e, .fd = fd, .v = v, .nv = nv, .flags = flags, .want = total(v, nv), .use = get(&e->use),
		.nowait = (flags & MSG_DONTWAIT) || get(&e->nonblock)};
}
bool smcgw_stops(int fd, bool reads);
ssize_t smcgw_go_on(struct call *c);
void smcgw_untune(struct end *e, int fd);
void smcgw_widen(int fd, int n);
bool smcgw_resets(const struct end *e, int fd);
void smcgw_at_risk(struct end *e, int fd);
void smcgw_no_risk(struct end *e, int fd);
void smcgw_reset_at_close(int fd);
int64_t smcgw_timeout_of(struct end *e, int fd, int option);

static inline int int_option(int fd, int level, int name) {
	int v = 0;
	socklen_t l = sizeof v;
	return SYS(getsockopt, fd, level, name, &v, &l) < 0 ? -1 : v;
}
static inline void set_int(int fd, int level, int name, int v) { SYS(setsockopt, fd, level, name, &v, sizeof v); }
bool smcgw_interrupts(void);
// smcgw_gives_in tells whether a signal ends a call that sleeps and knows its deadline.
static inline bool smcgw_gives_in(const struct call *c) { return c->done || c->some || c->until != INT64_MAX || smcgw_interrupts(); }

// smcgw_give_way is called after n bytes were copied. TCP in the kernel sleeps again and again in bulk transfers; a copier does not, and a
// thread that wakes on its processor would wait until the copier's time slice is used up. So the copier yields. That costs little if no
// thread wants the processor, or only briefly; and a peer on the same processor then fills or empties the ring at one go, instead of being
// scheduled for each piece. If a yield costs more, another thread is computing, and the copier keeps its share.
static inline void smcgw_give_way(size_t n) {
	static __thread int64_t at;
	if (likely(n < WAY_BYTES)) return;
	int64_t before = now();
	if (before < at) return;
	sched_yield();
	int64_t cost = now() - before;
	at = before + cost + WAY_EVERY + (cost > WAY_LONG ? WAY_SHARE * cost : 0);
}
