// crowd SEED ROUNDS [SECONDS]: programs of many connections that close descriptors, and reuse their numbers, all the time.
//
// A round has two processes, or one that connects to itself. Each process has up to 40 connections at once, opened by either side, and
// threads that serve them by epoll sets, poll(), select() and blocking calls. Messages go to and fro with sizes that both sides know: what a
// side may send next follows from what it has received. Meanwhile threads do to any connection of their process what programs do: duplicate
// it, renumber it, move it to another set or thread, pause it, fork with some of them (act() has them all). Most connections end in order:
// then each side must have received all that was sent, and the end. Some end by a reset, and what has been received is a prefix of what was
// sent. Each byte depends on its connection, direction and position. At the end of a round nothing more happens, so a thread that was not
// woken stays asleep, and the stall is found.
//
// The plan of a round follows from its seed, which is SEED + its number; what meets what depends on the machine's timing.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "groups.h"
#include "rounds.h"

#define PERIOD 1048573 // a prime
#define LARGEST 100000
#define SLOTS 64       // connections at once
#define MESSAGES 40
#define WAITERS 5
#define NUMBERS 1024   // descriptors: select() takes no more
#define STALL 20.0     // seconds without a byte
#define BUSY 5         // factor to STALL while a thread runs

extern char **environ;

// What both sides of a connection, and any process that has it, know about it.
enum how { CLIENT_FIRST, SERVER_FIRST, HALVES, CLOSES, RESET }; // what ends it. CLOSES: the client closes without waiting for the other's end
struct half {
	_Atomic uint64_t sent, got;
	_Atomic bool eof, shut, closed, reset;
	_Atomic int pid, fd, spare, home; // for reports only
	_Atomic uint32_t events;
	_Atomic bool paused, blocks;
	char kind, acts[24];
	int n;
};
struct flow {
	_Atomic uint32_t id; // 0: free. Also in the address that the client binds
	_Atomic int64_t at;  // time of its last byte, in microseconds
	_Atomic int closed;
	int client, depth, n, resetter, reset_at;
	bool burst;
	enum how how;
	uint32_t sum[2][MESSAGES + 1]; // running sums of the message sizes: the client's, the server's
	struct half half[2];
};
struct plan {
	bool one, inline_; // inline_: one thread does everything
	int most[2], sets[2], threads[2], pollers[2], blockers[2];
	double seconds;
	int forks;  // of 256 acts
	int untidy; // the side whose children keep what they inherit; if both kept it, they might wait for each other
	char text[256];
};
static struct shared {
	struct flow flow[SLOTS];
	_Atomic uint32_t serial;
	_Atomic bool fails, failed, quit, no_more[2]; // failed: and has said why
	_Atomic uint64_t connections, bytes, resets, acts, forks, reused;
	double until;
} *shared;
static struct plan plan;
static unsigned char stream[PERIOD + LARGEST];
static int file, quit_pipe[2], listener[2];
static uint16_t port[2];
static uint64_t seed;

static void fail(const struct flow *f, const char *format, ...) {
	int err = errno;
	va_list a;
	while (atomic_exchange(&shared->fails, true)) pause(); // until the one that says why ends the round
	char b[300];
	va_start(a, format);
	vsnprintf(b, sizeof b, format, a);
	va_end(a);
	printf("FAIL %s (%s), connection %u, pid %d\nin %s\n", b, strerror(err), f ? f->id : 0, getpid(), plan.text);
	fflush(stdout);
	shared->failed = true;
	if (getenv("CROWD_STOP")) pause();
	_exit(1);
}

// ---- descriptors. A thread that opens or closes one holds this lock, so that it can choose the number.

static pthread_mutex_t numbers = PTHREAD_MUTEX_INITIALIZER;
static bool used[NUMBERS];
static int was[8]; // closed lately
static unsigned was_at;
static uint64_t closings;
static uint32_t forks; // how often another process has inherited what is open

static int opened(int fd) {
	if (fd < 0 || fd >= NUMBERS) fail(0, "descriptor %d", fd);
	for (int i = 0; i < 8; i++) shared->reused += was[i] == fd;
	used[fd] = true;
	return fd;
}
static void close_number(int fd) {
	used[fd] = false;
	was[was_at++ & 7] = fd;
	if (close(fd) < 0) fail(0, "close of %d", fd);
	closings++;
}

// ---- waiters

struct eset {
	int ep[2], bell; // two descriptors of the set, or one and -1
	int users;
	bool old;
};
struct waiter {
	char kind; // e epoll; n nested: poll() waits for the set; p poll; s select
	struct eset *set;
	int bell; // for poll and select
};
static struct waiter waiters[WAITERS];
static int n_waiters, n_sets; // the waiters with sets come first

struct conn {
	pthread_mutex_t mu;
	uint32_t id;  // 0: not in this process
	int side, fd, spare, registered; // registered: the descriptor that the set has, or -1
	struct flow *f;
	struct half *h, *other;
	int home;
	struct eset *in;
	char kind;       // of events: l level, e edge, o one-shot
	uint32_t events;
	bool paused, blocks, polled, piped;
	double until;    // when the pause ends
	int acts;        // acts that are still allowed
	uint32_t forks;
};
static struct conn ends[2][SLOTS];
static struct closed {
	uint32_t id;
	uint64_t at;
} closed[2][SLOTS][4]; // connections that no event may name any more
static struct noise { // not connections, but in sets, and connections soon reuse their numbers
	int fd;
	uint32_t serial;
	uint64_t closed_at;
	uint32_t forks, closed_serial;
} noises[4];
static _Atomic int idle_blockers;
static struct conn *given_to_blocker[SLOTS];
static int n_given;
static pthread_mutex_t giving = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t given = PTHREAD_COND_INITIALIZER;
static pid_t children[4096];
static int n_children;
static bool is_child;
static __thread uint64_t rng;
static __thread uint64_t waits_since; // closings before this thread's wait

static uint64_t pick(uint64_t n) { return (draw(&rng) >> 16) % n; }
static int64_t us(void) { return (int64_t)(now() * 1e6); }

enum { END = 1, BELL, QUIT, NOISE, LISTENER };
static uint64_t data_of(int tag, int side, int slot, uint32_t id) { return (uint64_t)tag << 56 | (uint64_t)side << 48 | (uint64_t)slot << 40 | id; }

static void put_in(int ep, int fd, uint32_t events, uint64_t data) {
	struct epoll_event v = {events, {.u64 = data}};
	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &v) < 0 && (errno != EEXIST || epoll_ctl(ep, EPOLL_CTL_MOD, fd, &v) < 0)) fail(0, "epoll_ctl of %d", fd);
}
static struct eset *new_set(void) { // the caller holds numbers
	struct eset *s = calloc(1, sizeof *s);
	s->ep[0] = opened(epoll_create1(EPOLL_CLOEXEC));
	s->ep[1] = -1;
	s->bell = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	put_in(s->ep[0], s->bell, EPOLLIN, data_of(BELL, 0, 0, 0));
	put_in(s->ep[0], quit_pipe[0], EPOLLIN, data_of(QUIT, 0, 0, 0));
	if (!is_child)
		for (int i = 0; i < 2; i++)
			if (listener[i] >= 0) put_in(s->ep[0], listener[i], EPOLLIN, data_of(LISTENER, i, 0, 0));
	return s;
}
static void ring(int w) {
	uint64_t one = 1;
	int fd = waiters[w].set ? waiters[w].set->bell : waiters[w].bell;
	if (fd >= 0 && write(fd, &one, sizeof one) < 0 && errno != EAGAIN) fail(0, "a bell");
}

// ---- what a connection has to do

static uint64_t start_of(const struct flow *f, int side) { return ((uint64_t)f->id * 2 + (unsigned)side) * 0x9e3779b97f4a7c15ull >> 20; }
static const unsigned char *at(const struct flow *f, int side, uint64_t n) { return stream + (start_of(f, side) + n) % PERIOD; }
static bool is_client(const struct conn *e) { return e->side == e->f->client; }
static int complete(const uint32_t *sum, int n, uint64_t bytes) {
	int k = 0;
	while (k < n && sum[k + 1] <= bytes) k++;
	return k;
}
static uint64_t limit(const struct conn *e) {
	const struct flow *f = e->f;
	int k = complete(f->sum[is_client(e)], f->n, e->h->got);
	if (is_client(e)) k = k + f->depth < f->n ? k + f->depth : f->n;
	return f->sum[!is_client(e)][k];
}
static uint64_t mine(const struct conn *e) { return e->f->sum[!is_client(e)][e->f->n]; }
static uint64_t theirs(const struct conn *e) { return e->f->sum[is_client(e)][e->f->n]; }

static void draw_flow(struct flow *f, int side) {
	int kind = (int)pick(8);
	f->client = side;
	f->burst = kind == 7;
	f->n = 1 + (int)pick(f->burst ? 6 : MESSAGES);
	f->depth = pick(2) ? 1 : 1 + (int)pick(8);
	f->how = (enum how)pick(5);
	if (f->how == RESET && pick(2)) f->how = HALVES;
	f->resetter = (int)pick(2);
	f->reset_at = (int)pick((uint64_t)f->n);
	if (kind >= 5 && !f->burst) f->depth = 1;
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < f->n; k++) f->sum[i][k + 1] = f->sum[i][k] + 1 + (uint32_t)pick(f->burst ? LARGEST : kind >= 5 ? 20000 : kind >= 3 ? 1500 : 64);
}

// ---- bytes

static void check(struct conn *e, const unsigned char *b, size_t n, const char *what) {
	const unsigned char *want = at(e->f, !e->side, e->h->got);
	if (!memcmp(b, want, n)) return;
	size_t i = 0;
	while (b[i] == want[i]) i++;
	fail(e->f, "wrong byte by %s: %02x, not %02x, %zu of %zu, at %lu of side %d, descriptor %d", what, b[i], want[i], i, n, e->h->got, e->side, e->fd);
}
static void moved(struct conn *e) { e->f->at = us(); }
static int number_of(struct conn *e) { return e->spare >= 0 && pick(2) ? e->spare : e->fd; }
static bool reset_by(struct conn *e, const char *what) {
	if (errno != ECONNRESET && errno != EPIPE) return false;
	if (e->f->how != RESET || e->side == e->f->resetter) fail(e->f, "a reset, by a %s, of a connection that ends in order, side %d, descriptor %d, sent %lu got %lu", what, e->side, e->fd, e->h->sent, e->h->got);
	return e->h->reset = true;
}
// by_pipe reads by splice(), or by read() where splice() is refused.
static ssize_t by_pipe(struct conn *e, unsigned char *b, size_t n) {
	int p[2];
	pthread_mutex_lock(&numbers);
	if (pipe2(p, O_CLOEXEC) < 0) fail(e->f, "pipe");
	opened(p[0]), opened(p[1]);
	pthread_mutex_unlock(&numbers);
	ssize_t k = splice(number_of(e), 0, p[1], 0, n < 16384 ? n : 16384, SPLICE_F_NONBLOCK);
	int err = errno;
	if (k > 0 && read(p[0], b, (size_t)k) != k) fail(e->f, "a pipe");
	pthread_mutex_lock(&numbers);
	close_number(p[0]);
	close_number(p[1]);
	pthread_mutex_unlock(&numbers);
	errno = err;
	return k < 0 && err == EINVAL ? read(number_of(e), b, n) : k;
}
// take reads at most n bytes. It returns 1 for bytes, 0 for the end or a reset, and -1 for nothing.
static int take(struct conn *e, size_t n, int flags) {
	static __thread unsigned char b[65536];
	struct iovec v[2] = {{b, n / 2}, {b + n / 2, n - n / 2}};
	struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
	int fd = number_of(e), q;
	ssize_t k;
	if (!pick(24)) {
		k = recv(fd, b, n, MSG_PEEK | MSG_DONTWAIT);
		if (k > 0) check(e, b, (size_t)k, "a peek");
		if (k < 0 && errno != EAGAIN && !reset_by(e, "peek")) fail(e->f, "peek");
		if (k < 0 && errno != EAGAIN) return 0;
		if (k > 0 && (ioctl(fd, FIONREAD, &q) < 0 || q < k)) fail(e->f, "FIONREAD says %d after a peek at %zd", q, k);
	}
	if (e->piped) k = by_pipe(e, b, n);
	else switch (pick(8)) {
	case 0: k = readv(fd, v, 2); break;
	case 1: k = recvmsg(fd, &m, flags); break;
	case 2: case 3: case 4: k = recv(fd, b, n, flags); break;
	default: k = flags ? recv(fd, b, n, flags) : read(fd, b, n);
	}
	if (k > 0) {
		check(e, b, (size_t)k, "a read");
		e->h->got += (uint64_t)k;
		moved(e);
		return 1;
	}
	if (k < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
	if (k < 0 && reset_by(e, "read")) return 0;
	if (k < 0) fail(e->f, "read of side %d, descriptor %d", e->side, fd);
	if (e->h->got != (e->f->how == RESET ? e->h->got + 1 : theirs(e)) && !e->h->reset)
		fail(e->f, "an end before the end, of side %d at %lu of %lu, descriptor %d", e->side, e->h->got, theirs(e), fd);
	e->h->eof = true;
	moved(e);
	return 0;
}
// give sends what the flow allows. It returns as take does.
static int give(struct conn *e) {
	uint64_t n = limit(e) - e->h->sent;
	if (!pick(4) && n > 1) n = 1 + pick(n);
	if (n > LARGEST) n = LARGEST;
	const unsigned char *p = at(e->f, e->side, e->h->sent);
	off_t from = p - stream;
	struct iovec v[2] = {{(void *)(uintptr_t)p, n / 2}, {(void *)(uintptr_t)(p + n / 2), n - n / 2}};
	int fd = number_of(e);
	ssize_t k;
	switch (pick(16)) {
	case 0: k = sendfile(fd, file, &from, n); break;
	case 1: case 2: k = writev(fd, v, 2); break;
	case 3: case 4: k = write(fd, p, n); break;
	default: k = send(fd, p, n, MSG_NOSIGNAL);
	}
	if (k > 0) {
		e->h->sent += (uint64_t)k;
		moved(e);
		return 1;
	}
	if (k < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
	if (k < 0 && reset_by(e, "write")) return 0;
	fail(e->f, "write of side %d, descriptor %d: %zd", e->side, fd, k);
	return 0;
}

// ---- in sets

static void note(struct conn *e) {
	struct half *h = e->h;
	h->pid = getpid();
	h->fd = e->fd;
	h->spare = e->spare;
	h->home = e->home;
	h->events = e->events;
	h->paused = e->paused;
	h->blocks = e->blocks;
	h->kind = e->blocks ? 'b' : waiters[e->home].set ? e->kind : waiters[e->home].kind;
}
static uint32_t wants(const struct conn *e) {
	uint32_t v = (e->h->eof || e->paused ? 0 : EPOLLIN) | (limit(e) > e->h->sent ? EPOLLOUT : 0);
	if (!e->in) return v;
	if (e->kind == 'e') v |= EPOLLET | EPOLLOUT;
	if (e->kind == 'o') v |= EPOLLONESHOT;
	return v;
}
static uint64_t end_data(const struct conn *e) { return data_of(END, e->side, (int)(e->f - shared->flow), e->id); }
static int a_number(const struct eset *s) { return s->ep[1] >= 0 && pick(2) ? s->ep[1] : s->ep[0]; }
// ctl is called with e's lock held. The set's descriptors cannot change meanwhile.
static void ctl(struct conn *e, int op) {
	struct epoll_event v = {wants(e), {.u64 = end_data(e)}};
	pthread_mutex_lock(&numbers);
	if (op == EPOLL_CTL_ADD) e->registered = number_of(e);
	if (epoll_ctl(a_number(e->in), op, e->registered, &v) < 0 && (op != EPOLL_CTL_ADD || errno != EEXIST || epoll_ctl(e->in->ep[0], EPOLL_CTL_MOD, e->registered, &v) < 0))
		fail(e->f, "epoll_ctl %d of %d in %d", op, e->registered, e->in->ep[0]);
	pthread_mutex_unlock(&numbers);
	e->events = v.events;
}
static void enter(struct conn *e, int home) {
	e->home = home;
	pthread_mutex_lock(&numbers);
	e->in = waiters[home].set;
	pthread_mutex_unlock(&numbers);
	if (e->in) {
		ctl(e, EPOLL_CTL_ADD);
	} else {
		e->polled = true;
		ring(home);
	}
	note(e);
}
static void leave(struct conn *e) {
	if (e->in) ctl(e, EPOLL_CTL_DEL);
	else ring(e->home);
	e->in = 0;
	e->registered = -1;
}
static void update(struct conn *e) {
	if (e->blocks) return;
	if (!e->in) {
		if (e->events != wants(e)) ring(e->home); // it may be another thread's
	} else if (e->kind == 'o' || e->events != wants(e)) {
		ctl(e, EPOLL_CTL_MOD);
	}
	note(e);
}

// ended is called once the last descriptor of an end is closed.
static void ended(struct conn *e) {
	struct flow *f = e->f;
	e->h->closed = true;
	e->id = 0;
	moved(e);
	if (atomic_fetch_add(&f->closed, 1) != 1) return;
	if (f->how != RESET)
		for (int i = 0; i < 2; i++)
			if (f->half[i].got != f->half[!i].sent || f->half[i].got != f->sum[i == f->client][f->n]) fail(f, "bytes are missing, side %d: %lu of %lu", i, f->half[i].got, f->half[!i].sent);
	shared->connections++;
	shared->resets += f->how == RESET;
	shared->bytes += f->half[0].got + f->half[1].got;
	f->id = 0;
}
// finish closes an end, in order or by a reset. Another connection may get its number at that moment.
static void finish(struct conn *e) {
	struct conn *o = &ends[pick(2)][pick(SLOTS)];
	int slot = (int)(e->f - shared->flow), with = -1;
	if (pick(3) == 0 && e->in && !e->blocks) leave(e);
	else if (!e->in && !e->blocks) ring(e->home);
	if (e->spare >= 0 && pick(2)) {
		int fd = e->fd;
		e->fd = e->spare;
		e->spare = fd;
	}
	if (!pick(4) && o != e && pthread_mutex_trylock(&o->mu) == 0) {
		if (o->id && !o->blocks) with = o->fd;
		else pthread_mutex_unlock(&o->mu);
	}
	if (with >= 0 && o->in) leave(o);
	pthread_mutex_lock(&numbers);
	if (e->spare >= 0) close_number(e->spare);
	if (with >= 0) {
		if (dup2(o->fd, e->fd) != e->fd) fail(o->f, "dup2 to %d", e->fd);
		closings++;
		close_number(o->fd);
		o->fd = e->fd;
	} else {
		close_number(e->fd);
	}
	struct closed *c = &closed[e->side][slot][e->id / SLOTS % 4];
	c->id = e->polled || e->forks != forks || is_child ? 0 : e->id;
	c->at = closings;
	pthread_mutex_unlock(&numbers);
	if (with >= 0) {
		if (waiters[o->home].set) enter(o, o->home);
		else ring(o->home);
		pthread_mutex_unlock(&o->mu);
	}
	ended(e);
}

// advance sends what the end may send, then shuts down or closes an end that is due.
static void advance(struct conn *e) {
	struct flow *f = e->f;
	struct half *h = e->h;
	while (!h->reset && !h->shut && h->sent < limit(e))
		if (give(e) <= 0) break;
	if (f->how == RESET && e->side == f->resetter && h->sent + h->got && h->sent >= f->sum[!is_client(e)][f->reset_at]) {
		if (setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)) < 0) fail(f, "SO_LINGER");
		finish(e);
		return;
	}
	bool sent = h->sent == mine(e), got = h->got == theirs(e);
	if (h->reset || (f->how == CLOSES && (is_client(e) ? sent && got : h->eof))) {
		finish(e);
		return;
	}
	if (f->how == RESET || h->shut || !sent) return;
	if (f->how == CLOSES || (f->how == CLIENT_FIRST && !(is_client(e) ? got : h->eof)) || (f->how == SERVER_FIRST && is_client(e) && !h->eof)) return;
	if (shutdown(number_of(e), SHUT_WR) < 0) fail(f, "shutdown");
	h->shut = true;
}
static bool over(struct conn *e) { return e->h->shut && e->h->eof; }

// serve handles an event.
static void serve(struct conn *e, bool in) {
	const bool edge = e->in && e->kind == 'e';
	while (in && !e->h->eof && !e->h->reset) {
		int k = take(e, pick(3) ? 1 + pick(65536) : 1 + pick(100), 0);
		if (k <= 0) break;
		if (!edge && pick(2)) break;
	}
	advance(e);
	if (!e->id) return;
	if (over(e)) finish(e);
	else update(e);
}

// ---- opening

static struct conn *begin(struct flow *f, int side, int fd) { // the caller holds e's lock
	struct conn *e = &ends[side][f - shared->flow];
	e->id = f->id;
	e->f = f;
	e->side = side;
	e->h = &f->half[side];
	e->other = &f->half[!side];
	e->fd = fd;
	e->spare = e->registered = -1;
	e->in = 0;
	e->kind = "leo"[pick(3)];
	e->paused = e->blocks = e->polled = e->piped = false;
	e->acts = pick(3) ? 1 << pick(5) : 0;
	e->home = (int)pick((uint64_t)n_waiters);
	return e;
}
static bool to_blocker(struct conn *e) {
	if (e->f->burst || atomic_fetch_sub(&idle_blockers, 1) <= 0) {
		if (!e->f->burst) idle_blockers++;
		return false;
	}
	fcntl(e->fd, F_SETFL, fcntl(e->fd, F_GETFL) & ~O_NONBLOCK);
	e->blocks = true;
	note(e);
	pthread_mutex_lock(&giving);
	given_to_blocker[n_given++] = e;
	pthread_cond_signal(&given);
	pthread_mutex_unlock(&giving);
	return true;
}
static int own_flags(void) { return pick(8) ? SOCK_CLOEXEC : 0; } // as in most programs, few descriptors survive exec
static void open_one(int side) {
	struct flow *f = 0;
	int from = (int)pick(SLOTS), to = plan.one ? side : !side;
	uint32_t id = 0;
	for (int i = 0; i < SLOTS && !f; i++) {
		int slot = (from + i) % SLOTS;
		uint32_t none = 0;
		id = (++shared->serial & 0x3ffff) * SLOTS + (unsigned)slot;
		if (shared->flow[slot].id) continue;
		shared->flow[slot].at = us();
		if (atomic_compare_exchange_strong(&shared->flow[slot].id, &none, id)) f = &shared->flow[slot];
	}
	if (!f) return;
	memset(&f->closed, 0, sizeof *f - offsetof(struct flow, closed));
	draw_flow(f, side);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(127u << 24 | id)}}, b = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = port[to]};
	bool nonblock = pick(2), first = nonblock && pick(2);
	struct conn *e = &ends[side][f - shared->flow];
	pthread_mutex_lock(&e->mu);
	pthread_mutex_lock(&numbers);
	int fd = opened(socket(AF_INET, SOCK_STREAM | own_flags() | (nonblock ? SOCK_NONBLOCK : 0), 0));
	uint32_t had = forks;
	pthread_mutex_unlock(&numbers);
	if (bind(fd, (struct sockaddr *)&a, sizeof a) < 0) fail(f, "bind");
	begin(f, side, fd);
	e->forks = had;
	if (first) enter(e, e->home);
	if (connect(fd, (struct sockaddr *)&b, sizeof b) < 0 && (errno != EINPROGRESS || !nonblock)) fail(f, "connect");
	if (!nonblock) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	if (!first && (pick(3) || !to_blocker(e))) enter(e, e->home);
	note(e);
	pthread_mutex_unlock(&e->mu);
}
static void accept_some(int l) {
	do {
		struct sockaddr_in a;
		socklen_t n = sizeof a;
		pthread_mutex_lock(&numbers);
		int fd = accept4(listener[l], (struct sockaddr *)&a, &n, SOCK_NONBLOCK | own_flags());
		if (fd >= 0) opened(fd);
		uint32_t had = forks;
		pthread_mutex_unlock(&numbers);
		if (fd < 0 && errno == EAGAIN) return;
		if (fd < 0) fail(0, "accept");
		uint32_t id = ntohl(a.sin_addr.s_addr) & 0xffffff;
		struct flow *f = &shared->flow[id % SLOTS];
		if (f->id != id) fail(0, "accept of connection %u", id);
		struct conn *e = &ends[!f->client][f - shared->flow];
		pthread_mutex_lock(&e->mu);
		begin(f, !f->client, fd);
		e->forks = had;
		if (pick(3) || !to_blocker(e)) enter(e, e->home);
		pthread_mutex_unlock(&e->mu);
	} while (pick(4));
}

// ---- acts

static void renumber(struct conn *e, int fd, bool leaves) { // the caller holds numbers; fd is a duplicate
	if (leaves && e->in) {
		pthread_mutex_unlock(&numbers);
		leave(e);
		pthread_mutex_lock(&numbers);
	}
	close_number(e->fd);
	e->fd = fd;
	pthread_mutex_unlock(&numbers);
	e->registered = -1;
	enter(e, e->home);
}
static int duplicate(const struct conn *e) { // the caller holds numbers
	int to = was[pick(8)];
	switch (pick(3)) {
	case 0: return opened(dup(e->fd));
	case 1: return opened(fcntl(e->fd, F_DUPFD_CLOEXEC, (int)pick(200)));
	default:
		if (to < 3 || used[to]) return opened(dup(e->fd));
		return opened(dup3(e->fd, to, O_CLOEXEC));
	}
}
static void *program(void *);
static void forked_child(struct conn **mine_, int n);
// fork_some forks a child that takes over some connections. The caller holds mu of each.
static void fork_some(struct conn **e, int n) {
	pthread_mutex_lock(&numbers);
	forks++;
	pid_t p = fork();
	if (p == 0) forked_child(e, n);
	if (p < 0 || n_children == (int)(sizeof children / sizeof *children)) fail(0, "fork");
	children[n_children++] = p;
	pthread_mutex_unlock(&numbers);
	shared->forks++;
	for (int i = 0; i < n; i++) {
		if (e[i]->in && (e[i]->kind != 'e' || pick(2))) leave(e[i]); // a stray edge does no harm
		else if (!e[i]->in) ring(e[i]->home);
		pthread_mutex_lock(&numbers);
		close_number(e[i]->fd);
		if (e[i]->spare >= 0) close_number(e[i]->spare);
		pthread_mutex_unlock(&numbers);
		e[i]->id = 0;
		pthread_mutex_unlock(&e[i]->mu);
	}
}
static void another_program(void) {
	char *argv[] = {"true", 0};
	pid_t p;
	int status;
	pthread_mutex_lock(&numbers);
	forks++;
	if (pick(2)) {
		if (posix_spawn(&p, "/bin/true", 0, 0, argv, environ)) fail(0, "spawn");
	} else if ((p = fork()) == 0) {
		execv("/bin/true", argv);
		_exit(127);
	}
	pthread_mutex_unlock(&numbers);
	while (waitpid(p, &status, 0) < 0)
		if (errno != EINTR) fail(0, "wait");
	if (status) fail(0, "the status of a program: %x", status);
}
// put_set closes a replaced set, with ends still in it, once its last waiter has left. The set's bell tells the waiters.
static void put_set(struct eset *s) { // the caller holds numbers
	if (s->users || !s->old) return;
	close_number(s->bell);
	for (int i = 0; i < 2; i++)
		if (s->ep[i] >= 0) close_number(s->ep[i]);
	free(s);
}
static void another_set(int w) {
	static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
	if (pthread_mutex_trylock(&one)) return;
	pthread_mutex_lock(&numbers);
	struct eset *s = new_set(), *old = waiters[w].set;
	old->users++;
	waiters[w].set = s;
	pthread_mutex_unlock(&numbers);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < SLOTS; k++) {
			struct conn *e = &ends[i][k];
			pthread_mutex_lock(&e->mu);
			if (e->id && e->in == old) {
				if (!pick(4)) ctl(e, EPOLL_CTL_DEL);
				e->in = s;
				ctl(e, EPOLL_CTL_ADD);
			}
			pthread_mutex_unlock(&e->mu);
		}
	pthread_mutex_lock(&numbers);
	old->old = true;
	old->users--;
	uint64_t n = 1;
	if (write(old->bell, &n, sizeof n) < 0 && errno != EAGAIN) fail(0, "a bell");
	put_set(old);
	pthread_mutex_unlock(&numbers);
	pthread_mutex_unlock(&one);
}
static void duplicate_set(int w) {
	pthread_mutex_lock(&numbers);
	struct eset *s = waiters[w].set;
	if (s->ep[1] < 0) {
		s->ep[1] = opened(dup(s->ep[0]));
	} else if (!s->users) { // no thread is about to wait by either
		int i = (int)pick(2);
		close_number(s->ep[i]);
		s->ep[0] = s->ep[!i];
		s->ep[1] = -1;
	}
	pthread_mutex_unlock(&numbers);
}
static void noise(void) {
	uint64_t one = 1;
	pthread_mutex_lock(&numbers);
	struct noise *n = &noises[pick(4)];
	struct eset *s = waiters[pick((uint64_t)n_sets)].set;
	if (!n->fd) {
		n->fd = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
		n->serial++;
		n->forks = forks;
		put_in(a_number(s), n->fd, EPOLLIN | (uint32_t[]){0, EPOLLET, EPOLLONESHOT}[pick(3)], data_of(NOISE, 0, (int)(n - noises), n->serial));
	} else if (pick(2)) {
		if (write(n->fd, &one, sizeof one) < 0) fail(0, "noise");
	} else {
		close_number(n->fd);
		n->fd = 0;
		n->closed_serial = n->forks == forks ? n->serial : 0;
		n->closed_at = closings;
	}
	pthread_mutex_unlock(&numbers);
}
static void heard(int i, uint32_t serial) {
	uint64_t n;
	pthread_mutex_lock(&numbers);
	struct noise *x = &noises[i];
	if (x->fd && x->serial == serial) {
		if (read(x->fd, &n, sizeof n) < 0 && errno != EAGAIN) fail(0, "noise");
	} else if (x->closed_serial == serial && x->closed_at <= waits_since) {
		fail(0, "an event of what was closed before the wait");
	}
	pthread_mutex_unlock(&numbers);
}

static void act(void) {
	static const char all[] = "ddgxxmmmaapppkkkwnnnnnSDufvoh";
	char what = all[pick(sizeof all - 1)];
	struct conn *e = &ends[pick(2)][pick(SLOTS)], *some[3];
	int w = (int)pick((uint64_t)n_waiters), n = 1, fd;
	if (strchr("uf", what) && (is_child || (int)pick(256) >= plan.forks)) return;
	if (strchr("nSD", what)) {
		if (!n_sets) return;
		w = (int)pick((uint64_t)n_sets);
		if (what == 'n') noise();
		else if (what == 'S') another_set(w);
		else duplicate_set(w);
		return;
	}
	if (what == 'u') {
		another_program();
		return;
	}
	for (int i = 0; i < 2 * SLOTS && !e->id; i++) e = &ends[pick(2)][pick(SLOTS)];
	if (pthread_mutex_trylock(&e->mu)) return;
	if (!e->id || e->blocks || !e->acts) goto out;
	e->acts--;
	shared->acts++;
	e->h->acts[e->h->n++ % 23] = what;
	switch (what) {
	case 'd': // renumber
	case 'g': // as d, but leave the old registration: its events are of the same connection
		pthread_mutex_lock(&numbers);
		renumber(e, duplicate(e), what == 'd' || !e->in || e->kind != 'e' || e->registered != e->fd);
		break;
	case 'x': // add a second descriptor, or close it
		pthread_mutex_lock(&numbers);
		fd = e->spare;
		if (fd < 0) e->spare = duplicate(e);
		else if (e->registered != fd) close_number(fd), e->spare = -1;
		pthread_mutex_unlock(&numbers);
		break;
	case 'm': // move to another thread
		if (pick(2) || !e->in || w == e->home || !waiters[w].set) {
			leave(e);
		} else { // in two sets for a moment
			struct eset *s = e->in;
			int number = e->registered;
			enter(e, w);
			pthread_mutex_lock(&numbers);
			if (e->in != s && epoll_ctl(s->ep[0], EPOLL_CTL_DEL, number, 0) < 0) fail(e->f, "DEL of %d", number);
			pthread_mutex_unlock(&numbers);
			break;
		}
		enter(e, w);
		break;
	case 'h':
		leave(e);
		if (!to_blocker(e)) enter(e, w);
		break;
	case 'a':
		if (!e->in) break;
		leave(e);
		enter(e, e->home);
		break;
	case 'k':
		e->kind = "leo"[pick(3)];
		update(e);
		break;
	case 'p':
		e->paused = true;
		e->until = now() + (double)pick(20000) / 1e6;
		if (e->in) update(e);
		else ring(e->home);
		break;
	case 'w': e->piped = !e->piped; break;
	case 'o': // what a blocking reader sets, too; here it changes nothing
		if (setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n) < 0) fail(e->f, "SO_RCVLOWAT");
		setsockopt(e->fd, IPPROTO_TCP, TCP_NODELAY, &n, sizeof n);
		break;
	case 'v': // see how much is there
		if (ioctl(e->fd, FIONREAD, &n) < 0 || n < 0) fail(e->f, "FIONREAD");
		break;
	case 'f':
		some[0] = e;
		for (int i = 0; i < 2 && pick(2); i++) {
			struct conn *o = &ends[pick(2)][pick(SLOTS)];
			if (o == e || (n > 1 && o == some[1]) || !o->id || pthread_mutex_trylock(&o->mu)) continue;
			if (o->id && !o->blocks) some[n++] = o;
			else pthread_mutex_unlock(&o->mu);
		}
		fork_some(some, n);
		return;
	}
	if (e->id) note(e);
out:
	pthread_mutex_unlock(&e->mu);
}

// resume resumes connections whose pause is over. It returns when the next pause ends, or 0.
static double resume(void) {
	double next = 0;
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < SLOTS; k++) {
			struct conn *e = &ends[i][k];
			if (!e->id || !e->paused) continue;
			pthread_mutex_lock(&e->mu);
			if (e->id && e->paused && now() >= e->until) {
				e->paused = false;
				if (e->in) update(e);
				else if (!e->blocks) ring(e->home);
				note(e);
			} else if (e->id && e->paused && (!next || e->until < next)) {
				next = e->until;
			}
			pthread_mutex_unlock(&e->mu);
		}
	return next;
}
static void open_some(int side) {
	int n = 0;
	if (is_child || shared->no_more[side]) return;
	if (now() > shared->until) {
		shared->no_more[side] = true;
		return;
	}
	for (int k = 0; k < SLOTS; k++) n += shared->flow[k].id && shared->flow[k].client == side;
	for (int i = 0; i < 8 && n < plan.most[side] && pick(4); i++, n++) open_one(side);
}

// ---- waiting

static void event(uint64_t data, bool in, int bell, const struct eset *s) {
	int tag = (int)(data >> 56), side = data >> 48 & 1, slot = (int)(data >> 40 & (SLOTS - 1));
	uint32_t id = (uint32_t)data;
	uint64_t n;
	struct conn *e = &ends[side][slot];
	switch (tag) {
	case QUIT: return;
	case BELL: // the bell of a replaced set stays rung, for all its waiters
		pthread_mutex_lock(&numbers);
		if (!s || !s->old)
			if (read(bell, &n, sizeof n) < 0 && errno != EAGAIN) fail(0, "a bell");
		pthread_mutex_unlock(&numbers);
		return;
	case NOISE: heard(slot, id); return;
	case LISTENER:
		if (!is_child) accept_some(side);
		return;
	}
	if (tag != END) fail(0, "an event of nothing: %lx", data);
	pthread_mutex_lock(&e->mu);
	if (e->id == id && !e->blocks) {
		serve(e, in);
	} else if (e->id != id) {
		pthread_mutex_lock(&numbers);
		for (int i = 0; i < 4; i++)
			if (closed[side][slot][i].id == id && closed[side][slot][i].at <= waits_since) fail(e->f, "an event of connection %u, which was closed before the wait", id);
		pthread_mutex_unlock(&numbers);
	}
	pthread_mutex_unlock(&e->mu);
}
static void wait_in_set(struct waiter *w, int ms) {
	struct epoll_event v[16];
	pthread_mutex_lock(&numbers);
	struct eset *s = w->set;
	int ep = a_number(s), n;
	s->users++;
	waits_since = closings;
	pthread_mutex_unlock(&numbers);
	if (w->kind == 'n') {
		struct pollfd p = {ep, POLLIN, 0};
		if (poll(&p, 1, ms) < 0 && errno != EINTR) fail(0, "poll of a set");
		ms = 0;
		pthread_mutex_lock(&numbers);
		if (s->old) n = 0;
		else n = epoll_wait(ep, v, 1 + (int)pick(16), 0);
		pthread_mutex_unlock(&numbers);
	} else {
		n = epoll_wait(ep, v, 1 + (int)pick(16), ms);
	}
	if (n < 0 && errno != EINTR) fail(0, "epoll_wait");
	for (int i = 0; i < n; i++) event(v[i].data.u64, v[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR), s->bell, s);
	pthread_mutex_lock(&numbers);
	s->users--;
	put_set(s);
	pthread_mutex_unlock(&numbers);
}
static void wait_in_poll(struct waiter *w, int ms) {
	struct pollfd p[2 * SLOTS + 4];
	uint64_t data[2 * SLOTS + 4];
	int n = 0, top = 0;
	p[n] = (struct pollfd){w->bell, POLLIN, 0};
	data[n++] = data_of(BELL, 0, 0, 0);
	p[n] = (struct pollfd){quit_pipe[0], POLLIN, 0};
	data[n++] = data_of(QUIT, 0, 0, 0);
	for (int i = 0; i < 2 && !is_child; i++)
		if (listener[i] >= 0) {
			p[n] = (struct pollfd){listener[i], POLLIN, 0};
			data[n++] = data_of(LISTENER, i, 0, 0);
		}
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < SLOTS; k++) {
			struct conn *e = &ends[i][k];
			if (!e->id) continue;
			pthread_mutex_lock(&e->mu);
			if (e->id && !e->in && !e->blocks && &waiters[e->home] == w && !e->paused) {
				e->polled = true;
				e->events = wants(e);
				note(e);
				p[n] = (struct pollfd){number_of(e), (short)((e->events & EPOLLIN ? POLLIN : 0) | (e->events & EPOLLOUT ? POLLOUT : 0)), 0};
				data[n++] = end_data(e);
			}
			pthread_mutex_unlock(&e->mu);
		}
	if (w->kind == 'p') {
		if (poll(p, (nfds_t)n, ms) < 0 && errno != EINTR) fail(0, "poll");
	} else {
		fd_set in, out;
		struct timeval t = {ms / 1000, ms % 1000 * 1000};
		FD_ZERO(&in);
		FD_ZERO(&out);
		for (int i = 0; i < n; i++) {
			if (p[i].events & POLLIN) FD_SET(p[i].fd, &in);
			if (p[i].events & POLLOUT) FD_SET(p[i].fd, &out);
			if (p[i].fd > top) top = p[i].fd;
		}
		int k = select(top + 1, &in, &out, 0, ms < 0 ? 0 : &t);
		if (k < 0 && errno == EBADF) return; // another thread closed a descriptor before select() began
		if (k < 0 && errno != EINTR) fail(0, "select");
		for (int i = 0; i < n && k > 0; i++)
			p[i].revents = (short)((p[i].events & POLLIN && FD_ISSET(p[i].fd, &in) ? POLLIN : 0) | (p[i].events & POLLOUT && FD_ISSET(p[i].fd, &out) ? POLLOUT : 0));
	}
	waits_since = 0; // another thread may have closed one meanwhile
	for (int i = 0; i < n; i++) {
		if (p[i].revents & POLLNVAL) continue; // closed before poll() began
		if (p[i].revents) event(data[i], p[i].revents & (POLLIN | POLLHUP | POLLERR), w->bell, 0);
	}
}
static void wait_in(struct waiter *w, int ms) {
	if (w->set) wait_in_set(w, ms);
	else wait_in_poll(w, ms);
	if (pick(8) == 0) act();
}
static void *waits(void *a) {
	uintptr_t i = (uintptr_t)a;
	rng = (seed * 64 + i + 1) * 0x9e3779b97f4a7c15ull | 1;
	for (int k = 0; k < 4; k++) draw(&rng);
	while (!shared->quit) wait_in(&waiters[i & 7], -1);
	return 0;
}

// block serves one connection by blocking calls.
static void block(struct conn *e) {
	struct timeval t = {0, 1000 + (long)pick(20000)};
	bool some = e->f->depth == 1 && !pick(4);
	uint32_t id = e->id; // once the connection is closed, e may be another's
	if (!pick(4)) setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	for (;;) {
		advance(e);
		if (e->id != id) return;
		if (over(e)) break;
		if (e->h->reset || e->h->eof) continue;
		int k = complete(e->f->sum[is_client(e)], e->f->n, e->h->got);
		uint64_t next = k < e->f->n ? e->f->sum[is_client(e)][k + 1] - e->h->got : 1;
		if (next > 65536) next = 65536;
		int least = 1 + (int)pick(next < 50 ? next : 50);
		if (some && setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least) < 0) fail(e->f, "SO_RCVLOWAT");
		if (some || !pick(8)) { // the kernel's recv() may wait for ever for the rest of that many bytes
			struct pollfd p = {e->fd, POLLIN, 0};
			e->polled = true;
			if (poll(&p, 1, -1) < 0) fail(e->f, "poll");
		}
		take(e, next, some || pick(2) ? 0 : MSG_WAITALL);
	}
	finish(e);
}
static void *blocks(void *a) {
	rng = (seed * 64 + (uintptr_t)a + 33) * 0x9e3779b97f4a7c15ull | 1;
	for (;;) {
		pthread_mutex_lock(&giving);
		while (!n_given && !shared->quit) pthread_cond_wait(&given, &giving);
		struct conn *e = n_given ? given_to_blocker[--n_given] : 0;
		pthread_mutex_unlock(&giving);
		if (!e) return 0;
		pthread_mutex_lock(&e->mu); // wait until the thread that gave e away is done with it
		pthread_mutex_unlock(&e->mu);
		block(e);
		idle_blockers++;
	}
}

// ---- processes

static void new_waiter(char kind) {
	struct waiter *w = &waiters[n_waiters++];
	*w = (struct waiter){.kind = kind, .bell = -1};
	pthread_mutex_lock(&numbers);
	if (strchr("en", kind)) w->set = new_set();
	else w->bell = opened(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	pthread_mutex_unlock(&numbers);
	if (w->set) n_sets++;
}
static int until_next(double next) { // milliseconds
	double d = next - now();
	return !next ? -1 : d <= 0 ? 0 : (int)(d * 1000) + 1;
}
static void forked_child(struct conn **some, int n) {
	bool tidy = plan.one || some[0]->side != plan.untidy || pick(2), alone[2][SLOTS] = {{0}};
	numbers = giving = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	is_child = true;
	n_children = 0;
	idle_blockers = 0;
	rng ^= (uint64_t)getpid() << 20;
	for (int i = 0; i < n; i++) alone[some[i]->side][some[i]->f - shared->flow] = true;
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < SLOTS; k++) {
			ends[i][k].mu = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
			if (!alone[i][k]) ends[i][k].id = 0;
		}
	if (tidy)
		for (int fd = 0; fd < NUMBERS; fd++) {
			bool kept = !used[fd];
			for (int i = 0; i < n; i++) kept |= some[i]->fd == fd || some[i]->spare == fd;
			if (!kept) close_number(fd);
		}
	memset(noises, 0, sizeof noises);
	n_waiters = n_sets = 0;
	new_waiter("eeps"[pick(4)]);
	if (n_sets && !pick(3)) new_waiter('e');
	if (n_waiters > 1) n_waiters = 1; // the second set has no waiter
	for (int i = 0; i < n; i++) {
		struct conn *e = some[i];
		e->in = 0;
		e->registered = -1;
		enter(e, 0);
	}
	for (;;) {
		int left = 0;
		double next = resume();
		for (int i = 0; i < n; i++) left += some[i]->id != 0;
		if (!left) break;
		wait_in(&waiters[0], until_next(next));
	}
	if (pick(2)) exit(0);
	_exit(0);
}

static void *program(void *a) {
	int side = (int)(uintptr_t)a, n = 0, sides = plan.one ? 2 : 1;
	pthread_t thread[32];
	rng = (seed * 64 + 63 - (unsigned)side) * 0x9e3779b97f4a7c15ull | 1;
	for (int i = 0; i < 4; i++) draw(&rng);
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < SLOTS; k++) pthread_mutex_init(&ends[i][k].mu, 0);
	for (int i = 0; i < 2; i++)
		if (!plan.one && i != side) close(listener[i]), listener[i] = -1;
	for (int i = 0; i < plan.sets[side]; i++) new_waiter(pick(8) ? 'e' : 'n');
	for (int i = 0; i < plan.pollers[side]; i++) new_waiter("ps"[pick(2)]);
	if (!plan.inline_) {
		idle_blockers = plan.blockers[side];
		for (int i = 0; i < n_waiters; i++)
			for (int k = 0; k < (waiters[i].set ? plan.threads[side] : 1); k++) pthread_create(&thread[n++], 0, waits, (void *)(uintptr_t)(i | k << 3 | side << 5));
		for (int i = 0; i < plan.blockers[side]; i++) pthread_create(&thread[n++], 0, blocks, (void *)(uintptr_t)(i | side << 2));
	}
	while (!shared->quit) {
		double next = resume();
		for (int i = 0; i < sides; i++) open_some(plan.one ? i : side);
		bool opens = !shared->no_more[side];
		if (plan.inline_) {
			if (opens && (!next || next > now() + 0.002)) next = now() + 0.001;
			wait_in(&waiters[0], until_next(next));
		} else {
			usleep(200 + (unsigned)pick(opens ? 1500 : 5000));
			if (opens || pick(2)) act();
		}
	}
	pthread_mutex_lock(&giving);
	pthread_cond_broadcast(&given);
	pthread_mutex_unlock(&giving);
	for (int i = 0; i < n; i++) pthread_join(thread[i], 0);
	for (int i = 0; i < n_children; i++) {
		int status;
		if (waitpid(children[i], &status, 0) != children[i] || status) fail(0, "the status of a child: %x", status);
	}
	fflush(stdout);
	exit(0);
}

static void drawn(uint64_t s) {
	uint64_t x = (s + 1) * 0x9e3779b97f4a7c15ull;
	draw(&x);
	seed = s;
	plan = (struct plan){.one = draw(&x) >> 20 & 1 ? false : !(draw(&x) >> 20 & 3), .inline_ = !(draw(&x) >> 20 & 3)};
	plan.seconds = 0.1 + (double)((draw(&x) >> 20) % 900) / 1e3;
	if (!(draw(&x) >> 20 & 7)) plan.seconds += 4; // long enough to meet another broker
	plan.forks = (int[]){0, 0, 40, 200}[draw(&x) >> 20 & 3];
	plan.untidy = draw(&x) >> 20 & 1;
	int n = snprintf(plan.text, sizeof plan.text, "crowd %lu 1:%s%s %.2f s, forks %d", s, plan.one ? " one process" : "", plan.inline_ ? " one thread" : "", plan.seconds, plan.forks);
	for (int i = 0; i < 2; i++) {
		plan.most[i] = draw(&x) >> 20 & 1 ? 1 + (int)((draw(&x) >> 20) % 4) : 2 + (int)((draw(&x) >> 20) % 19);
		plan.sets[i] = plan.inline_ ? (int)(draw(&x) >> 20 & 3) > 0 : (int)((draw(&x) >> 20) % 4);
		plan.pollers[i] = plan.inline_ ? !plan.sets[i] : (int)(draw(&x) >> 20 & 3) == 0;
		if (!plan.sets[i] && !plan.pollers[i]) plan.sets[i] = 1;
		plan.threads[i] = 1 + (int)((draw(&x) >> 20) % 3);
		plan.blockers[i] = plan.inline_ ? 0 : (int)((draw(&x) >> 20) % 3);
		n += snprintf(plan.text + n, sizeof plan.text - (size_t)n, ", %d: most %d sets %d threads %d pollers %d blockers %d", i, plan.most[i], plan.sets[i], plan.threads[i], plan.pollers[i], plan.blockers[i]);
	}
}

static void describe(void) {
	for (int k = 0; k < SLOTS; k++) {
		struct flow *f = &shared->flow[k];
		if (!f->id || us() - f->at < 1000000) continue;
		printf("connection %u: client %d how %d%s depth %d messages %d, last byte %.1f s ago\n", f->id, f->client, f->how, f->how == RESET ? f->resetter ? " by 1" : " by 0" : "", f->depth, f->n, (double)(us() - f->at) / 1e6);
		for (int i = 0; i < 2; i++) {
			struct half *h = &f->half[i];
			printf("  side %d: sent %lu got %lu of %u%s%s%s%s, pid %d descriptor %d %d, waiter %d %c, events %x%s, acts %s\n", i, h->sent, h->got, f->sum[i == f->client][f->n], h->eof ? " eof" : "", h->shut ? " shut" : "",
			       h->closed ? " closed" : "", h->reset ? " reset" : "", h->pid, h->fd, h->spare, h->home, h->kind ? h->kind : '-', h->events, h->paused ? " paused" : "", h->acts);
		}
	}
}
static void stop(const pid_t pid[2], const char *why) {
	if (!atomic_exchange(&shared->fails, true)) printf("FAIL %s\nin %s\n", why, plan.text);
	else
		for (int i = 0; i < 1000 && !shared->failed; i++) usleep(1000);
	describe();
	fflush(stdout);
	if (getenv("CROWD_STOP")) pause();
	end_round(pid);
	exit(1);
}
static void round_of(uint64_t s) {
	pid_t pid[2] = {0, 0};
	drawn(s);
	if (getenv("CROWD_SHOW")) printf("%s\n", plan.text);
	for (int i = 0; i < SLOTS; i++) memset(&shared->flow[i], 0, sizeof shared->flow[i]);
	shared->quit = shared->no_more[0] = shared->no_more[1] = false;
	if (pipe2(quit_pipe, O_CLOEXEC) < 0) exit(2);
	for (int i = 0; i < 2; i++) {
		struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
		socklen_t n = sizeof a;
		listener[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		if (bind(listener[i], (struct sockaddr *)&a, n) < 0 || listen(listener[i], 128) < 0 || getsockname(listener[i], (struct sockaddr *)&a, &n) < 0) exit(2);
		port[i] = a.sin_port;
	}
	shared->until = now() + plan.seconds;
	fflush(stdout);
	for (int i = 0; i < (plan.one ? 1 : 2); i++) {
		if ((pid[i] = fork()) < 0) exit(2);
		if (!pid[i]) {
			setpgid(0, 0);
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			program((void *)(uintptr_t)i);
		}
		setpgid(pid[i], pid[i]);
	}
	if (plan.one) pid[1] = pid[0];
	for (bool all = false; !all;) {
		usleep(2000);
		if (shared->failed) stop(pid, "");
		all = shared->no_more[0] && shared->no_more[1];
		for (int k = 0; k < SLOTS; k++) {
			struct flow *f = &shared->flow[k];
			if (!f->id) continue;
			all = false;
			double d = (double)(us() - f->at) / 1e6;
			if (d > STALL * BUSY || (d > STALL && !busy(pid))) {
				errno = 0;
				stop(pid, "stall");
			}
		}
		siginfo_t g = {0};
		if (waitid(P_ALL, 0, &g, WEXITED | WNOHANG | WNOWAIT) == 0 && g.si_pid) stop(pid, "a process has died");
	}
	shared->quit = true;
	if (write(quit_pipe[1], "", 1) != 1) exit(2);
	double since = now();
	for (int i = 0; i < (plan.one ? 1 : 2);) {
		int status = 0;
		pid_t p = waitpid(pid[i], &status, WNOHANG);
		if (p == pid[i] && status) stop(pid, "the status of a process");
		if (p == pid[i]) {
			i++;
			continue;
		}
		usleep(1000);
		if (now() - since > STALL * BUSY || (now() - since > STALL && !busy(pid))) stop(pid, "a process does not end");
	}
	end_round(pid);
	for (int i = 0; i < 2; i++) close(listener[i]), close(quit_pipe[i]);
}

int main(int argc, char **argv) {
	if (argc < 3) return 2;
	setvbuf(stdout, 0, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	uint64_t y = 88172645463325252ull;
	for (int j = 0; j < PERIOD; j++) stream[j] = (unsigned char)(draw(&y) >> 20);
	memcpy(stream + PERIOD, stream, LARGEST);
	int made = memfd_create("crowd", MFD_CLOEXEC);
	if (made < 0 || write(made, stream, sizeof stream) != sizeof stream) return 2;
	file = fcntl(made, F_DUPFD_CLOEXEC, 1000);
	close(made);
	shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (file < 0 || shared == MAP_FAILED) return 2;
	uint64_t first = strtoull(argv[1], 0, 10), rounds = strtoull(argv[2], 0, 10), r = 0;
	double end = argc > 3 ? now() + atof(argv[3]) : 0;
	for (; r < rounds && (!end || now() < end); r++) round_of(first + r);
	printf("ok: rounds %lu connections %lu bytes %lu resets %lu acts %lu forks %lu numbers used again %lu\n", r, shared->connections, shared->bytes, shared->resets, shared->acts, shared->forks, shared->reused);
	return 0;
}
