// What stream.c and remote.c share.
#pragma once
#include <sched.h>

#include "lib.h"

#define WAY_BYTES (16 << 10)           // a call with so many may be one of bulk
#define WAY_CALL (1 << 20)             // and one that sends more offers the processor on its way, too
#define WAY_EVERY 200000LL             // between offers of the processor
#define WAY_LONG 1000000LL             // more than a peer on the same processor takes to fill or empty a ring
#define WAY_SHARE 50                   // times as long as that there is no other offer

bool smcgw_copy(char *ring, uint64_t mask, uint64_t at, const struct iovec *v, int nv, size_t skip, size_t n, bool out);
int smcgw_part(struct iovec *d, const struct iovec *v, int nv, size_t skip, size_t n);
void smcgw_violated(struct end *e);
void smcgw_says(struct end *e, long n);
bool smcgw_heard(int fd);
bool smcgw_over(int fd);
bool smcgw_told(struct end *e);
long smcgw_peek(int fd);
void smcgw_untune(struct end *e, int fd);
bool smcgw_resets(const struct end *e, int fd);
void smcgw_at_risk(struct end *e, int fd);
void smcgw_no_risk(struct end *e, int fd);
void smcgw_reset_at_close(int fd);
int64_t smcgw_timeout_of(int fd, int option);
bool smcgw_interrupts(void);

// give_way is after a call that copied n bytes. TCP in the kernel sleeps in bulk again and again; a copier does not, and who wakes on its
// processor waits until its slice is used up. So it offers the processor. That costs little where nobody wants it, or somebody does for a
// moment; and a peer on the same processor fills or empties the ring at one go, where it would be switched to for each piece. Where it costs
// more somebody computes, and the copier keeps its share.
static inline void smcgw_give_way(size_t n) {
	static __thread int64_t at;
	if (likely(n < WAY_BYTES)) return;
	int64_t before = now();
	if (before < at) return;
	sched_yield();
	int64_t cost = now() - before;
	at = before + cost + WAY_EVERY + (cost > WAY_LONG ? WAY_SHARE * cost : 0);
}
