// Waiting. For an end that is not listed the kernel's calls are right as they are: its ring has bytes only while a token is in the kernel's
// queue. A listed end has left its ring empty without arming it, so each wait of this process looks at the lists first, and settles the
// listed ends before it sleeps. An end that is waited for only in one epoll set goes further: its peers look at the slot of that set, and
// send no token while a thread of this process is awake. If such an end has bytes, and another set or process has to be told of them, it
// becomes a stray: any wait for it finds it, until it has been read to its end.
#include "lib.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <unistd.h>

#include "real.h"

#define LISTED 256 // most ends listed when they need not be; strays come on top
#define KERNEL_EVERY 16 // most returns in a row without asking the kernel
#define OWING_ROUND 10000000L // nanoseconds between attempts to send what the kernel has refused
#define READABLE (EPOLLIN | EPOLLRDNORM) // the names of read readiness; the kernel always sets both
#define TAG 0x534d4349ull // "SMCI": the high half of the data of our own registrations

struct registration {
	epoll_data_t data;
	uint32_t events;
	bool on, tagged;
	bool off;               // a one-shot event that the program has been told of
	uint64_t reported;      // the peer's head when an edge was last reported
	uint64_t round;         // the set's round in which it has an event, at index at
	int at;
	struct end *of;         // the end that counts this registration, in this use of its entry
	uint32_t use;
};
struct list {
	struct end **e;
	int n, at;
};
struct set {
	struct registration *r; // indexed by descriptor
	int n;                  // of r
	_Atomic int promoted;   // registrations with our data
	int slot;               // -1: none
	_Atomic int waiting;    // threads in the kernel's wait on it
	bool shared;            // another process has it, too
	bool nested;            // it is itself waited for, by another set, poll or select
	bool nudged;            // smcgw.nudge is in the kernel's set
	bool unwanted;          // the list may have ends that the set does not want: see vacate
	int fd;                 // one of its descriptors, or CLOSED or SPARE
	int numbers;            // its descriptors in this process: duplicates refer to the same set
	unsigned returns;
	int64_t asked;          // when the kernel last had its turn before the rings, by now_coarse
	bool filled;            // its answer left no room for theirs: the next turn is theirs
	uint64_t round;         // counts answers to waits
	struct list list;
	struct end *ends[LISTED]; // the storage of list
	struct set *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; // protects all below
static _Atomic uintptr_t holder;                       // the thread that holds mu, which may take it again: settling an end may unlist it
static int again;
static struct set *_Atomic sets[MAX_FD];
static struct set *_Atomic open_sets;
// Sets to be reused. They are never freed: a thread that found one by its number may look at it after another thread has closed it.
static struct set *_Atomic spare;
enum { CLOSED = -1, SPARE = -2 };
static _Atomic bool watched[MAX_FD];                   // numbers that may be in a set, whatever file they are
static struct end *all_pollers[MAX_ENDS];
static struct list pollers = {.e = all_pollers};
static _Atomic int strays;     // how many of pollers are strays
struct place smcgw_places[MAX_ENDS];
static _Atomic int polling;    // threads in poll or select, or about to enter
static uint64_t slots;
static uint32_t slept[SMCI_SLOTS]; // how often the slot slept, over all sets that have had it: peers remember the count they rang for

// The desks of this process, one from each broker that it has met. A peer looks at the desk
// of the broker that paired it with an end of this process.
#define OWN_DESKS 8
static struct smci_desk *own_desks[OWN_DESKS];
static int n_desks;
static uint64_t process; // identifies the process whose desks they are; a child has its own

static void hold(void) {
	uintptr_t me = (uintptr_t)&errno;
	if (get(&holder) == me) {
		again++;
		return;
	}
	pthread_mutex_lock(&mu);
	put(&holder, me);
}
// a_round limits a wait to ns, for when something has to be checked meanwhile.
static struct timespec *a_round(struct timespec *t, struct timespec *round, long ns) {
	if (t && !t->tv_sec && t->tv_nsec <= ns) return t;
	*round = (struct timespec){0, ns};
	return round;
}
// watches returns for how many nanoseconds a wait may last while there are ends between hosts, whose gateway may die silently; 0: without limit.
static long watches(void) { return likely(!get(&smcgw_remotes)) ? 0 : smcgw_remote_round(); }
static void let_go(void) {
	if (again) {
		again--;
		return;
	}
	put(&holder, 0);
	pthread_mutex_unlock(&mu);
}

static struct set *set_of(int ep) { return (unsigned)ep < MAX_FD ? get_acquire(&sets[ep]) : 0; }

bool smcgw_knows_set(int ep) { return set_of(ep); }

static struct registration *registered(struct set *s, int fd) { return fd < s->n && s->r[fd].on ? &s->r[fd] : 0; }

static void belongs(struct registration *r, struct end *e) {
	if (r->of && get(&r->of->use) == r->use) place_of(r->of)->registered--;
	if ((r->of = e)) {
		r->use = get(&e->use);
		place_of(e)->registered++;
	}
}

static void unlist(struct end *e) {
	struct place *p = place_of(e);
	struct list *l = p->set ? &p->set->list : &pollers;
	for (int i = 0; i < l->n; i++)
		if (l->e[i] == e) {
			l->e[i] = l->e[--l->n];
			break;
		}
	if (get(&p->stray)) atomic_fetch_sub(&strays, 1);
	put(&p->stray, false);
	put(&p->set, (struct set *)0);
	put(&p->listed, false);
}

// smcgw_forget unlists an end; its reader calls it. An end in no list must not be at a slot: a peer sends one token per sleep for a slot,
// and if that is for this end, no other end of the set gets one.
void smcgw_forget(struct end *e) {
	if (!listed(e)) return;
	hold();
	if (listed(e)) unlist(e);
	if (at_slot(e)) {
		uint32_t slot = get(&e->own->arm) & 0xff;
		put(&e->own->arm, 0);
		smcgw_left_slot(slot);
	}
	let_go();
}

// stray marks a listed end that may be waited for elsewhere than in the set whose list it is in. If it has bytes, no token announces them, so
// every set that has it finds it in the list of pollers, until it has been read to its end. It returns false if the end is not listed any more.
static bool stray(struct end *e) {
	struct place *p = place_of(e);
	smcgw_settled(e, p->fd);
	if (!get(&p->listed)) return false;
	if (get(&p->stray)) return true;
	if (p->set) {
		unlist(e);
		pollers.e[pollers.n++] = e;
		put(&p->listed, true);
	}
	put(&p->stray, true);
	atomic_fetch_add(&strays, 1);
	return true;
}

// smcgw_renumber is called after a number of an end has left the table. From then on the lists use another number of the end in this
// process: reading by the old one would read another file.
void smcgw_renumber(struct end *e, int fd) {
	struct place *p = place_of(e);
	if (!listed(e)) return;
	hold();
	if (listed(e) && p->fd == fd) {
		int to = smcgw_number(e, fd);
		if (to >= 0) {
			p->fd = to;
			if (p->set) stray(e); // the set had it by the old number
		} else {
			smcgw_forget(e);
		}
	}
	let_go();
}

static void stray_all(struct list *l) {
	for (int i = l->n - 1; i >= 0; i--)
		if (i < l->n) stray(l->e[i]);
}

// wants returns the registration if the end may be served by the set's slot.
static struct registration *wants(struct set *s, int fd) {
	struct registration *r = registered(s, fd);
	return r && r->tagged && (r->events & READABLE) && !(r->events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) ? r : 0;
}

// vacate is called before a sleep. A peer process rings once for all of its ends at a slot. If the token came for an end that the set does
// not want, it would wake no thread, and no other would be sent: so such an end is armed with SMCI_ARM_SELF instead. If it has bytes it
// stays in the list until it is wanted again.
static void vacate(struct set *s) {
	s->unwanted = false;
	for (int i = s->list.n - 1; i >= 0; i--) {
		struct end *e = i < s->list.n ? s->list.e[i] : 0;
		if (!e || wants(s, place_of(e)->fd)) continue;
		smcgw_settled(e, place_of(e)->fd);
		if (listed(e) && at_slot(e)) s->unwanted = true; // a reader is inside
	}
}
static void unwanted(struct set *s, const struct end *e) {
	if (!e || !listed(e) || place_of(e)->set != s || wants(s, place_of(e)->fd)) return;
	s->unwanted = true;
	if (s->waiting) vacate(s);
}

static bool has_slot(const struct set *s) { return s->slot >= 0 && n_desks; }
static void say_sleeps(const struct set *s, uint32_t sleeps) {
	for (int i = 0; i < n_desks; i++) put_release(&own_desks[i]->slot[s->slot].sleeps, sleeps); // after the ends have been armed with the slot
}
static void sleep_again(struct set *s) { // the next byte needs a new token
	if (!++slept[s->slot]) slept[s->slot]++;
	say_sleeps(s, slept[s->slot]);
	fence();
}
// smcgw_desk adds a desk. It returns this process's number, for looked_at of the ends that the broker pairs from now on: their peers look
// at this desk. It returns 0 if there are as many desks as there can be; those ends do without a slot.
uint64_t smcgw_desk(struct smci_desk *d) {
	uint64_t r = 0;
	hold();
	if (!n_desks) process = (uint64_t)now() << 22 ^ (uint64_t)smcgw.pid;
	if (n_desks < OWN_DESKS) {
		for (unsigned i = 0; i < SMCI_SLOTS && n_desks; i++) put(&d->slot[i].sleeps, get(&own_desks[0]->slot[i].sleeps));
		own_desks[n_desks++] = d;
		r = process;
	}
	let_go();
	return r;
}
// asleep is called when a set gets an end at its slot: threads may have gone to sleep in it while it had none.
static void asleep(struct set *s) {
	if (s->waiting && has_slot(s) && !get(&own_desks[0]->slot[s->slot].sleeps)) sleep_again(s);
}

// in_poll tells whether a thread may be in poll or select, or about to enter, that only a token of this end wakes.
static bool in_poll(const struct end *e) { return atomic_load(&polling) && get(&place_of(e)->sought) && !get(&e->ate); }

bool smcgw_defer(struct end *e, int fd) {
	struct place *p = place_of(e);
	if (get(&p->listed)) {
		if ((!get(&p->stray) && (!p->set || at_slot(e))) || smcgw_hot(e)) return true;
		smcgw_forget(e);
	}
	if (!smcgw_alone(e) || smcgw_sleeps(e) || get(&e->raw_rx)) return false;
	hold();
	struct set *set = 0;
	int in = p->registered;
	for (struct set *s = in == 1 ? open_sets : 0; s && !set; s = s->next)
		if (registered(s, fd) && s->r[fd].of == e) set = s;
	if (!set || set->shared || set->nested || !has_slot(set) || e->looked_at != process || !wants(set, fd)) set = 0;
	bool ok = (set || !in) && !in_poll(e);
	struct list *l = set ? &set->list : &pollers;
	if (ok && l->n >= LISTED) { // the one listed longest makes room
		l->at = (l->at + 1) % l->n;
		struct end *old = l->e[l->at];
		if (old == e || smcgw_settled(old, place_of(old)->fd) || l->n >= LISTED) ok = false;
	}
	if (ok) {
		put(&p->set, set);
		p->fd = fd;
		put(&p->listed, true);
		l->e[l->n++] = e;
		if (set) {
			asleep(set);
			smcgw_arm(e, (uint32_t)set->slot);
		}
		fence();
		if (in_poll(e)) {
			unlist(e);
			ok = false;
		}
	}
	let_go();
	return ok;
}

// ---- epoll

static void set_closed(int fd);

int smcgw_epoll_create(int fd) {
	if (fd < 0 || fd >= MAX_FD) return fd;
	if (get(&sets[fd])) set_closed(fd); // closed behind our back
	if (smcgw.disabled) return fd;
	struct set *s, *made = get(&spare) ? 0 : calloc(1, sizeof *made);
	hold();
	if ((s = spare)) {
		spare = s->next;
	} else {
		s = made;
		made = 0;
	}
	if (!s) { // out of memory: the kernel alone serves this set
		let_go();
		return fd;
	}
	s->list.e = s->ends;
	s->slot = -1;
	s->fd = fd;
	s->numbers = 1;
	for (int i = 0; i < (int)SMCI_SLOTS && s->slot < 0; i++)
		if (!(slots >> i & 1)) {
			slots |= 1ull << i;
			s->slot = i;
		}
	smcgw_seen(fd);
	atomic_store(&sets[fd], s);
	s->next = open_sets;
	open_sets = s;
	let_go();
	free(made);
	return fd;
}

// spared moves a closed set without waiting threads to the spare ones, and returns memory to free.
static struct registration *spared(struct set *s) {
	struct registration *r = s->r;
	if (s->fd != CLOSED || s->waiting) return 0;
	s->fd = SPARE;
	s->r = 0;
	s->n = 0;
	s->promoted = 0;
	s->shared = s->nested = s->nudged = s->unwanted = false;
	s->next = spare;
	spare = s;
	return r;
}
static void set_closed(int fd) {
	struct registration *rest = 0;
	hold();
	struct set *s = atomic_exchange(&sets[fd], 0);
	if (s && --s->numbers) {
		for (int i = 0, top = smcgw_top(); s->fd == fd && i <= top; i++)
			if (get(&sets[i]) == s) s->fd = i;
	} else if (s) {
		s->fd = CLOSED;
		while (s->list.n) {
			struct end *e = s->list.e[0];
			if (stray(e) && place_of(e)->set) unlist(e);
		}
		struct set *before = open_sets;
		while (before != s && before->next != s) before = before->next;
		if (before == s) open_sets = s->next;
		else before->next = s->next;
		if (has_slot(s)) say_sleeps(s, 0);
		if (s->slot >= 0) slots &= ~(1ull << s->slot);
		s->slot = -1;
		for (int i = 0; i < s->n; i++) belongs(&s->r[i], 0);
		rest = spared(s);
	}
	let_go();
	free(rest);
}

void smcgw_wait_same(int from, int to) {
	struct set *s = set_of(from);
	if (unlikely(set_of(to) != 0)) set_closed(to); // closed behind our back
	if (likely(!s)) return;
	hold();
	if (set_of(from) == s) {
		s->numbers++;
		smcgw_seen(to);
		atomic_store(&sets[to], s);
	}
	let_go();
}

bool smcgw_waited(int fd) { return (unsigned)fd < MAX_FD && (get(&sets[fd]) || get(&watched[fd])); }
void smcgw_wait_closed(int fd) {
	struct end *e = look(fd);
	if (!smcgw_waited(fd)) return;
	if (get(&sets[fd])) set_closed(fd);
	if (!open_sets || !get(&watched[fd])) return;
	// The broker that was asked may still have a duplicate of the socket, even one that has since gone; the gateway of an end between
	// hosts keeps its own until all is sent. The kernel would then keep reporting a number that may soon be another file.
	bool last = !e || get(&e->refs) == 1, lent = e && last && (e->remote || (get(&e->question) && state_of(e) != SMCI_PROMOTED));
	hold();
	put(&watched[fd], false);
	for (struct set *s = open_sets; s; s = s->next) {
		struct registration *r = registered(s, fd);
		if (!r) continue;
		if (lent) SYS(epoll_ctl, s->fd, EPOLL_CTL_DEL, fd, 0);
		// If there is a duplicate, the kernel keeps reporting this registration. With our data it could not be told from a new one
		// of the same number, so it gets the program's.
		struct epoll_event own = {r->events, r->data};
		if (r->tagged && !r->off && !last && !s->shared) SYS(epoll_ctl, s->fd, EPOLL_CTL_MOD, fd, &own);
		s->promoted -= r->tagged;
		r->on = r->tagged = false;
		if (last) belongs(r, 0);
		if (e) unwanted(s, e);
	}
	let_go();
}

static bool fresh(struct end *e, const struct registration *r) { // the ring has bytes and, for an edge, new ones since the last
	if (!smcgw_hot(e)) return false;
	return !(r->events & EPOLLET) || get_acquire(&e->peer->head) != r->reported;
}

// asks returns the registration if the set is to be told of the end's bytes; 0 for a one-shot registration made before the promotion, since
// its event may have been delivered already.
static struct registration *asks(struct set *s, int fd) {
	struct registration *r = registered(s, fd);
	return r && (r->events & READABLE) && (r->tagged || !(r->events & EPOLLONESHOT)) ? r : 0;
}

// A set looks at its own list and at all strays, which may be in it by any descriptor.
static int looked_at(const struct set *s) { return s->list.n + (unlikely(get(&strays)) ? pollers.n : 0); }
static int of_stray(struct set *s, const struct end *e) { // the descriptor under which the set asks for it
	const struct place *p = place_of(e);
	if (!get(&p->stray) || !p->registered) return -1;
	if (asks(s, p->fd) && look(p->fd) == e) return p->fd;
	for (int fd = 0; fd < s->n; fd++)
		if (s->r[fd].on && look(fd) == e && asks(s, fd)) return fd;
	return -1;
}
static struct registration *has_fresh(struct set *s, int i, struct end **e, int *fd) {
	*e = likely(i < s->list.n) ? s->list.e[i] : pollers.e[i - s->list.n];
	*fd = likely(i < s->list.n) ? place_of(*e)->fd : of_stray(s, *e);
	struct registration *r = *fd < 0 ? 0 : asks(s, *fd);
	return r && fresh(*e, r) ? r : 0;
}

static bool any_fresh(void *of) {
	struct set *s = of;
	struct end *e;
	int fd;
	for (int i = 0; i < looked_at(s); i++)
		if (has_fresh(s, i, &e, &fd)) return true;
	return false;
}

// settle_strays is called before a sleep: it arms strays without bytes; those with bytes are found afterwards.
static void settle_strays(struct set *s) {
	for (int i = pollers.n - 1; i >= 0; i--) {
		int fd = i < pollers.n ? of_stray(s, pollers.e[i]) : -1;
		if (fd >= 0) smcgw_settled(pollers.e[i], fd);
	}
}

// nudge wakes one thread that sleeps in the set, or keeps a nested set readable until nothing is left (see translate). A token wakes a thread for
// the first byte after the sleep began. Later bytes are left to that thread, which nudges the next one unless it reports everything itself.
static void nudge(struct set *s) {
	struct epoll_event k = {.events = s->nested ? EPOLLIN : EPOLLIN | EPOLLONESHOT};
	k.data.u64 = TAG << 32 | (uint32_t)smcgw.nudge;
	if (SYS(epoll_ctl, s->fd, EPOLL_CTL_MOD, smcgw.nudge, &k) == -ENOENT) SYS(epoll_ctl, s->fd, EPOLL_CTL_ADD, smcgw.nudge, &k);
	s->nudged = true;
}
// nest marks a set that is itself waited for. Such a wait asks the kernel alone, so the
// set's list may keep no end with bytes that no token announces.
static void nest(struct set *s) {
	if (likely(s->nested)) return;
	hold();
	s->nested = true;
	stray_all(&s->list);
	if (any_fresh(s)) nudge(s);
	let_go();
}
static void wake_for(const struct end *e) { // for a stray
	for (struct set *s = open_sets; s; s = s->next)
		if ((s->waiting || s->nested) && of_stray(s, e) >= 0) nudge(s);
}
// smcgw_late is called by a reader that leaves: threads asleep in a set were not told of
// what it has left in the ring, and no token will tell them.
void smcgw_late(struct end *e) {
	struct place *p = place_of(e);
	int err = errno;
	hold();
	if (atomic_exchange(&p->late, false) && listed(e) && look(p->fd) == e && smcgw_settled(e, p->fd) && get(&p->stray)) wake_for(e);
	let_go();
	errno = err;
}
// smcgw_strand lists an end that cannot be deferred although a reader has taken its token and leaves bytes. A process made while the reader
// slept may have the end, too; only waits of this process find it.
void smcgw_strand(struct end *e, int fd) {
	struct place *p = place_of(e);
	hold();
	if (!listed(e)) {
		put(&p->set, (struct set *)0);
		p->fd = fd;
		put(&p->listed, true);
		pollers.e[pollers.n++] = e;
		put(&p->stray, true);
		atomic_fetch_add(&strays, 1);
		wake_for(e);
	}
	let_go();
}

// grow enlarges the array of registrations by more, and returns memory to free.
static void *grow(struct set *s, int fd, struct registration *more, int n) {
	struct registration *had = s->r;
	if (fd < s->n || !more) return more;
	if (s->n) memcpy(more, had, (size_t)s->n * sizeof *more);
	s->r = more;
	s->n = n;
	return had;
}

static long tagged(int ep, int op, int fd, uint32_t events) {
	struct epoll_event k = {.events = events};
	k.data.u64 = TAG << 32 | (uint32_t)fd;
	return SYS(epoll_ctl, ep, op, fd, &k);
}

// ---- full rings

// A writer that must not wait gets EAGAIN when the ring of an end between hosts is full. The kernel, whose own buffer is empty, would report it
// writable at once. So no wait reports it before the peer has read a quarter of the ring, or has read nothing for a while, and sets do not ask the
// kernel meanwhile. Nothing wakes a thread that waits for such an end: its wait looks in rounds, which get longer as the peer takes its time.
#define WRITABLE (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)
#define FULL 1024 // most ends at a time; writers of others use the kernel
#define FULL_ROUND 100000L
#define FULL_ROUNDS 10000000L // at most; never longer than watches allows

static struct full {
	struct end *of;
	int fd;
	uint64_t tail; // the peer's
	int64_t since; // when tail last changed
} full[FULL];
static _Atomic int n_full;
static _Atomic long full_round; // how long a wait for any of them may last at a time
static _Atomic bool foreign;    // there are sets that this process did not make, which cannot be kept from asking the kernel

static struct full *full_of(const struct end *e) { return place_of(e)->full ? &full[place_of(e)->full - 1] : 0; }
// ask makes the sets of an end ask the kernel whether it is writable, or stop asking: then threads asleep in them are woken to wait in rounds.
static void ask(const struct full *f, bool on) {
	for (struct set *s = open_sets; s; s = s->next) {
		struct registration *r = registered(s, f->fd);
		if (!r || r->of != f->of || !r->tagged || r->off || !(r->events & WRITABLE)) continue;
		tagged(s->fd, EPOLL_CTL_MOD, f->fd, on ? r->events : r->events & ~(uint32_t)WRITABLE);
		if (!on && (s->waiting || s->nested)) nudge(s);
	}
}
static bool still_full(struct full *f) {
	uint64_t tail;
	if (state_of(f->of) != SMCI_PROMOTED || !smcgw_remote_full(f->of, f->fd, &tail)) return false;
	if (tail != f->tail) {
		f->tail = tail;
		f->since = now();
	}
	return now() - f->since < STANDS;
}
static void end_full(struct full *f) {
	struct full was = *f;
	put(&n_full, n_full - 1);
	*f = full[n_full];
	place_of(f->of)->full = (int)(f - full) + 1;
	place_of(was.of)->full = 0;
	ask(&was, true);
}
static void look_at_full(void) {
	if (likely(!get(&n_full))) return;
	hold();
	int64_t t = now(), last = 0;
	for (int i = again ? -1 : n_full - 1; i >= 0; i--) { // in a signal handler: leave them as they are
		if (!still_full(&full[i])) end_full(&full[i]);
		else if (full[i].since > last) last = full[i].since;
	}
	t = (t - last) / 4;
	put(&full_round, t < FULL_ROUND ? FULL_ROUND : t < FULL_ROUNDS ? (long)t : FULL_ROUNDS);
	let_go();
}
// smcgw_full is called by the writer. If it returns false, the writer uses the kernel, which reports edges itself.
bool smcgw_full(struct end *e, int fd) {
	if (get(&foreign) || get(&e->refs) != 1) return false;
	look_at_full();
	hold();
	bool ok = !again, was = full_of(e) != 0;
	for (struct set *s = open_sets; s && ok && !was; s = s->next) {
		const struct registration *r = registered(s, fd);
		if (r && r->of == e && (s->shared || !r->tagged || (r->events & EPOLLEXCLUSIVE))) ok = false;
	}
	if (ok && !was && (ok = n_full < FULL)) {
		full[n_full] = (struct full){e, fd, get_acquire(&e->peer->tail), now()};
		put(&n_full, n_full + 1);
		place_of(e)->full = n_full;
		put(&full_round, FULL_ROUND);
		ask(&full[n_full - 1], false);
	}
	let_go();
	return ok;
}
// full_in tells whether a wait in a set must go in rounds. Any wait may include a nested set.
static bool full_in(const struct set *of) {
	bool any = false;
	if (likely(!get(&n_full))) return false;
	hold();
	for (struct set *s = open_sets; s && !any; s = s->next)
		for (int i = 0; (s == of || s->nested) && i < n_full && !any; i++) {
			const struct registration *r = registered(s, full[i].fd);
			any = r && r->of == full[i].of && (r->events & WRITABLE);
		}
	let_go();
	return any;
}
static bool is_full(int fd) {
	const struct end *e = look(fd);
	if (!e) return false;
	hold();
	bool r = full_of(e);
	let_go();
	return r;
}

int smcgw_epoll_ctl(int ep, int op, int fd, struct epoll_event *ev) {
	struct set *s = set_of(ep), *inner;
	struct epoll_event copy;
	if (s && op != EPOLL_CTL_DEL && ev) ev = smcgw_move(&copy, ev, sizeof copy) ? &copy : 0;
	if (unlikely(!s && op != EPOLL_CTL_DEL)) put(&foreign, true);
	if (!s || (unsigned)fd >= MAX_FD || (op != EPOLL_CTL_DEL && !ev)) return (int)result(SYS(epoll_ctl, ep, op, fd, ev));
	int more = fd + fd / 2 + 64;
	void *rest = unlikely(fd >= s->n) ? calloc((size_t)more, sizeof *s->r) : 0;
	hold();
	if (unlikely(set_of(ep) != s)) { // closed meanwhile
		let_go();
		free(rest);
		return (int)result(SYS(epoll_ctl, ep, op, fd, ev));
	}
	struct end *e = look(fd);
	bool ours = e && state_of(e) == SMCI_PROMOTED && !s->shared && !(op != EPOLL_CTL_DEL && (ev->events & EPOLLEXCLUSIVE));
	if (unlikely(rest != 0)) rest = grow(s, fd, rest, more);
	if (fd >= s->n) ours = false;
	if (op != EPOLL_CTL_DEL && (inner = set_of(fd))) nest(inner);
	struct full *f = e ? full_of(e) : 0;
	if (f && (!ours || f->fd != fd)) { // under another number it is found full again
		end_full(f);
		f = 0;
	}
	bool masked = f && op != EPOLL_CTL_DEL && (ev->events & WRITABLE);
	long n = ours && op != EPOLL_CTL_DEL ? tagged(ep, op, fd, masked ? ev->events & ~(uint32_t)WRITABLE : ev->events) : SYS(epoll_ctl, ep, op, fd, ev);
	if (n >= 0 && fd < s->n) {
		struct registration *r = &s->r[fd];
		s->promoted -= r->tagged;
		if (op == EPOLL_CTL_DEL) {
			r->on = r->tagged = false;
		} else {
			r->data = ev->data;
			r->events = ev->events;
			r->on = true;
			r->off = false;
			put(&watched[fd], true);
			r->tagged = ours;
			s->promoted += ours;
		}
		belongs(r, r->on ? e : 0);
		if (masked && (s->waiting || s->nested)) nudge(s);
		if (e) {
			put(&e->polled, true);
			if (op != EPOLL_CTL_DEL && (ev->events & EPOLLET)) {
				put(&e->edge, true);
				r->reported = UINT64_MAX; // what is there already is an edge of a new registration
			}
			// An end that its set does not want just now stays listed: programs remove a direction and restore it for each message.
			unwanted(s, e);
			if (listed(e) && place_of(e)->set == s) asleep(s);
			bool comes = op != EPOLL_CTL_DEL && listed(e) && (place_of(e)->set != s || place_of(e)->fd != fd) && stray(e);
			if ((comes || s->waiting) && listed(e) && asks(s, fd) && smcgw_hot(e)) nudge(s);
		}
	}
	let_go();
	if (unlikely(rest != 0)) free(rest);
	return (int)result(n);
}

static void attached_by(struct end *e, int fd) {
	for (struct set *s = open_sets; s; s = s->next) {
		struct registration *r = registered(s, fd);
		if (!r) continue;
		// A one-shot event that was delivered must not come again: that registration becomes ours at its next EPOLL_CTL_MOD.
		bool told = !r->tagged && !s->shared && !(r->events & (EPOLLONESHOT | EPOLLEXCLUSIVE));
		long n = told ? tagged(s->fd, EPOLL_CTL_MOD, fd, r->events) : -1;
		if (n == -ENOENT) { // the number was closed behind our back
			r->on = false;
			belongs(r, 0);
			continue;
		}
		belongs(r, e); // it may not have been a connection yet
		put(&e->polled, true);
		if (r->events & EPOLLET) {
			put(&e->edge, true);
			r->reported = UINT64_MAX;
		}
		if (n == 0) {
			r->tagged = true;
			s->promoted++;
		}
	}
}
// smcgw_attached makes the kernel report this end with our data, so that an event can be recognized as a token. The sets may know the end
// by other numbers than fd, on which the attaching call was made.
void smcgw_attached(struct end *e, int fd) {
	bool one = get(&e->refs) == 1;
	hold();
	for (int i = one ? fd : 0, top = one ? fd : smcgw_top(); i <= top; i++)
		if (look(i) == e) attached_by(e, i);
	let_go();
}

void smcgw_unmap_waited(struct end *e) {
	hold();
	smcgw_unmap(e);
	let_go();
}

// smcgw_unfull is called before an end's memory goes, and for all ends (0) before another process gets the sets.
void smcgw_unfull(const struct end *e) {
	if (likely(!get(&n_full))) return;
	hold();
	while (!e && n_full) end_full(&full[n_full - 1]);
	if (e && full_of(e)) end_full(full_of(e));
	let_go();
}

void smcgw_remind(struct end *e) {
	hold();
	for (struct set *s = open_sets; s; s = s->next)
		for (int fd = 0; fd < s->n; fd++)
			if (s->r[fd].on && s->r[fd].tagged && !s->r[fd].off && look(fd) == e) tagged(s->fd, EPOLL_CTL_MOD, fd, s->r[fd].events);
	let_go();
}

static void pass_on(struct set *s) {
	if (likely(!s->waiting)) return;
	for (int i = 0; i < looked_at(s); i++) {
		struct end *e;
		int fd;
		struct registration *r = has_fresh(s, i, &e, &fd);
		if (!r || r->round == s->round) continue;
		nudge(s);
		return;
	}
}

// sleep_anew starts a new sleep, since the token of this one may wake no thread of the set, and no other would come.
static void sleep_anew(struct set *s) {
	if (!s->waiting || !has_slot(s)) return;
	sleep_again(s);
	if (any_fresh(s)) nudge(s);
}
void smcgw_token_taken(struct end *e) {
	if (likely(!get(&place_of(e)->set))) return;
	hold();
	if (place_of(e)->set) sleep_anew(place_of(e)->set);
	let_go();
}
// smcgw_left_slot starts a new sleep after an end has left a slot. Its set may no longer want the end, so that the kernel reports its token
// to no thread; or it has moved, or its reader was inside, so that the set does not find it.
void smcgw_left_slot(uint32_t slot) {
	hold();
	for (struct set *s = open_sets; s; s = s->next)
		if (s->slot == (int)slot) sleep_anew(s);
	let_go();
}

static void gave_up(void *p) { // the thread was cancelled
	struct set *s = p;
	hold();
	s->waiting--;
	struct registration *rest = spared(s);
	let_go();
	free(rest);
}

static int sleep_in(struct set *s, int ep, struct epoll_event *v, int max, const struct timespec *t, const sigset_t *mask) {
	int n;
	pthread_cleanup_push(gave_up, s);
	n = smcgw_kernel_epoll(ep, v, max, t, mask);
	pthread_cleanup_pop(0);
	return n;
}

// emit adds the events of rings to the n events from the kernel.
static int emit(struct set *s, struct epoll_event *v, int max, int n) {
	int k = looked_at(s), had = n;
	if (!n) s->round++;
	for (int i = 0; i < k && (n < max || had); i++) { // round robin: even with room for one, each gets its turn
		struct end *e;
		int fd;
		s->list.at = (s->list.at + 1) % k;
		struct registration *r = has_fresh(s, s->list.at, &e, &fd);
		if (!r || (n == max && r->round != s->round)) continue;
		if (r->events & EPOLLET) r->reported = get_acquire(&e->peer->head);
		if (r->round == s->round) { // the kernel has reported an event for it already
			v[r->at].events |= r->events & READABLE;
			continue;
		}
		struct epoll_event ev = {r->events & READABLE, r->data};
		bool out = (r->events & EPOLLOUT) && (r->events & (EPOLLET | EPOLLONESHOT)) != EPOLLET; // for an edge the kernel has the say
		if (out && smcgw_room(e) && !full_of(e)) ev.events |= EPOLLOUT;
		ev.events |= smcgw_beside(e, fd, out && (r->events & EPOLLONESHOT)) & (r->events | EPOLLERR | EPOLLHUP);
		if (unlikely(!smcgw_move(&v[n], &ev, sizeof ev))) return n ? n : (int)fault();
		r->round = s->round;
		r->at = n;
		if (unlikely(r->events & EPOLLONESHOT)) {
			tagged(s->fd, EPOLL_CTL_MOD, fd, r->events &= EPOLLONESHOT | EPOLLET);
			r->off = true;
		}
		n++;
	}
	return n;
}

// translate restores the program's data, and drops readiness that is only a token.
static int translate(struct set *s, struct epoll_event *v, int n) {
	int m = 0;
	s->round++;
	for (int i = 0; i < n; i++) {
		uint32_t evs = v[i].events;
		epoll_data_t data = v[i].data;
		if (data.u64 >> 32 == TAG) {
			int fd = (int)(uint32_t)data.u64;
			struct registration *r = registered(s, fd);
			struct end *e = look(fd);
			if (fd == smcgw.nudge && s->nested && !any_fresh(s)) tagged(s->fd, EPOLL_CTL_MOD, fd, 0);
			// Closed meanwhile, or already reported by the ring: the kernel still reports resets.
			if (!r || (r->off && !s->shared)) continue;
			data = r->data;
			if (e && state_of(e) == SMCI_PROMOTED) {
				bool told = (r->events & EPOLLET) && get_acquire(&e->peer->head) == r->reported;
				put(&e->kernel_news, true);
				const uint32_t ends = EPOLLERR | EPOLLHUP | EPOLLRDHUP;
				if ((evs & READABLE) && (!(evs & ends) || e->remote) && !smcgw_genuine(e, fd, told)) {
					evs &= ~(READABLE | ends);
					if (!evs && (r->events & EPOLLONESHOT)) tagged(s->fd, EPOLL_CTL_MOD, fd, r->events); // the one shot was used up for nothing
					if (!evs) continue;
				} else if ((evs & READABLE) && (r->events & EPOLLET)) {
					r->reported = get_acquire(&e->peer->head);
					// The next bytes must make an edge of their own, also ring bytes after the kernel's.
					if (!listed(e)) smcgw_arm(e, SMCI_ARM_SELF);
				}
				if (unlikely(evs & EPOLLHUP) && smcgw_remote_errs(e)) evs |= EPOLLERR;
			}
			if (r->events & EPOLLONESHOT) {
				r->events &= EPOLLONESHOT | EPOLLET;
				r->off = true;
			}
			r->round = s->round;
			r->at = m;
		}
		v[m].events = evs;
		v[m++].data = data;
	}
	return m;
}

// report completes the kernel's answer for the program. If something is left, another sleeping thread is told.
static int report(struct set *s, struct epoll_event *v, int max, int n) {
	n = translate(s, v, n);
	if (s->waiting) n = emit(s, v, max, n);
	if (n > 0) pass_on(s);
	return n;
}

static void give_back(struct set *s) {
	for (int i = 0; i < s->list.n; i++)
		if (s->list.e[i]->touched) smcgw_give_back(s->list.e[i]);
}
static bool to_give_back(struct set *s) {
	for (int i = 0; i < s->list.n; i++)
		if (s->list.e[i]->touched) return true;
	return false;
}

// woken is called after a sleep, and leaves mu held. False: the set is closed, its last events are in v, and mu is released.
static bool woken(struct set *s, struct epoll_event *v, int *n) {
	hold();
	s->waiting--;
	if (has_slot(s)) {
		if (s->waiting) sleep_again(s);
		else say_sleeps(s, 0);
	}
	if (s->fd >= 0 || s->waiting) return true;
	if (*n > 0) *n = translate(s, v, *n);
	struct registration *rest = spared(s);
	let_go();
	free(rest);
	return false;
}
// hold_open takes mu and returns the set, or an empty one if it was closed meanwhile.
static struct set *hold_open(struct set *s, int ep) {
	static struct set none = {.slot = -1, .fd = SPARE};
	hold();
	return likely(set_of(ep) == s) ? s : &none;
}

// concerned tells whether a wait in the set needs more than the kernel's answer. Any wait of the process sends what is owed.
static bool concerned(const struct set *s) { return s->promoted || s->nudged || get(&strays) || get(&smcgw_owing) || get(&smcgw_remotes) || get(&n_full); }
// has_ours tells whether an answer has data of ours. An end may have been promoted since the set was checked, and have gone back again.
static bool has_ours(const struct epoll_event *v, int n) {
	for (int i = 0; i < n; i++)
		if (v[i].data.u64 >> 32 == TAG) return true;
	return false;
}

// wait_plainly waits in a set that needs no more than the kernel's answer. It returns false if the set does by now, and there is no answer.
static bool wait_plainly(struct set *s, int ep, struct epoll_event *v, int max, const struct timespec *timeout, bool poll_only, const sigset_t *mask, int *n) {
	if (poll_only) {
		*n = smcgw_kernel_epoll(ep, v, max, timeout, mask);
		if (likely(!has_ours(v, *n))) return true;
		*n = translate(hold_open(s, ep), v, *n);
		let_go();
		return true;
	}
	// Without the lock: an end that is promoted while this thread sleeps is listed only after waiting was looked at.
	s->waiting++;
	if (concerned(s)) {
		s->waiting--;
		return false;
	}
	*n = sleep_in(s, ep, v, max, timeout, mask);
	if (!concerned(s) && s->fd >= 0 && likely(!has_ours(v, *n))) {
		s->waiting--;
		return true;
	}
	const int err = errno;
	const bool had = *n > 0;
	if (!woken(s, v, n)) {
		errno = err;
		return true;
	}
	if (had) *n = report(s, v, max, *n);
	let_go();
	if (*n >= 0 || !had) errno = err;
	return *n || !had;
}

// look_now returns what can be reported without a sleep. mu is held, but not all the time: the set may be closed meanwhile.
static int look_now(struct set **set, int ep, struct epoll_event *v, int max, bool poll_only) {
	struct set *s = *set;
	int n = 0;
	if (unlikely(get(&strays)) && !poll_only) settle_strays(s);
	// The kernel has its turn before the rings, or with room for one event it would never come. After a tick it has it anyway: what it has
	// may have come long before.
	int64_t tick = now_coarse();
	if (((tick != s->asked && !s->filled) || unlikely((s->returns + 1) % KERNEL_EVERY == 0)) && any_fresh(s)) {
		s->asked = tick;
		let_go();
		if ((n = smcgw_kernel_epoll(ep, v, max, &(struct timespec){0}, 0)) < 0) n = 0;
		s = *set = hold_open(s, ep);
		if (n > 0) sleep_anew(s); // an edge reported to this thread wakes no other
		n = translate(s, v, n);
	}
	s->filled = n == max;
	n = emit(s, v, max, n);
	if (!n && !poll_only && s->list.n && smcgw_spin(any_fresh, s)) n = emit(s, v, max, 0);
	if (!n) return 0;
	s->returns++;
	if (n == max) pass_on(s);
	return n;
}

// vacates takes directions out of the set that the program has removed. Programs often remove one for each message, and mostly have other events
// then, so it asks the kernel before. It returns false, without mu, if the wait ends.
static bool vacates(struct set *s, int ep, struct epoll_event *v, int max, int *n) {
	s->waiting++;
	let_go();
	*n = sleep_in(s, ep, v, max, &(struct timespec){0}, 0);
	const int err = errno;
	const bool open = woken(s, v, n);
	if (open && *n >= 0 && (!*n || !(*n = report(s, v, max, *n)))) {
		vacate(s);
		return true;
	}
	if (open) let_go();
	errno = err;
	return false;
}

// sleep_for returns how long a sleep in the set may last, in left; 0: for good. It ends early to send what is owed, to look at what the kernel
// does not report, and to shrink the set.
static const struct timespec *sleep_for(const struct set *s, const struct timespec *timeout, int64_t until, bool owing, bool *shrink, struct timespec *left) {
	int64_t ns = INT64_MAX;
	if (timeout) {
		ns = until - now();
		if (ns < 0) ns = 0;
	}
	if (owing && ns > OWING_ROUND) ns = OWING_ROUND;
	long watched = watches();
	if (full_in(s)) watched = get(&full_round);
	if (watched && ns > watched) ns = watched;
	*shrink = *shrink && ns > 1000000000;
	if (*shrink) ns = 1000000000;
	if (ns == INT64_MAX) return 0;
	*left = (struct timespec){ns / 1000000000, ns % 1000000000};
	return left;
}

int smcgw_epoll_wait(int ep, struct epoll_event *v, int max, const struct timespec *timeout, const sigset_t *mask) {
	struct set *s = set_of(ep);
	int n;
	if (!s || max <= 0) return smcgw_kernel_epoll(ep, v, max, timeout, mask);
	const bool poll_only = timeout && !timeout->tv_sec && !timeout->tv_nsec;
	const int64_t until = timeout && !poll_only ? now() + ns_of(timeout) : 0;
	if (!concerned(s) && wait_plainly(s, ep, v, max, timeout, poll_only, mask, &n)) return n;
	unsigned drops = 0;
	for (int asked = 0;;) {
		struct timespec left;
		bool shrink = false, owing = unlikely(get(&smcgw_owing)) && smcgw_pay();
		look_at_full();
		hold();
		if (unlikely(set_of(ep) != s)) { // closed meanwhile
			let_go();
			left = left_until(until);
			return smcgw_epoll_wait(ep, v, max, timeout ? &left : 0, mask);
		}
		n = look_now(&s, ep, v, max, poll_only);
		if (n) {
			let_go();
			return n;
		}
		if (!poll_only && unlikely(s->unwanted) && !vacates(s, ep, v, max, &n)) return n;
		if (!poll_only) {
			s->waiting++;
			if (has_slot(s)) {
				sleep_again(s);
				if (any_fresh(s)) {
					s->waiting--;
					say_sleeps(s, s->waiting ? slept[s->slot] : 0);
					let_go();
					continue;
				}
			}
			shrink = to_give_back(s);
		}
		let_go();
		if (poll_only) n = smcgw_kernel_epoll(ep, v, max, &(struct timespec){0}, mask);
		else n = sleep_in(s, ep, v, max, sleep_for(s, timeout, until, owing, &shrink, &left), mask);
		int err = errno;
		if (poll_only) {
			s = hold_open(s, ep);
			if (n > 0) sleep_anew(s);
		} else if (!woken(s, v, &n)) {
			errno = err;
			return n;
		}
		const bool filled = n == max, dropped = n > 0;
		if (n > 0 && (n = report(s, v, max, n)) < 0) err = errno;
		if (n == 0 && shrink) give_back(s);
		let_go();
		if (n == 0 && poll_only && filled && ++asked < KERNEL_EVERY) continue; // events that were ours alone took the place of others
		if (n < 0) errno = err;
		if (n || poll_only) return n;
		if (unlikely(dropped && get(&smcgw_remotes))) smcgw_remote_calm(++drops);
		if (timeout && now() >= until && !shrink) {
			n = emit(hold_open(s, ep), v, max, 0);
			let_go();
			return n;
		}
	}
}

// ---- poll and select

// look_at tells whether the ring of one descriptor has bytes. With settle, it first settles a listed end, for a sleep.
static bool look_at(int fd, bool settle) {
	struct end *e = look(fd);
	struct set *inner = set_of(fd);
	if (unlikely(inner != 0)) nest(inner);
	// Before looking at the list: see smcgw_defer.
	if (e && unlikely(settle && !get(&place_of(e)->sought))) atomic_store(&place_of(e)->sought, true);
	if (!e || state_of(e) != SMCI_PROMOTED) return false;
	if (unlikely(!get(&e->polled))) atomic_store(&e->polled, true); // before looking for sleepers: see sleeps_alone
	if (!listed(e)) return false;
	if (settle) return smcgw_settle(e, fd);
	hold();
	bool r = listed(e) && smcgw_hot(e);
	let_go();
	return r;
}

// beside_reader: a thread has been asleep in a read since before any wait. It takes the token that ends its sleep, and may leave bytes, so
// waits look in rounds until it has listed what it leaves.
static bool beside_reader(int fd) {
	struct end *e = look(fd);
	if (!e || state_of(e) != SMCI_PROMOTED) return false;
	if (smcgw_sleeps(e)) return true;
	fence();
	return get(&e->ate);
}

struct polled {
	const struct pollfd *p;
	nfds_t n;
};
static bool any_polled(void *of) {
	const struct polled *l = of;
	for (nfds_t i = 0; i < l->n; i++) {
		struct end *e = l->p[i].events & POLLIN ? look(l->p[i].fd) : 0;
		if (e && listed(e) && state_of(e) == SMCI_PROMOTED && look_at(l->p[i].fd, false)) return true;
	}
	return false;
}

// ask_less stops asking the kernel whether ends with full rings are writable. It returns how many.
#define UNASKED 16 // at most; a wait for more is a busy one
struct unasked {
	nfds_t at;
	short events;
};
static int ask_less(struct pollfd *p, nfds_t n, struct unasked *u) {
	int k = 0;
	for (nfds_t i = 0; i < n && k < UNASKED; i++) {
		if (!(p[i].events & WRITABLE) || !is_full(p[i].fd)) continue;
		u[k++] = (struct unasked){i, p[i].events & WRITABLE};
		p[i].events &= (short)~WRITABLE;
	}
	return k;
}

int smcgw_ppoll(struct pollfd *p, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
	if (!get(&smcgw.met) || !smcgw_touch(p, n * sizeof *p)) return smcgw_kernel_poll(p, n, timeout, mask);
	const struct timespec zero = {0, 0};
	const bool poll_only = timeout && !timeout->tv_sec && !timeout->tv_nsec;
	int64_t until = timeout ? now() + ns_of(timeout) : 0;
	unsigned drops = 0;
	for (;;) {
		bool hot = false, owing = unlikely(get(&smcgw_owing)) && smcgw_pay();
		long watched = watches();
		struct unasked unasked[UNASKED];
		int n_unasked = 0;
		look_at_full();
		for (nfds_t i = 0; i < n; i++)
			if ((p[i].events & (POLLIN | POLLRDNORM)) && look_at(p[i].fd, false)) hot = true;
		if (!hot && !poll_only) hot = smcgw_spin(any_polled, &(struct polled){p, n});
		if (!hot && !poll_only) {
			smcgw_count_in(&polling);
			for (nfds_t i = 0; i < n; i++) {
				if (!(p[i].events & (POLLIN | POLLRDNORM))) continue;
				if (look_at(p[i].fd, true)) hot = true;
				if (beside_reader(p[i].fd)) owing = true; // also wait in rounds
			}
			if (hot) smcgw_count_out(&polling);
		}
		struct timespec left, *t = 0;
		if (hot || poll_only) {
			left = zero;
			t = &left;
		} else if (timeout) {
			left = left_until(until);
			t = &left;
		}
		if (owing) t = a_round(t, &left, OWING_ROUND);
		if (unlikely(get(&n_full)) && ((n_unasked = ask_less(p, n, unasked)) || full_in(0))) watched = get(&full_round);
		if (watched) t = a_round(t, &left, watched);
		int r = smcgw_kernel_poll(p, n, t, mask), err = errno;
		for (int i = 0; i < n_unasked; i++) p[unasked[i].at].events |= unasked[i].events;
		if (!hot && !poll_only) smcgw_count_out(&polling);
		if (r < 0) {
			errno = err;
			return r;
		}
		bool dropped = false;
		for (nfds_t i = 0; i < n; i++) {
			struct end *e = look(p[i].fd);
			if (!e || state_of(e) != SMCI_PROMOTED) continue;
			short in = p[i].events & (POLLIN | POLLRDNORM), had = p[i].revents;
			if (had) put(&e->kernel_news, true);
			const short ends = POLLERR | POLLHUP | POLLRDHUP;
			if ((had & in) && (!(had & ends) || e->remote) && !smcgw_genuine(e, p[i].fd, false)) {
				p[i].revents &= (short)~(POLLIN | POLLRDNORM | ends);
				dropped = true;
			}
			if (unlikely(p[i].revents & POLLHUP) && smcgw_remote_errs(e)) p[i].revents |= POLLERR;
			if (in && !(p[i].revents & in) && look_at(p[i].fd, false)) p[i].revents |= in;
			r += (p[i].revents != 0) - (had != 0);
		}
		if (r || poll_only || (!dropped && !hot && !owing && !watched)) return r;
		if (unlikely(dropped && watched)) smcgw_remote_calm(++drops);
		if (timeout && now() >= until) return 0;
	}
}

// An fd_set may be longer than its type.
#define WORD(fd, of) ((unsigned long *)(of))[(fd) / 64]
#define BIT(fd) (1ul << (fd) % 64)
#define IS_SET(fd, of) (WORD(fd, of) >> (fd) % 64 & 1)
#define MOST_NUMBERS (1 << 18)

// numbers returns how many of n descriptors select() looks at: those that the process's table has room for. Programs pass their descriptor
// limit, without memory for so many bits.
static int numbers(int n) {
	char b[4096];
	bool held = smcgw_numbers();
	long fd = SYS(openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC), k = fd < 0 ? -1 : SYS(read, fd, b, sizeof b - 1);
	if (fd >= 0) SYS(close, fd);
	smcgw_numbers_go(held);
	b[k > 0 ? k : 0] = 0;
	const char *p = strstr(b, "FDSize:");
	long size = p ? strtol(p + 7, 0, 10) : FD_SETSIZE;
	if (size > MOST_NUMBERS) size = MOST_NUMBERS;
	return size < n ? (int)size : n;
}

int smcgw_pselect(int n, fd_set *r, fd_set *w, fd_set *x, struct timespec *timeout, const sigset_t *mask) {
	const bool owes = get(&smcgw_owing) || get(&smcgw_remotes), fulls = w && get(&n_full);
	if (!get(&smcgw.met) || n < 0 || !(r || owes || fulls)) return smcgw_kernel_select(n, r, w, x, timeout, mask);
	const bool poll_only = timeout && !timeout->tv_sec && !timeout->tv_nsec;
	int64_t until = timeout ? now() + ns_of(timeout) : 0;
	int some = n > FD_SETSIZE ? numbers(n) : n, top = 0;
	const size_t bytes = ((size_t)some + 63) / 64 * 8;
	if ((r && !smcgw_touch(r, bytes)) || (w && !smcgw_touch(w, bytes)) || (x && !smcgw_touch(x, bytes))) return smcgw_kernel_select(n, r, w, x, timeout, mask);
	for (int fd = 0; fd < some && r; fd++)
		if (IS_SET(fd, r) && (look(fd) || set_of(fd))) top = fd + 1;
	if (!top && !owes && !fulls) return smcgw_kernel_select(n, r, w, x, timeout, mask);
	unsigned long r0[bytes / 8 + 1], w0[bytes / 8 + 1], x0[bytes / 8 + 1];
	if (r) memcpy(r0, r, bytes);
	if (w) memcpy(w0, w, bytes);
	if (x) memcpy(x0, x, bytes);
	unsigned drops = 0;
	for (;;) {
		bool hot = false, owing = unlikely(get(&smcgw_owing)) && smcgw_pay();
		long watched = watches();
		look_at_full();
		for (int fd = 0; fd < top; fd++)
			if (IS_SET(fd, r0) && look_at(fd, false)) hot = true;
		if (!hot && !poll_only) {
			smcgw_count_in(&polling);
			for (int fd = 0; fd < top; fd++) {
				if (!IS_SET(fd, r0)) continue;
				if (look_at(fd, true)) hot = true;
				if (beside_reader(fd)) owing = true; // also wait in rounds
			}
			if (hot) smcgw_count_out(&polling);
		}
		struct timespec left = {0, 0}, *t = 0;
		if (hot || poll_only) {
			t = &left;
		} else if (timeout) {
			left = left_until(until);
			t = &left;
		}
		if (owing) t = a_round(t, &left, OWING_ROUND);
		if (w && unlikely(get(&n_full))) {
			bool rounds = full_in(0);
			for (int fd = 0; fd < some; fd++) {
				if (!IS_SET(fd, w0) || !is_full(fd)) continue;
				WORD(fd, w) &= ~BIT(fd);
				rounds = true;
			}
			if (rounds) watched = get(&full_round);
		}
		if (watched) t = a_round(t, &left, watched);
		int k = smcgw_kernel_select(n, r, w, x, t, mask), err = errno;
		if (!hot && !poll_only) smcgw_count_out(&polling);
		if (timeout) *timeout = left_until(until);
		if (k < 0) {
			if (w) memcpy(w, w0, bytes);
			errno = err;
			return k;
		}
		bool dropped = false;
		for (int fd = 0; fd < top; fd++) {
			struct end *e = IS_SET(fd, r0) ? look(fd) : 0;
			if (!e || state_of(e) != SMCI_PROMOTED) continue;
			bool had = IS_SET(fd, r);
			if (had) {
				put(&e->kernel_news, true);
				// poll() reports errors itself; a look at the byte would take the error from the program.
				struct pollfd ended = {fd, POLLRDHUP, 0};
				if ((e->remote || smcgw_kernel_poll(&ended, 1, &(struct timespec){0, 0}, 0) <= 0) && !smcgw_genuine(e, fd, false)) {
					WORD(fd, r) &= ~BIT(fd);
					dropped = true;
				}
			}
			if (!IS_SET(fd, r) && look_at(fd, false)) WORD(fd, r) |= BIT(fd);
			k += IS_SET(fd, r) - had;
		}
		if (k || poll_only || (!dropped && !hot && !owing && !watched)) return k;
		if (unlikely(dropped && watched)) smcgw_remote_calm(++drops);
		if (timeout && now() >= until) return 0;
		if (r) memcpy(r, r0, bytes);
		if (w) memcpy(w, w0, bytes);
		if (x) memcpy(x, x0, bytes);
	}
}

// Never allocate or free with mu held: the allocator's locks may be taken before ours for a fork.
void smcgw_wait_before_fork(void) {
	hold();
	smcgw_unfull(0);
}
void smcgw_wait_forked(bool child) {
	if (child) {
		mu = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
		put(&holder, 0);
		again = 0;
		atomic_store(&polling, 0);
		hold();
		while (n_desks) munmap(own_desks[--n_desks], sizeof *own_desks[0]); // they are the parent's
	}
	for (struct set *s = open_sets; s; s = s->next) {
		stray_all(&s->list); // the other process may read it to its end
		if (!child) continue;
		s->shared = true;
		s->waiting = 0;
	}
	stray_all(&pollers);
	let_go();
}
