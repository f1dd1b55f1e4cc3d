// The table of descriptors and their ends, and what happens to them: fork, duplicates, close.
#include "lib.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "real.h"

_Atomic uint32_t smcgw_table[MAX_FD];
struct smcgw_state smcgw = {.control = PTHREAD_MUTEX_INITIALIZER, .socket = -1, .slab_fd = -1, .nudge = -1};
static pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int highest; // highest descriptor that was ever a connection or a set
static _Atomic uint32_t hint;

__thread struct counted smcgw_counted;
static pthread_key_t at_end;

static void thread_ended(void *p) {
	struct counted *c = p;
	for (int i = 0; i < c->n && i < 4; i++) atomic_fetch_sub(c->at[i], 1);
	c->n = 0;
}
void smcgw_thread(void) {
	smcgw_counted.known = true;
	if (smcgw.slab) pthread_setspecific(at_end, &smcgw_counted);
}

int smcgw_top(void) { return get(&highest); }
void smcgw_seen(int fd) {
	for (int h = get(&highest); fd > h && !atomic_compare_exchange_weak(&highest, &h, fd);) {}
}
bool smcgw_ours(void) { return !get(&smcgw.apart) && (int)SYS(getpid) == smcgw.pid; }

// may_size tells whether a file may be this large: beyond RLIMIT_FSIZE the kernel ends the program by a signal, also for memory.
static bool may_size(size_t n) {
	struct rlimit r;
	return getrlimit(RLIMIT_FSIZE, &r) == 0 && r.rlim_cur >= n;
}

static bool make_slab(void) {
	static bool keyed;
	bool ok = false;
	uint64_t mask;
	if (now_coarse() < get(&smcgw.retry_at)) return false;
	smcgw_hold_control(&mask);
	if (smcgw.slab) {
		ok = true;
	} else if (!smcgw.disabled && now_coarse() >= get(&smcgw.retry_at) && smcgw_broker_there() && may_size((size_t)MAX_ENDS * SMCI_ENTRY) &&
	           (keyed || (keyed = !pthread_key_create(&at_end, thread_ended)))) {
		bool held = smcgw_numbers();
		long fd = SYS(memfd_create, "smcgw", MFD_CLOEXEC);
		if (fd >= 0 && SYS(ftruncate, fd, (long)MAX_ENDS * SMCI_ENTRY) == 0) {
			void *p = mmap(0, (size_t)MAX_ENDS * SMCI_ENTRY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, (int)fd, 0);
			if (p != MAP_FAILED) {
				smcgw.slab_fd = smcgw_move_away((int)fd);
				smcgw.pid = (int)SYS(getpid);
				__atomic_store_n(&smcgw.slab, p, __ATOMIC_RELEASE);
				ok = true;
				fd = -1;
			}
		}
		if (fd >= 0) SYS(close, fd);
		smcgw_numbers_go(held);
		if (!ok) put(&smcgw.retry_at, now_coarse() + RETRY_AFTER);
	}
	smcgw_let_control(mask);
	if (ok) smcgw_catch();
	return ok;
}

static uint64_t owner(int32_t pid, uint32_t n) { return n ? (uint64_t)(uint32_t)pid << 32 | n : 0; }
static int32_t owner_pid(uint64_t o) { return (int32_t)(o >> 32); }

// gone tells whether a process has ended. A child whose status its parent has not asked for yet keeps its number, but no descriptors.
static bool gone(int32_t pid) {
	siginfo_t i = {0};
	return SYS(kill, pid, 0) == -ESRCH || (SYS(waitid, P_PID, pid, &i, WEXITED | WNOHANG | WNOWAIT | __WALL, 0) == 0 && i.si_pid == pid);
}

// prune removes processes that died without close(). It returns true if it has removed the last one.
static bool prune(struct end *e) {
	bool last = false;
	for (int i = 0; i < OTHERS_AT; i++) {
		uint64_t o = get(&e->owner[i]);
		int32_t p = owner_pid(o);
		if (p <= 0 || p == smcgw.pid || !gone(p)) continue;
		if (atomic_compare_exchange_strong(&e->owner[i], &o, 0)) last = atomic_fetch_sub(&e->refs, (int)(uint32_t)o) == (int)(uint32_t)o;
	}
	return last;
}

// count adds by to the number of descriptors that a process has of an end. It returns false if the process has no place of its own: such
// processes share the last place, as process 0, where one that has died stays counted.
static bool count(struct end *e, int32_t pid, int by) {
	for (int i = 0; i < OTHERS_AT; i++)
		for (uint64_t o = get(&e->owner[i]); o && owner_pid(o) == pid;)
			if (atomic_compare_exchange_weak(&e->owner[i], &o, owner(pid, (uint32_t)o + (uint32_t)by))) return true;
	return false;
}
static bool has(const struct end *e, int32_t pid) {
	for (int i = 0; i < OTHERS_AT; i++)
		if (owner_pid(get(&e->owner[i])) == pid) return true;
	return get(&e->owner[OTHERS_AT]);
}

// owns counts one more descriptor of a process. disowns counts one less, and returns how many remain in all processes.
static void owns(struct end *e, int32_t pid) {
	atomic_fetch_add(&e->refs, 1);
	if (count(e, pid, 1)) return;
	for (int round = 0; round < 2; round++) {
		if (round) prune(e);
		for (int i = 0; i < OTHERS_AT; i++) {
			uint64_t none = 0;
			if (atomic_compare_exchange_strong(&e->owner[i], &none, owner(pid, 1))) return;
		}
	}
	atomic_fetch_add(&e->owner[OTHERS_AT], 1);
}
static int disowns(struct end *e, int32_t pid) {
	if (!count(e, pid, -1))
		for (uint64_t o = get(&e->owner[OTHERS_AT]); o && !atomic_compare_exchange_weak(&e->owner[OTHERS_AT], &o, o - 1);) {}
	return atomic_fetch_sub(&e->refs, 1) - 1;
}

static int owners(const struct end *e) {
	int n = get(&e->owner[OTHERS_AT]) ? 2 : 0; // maybe many
	for (int i = 0; i < OTHERS_AT; i++) n += get(&e->owner[i]) != 0;
	return n;
}

bool smcgw_alone(struct end *e) {
	if (likely(owners(e) == 1)) return true;
	int64_t t = now_coarse();
	if (t - get(&e->pruned_at) < 50000000) return false;
	put(&e->pruned_at, t);
	prune(e);
	return owners(e) == 1;
}

// smcgw_hold tells whether this process alone has the end; if so, it keeps a child from getting the end until smcgw_let, so that a child
// shares whatever is mapped meanwhile. Signals are blocked, lest a handler forks.
bool smcgw_hold(struct end *e, uint64_t *mask) {
	const uint64_t all = ~0ull;
	SYS(rt_sigprocmask, SIG_SETMASK, &all, mask, 8);
	pthread_mutex_lock(&forking);
	if (has(e, smcgw.pid) && smcgw_alone(e)) return true;
	smcgw_let(*mask);
	return false;
}
void smcgw_let(uint64_t mask) {
	pthread_mutex_unlock(&forking);
	SYS(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
}

#define RECLAIM_EACH 1000000000LL // nanoseconds between looks at all entries

// free_entry frees an entry. Entries freed last are reused first: they are in the cache, and no new page is touched. An entry that a thread
// is still inside of, in a call that close() did not end, is reused last: that call will still change its counts, and its next end is not
// promoted meanwhile.
static _Atomic uint32_t freed[64], frees; // indices plus 1
static _Atomic int64_t full_at;           // when no entry was free; 0: one is, or may be
static void free_entry(struct end *e) {
	bool inside = get(&e->raw_rx) || get(&e->raw_tx);
	atomic_fetch_add(&e->use, 1);
	if (unlikely(get(&full_at))) put(&full_at, 0);
	if (likely(!inside)) put(&freed[atomic_fetch_add(&frees, 1) % 64], index_of(e) + 1);
}

// reclaim frees an entry if its processes have all died without close(). Whoever removes the last process frees the entry: one without
// any may be one that another thread is just taking, or closing.
static void reclaim(struct end *e) {
	if (!(get(&e->use) & 1) || !prune(e)) return;
	put(&e->report.state, SMCI_FREE);
	free_entry(e);
}

static bool take(struct end *e) {
	uint32_t u = get(&e->use);
	return !(u & 1) && atomic_compare_exchange_strong(&e->use, &u, u + 1);
}
static struct end *take_entry(void) {
	static _Atomic int64_t reclaimed;
	static _Atomic uint32_t swept;
	// Two for each that is taken: so few are left of the connections of a server's children that have ended without close().
	for (uint32_t k = 0, used = get(&hint); k < 2 && k < used; k++) {
		uint32_t i = atomic_fetch_add(&swept, 1);
		if (i >= used) put(&swept, i = 0);
		reclaim(entry(i));
	}
	uint32_t last = atomic_exchange(&freed[(atomic_fetch_sub(&frees, 1) - 1) % 64], 0);
	if (!last) atomic_fetch_add(&frees, 1);
	else if (take(entry(last - 1))) return entry(last - 1);
	if (unlikely(get(&full_at)) && now_coarse() - get(&full_at) < RECLAIM_EACH) return 0;
	for (int round = 0; round < 2; round++) {
		uint32_t from = get(&hint);
		for (uint32_t i = 0; i < (round ? MAX_ENDS : 256); i++) {
			struct end *e = entry((from + i) % MAX_ENDS);
			if (!take(e)) continue;
			put(&hint, (from + i + 1) % MAX_ENDS);
			return e;
		}
		int64_t t = now_coarse();
		if (!round && t - get(&reclaimed) > RECLAIM_EACH) {
			put(&reclaimed, t);
			for (uint32_t i = 0; i < MAX_ENDS; i++) reclaim(entry(i));
		}
	}
	put(&full_at, now_coarse());
	return 0;
}

static void unmap(void **p, size_t n) {
	if (*p) munmap(*p, n);
	*p = 0;
}
// unmap_here removes this process's mappings of an end, whether or not the process still has it.
static void unmap_here(const struct end *e) {
	struct memory *m = &place_of(e)->memory;
	if (!m->own) return;
	if (m->remote) smcgw_unfull(e);
	unmap(&m->tx, m->whole);
	unmap(&m->rx, m->whole);
	unmap(&m->own, m->mapped);
	unmap(&m->peer, m->mapped);
	if (m->desk) smcgw_desk_put(m->desk);
	if (m->remote) smcgw_remote_unmap(e);
}

void smcgw_track(int fd, bool client, int nonblock) {
	if ((unsigned)fd >= MAX_FD) return;
	int err = errno;
	if (!__atomic_load_n(&smcgw.slab, __ATOMIC_ACQUIRE) && !make_slab()) {
		errno = err;
		return;
	}
	errno = err;
	if (unlikely(get(&smcgw_table[fd]))) smcgw_stale(fd);
	if (unlikely(smcgw.disabled) || fd <= STDERR_FILENO) return; // libc itself reads and writes these
	struct end *e = take_entry();
	if (!e) return;
	memset(&e->report, 0, sizeof e->report);
	put(&e->refs, 1);
	for (int i = 0; i < MAX_OWNERS; i++) put(&e->owner[i], i ? 0 : owner(smcgw.pid, 1));
	put(&e->closing, false);
	put(&e->question, 0);
	put(&e->ops, 0);
	put(&e->kr, 0); // raw_rx and raw_tx may count threads that are still in calls on the end before
	put(&e->ks, 0);
	e->client = client;
	put(&e->nonblock, nonblock > 0);
	put(&e->polled, false);
	put(&e->edge, false);
	smcgw_timeout_set(e);
	put(&e->passed, false);
	put(&e->ask_at, 0);
	put(&e->put_off, 0);
	e->attached = e->repair_rx = e->repair_tx = false;
	e->own = 0;
	e->peer = 0;
	e->desk = 0;
	e->remote = 0;
	unmap_here(e); // what is left of an end that another process closed
	*place_of(e) = (struct place){0};
	put_release(&e->report.state, SMCI_NATIVE);
	put_release(&smcgw_table[fd], index_of(e) + 1);
	smcgw_seen(fd);
}

void smcgw_never(struct end *e, uint32_t why) {
	uint32_t s = SMCI_NATIVE;
	if (atomic_compare_exchange_strong(&e->report.state, &s, SMCI_NEVER)) put(&e->report.why, why);
}

bool smcgw_has(struct end *e, int fd) { return likely(get(&smcgw_table[fd]) == index_of(e) + 1) && !get(&e->closing); }
bool smcgw_still(struct end *e, int fd) { return smcgw_has(e, fd) && e->attached; }

// taken handles the result of a lock: if its owner died, this thread has it, and repairs what it protects.
static int taken(struct end *e, pthread_mutex_t *m, int r) {
	if (likely(r != EOWNERDEAD)) return r;
	pthread_mutex_consistent(m);
	if (m == &e->wl) put(&e->tx_blocked, 0);
	*(m == &e->wl ? &e->repair_tx : &e->repair_rx) = true;
	return 0;
}

bool smcgw_lock(struct end *e, pthread_mutex_t *m) {
	return taken(e, m, pthread_mutex_lock(m)) != EDEADLK;
}

bool smcgw_other(struct end *e, int fd) {
	uint64_t cookie = 0;
	socklen_t n = sizeof cookie;
	uint32_t s = state_of(e);
	if (s == SMCI_NATIVE || s == SMCI_FREE || !e->report.cookie) return false;
	return SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 && cookie != e->report.cookie;
}
bool smcgw_is(struct end *e, int fd) {
	uint64_t cookie = 0;
	socklen_t n = sizeof cookie;
	return SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &n) == 0 && (!e->report.cookie || cookie == e->report.cookie);
}

// closed_last is called after the last descriptor is gone. A thread that is just processing the broker's answer finds no end that asks, and
// is done when smcgw_closed or smcgw_answered returns; what the answer granted then belongs to this end. Only a thread that has both locks
// knows what there is to free.
static void closed_last(struct end *e) {
	uint32_t s = SMCI_ASKED;
	if (atomic_compare_exchange_strong(&e->report.state, &s, SMCI_NEVER)) s = SMCI_ASKED;
	if (s != SMCI_NATIVE && s != SMCI_NEVER) smcgw_closed(e);
	else if (get(&e->question)) smcgw_answered();
	if (get(&e->question) && e->locks) {
		atomic_store(&e->closing, true);
		smcgw_release(e);
		return;
	}
	put_release(&e->report.state, SMCI_FREE);
	free_entry(e);
}

void smcgw_stale(int fd) {
	uint32_t i = atomic_exchange(&smcgw_table[fd], 0) & ~GOING;
	struct end *e = i ? entry(i - 1) : 0;
	if (!e) return;
	smcgw_renumber(e, fd);
	if (!disowns(e, smcgw.pid)) closed_last(e);
}

bool smcgw_try(struct end *e, pthread_mutex_t *m) { return taken(e, m, pthread_mutex_trylock(m)) == 0; }

int smcgw_writer(struct end *e) {
	for (;;) {
		struct timespec t;
		if (smcgw_try(e, &e->wl)) return 0;
		if (atomic_load(&e->tx_blocked)) return EAGAIN;
		clock_gettime(CLOCK_REALTIME, &t);
		if ((t.tv_nsec += 1000000) >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000; // the holder may be about to sleep
		int r = taken(e, &e->wl, pthread_mutex_timedlock(&e->wl, &t));
		if (r != ETIMEDOUT) return r;
	}
}

bool smcgw_lock_until(struct end *e, pthread_mutex_t *m, int64_t until) {
	while (!smcgw_try(e, m)) {
		if (now() > until) return false;
		struct timespec ts = {0, 200000};
		SYS(nanosleep, &ts, 0);
	}
	return true;
}

void smcgw_unlock(struct end *e, pthread_mutex_t *m) {
	bool reader = m == &e->rl;
	pthread_mutex_unlock(m);
#ifndef __x86_64__
	fence();
#endif
	if (unlikely(reader && get(&place_of(e)->late))) smcgw_late(e);
	if (unlikely(!reader && get(&e->recalled))) smcgw_recalled(e);
	if (unlikely(atomic_load(&e->closing))) smcgw_release(e);
}

// smcgw_release frees an entry once its last descriptor is gone and no thread holds its locks.
void smcgw_release(struct end *e) {
	if (!smcgw_try(e, &e->rl)) return; // its holder calls this again
	if (!smcgw_try(e, &e->wl)) {
		pthread_mutex_unlock(&e->rl);
		return;
	}
	bool mine = atomic_exchange(&e->closing, false);
	if (mine) {
		smcgw_unmap(e);
		e->attached = false;
		put_release(&e->report.state, SMCI_FREE);
	}
	pthread_mutex_unlock(&e->wl);
	pthread_mutex_unlock(&e->rl);
	if (mine) free_entry(e);
}

// smcgw_map_ring maps the whole file of an end. Its descriptor is closed, so mremap duplicates the existing mapping.
bool smcgw_map_ring(struct end *e, char **ring, const struct smci_end *of) {
	char *least = (char *)(uintptr_t)of + SMCI_RING_AT;
	if (*ring != least) return true;
	void **here = ring == &e->tx_ring ? &place_of(e)->memory.tx : &place_of(e)->memory.rx;
	uint64_t mask;
	if (!smcgw_hold(e, &mask)) return false; // another process would lack the mapping
	if (!*here) { // this process may still have it, since another one went back to the smallest ring
		long p = SYS(mremap, of, 0, e->whole, MREMAP_MAYMOVE, 0);
		if ((unsigned long)p <= -4096UL) *here = (void *)p;
	}
	if (*here) *ring = (char *)*here + SMCI_RING_AT;
	else e->order_max = SMCI_ORDER_MIN; // do not try again
	smcgw_let(mask);
	return *ring != least;
}

void smcgw_unmap_tx(struct end *e) {
	unmap(&place_of(e)->memory.tx, e->whole);
	e->tx_ring = (char *)e->own + SMCI_RING_AT;
}

// smcgw_unmap removes this process's mappings of an end. Both locks are held, or no other thread has seen the end.
void smcgw_unmap(struct end *e) {
	unmap_here(e);
	e->own = 0;
	e->peer = 0;
	e->desk = 0;
	e->remote = 0;
}

int smcgw_number(const struct end *e, int but) {
	for (int fd = 0, top = get(&highest); fd <= top; fd++)
		if (fd != but && look_open(fd) == e) return fd;
	return -1;
}

bool smcgw_keeps(struct end *e, uint32_t use, int *fd) {
	if (get(&e->use) != use) return false;
	if (smcgw_has(e, *fd)) return true;
	int other = smcgw_number(e, -1);
	if (other < 0) return smcgw.disabled && e->report.cookie && smcgw_is(e, *fd); // see smcgw_apart
	*fd = other;
	return smcgw_has(e, other);
}

// only tells whether this process has no other descriptor of an end.
static bool only(const struct end *e, int fd) { return get(&e->refs) == 1 || smcgw_number(e, fd) < 0; }

// waits tells whether the last close() waits for the peer (SO_LINGER). Meanwhile other threads may reuse the number.
static bool waits(const struct end *e, int fd) {
	struct linger l = {0};
	socklen_t n = sizeof l;
	return get(&e->refs) == 1 && SYS(getsockopt, fd, SOL_SOCKET, SO_LINGER, &l, &n) == 0 && l.l_onoff && l.l_linger;
}

// leave is called after a number of an end has left the table; mine: this thread removed it. If the process has no other number, it unmaps
// before it stops being counted. After that, another process may be alone with the end and map for itself; and a thread that found the end
// by a number that is gone may come to release it in a process that has left it.
static void leave(struct end *e, int fd, bool mine, bool reads, bool writes) {
	bool unmapped = mine && writes && place_of(e)->memory.own && only(e, fd);
	if (unlikely(unmapped && place_of(e)->memory.remote)) smcgw_remote_left(e);
	if (unmapped) unmap_here(e);
	bool last = mine && !disowns(e, smcgw.pid);
	if (unmapped) {
		pthread_mutex_unlock(&e->wl);
		pthread_mutex_unlock(&e->rl);
	} else {
		if (writes) smcgw_unlock(e, &e->wl);
		if (reads) smcgw_unlock(e, &e->rl);
	}
	if (last) closed_last(e);
}

// smcgw_drop keeps other threads from using the number while it means a connection whose bytes go through rings: a native write would pass bytes
// around the ring, and a native read would take a token. So the locks are held until the number is closed, and other threads wait for them. If
// they cannot be had, because a writer sleeps in the kernel's send or this is a signal handler, it does not wait for threads that are inside.
struct drop smcgw_drop(int fd) {
	struct end *e = look(fd);
	if ((!e && likely(!smcgw_waited(fd))) || !smcgw_ours()) return (struct drop){0};
	smcgw_wait_closed(fd);
	if (!e) return (struct drop){0};
	uint32_t i = index_of(e) + 1;
	bool reads = false, writes = false, keeps = false;
	if (unlikely(get(&e->refs) > 1)) prune(e);
	if (get(&e->refs) == 1 && state_of(e) == SMCI_ASKED) smcgw_released(e);
	// If it has gone back, too: see smcgw_go_on.
	const uint32_t state = state_of(e); // once: another thread may be attaching it
	if (state == SMCI_PROMOTED || state == SMCI_MAPPED || get(&e->passed) || get(&place_of(e)->back)) {
		reads = smcgw_lock(e, &e->rl);
		writes = reads && smcgw_lock_writer(e);
	}
	if (writes && smcgw_has(e, fd) && (e->attached || state_of(e) == SMCI_MAPPED)) {
		if (state_of(e) == SMCI_PROMOTED && get(&e->refs) == 1) smcgw_finish(e, fd, true);
		else if (unlikely(e->attached && e->remote) && only(e, fd)) smcgw_remote_leaves(e, fd);
		keeps = !waits(e, fd);
	}
	bool mine = atomic_compare_exchange_strong(&smcgw_table[fd], &i, keeps ? i | GOING : 0);
	if (mine) smcgw_renumber(e, fd);
	if (mine && keeps) return (struct drop){e, fd};
	leave(e, fd, mine, reads, writes);
	return (struct drop){0};
}

void smcgw_dropped(void *drop) {
	const struct drop *d = drop;
	if (likely(!d->of)) return;
	int err = errno;
	uint32_t i = (index_of(d->of) + 1) | GOING; // another thread may have got the number already
	leave(d->of, d->fd, atomic_compare_exchange_strong(&smcgw_table[d->fd], &i, 0), true, true);
	errno = err;
}

void smcgw_same(int from, int to) {
	struct end *e = look_open(from);
	if ((unsigned)to >= MAX_FD || from == to) return;
	smcgw_wait_same(from, to);
	if (unlikely(get(&smcgw_table[to]))) smcgw_stale(to);
	if (!e) return;
	owns(e, smcgw.pid);
	put_release(&smcgw_table[to], index_of(e) + 1);
	smcgw_seen(to);
}

// Fork: the child gets every end, too. It is counted before it exists, or a close() by the parent could be the last one; the count is under
// a number that no other fork of the end uses. Our handlers are the first to be registered, so before a fork they run last: nothing waits
// for other threads while the locks are held, and after it the handlers of others find a child that is counted.
static __thread enum { UNKNOWN, NO_ENDS, COUNTED_ENDS } forks;
static __thread int32_t unborn;
static __thread bool numbers; // whether smcgw_numbers is held: a child must not inherit what is open only briefly
static __thread uint64_t fork_mask; // signals that were blocked before: a handler that forks, or takes a grant, would wait for its own thread.
                                    // All ones: they still are as they were
#define GIVEN 16384
static int16_t given[MAX_ENDS]; // 0, or GIVEN plus the number of descriptors counted for the child
static uint32_t given_from, given_to;

static void before_fork(void) {
	static uint32_t serial;
	const uint64_t all = ~0ull;
	forks = get(&smcgw.apart) ? NO_ENDS : !smcgw_ours() ? UNKNOWN : smcgw.slab ? COUNTED_ENDS : NO_ENDS;
	if (forks == UNKNOWN) return;
	fork_mask = all;
	if (!smcgw.disabled) SYS(rt_sigprocmask, SIG_SETMASK, &all, &fork_mask, 8);
	if (forks == COUNTED_ENDS) {
		numbers = smcgw_numbers();
		pthread_mutex_lock(&forking);
	}
	smcgw_wait_before_fork(); // sets are kept without a slab, too
	if (forks != COUNTED_ENDS) return;
	unborn = -(int32_t)((++serial & 0xff) << 22 | (uint32_t)smcgw.pid);
	given_from = MAX_ENDS;
	given_to = 0;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || (get(&smcgw_table[fd]) & GOING)) continue; // the child will not have it, or has it as a file that is not ours
		uint32_t i = index_of(e);
		if (i < given_from) given_from = i;
		if (i >= given_to) given_to = i + 1;
		given[i] = (int16_t)(given[i] ? given[i] + 1 : GIVEN + 1);
		owns(e, unborn);
	}
}
static void forget_given(void) {
	for (uint32_t i = given_from; i < given_to; i++) given[i] = 0;
}
// known replaces the number that a child was counted under by its PID; a PID of 0 removes the child.
static void known(struct end *e, int32_t as, int32_t pid) {
	for (int i = 0; i < OTHERS_AT; i++) {
		uint64_t o = get(&e->owner[i]);
		uint32_t n = (uint32_t)o;
		if (owner_pid(o) != as || !atomic_compare_exchange_strong(&e->owner[i], &o, owner(pid, pid ? n : 0))) continue;
		if (!pid) atomic_fetch_sub(&e->refs, (int)n);
		return;
	}
}
static void after_fork(void) {
	if (forks == UNKNOWN) return;
	smcgw_wait_forked(false);
	if (forks == COUNTED_ENDS) {
		forget_given();
		pthread_mutex_unlock(&forking);
		smcgw_numbers_go(numbers);
	}
	if (~fork_mask) SYS(rt_sigprocmask, SIG_SETMASK, &fork_mask, 0, 8);
}
// counted is for a child. What other threads of the parent opened or closed meanwhile, the child has as its copy of the table says.
static void counted(int32_t pid) {
	if (forks == NO_ENDS) given_from = given_to = 0;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e) continue;
		if (given[index_of(e)] && !(get(&smcgw_table[fd]) & GOING)) given[index_of(e)]--;
		else put(&smcgw_table[fd], 0); // not counted for this process; it may be another connection by now
	}
	for (uint32_t i = given_from; i < given_to; i++) {
		struct end *e = entry(i);
		if (!given[i]) continue;
		known(e, unborn, pid);
		for (; given[i] < GIVEN; given[i]++) owns(e, pid);
		for (; given[i] > GIVEN; given[i]--) {
			if (disowns(e, pid)) continue;
			unmap_here(e);
			put_release(&e->report.state, SMCI_FREE);
			free_entry(e);
		}
		given[i] = 0;
	}
}
// alone resets the locks, which other threads of the parent may have held. own: the library's descriptors are still the parent's.
static void alone(bool own) {
	forking = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	smcgw_catch_forked();
	smcgw_control_forked(own);
	smcgw_wait_forked(true);
}
static void born(void) {
	bool own = !get(&smcgw.apart);
	if (forks == UNKNOWN) return;
	if (own) smcgw.pid = (int)SYS(getpid);
	if (own && smcgw.slab) counted(smcgw.pid); // another thread may just have made it
	alone(own);
	if (~fork_mask) SYS(rt_sigprocmask, SIG_SETMASK, &fork_mask, 0, 8);
}
void smcgw_at_fork(void) { pthread_atfork(before_fork, after_fork, born); }

// smcgw_forked is called after the parent's handlers: the child can now be counted by its PID, or does not exist.
void smcgw_forked(long child) {
	int32_t as = unborn;
	if (!smcgw.slab || forks != COUNTED_ENDS || !child) return;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (e) known(e, as, child > 0 ? (int32_t)child : 0);
	}
}

// smcgw_apart empties the table, and removes mappings while that is allowed. The entries stay, so that users can see why an end is native.
void smcgw_apart(void) {
	bool all = true;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e) continue;
		if (state_of(e) != SMCI_NEVER) {
			all = false;
			continue;
		}
		put(&smcgw_table[fd], 0);
		if (!place_of(e)->memory.own || place_of(e)->memory.remote || !smcgw_try(e, &e->rl)) continue;
		if (smcgw_try(e, &e->wl)) {
			unmap_here(e);
			smcgw_unlock(e, &e->wl);
		}
		smcgw_unlock(e, &e->rl);
	}
	if (!all) return;
	put(&smcgw.met, false);
	put(&smcgw.apart, true);
}
// The slab's entries are the parent's, which may have other ends in them by now. Without a slab the child makes its own.
void smcgw_cloned(bool native) {
	bool own = !get(&smcgw.apart);
	if (smcgw.slab) {
		smcgw.disabled = true;
		put(&smcgw.apart, true);
		for (int fd = 0, top = native ? get(&highest) : -1; fd <= top; fd++) put(&smcgw_table[fd], 0);
		if (native) put(&smcgw.met, false);
	} else {
		smcgw.pid = (int)SYS(getpid);
	}
	alone(own);
}

// smcgw_leaves is called before an exec. The next program does not have the descriptors that exec closes, so the other processes of such an
// end may be alone with it. smcgw_returned undoes that if the exec fails.
static uint32_t left_behind[MAX_ENDS]; // a fingerprint of the end at that time
static uint32_t is_now(const struct end *e) {
	uintptr_t at = (uintptr_t)e->own ^ (uintptr_t)e->tx_ring << 1 ^ (uintptr_t)e->rx_ring << 2;
	return (uint32_t)(at >> 12) * 31 << 8 | (get(&e->use) << 1 & 0xff) | 1;
}
void smcgw_leaves(void) {
	if (!smcgw.slab || !smcgw_ours()) return;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || get(&e->refs) == 1 || SYS(fcntl, fd, F_GETFD) != FD_CLOEXEC || !has(e, smcgw.pid)) continue;
		left_behind[index_of(e)] = is_now(e);
		disowns(e, smcgw.pid);
	}
}
void smcgw_returned(void) {
	if (!smcgw.slab || !smcgw_ours()) return;
	int top = get(&highest);
	for (int fd = 0; fd <= top; fd++) {
		struct end *e = look(fd);
		uint32_t was = e ? left_behind[index_of(e)] : 0;
		if (!was || SYS(fcntl, fd, F_GETFD) != FD_CLOEXEC) continue;
		if (((was ^ is_now(e)) & 0xff) == 0) {
			owns(e, smcgw.pid);
			if (was == is_now(e)) continue;
			disowns(e, smcgw.pid); // the other process has since mapped memory that this one lacks
			smcgw_wait_closed(fd);
			SYS(close, fd);
		}
		put(&smcgw_table[fd], 0); // another process has closed the end, or this one just did
	}
	for (int fd = 0; fd <= top; fd++)
		if (look(fd)) left_behind[index_of(look(fd))] = 0;
}

// At exit, take tokens that were left unread, or the kernel would end the connections by resets. What is left to another process is left as by
// close().
__attribute__((destructor)) static void at_exit(void) {
	if (!smcgw.slab || !smcgw_ours()) return;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || state_of(e) != SMCI_PROMOTED) continue;
		if (unlikely(get(&e->refs) > 1)) prune(e);
		const bool last = get(&e->refs) == 1;
		if (!last && (!e->remote || !smcgw_remote_ours(e) || owners(e) == 1)) continue;
		if (!smcgw_lock(e, &e->rl)) continue; // in a signal handler
		// A writer asleep in the kernel's send has left the ring: a process that ends does not wait for it.
		bool writes = smcgw_lock_writer(e), still = smcgw_still(e, fd);
		if (still && last && (writes || atomic_load(&e->tx_blocked))) smcgw_finish(e, fd, writes);
		else if (still && !last && writes && e->remote) smcgw_remote_leaves(e, fd);
		if (writes) smcgw_unlock(e, &e->wl);
		smcgw_unlock(e, &e->rl);
	}
}
