// Descriptors to ends, and what happens to them: fork, duplicates, close.
#include "lib.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "real.h"

_Atomic uint32_t smcgw_table[MAX_FD];
struct smcgw_state smcgw = {.control = PTHREAD_MUTEX_INITIALIZER, .socket = -1, .slab_fd = -1, .nudge = -1};
static pthread_mutex_t forking = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int highest; // descriptor that is a connection or a set
static _Atomic uint32_t hint;

__thread struct counted smcgw_counted;
static pthread_key_t at_end;

static void thread_ended(void *p) {
	struct counted *c = p;
	for (int i = 0; i < c->n && i < 4; i++)
		if (!c->call[i].of || get(&c->call[i].of->use) == c->call[i].use) atomic_fetch_sub(c->call[i].at, 1);
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
bool smcgw_ours(void) { return (int)SYS(getpid) == smcgw.pid; }

// may_size: beyond the limit of files the kernel ends the program by a signal, also for memory.
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

// prune takes out the processes that have died without close().
static void prune(struct end *e) {
	for (int i = 0; i < OTHERS_AT; i++) {
		uint64_t o = get(&e->owner[i]);
		int32_t p = owner_pid(o);
		if (p <= 0 || p == smcgw.pid || SYS(kill, p, 0) != -ESRCH) continue;
		if (atomic_compare_exchange_strong(&e->owner[i], &o, 0)) atomic_fetch_sub(&e->refs, (int)(uint32_t)o);
	}
}

// count changes how many descriptors a process has; false where it has no place of its own. Those without share the last one, as process
// 0, where a dead one stays counted.
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

// owns counts one descriptor more; disowns counts one less, and says how many there are still, of all processes.
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
	int n = get(&e->owner[OTHERS_AT]) ? 2 : 0; // it may be many
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

// hold tells whether this process alone has an end, and has no child come to it until let: what is mapped meanwhile a child has, too.
// No signal handler forks between.
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

// free_entry: the entries that were freed last are taken first. They are in the cache, and no page is touched for the first time. One that
// a thread is still inside of, in a call that the close() did not end, is taken last: that call will count.
static _Atomic uint32_t freed[64], frees; // indices and 1
static void free_entry(struct end *e) {
	bool inside = get(&e->raw_rx) || get(&e->raw_tx);
	atomic_fetch_add(&e->use, 1);
	if (likely(!inside)) put(&freed[atomic_fetch_add(&frees, 1) % 64], index_of(e) + 1);
}

// reclaim frees entries whose processes have all died without close().
static void reclaim(void) {
	for (uint32_t i = 0; i < MAX_ENDS; i++) {
		struct end *e = entry(i);
		if (!(get(&e->use) & 1)) continue;
		prune(e);
		if (owners(e)) continue;
		put(&e->report.state, SMCI_FREE);
		free_entry(e);
	}
}

static bool take(struct end *e) {
	uint32_t u = get(&e->use);
	return !(u & 1) && atomic_compare_exchange_strong(&e->use, &u, u + 1);
}
static struct end *take_entry(void) {
	static _Atomic int64_t reclaimed;
	uint32_t last = atomic_exchange(&freed[(atomic_fetch_sub(&frees, 1) - 1) % 64], 0);
	if (!last) atomic_fetch_add(&frees, 1);
	else if (take(entry(last - 1))) return entry(last - 1);
	for (int round = 0; round < 2; round++) {
		uint32_t from = get(&hint);
		for (uint32_t i = 0; i < (round ? MAX_ENDS : 256); i++) {
			struct end *e = entry((from + i) % MAX_ENDS);
			if (!take(e)) continue;
			put(&hint, (from + i + 1) % MAX_ENDS);
			return e;
		}
		int64_t t = now_coarse();
		if (!round && t - get(&reclaimed) > 1000000000) {
			put(&reclaimed, t);
			reclaim();
		}
	}
	return 0;
}

static void unmap(void **p, size_t n) {
	if (*p) munmap(*p, n);
	*p = 0;
}
// unmap_here takes what this process has mapped of an end, be it the process's still or not.
static void unmap_here(const struct end *e) {
	struct memory *m = &place_of(e)->memory;
	if (!m->own) return;
	if (m->remote) smcgw_unfull(e);
	unmap(&m->tx, m->whole);
	unmap(&m->rx, m->whole);
	unmap(&m->own, m->mapped);
	unmap(&m->peer, m->mapped);
	if (m->desk) smcgw_desk_put(m->desk);
	if (m->remote) {
		smcgw_remote_unmap(m->remote);
		m->remote = 0;
		smcgw_bell_goes(m->bell);
	}
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
	if (unlikely(smcgw.disabled) || fd <= STDERR_FILENO) return; // these read and write inside of libc
	struct end *e = take_entry();
	if (!e) return;
	memset(&e->report, 0, sizeof e->report);
	put(&e->refs, 1);
	for (int i = 0; i < MAX_OWNERS; i++) put(&e->owner[i], i ? 0 : owner(smcgw.pid, 1));
	put(&e->closing, false);
	put(&e->question, 0);
	put(&e->ops, 0);
	put(&e->raw_rx, 0);
	put(&e->raw_tx, 0);
	put(&e->kr, 0);
	put(&e->ks, 0);
	e->client = client;
	put(&e->nonblock, nonblock > 0);
	put(&e->polled, false);
	put(&e->edge, false);
	put(&e->passed, false);
	e->again = 0;
	e->attached = e->repair = false;
	e->own = 0;
	e->peer = 0;
	e->desk = 0;
	e->remote = 0;
	unmap_here(e); // what another process has closed since
	*place_of(e) = (struct place){0};
	put_release(&e->report.state, SMCI_NATIVE);
	put_release(&smcgw_table[fd], index_of(e) + 1);
	smcgw_seen(fd);
}

void smcgw_never(struct end *e, uint32_t why) {
	uint32_t s = SMCI_NATIVE;
	if (atomic_compare_exchange_strong(&e->report.state, &s, SMCI_NEVER)) put(&e->report.why, why);
}

bool smcgw_still(struct end *e, int fd) {
	return likely(get(&smcgw_table[fd]) == index_of(e) + 1) && (e->attached || state_of(e) == SMCI_MAPPED) && !get(&e->closing);
}

// taken is what came of a lock: one whose owner has died is ours all the same.
static int taken(struct end *e, pthread_mutex_t *m, int r) {
	if (likely(r != EOWNERDEAD)) return r;
	pthread_mutex_consistent(m);
	e->repair = true;
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

// closed_last is after the last descriptor. An answer of the broker that another thread is taking finds nobody who asks, and has been
// taken after this; what it gave is this end's then. Only who has the locks knows what there is to give back.
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
		if ((t.tv_nsec += 1000000) >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000; // who has it may be about to sleep
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

// release gives an entry back once its last descriptor is gone and nobody holds its locks.
void smcgw_release(struct end *e) {
	if (!smcgw_try(e, &e->rl)) return; // who holds it comes here
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

// map_ring maps the whole file of an end. The descriptor is gone: mremap makes a second mapping of what is mapped already.
bool smcgw_map_ring(struct end *e, char **ring, const struct smci_end *of) {
	char *least = (char *)(uintptr_t)of + SMCI_RING_AT;
	if (*ring != least) return true;
	void **here = ring == &e->tx_ring ? &place_of(e)->memory.tx : &place_of(e)->memory.rx;
	uint64_t mask;
	if (!smcgw_hold(e, &mask)) return false; // another process would not have it
	if (!*here) { // another process may have gone back to the least
		long p = SYS(mremap, of, 0, e->whole, MREMAP_MAYMOVE, 0);
		if ((unsigned long)p <= -4096UL) *here = (void *)p;
	}
	if (*here) *ring = (char *)*here + SMCI_RING_AT;
	else e->order_max = SMCI_ORDER_MIN; // it is not tried again
	smcgw_let(mask);
	return *ring != least;
}

void smcgw_unmap_tx(struct end *e) {
	unmap(&place_of(e)->memory.tx, e->whole);
	e->tx_ring = (char *)e->own + SMCI_RING_AT;
}

// unmap takes what this process has of it. Both locks are held, or it was never shown to another thread.
void smcgw_unmap(struct end *e) {
	unmap_here(e);
	e->own = 0;
	e->peer = 0;
	e->desk = 0;
	e->remote = 0;
}

int smcgw_number(const struct end *e, int but) {
	for (int fd = 0, top = get(&highest); fd <= top; fd++)
		if (fd != but && look(fd) == e) return fd;
	return -1;
}

// only tells whether a process has no descriptor to an end but this one.
static bool only(const struct end *e, int fd) { return get(&e->refs) == 1 || smcgw_number(e, fd) < 0; }

// waits: does the last close() wait for the peer? The number is free for others meanwhile.
static bool waits(const struct end *e, int fd) {
	struct linger l = {0};
	socklen_t n = sizeof l;
	return get(&e->refs) == 1 && SYS(getsockopt, fd, SOL_SOCKET, SO_LINGER, &l, &n) == 0 && l.l_onoff && l.l_linger;
}

// leave is after a number of an end has left the table; mine: by this thread. What the process alone has mapped goes before it no longer
// counts: another one that has the end may be alone with it then, and what that maps it maps for itself; and a thread that has found the end
// by a number that is gone may come to release it in a process that has had it.
static void leave(struct end *e, int fd, bool mine, bool reads, bool writes) {
	bool unmapped = mine && writes && place_of(e)->memory.own && only(e, fd);
	if (unlikely(unmapped && place_of(e)->memory.remote) && get(&e->refs) > 1) smcgw_remote_left(e);
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

// drop has no other thread use the number as long as it means a connection whose bytes go by rings: what that wrote past them would be
// lost, and a token that it read no byte. So the locks are kept until the number is closed, and others wait for them. Where they cannot be
// had, since a writer sleeps in the kernel's send or this is a signal handler, there is no waiting for threads that are inside.
struct drop smcgw_drop(int fd) {
	struct end *e = look(fd);
	if ((!e && likely(!smcgw_waited(fd))) || !smcgw_ours()) return (struct drop){0};
	smcgw_wait_closed(fd);
	if (!e) return (struct drop){0};
	uint32_t i = index_of(e) + 1;
	bool reads = false, writes = false, keeps = false;
	if (unlikely(get(&e->refs) > 1)) prune(e);
	if (get(&e->refs) == 1 && state_of(e) == SMCI_ASKED) smcgw_released(e);
	if (state_of(e) == SMCI_PROMOTED || state_of(e) == SMCI_MAPPED || get(&e->passed)) {
		reads = smcgw_lock(e, &e->rl);
		writes = reads && smcgw_lock_writer(e);
	}
	if (writes && smcgw_still(e, fd)) {
		if (state_of(e) == SMCI_PROMOTED && get(&e->refs) == 1) smcgw_finish(e, fd, true);
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
	uint32_t i = (index_of(d->of) + 1) | GOING; // or another thread has got the number already
	leave(d->of, d->fd, atomic_compare_exchange_strong(&smcgw_table[d->fd], &i, 0), true, true);
	errno = err;
}

void smcgw_same(int from, int to) {
	struct end *e = look(from);
	if ((unsigned)to >= MAX_FD || from == to) return;
	smcgw_wait_same(from, to);
	if (unlikely(get(&smcgw_table[to]))) smcgw_stale(to);
	if (!e) return;
	owns(e, smcgw.pid);
	put_release(&smcgw_table[to], index_of(e) + 1);
	smcgw_seen(to);
}

// fork: the child has every end too. It is counted before it exists, or the parent's close() could be the last: by a number that no
// other fork of the end has. Our handlers are the first ones of the process: of what it does before a fork this comes last, so nothing
// waits for other threads while the locks are held, and others' handlers find a child that is known.
static __thread enum { UNKNOWN, NO_ENDS, COUNTED_ENDS } forks;
static __thread int32_t unborn;
static __thread bool numbers; // held: the child is not to have what is open here for a moment
#define GIVEN 16384
static int16_t given[MAX_ENDS]; // GIVEN and how many descriptors the child was counted for
static uint32_t given_from, given_to;

static void before_fork(void) {
	static uint32_t serial;
	forks = smcgw_ours() ? smcgw.slab ? COUNTED_ENDS : NO_ENDS : UNKNOWN;
	if (forks != COUNTED_ENDS) return;
	numbers = smcgw_numbers();
	pthread_mutex_lock(&forking);
	smcgw_wait_before_fork();
	unborn = -(int32_t)((++serial & 0xff) << 22 | (uint32_t)smcgw.pid);
	given_from = MAX_ENDS;
	given_to = 0;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || (get(&smcgw_table[fd]) & GOING)) continue; // the child has it no more, or as a file that is nothing to us
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
// known gives a child that was counted as another its number, or takes it out where pid is 0.
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
	if (forks != COUNTED_ENDS) return;
	smcgw_wait_forked(false);
	forget_given();
	pthread_mutex_unlock(&forking);
	smcgw_numbers_go(numbers);
}
// born: what other threads of the parent opened and closed meanwhile this process has as its own table says.
static void born(void) {
	int32_t pid = (int32_t)SYS(getpid);
	if (forks == UNKNOWN) return;
	smcgw.pid = pid;
	if (!smcgw.slab) {
		smcgw_control_forked(); // another thread may have been about to make it
		return;
	}
	if (forks == NO_ENDS) given_from = given_to = 0;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e) continue;
		if (given[index_of(e)] && !(get(&smcgw_table[fd]) & GOING)) given[index_of(e)]--;
		else put(&smcgw_table[fd], 0); // nothing has counted it; it may be another connection's by now
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
	forking = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	smcgw_control_forked();
	smcgw_wait_forked(true);
}
void smcgw_at_fork(void) { pthread_atfork(before_fork, after_fork, born); }

// forked is after the parent's handlers: the child may be said by its number, or is none.
void smcgw_forked(long child) {
	int32_t as = unborn;
	if (!smcgw.slab || forks != COUNTED_ENDS || !child) return;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (e) known(e, as, child > 0 ? (int32_t)child : 0);
	}
}

// leaves is before an exec: the program that comes has no descriptor that the kernel closes then, so the other processes that have the
// end may be alone with it. returned: there was no such program.
static uint32_t left_behind[MAX_ENDS]; // what it was
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
			disowns(e, smcgw.pid); // the other process has mapped more of it meanwhile, which this one has not
			smcgw_wait_closed(fd);
			SYS(close, fd);
		}
		put(&smcgw_table[fd], 0); // it has closed it
	}
	for (int fd = 0; fd <= top; fd++)
		if (look(fd)) left_behind[index_of(look(fd))] = 0;
}

// At exit tokens that were left unread are taken, or the kernel would end the connections by resets.
__attribute__((destructor)) static void at_exit(void) {
	if (!smcgw.slab || !smcgw_ours()) return;
	for (int fd = 0, top = get(&highest); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || state_of(e) != SMCI_PROMOTED || get(&e->refs) != 1 || !smcgw_lock(e, &e->rl)) continue; // in a signal handler
		bool writes = smcgw_lock_writer(e); // one that sleeps in the kernel's send has left the ring: a process that ends does not wait for it
		if (writes || atomic_load(&e->tx_blocked)) smcgw_finish(e, fd, writes);
		if (writes) smcgw_unlock(e, &e->wl);
		smcgw_unlock(e, &e->rl);
	}
}
