// The broker: asking for promotion, its answers, the switch. Nothing here is on the data path.
#include "lib.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "real.h"

#define WELCOME_WITHIN 50000000L // nanoseconds that a process waits for the broker's WELCOME
#define RELEASED_WITHIN 1000000000LL
#define LOCK_WITHIN 100000000LL
#define TOLD_WITHIN 100000000L   // nanoseconds that a broker has to make room for a record that it must get
#define DESKS 1024

static char path[sizeof((struct sockaddr_un *)0)->sun_path] = "/run/smcgw/in-process/broker.sock";
static uint64_t run;
static bool welcome;
static int64_t retry_after = RETRY_AFTER;
static uint32_t questions; // numbers the sockets sent in this conversation
static uint64_t looked_at; // looked_at of the ends granted in this conversation: see smcgw_desk
static struct peer_desk desks[DESKS];
_Atomic uint32_t smcgw_talk;
static _Atomic uint32_t bells[MAX_FD]; // index plus 1 of the end whose bell the descriptor is
static _Atomic int top_bell = -1; // no bell has had a higher number

__attribute__((constructor)) static void start(void) {
	const char *p = getenv("SMCGW_SOCKET"), *r = getenv("SMCGW_RUN");
	smcgw.pid = (int)SYS(getpid);
	if (getauxval(AT_SECURE)) { // ld.so.preload applies to set-user-ID programs, too: nothing is tracked there
		smcgw.disabled = true;
		return;
	}
#ifdef SMCI_VERSION_OF // glibc.h
	if (!pthread_mutexattr_setrobust || !pthread_key_create) { // an older glibc without libpthread
		smcgw.disabled = true;
		return;
	}
#endif
	smcgw_at_fork();
	if (p && strlen(p) < sizeof path) strcpy(path, p);
	if (r) run = strtoull(r, 0, 10);
}

bool smcgw_broker_there(void) {
	if (SYS(faccessat, AT_FDCWD, path, W_OK) == 0) return true;
	put(&smcgw.retry_at, now_coarse() + RETRY_AFTER);
	return false;
}

bool smcgw_hidden(int fd) { return fd >= 0 && (fd == smcgw.socket || fd == smcgw.slab_fd || fd == smcgw.nudge || (fd <= get(&top_bell) && get(&bells[fd]))); }

// above_limit duplicates a descriptor where it takes no number from the program: above its soft limit. It returns -1 if there is none.
static int above_limit(int fd) {
	struct rlimit had, all, was;
	if (getrlimit(RLIMIT_NOFILE, &had) < 0 || had.rlim_cur >= had.rlim_max || had.rlim_cur >= MAX_FD / 2) return -1;
	all = (struct rlimit){had.rlim_max, had.rlim_max};
	bool held = smcgw_numbers(); // a child must not inherit the limit
	long n = SYS(prlimit64, 0, RLIMIT_NOFILE, &all, 0);
	if (n == 0) {
		n = SYS(fcntl, fd, F_DUPFD_CLOEXEC, (long)had.rlim_cur);
		if (SYS(prlimit64, 0, RLIMIT_NOFILE, &had, &was) == 0 && was.rlim_cur != all.rlim_cur) SYS(prlimit64, 0, RLIMIT_NOFILE, &was, 0); // the program's
	}
	smcgw_numbers_go(held);
	return n < 0 ? -1 : (int)n;
}

int smcgw_move_away(int fd) {
	int above = above_limit(fd);
	if (above >= 0) {
		SYS(close, fd);
		return above;
	}
	for (int from = 1000; from >= 60; from /= 4) {
		long n = SYS(fcntl, fd, F_DUPFD_CLOEXEC, from);
		if (n < 0) continue;
		SYS(close, fd);
		return (int)n;
	}
	return fd;
}

// A signal handler may close, ask, or take one of the library's descriptors, so signals are blocked while a thread is in the conversation.
// A disabled process may have denied itself that system call, and has nothing to say. mask: all ones if it was not changed.
static void no_signals(uint64_t *mask) {
	const uint64_t all = ~0ull;
	*mask = all;
	if (!smcgw.disabled) SYS(rt_sigprocmask, SIG_SETMASK, &all, mask, 8);
}
static void signals(uint64_t mask) {
	if (~mask) SYS(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
}
void smcgw_hold_control(uint64_t *mask) {
	no_signals(mask);
	pthread_mutex_lock(&smcgw.control);
}
void smcgw_let_control(uint64_t mask) {
	pthread_mutex_unlock(&smcgw.control);
	signals(mask);
}

// lock_soon returns false if this thread seems to hold the lock itself: it is in a signal handler.
static bool lock_soon(pthread_mutex_t *m) {
	int64_t until = 0;
	while (pthread_mutex_trylock(m)) {
		struct timespec ts = {0, 20000};
		if (!until) until = now() + LOCK_WITHIN;
		if (now() > until) return false;
		SYS(nanosleep, &ts, 0);
	}
	return true;
}

static void bell_at(int fd, uint32_t of) {
	put(&bells[fd], of);
	for (int top = get(&top_bell); fd > top && !atomic_compare_exchange_weak(&top_bell, &top, fd);) {}
}
int smcgw_top_bell(void) { return get(&top_bell); }

void smcgw_hide_from(int fd) {
	if (!smcgw_hidden(fd)) return;
	uint64_t mask;
	smcgw_hold_control(&mask); // or a record being sent would go to the program's file
	if (smcgw_hidden(fd)) {
		uint32_t of = fd < MAX_FD ? atomic_exchange(&bells[fd], 0) : 0;
		_Atomic int *at = of ? &place_of(entry(of - 1))->memory.bell : fd == smcgw.socket ? &smcgw.socket : fd == smcgw.nudge ? &smcgw.nudge : &smcgw.slab_fd;
		long n = SYS(fcntl, fd, F_DUPFD_CLOEXEC, fd + 1);
		*at = n < 0 ? -1 : (int)n; // from here on the number is the program's
		if (of && n >= 0 && n < MAX_FD) bell_at((int)n, of);
	}
	smcgw_let_control(mask);
}

// smcgw_bell_is takes fd. Bells take at most a sixteenth of the program's numbers, the highest: false if none of them is free.
bool smcgw_bell_is(struct end *e, int fd) {
	struct rlimit r;
	long n = above_limit(fd);
	if (n < 0 && getrlimit(RLIMIT_NOFILE, &r) == 0) n = SYS(fcntl, fd, F_DUPFD_CLOEXEC, (long)(r.rlim_cur - r.rlim_cur / 16));
	if (n < 0) return false;
	SYS(close, fd);
	if (n < MAX_FD) bell_at((int)n, index_of(e) + 1);
	put(&place_of(e)->memory.bell, (int)n);
	return true;
}

static pthread_mutex_t numbers = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uintptr_t has_numbers; // the thread that holds it

bool smcgw_numbers(void) {
	uintptr_t me = (uintptr_t)&errno;
	if (get(&has_numbers) == me || !lock_soon(&numbers)) return false;
	put(&has_numbers, me);
	return true;
}
void smcgw_numbers_go(bool held) {
	if (!held) return;
	put(&has_numbers, 0);
	pthread_mutex_unlock(&numbers);
}

void smcgw_bell_goes(int fd) {
	if (fd < 0) return;
	bool held = smcgw_numbers(); // until it is closed, no dup2() gets the number, and no child is made
	if (fd < MAX_FD) put(&bells[fd], 0);
	SYS(close, fd);
	smcgw_numbers_go(held);
}

// hang_up ends the conversation. What was asked in it is asked again, of the next broker.
static void hang_up(void) {
	bool held = smcgw_numbers(); // as in smcgw_bell_goes
	int s = atomic_exchange(&smcgw.socket, -1);
	if (s >= 0) SYS(close, s);
	smcgw_numbers_go(held);
	atomic_fetch_add(&smcgw_talk, 1); // what this gateway has carried between hosts goes back to the kernel
	welcome = false;
	put(&smcgw.retry_at, now_coarse() + retry_after);
	if (retry_after < 60 * RETRY_AFTER) retry_after *= 2;
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		uint32_t asked = SMCI_ASKED;
		if (e) atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_NATIVE);
	}
}

static long put_record(const struct smci_record *r, int fd) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c;
	struct iovec v = {(void *)(uintptr_t)r, sizeof *r};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
	if (fd >= 0) {
		memset(&c, 0, sizeof c);
		h.msg_control = &c;
		h.msg_controllen = sizeof c.b;
		c.h.cmsg_level = SOL_SOCKET;
		c.h.cmsg_type = SCM_RIGHTS;
		c.h.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
	}
	return SYS(sendmsg, smcgw.socket, &h, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// tell sends what the broker must know, since it would otherwise keep a connection that is no more. If the broker does not read, the
// conversation ends, and with it everything that the broker has for this process.
static void tell(const struct smci_record *r, int fd) {
	struct pollfd p = {smcgw.socket, POLLOUT, 0};
	struct timespec ts = {0, TOLD_WITHIN};
	if (smcgw.socket < 0) return;
	long n = put_record(r, fd);
	if (n == -EAGAIN && SYS(ppoll, &p, 1, &ts, 0, 8) == 1) n = put_record(r, fd);
	if (n < 0 && smcgw_ours()) hang_up();
}

// take_record returns 1 for a record, 0 for none, -1 at the end of the conversation. fd gets up to three descriptors, the others are -1.
static int take_record(struct smci_record *r, int fd[3]) {
	union { char b[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr h; } c;
	struct iovec v = {r, sizeof *r};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.b};
	fd[0] = fd[1] = fd[2] = -1;
	long n = SYS(recvmsg, smcgw.socket, &h, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n == -EAGAIN || n == -EINTR) return 0;
	if (n > 0 && h.msg_controllen >= sizeof c.h && c.h.cmsg_level == SOL_SOCKET && c.h.cmsg_type == SCM_RIGHTS) {
		size_t k = c.h.cmsg_len - CMSG_LEN(0);
		memcpy(fd, CMSG_DATA(&c.h), k < 3 * sizeof(int) ? k : 3 * sizeof(int));
	}
	return n == sizeof *r ? 1 : -1;
}

static void close_all(int fd[3]) {
	for (int i = 0; i < 3; i++)
		if (fd[i] >= 0) SYS(close, fd[i]);
}

static void *map(int fd, size_t n, int prot) {
	if (fd < 0) return 0;
	void *p = mmap(0, n, prot, MAP_SHARED, fd, 0);
	return p == MAP_FAILED ? 0 : p;
}

static struct peer_desk *desk_get(uint64_t number, int fd) {
	struct peer_desk *none = 0;
	for (int i = 0; i < DESKS; i++) {
		if (desks[i].uses && desks[i].number == number) {
			desks[i].uses++;
			return &desks[i];
		}
		if (!desks[i].uses && !none) none = &desks[i];
	}
	if (!none) return 0; // the table is full: the grant is refused
	const struct smci_desk *d = map(fd, sizeof *d, PROT_READ);
	if (!d) return 0;
	if (none->desk) munmap((void *)(uintptr_t)none->desk, sizeof *d);
	none->desk = d;
	none->number = number;
	none->uses = 1;
	for (unsigned i = 0; i < SMCI_SLOTS; i++) put(&none->rung[i], 0);
	return none;
}

// The mapping stays until its place is needed: a doorbell may still look at it.
void smcgw_desk_put(struct peer_desk *d) {
	atomic_fetch_sub(&d->uses, 1);
}

static void welcomed(int fd[3]) {
	struct smci_desk *d = map(fd[0], sizeof *d, PROT_READ | PROT_WRITE);
	if (d) SYS(fcntl, fd[0], F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_FUTURE_WRITE); // before any peer has it, so that not even root may write to it
	bool whole = SYS(lseek, fd[1], 0, SEEK_END) >= (long)sizeof(struct smci_news);
	struct smci_news *n = whole ? map(fd[1], sizeof *n, PROT_READ) : 0;
	close_all(fd);
	if (smcgw.nudge < 0) {
		long r = SYS(eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK);
		if (r >= 0) smcgw.nudge = smcgw_move_away((int)r);
	}
	if (smcgw.nudge < 0 || !d || !n || n->magic != SMCI_MAGIC || n->version != SMCI_VERSION) {
		hang_up();
		return;
	}
	d->magic = SMCI_MAGIC;
	d->version = SMCI_VERSION;
	looked_at = smcgw_desk(d);
	if (!looked_at) munmap(d, sizeof *d);
	put(&smcgw.met, true);
	smcgw.news = n; // the old page stays mapped: another thread may be reading it
	questions = 0;
	welcome = true;
	retry_after = RETRY_AFTER;
}

static void granted(const struct smci_record *r, int fd[3]) {
	uint32_t i = r->tag & 0x1ffff, asked = SMCI_ASKED, why = SMCI_WHY_NO_MEMORY;
	struct end *e = i < MAX_ENDS ? entry(i) : 0;
	uint64_t mask;
	bool held = false;
	if (e && e->tag == r->tag && get(&e->report.why)) why = get(&e->report.why); // the end has given up since it asked
	struct smci_end *own = 0;
	const struct smci_end *peer = 0;
	size_t n = 0;
	if (!e || e->tag != r->tag || state_of(e) != SMCI_ASKED || r->side > 1) goto refuse;
	why = SMCI_WHY_SHARED; // a child made since it asked would find the state of an end whose memory it lacks
	if (!(held = smcgw_hold(e, &mask))) goto refuse;
	why = SMCI_WHY_NO_MEMORY;
	own = map(fd[0], SMCI_RING_AT, PROT_READ | PROT_WRITE);
	if (!own || own->magic != SMCI_MAGIC || own->version != SMCI_VERSION || own->order_max < SMCI_ORDER_MIN || own->order_max > SMCI_ORDER_MAX)
		goto refuse;
	uint32_t order_max = own->order_max;
	munmap(own, SMCI_RING_AT);
	n = SMCI_RING_AT + (1ul << (r->a ? SMCI_ORDER_MIN : order_max)); // the rest is mapped once a stream fills this
	own = map(fd[0], n, PROT_READ | PROT_WRITE);
	peer = map(fd[1], n, PROT_READ);
	if (!own || !peer || peer->magic != SMCI_MAGIC || peer->version != SMCI_VERSION || peer->order_max != order_max || peer->id != own->id) goto refuse;
	if (!e->locks) {
		pthread_mutexattr_t a;
		pthread_mutexattr_init(&a);
		pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
		pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
		pthread_mutexattr_settype(&a, PTHREAD_MUTEX_ERRORCHECK);
		pthread_mutex_init(&e->rl, &a);
		pthread_mutex_init(&e->wl, &a);
		e->locks = true;
	}
	memset((char *)e + offsetof(struct end, own), 0, sizeof *e - offsetof(struct end, own));
	if (r->a) {
		e->desk = desk_get(r->a, fd[2]);
		if (!e->desk) goto refuse;
	}
	e->own = own;
	e->peer = peer;
	e->looked_at = looked_at;
	e->order_max = order_max;
	e->mapped = n;
	e->whole = SMCI_RING_AT + (1ul << e->order_max);
	e->tx_ring = (char *)own + SMCI_RING_AT;
	e->rx_ring = (char *)(uintptr_t)peer + SMCI_RING_AT;
	place_of(e)->memory = (struct memory){.own = own, .peer = (void *)(uintptr_t)peer, .mapped = n, .whole = e->whole, .desk = e->desk};
	put(&e->report.id, r->id);
	put(&own->order, e->usual = SMCI_ORDER_MIN);
	if (!r->a) { // the peer is on another host: the gateway moves the bytes
		if (fd[2] < 0 || !smcgw_remote_grant(e, fd[2])) {
			why = SMCI_WHY_LIMIT;
			smcgw_unmap(e);
			own = 0;
			peer = 0;
			goto refuse;
		}
		fd[2] = -1;
		put(&own->order, e->usual = order_max);
	}
	if (atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_MAPPED)) {
		smcgw_let(mask);
		close_all(fd);
		return;
	}
	smcgw_unmap(e); // closed meanwhile
	own = 0;
	peer = 0;
refuse:
	if (held) smcgw_let(mask);
	if (own) munmap(own, n ? n : SMCI_RING_AT);
	if (peer) munmap((void *)(uintptr_t)peer, n);
	close_all(fd);
	asked = SMCI_ASKED;
	if (e && e->tag == r->tag && atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_NEVER)) put(&e->report.why, why);
	struct smci_record no = {.what = SMCI_CLOSED, .tag = r->tag, .id = r->id, .why = why};
	tell(&no, -1);
}

// smcgw_put_off has an end that asked in vain, or went back, ask again later: after an eighth of a second at first, then after twice as long
// each time, up to five minutes. An end that has been free to ask for two minutes begins anew.
void smcgw_put_off(struct end *e) {
	uint32_t t = ticks();
	uint8_t n = (int32_t)(t - get(&e->ask_at)) > 120000 ? 0 : get(&e->put_off);
	put(&e->put_off, n < 11 ? n + 1 : n);
	put(&e->ask_at, (t + (128u << n)) | 1);
}

static void denied(const struct smci_record *r) {
	if (!r->tag) {
		hang_up();
		return;
	}
	uint32_t i = r->tag & 0x1ffff, asked = SMCI_ASKED;
	struct end *e = i < MAX_ENDS ? entry(i) : 0;
	if (!e || e->tag != r->tag) return;
	if (state_of(e) == SMCI_MAPPED) { // the other end could not be told
		// Its holder may wait for control. The end then stays mapped, and waits for its peer as long as it lives.
		if (!smcgw_try(e, &e->rl)) return;
		if (smcgw_try(e, &e->wl)) {
			asked = SMCI_MAPPED;
			if (atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_NATIVE)) {
				put(&e->report.why, r->why);
				smcgw_put_off(e);
				smcgw_unmap(e);
			}
			smcgw_unlock(e, &e->wl);
		}
		smcgw_unlock(e, &e->rl);
		return;
	}
	put(&e->report.why, r->why);
	bool later = r->why == SMCI_WHY_NO_PEER || r->why == SMCI_WHY_POLICY || r->why == SMCI_WHY_OFF || r->why == SMCI_WHY_LIMIT || r->why == SMCI_WHY_NO_MEMORY;
	smcgw_put_off(e);
	atomic_compare_exchange_strong(&e->report.state, &asked, later ? SMCI_NATIVE : SMCI_NEVER);
}

static uint32_t taken; // value of grants when all records had been taken

// take_one processes one record; false if there is none.
static bool take_one(void) {
	struct smci_record r;
	int fd[3], n = take_record(&r, fd);
	if (n < 0) {
		close_all(fd);
		hang_up();
	}
	if (n <= 0) return false;
	switch (r.what) {
	case SMCI_WELCOME: welcomed(fd); break;
	case SMCI_GRANT: granted(&r, fd); break;
	case SMCI_DENY: close_all(fd); denied(&r); break;
	default: close_all(fd); // from a later version of the protocol
	}
	return true;
}
static void take_all(void) {
	uint32_t told = smcgw.news ? get_acquire(&smcgw.news->grants) : 0;
	bool more = true;
	while (more && smcgw.socket >= 0) {
		bool held = smcgw_numbers();
		more = take_one();
		smcgw_numbers_go(held);
	}
	if (smcgw.socket >= 0) taken = told;
}

static bool connected(void) {
	if (smcgw.disabled) return false;
	if (smcgw.socket < 0) {
		if (now_coarse() < get(&smcgw.retry_at) || smcgw.slab_fd < 0) return false;
		struct sockaddr_un u = {.sun_family = AF_UNIX};
		strcpy(u.sun_path, path);
		bool held = smcgw_numbers();
		long s = SYS(socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (s >= 0) smcgw.socket = smcgw_move_away((int)s);
		smcgw_numbers_go(held);
		if (s < 0) return false;
		struct smci_record r = {.what = SMCI_HELLO, .a = SMCI_VERSION, .b = MAX_ENDS, .id = run};
		if (SYS(connect, smcgw.socket, &u, sizeof u) < 0 || put_record(&r, smcgw.slab_fd) < 0) {
			hang_up();
			return false;
		}
		struct pollfd p = {smcgw.socket, POLLIN, 0};
		struct timespec ts = {0, WELCOME_WITHIN};
		SYS(ppoll, &p, 1, &ts, 0, 8);
	}
	// No call takes answers to ends that were closed meanwhile, and these would block all later ones.
	if (!welcome || get_acquire(&smcgw.news->grants) != taken) take_all();
	return welcome;
}

// inherited tells whether the socket has options that rings cannot serve, set before it was connected or inherited from the listening socket.
static bool inherited(int fd) {
	static const struct {
		int level, name, none;
	} options[] = {
		{SOL_SOCKET, SO_RCVLOWAT, 1}, {SOL_SOCKET, SO_PEEK_OFF, -1}, {SOL_SOCKET, SO_ZEROCOPY, 0}, {SOL_SOCKET, SO_OOBINLINE, 0}, {SOL_SOCKET, SO_TIMESTAMP, 0}, {SOL_SOCKET, SO_TIMESTAMPNS, 0},
		{SOL_SOCKET, SO_TIMESTAMPING, 0}, {SOL_SOCKET, SO_TIMESTAMP_NEW, 0}, {SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0}, {SOL_SOCKET, SO_MAX_PACING_RATE, 0}, {IPPROTO_TCP, TCP_INQ, 0}, {IPPROTO_IP, IP_RECVERR, 0}, {IPPROTO_IPV6, IPV6_RECVERR, 0},
	};
	for (unsigned i = 0; i < sizeof options / sizeof *options; i++) {
		int v = 0;
		socklen_t n = sizeof v;
		if (SYS(getsockopt, fd, options[i].level, options[i].name, &v, &n) >= 0 && v > options[i].none) return true;
	}
	socklen_t filter = 0; // its length; one of eBPF is denied
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, 0, &filter) == -EACCES || filter) return true;
	long fl = SYS(fcntl, fd, F_GETFL);
	return fl >= 0 && (fl & O_ASYNC);
}

void smcgw_ask(struct end *e, int fd) {
	static uint32_t tags;
	uint64_t mask;
	if (!smcgw_remote_again(e)) return;
	smcgw_hold_control(&mask);
	uint32_t native = SMCI_NATIVE;
	uint32_t why = get(&e->report.why);
	if (state_of(e) != SMCI_NATIVE || !smcgw_ours()) goto out; // a vfork() child's sockets are not its parent's
	if (smcgw.news) e->policy_seen = get(&smcgw.news->policy);
	int family = 0, type = 0;
	socklen_t l = sizeof family, m = sizeof type;
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &family, &l) < 0 || SYS(getsockopt, fd, SOL_SOCKET, SO_TYPE, &type, &m) < 0) goto out;
	if ((family != AF_INET && family != AF_INET6) || type != SOCK_STREAM || inherited(fd)) {
		smcgw_never(e, SMCI_WHY_OPTION);
		goto out;
	}
	if (!smcgw_alone(e) || !connected() || switched_off()) {
		smcgw_put_off(e);
		goto out;
	}
	smcgw_describe(e, fd);
	if (!(++tags & 0x7fff)) tags++;
	e->tag = (tags & 0x7fff) << 17 | index_of(e);
	e->grants_seen = get_acquire(&smcgw.news->grants);
	if (!atomic_compare_exchange_strong(&e->report.state, &native, SMCI_ASKED)) goto out;
	atomic_compare_exchange_strong(&e->report.why, &why, SMCI_WHY_NONE); // unless it has given up since
	struct smci_record r = {.what = SMCI_ASK, .tag = e->tag, .side = !e->client, .why = why, .a = get(&e->kr), .b = get(&e->ks)};
	put(&e->question, questions + 1);
	long n = put_record(&r, fd);
	if (n >= 0) {
		questions++;
	} else {
		uint32_t asked = SMCI_ASKED;
		smcgw_put_off(e);
		atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_NATIVE);
		if (n != -EAGAIN) hang_up();
	}
out:
	smcgw_let_control(mask);
}

void smcgw_answers(struct end *e) {
	uint64_t mask;
	if (!smcgw_ours()) return;
	smcgw_hold_control(&mask);
	e->grants_seen = get_acquire(&smcgw.news->grants);
	take_all();
	smcgw_let_control(mask);
}

// smcgw_released waits until the broker has closed its duplicate of the socket it was asked about; until then the last close() here would
// end nothing. A broker that does not run is waited for only once.
void smcgw_released(const struct end *e) {
	static _Atomic uint64_t slow; // questions when it was waited for in vain, shifted left, with bit 0 set
	const struct smci_news *n = smcgw.news;
	int64_t until = now() + RELEASED_WITHIN;
	while (n && smcgw.socket >= 0 && state_of(e) == SMCI_ASKED) {
		uint32_t of = get_acquire(&n->questions);
		uint64_t had = (uint64_t)of << 1 | 1;
		if ((int32_t)(get(&e->question) - of) <= 0 || get(&slow) == had) return;
		if (now() > until) {
			put(&slow, had);
			return;
		}
		struct pollfd p = {smcgw.socket, 0, 0};
		struct timespec ts = {0, 50000};
		if (SYS(ppoll, &p, 1, &ts, 0, 8) > 0) return; // the broker has hung up
	}
}

void smcgw_closed_as(struct end *e, uint32_t tag, uint64_t id) {
	uint64_t mask;
	smcgw_hold_control(&mask);
	struct smci_record r = {.what = SMCI_CLOSED, .tag = tag, .id = id, .why = get(&e->report.why), .a = get(&e->report.rx_ring), .b = get(&e->report.tx_ring)};
	tell(&r, -1);
	smcgw_let_control(mask);
}
void smcgw_closed(struct end *e) { smcgw_closed_as(e, e->tag, get(&e->report.id)); }

// smcgw_rings sends the socket of an end between hosts that is being attached. Both locks are held, so the number refers to its socket.
void smcgw_rings(const struct end *e, int fd) {
	uint64_t mask;
	smcgw_hold_control(&mask);
	struct smci_record r = {.what = SMCI_SOCKET, .tag = e->tag, .id = get(&e->report.id)};
	questions++;
	tell(&r, fd);
	smcgw_let_control(mask);
}

void smcgw_answered(void) {
	uint64_t mask;
	smcgw_hold_control(&mask);
	smcgw_let_control(mask);
}

// smcgw_leave makes an end that is not attached yet native for good. Both locks are held.
void smcgw_leave(struct end *e, uint32_t why) {
	put(&e->report.why, why);
	put(&e->passed, true); // so that close() takes the locks, also in a process that still has its memory
	if (e->remote) smcgw_remote_never(e);
	else put_release(&e->own->flags, SMCI_GONE);
	put_release(&e->report.state, SMCI_NEVER);
	smcgw_closed(e);
	smcgw_unmap(e);
}

void smcgw_heed(void) {
	uint64_t mask;
	if (!smcgw_ours()) return;
	no_signals(&mask);
	if (pthread_mutex_trylock(&smcgw.control) == 0) {
		char c;
		if (smcgw.socket < 0) connected(); // the next broker learns of this process's ends from the slab
		else if (SYS(recvfrom, smcgw.socket, &c, 1, MSG_PEEK | MSG_DONTWAIT) == 0) hang_up();
		pthread_mutex_unlock(&smcgw.control);
	}
	signals(mask);
}

// The child speaks for itself. Answers to the parent's questions go to the parent.
void smcgw_control_forked(bool own) {
	smcgw.control = numbers = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	put(&has_numbers, 0);
	if (!own) return;
	if (smcgw.socket >= 0) SYS(close, smcgw.socket);
	smcgw.socket = -1;
	welcome = false;
	put(&smcgw.retry_at, 0);
	smcgw.news = 0;
}

void smcgw_describe(struct end *e, int fd) {
	struct sockaddr_storage s[2];
	struct smci_report *r = &e->report;
	uint64_t cookie = 0;
	socklen_t l = sizeof cookie;
	SYS(getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &l);
	r->cookie = cookie;
	r->side = !e->client;
	for (int i = 0; i < 2; i++) {
		socklen_t n = sizeof s[i];
		uint8_t *to = i ? r->remote : r->local;
		uint16_t *port = i ? &r->remote_port : &r->local_port;
		if ((i ? SYS(getpeername, fd, &s[i], &n) : SYS(getsockname, fd, &s[i], &n)) < 0) return;
		if (s[i].ss_family == AF_INET) {
			struct sockaddr_in *a = (struct sockaddr_in *)&s[i];
			r->family = AF_INET;
			*port = ntohs(a->sin_port);
			memcpy(to, &a->sin_addr, 4);
		} else {
			struct sockaddr_in6 *a = (struct sockaddr_in6 *)&s[i];
			bool v4 = IN6_IS_ADDR_V4MAPPED(&a->sin6_addr);
			r->family = v4 ? AF_INET : AF_INET6;
			*port = ntohs(a->sin6_port);
			if (v4) memcpy(to, a->sin6_addr.s6_addr + 12, 4);
			else memcpy(to, &a->sin6_addr, 16);
		}
	}
}
