// twin SEED 1|2 warm|cold LIST: a random program of calls on some connections, run in lockstep: a driver tells 1 or 2 processes which call
// to make next. Each call prints a line, which must be the same natively and with the library. Call i depends on SEED and i alone. LIST, such
// as 0-39 or 1,3,7-9, selects the calls that are made: to find the cause of a difference, leave calls out. warm starts once the rings carry
// the connections, if TWIN_PROMOTED is in the environment; cold starts at once.
//
// Harmless differences are not drawn or not printed; each place says why. In every program TCP_NODELAY is set and each MSG_MORE is followed
// by a send in the same call, since the kernel holds back what it would merge with later bytes, and rings hold back nothing. SIOCOUTQ and
// buffer sizes differ as docs/IN-PROCESS.md says.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "groups.h"
#include "promoted.h"
#include "rounds.h"

enum { CONNS = 3, NUMBERS = 3, SETS = 2, NAP = 30, UNREAD = 40000, LAST = CONNS - 1, INNER = CONNS << 8 }; // NAP: the longest that a call waits, in milliseconds

// A kind of call, and how often it is drawn.
#define KINDS(X) \
	X(SEND, 22) X(RECV, 24) X(MORE, 2) X(FILL, 1) X(POLL, 8) X(SELECT, 3) X(CTL, 16) X(WAIT, 18) X(NEST, 1) X(DUP, 4) X(CLOSE, 2) X(SHUT, 2) \
	X(OPTION, 4) X(NONBLOCK, 2) X(COUNT, 4) X(FORK, 1) X(PASS, 1) X(STDIO, 1) X(SPLICE, 1) X(LOWAT, 1) X(SLEEP, 5)
#define NAME(name, often) name,
#define OFTEN(name, often) often,
enum kind { KINDS(NAME) KIND_COUNT, TAKE = KIND_COUNT, JOIN, END, WARM_SEND, WARM_RECV };
static const int often[] = {KINDS(OFTEN)};

struct command {
	uint64_t x; // seed of the rest of the call
	enum kind kind;
	int conn, side;
};

// A way is one direction of a connection. Each byte follows from its position, so both sides can check it.
static struct way {
	uint64_t sent, got;
	unsigned fills;
	bool full;   // filled until EAGAIN: how many bytes fit differs, so the next reader reads them all
	bool ends;   // shut down, or at least one descriptor closed
} (*ways)[2];        // [conn][side that writes], shared
static int number[CONNS][2][NUMBERS], set[SETS], to_driver, passing[2]; // of this process; -1: closed
static char out[8192], big[1 << 18], in[1 << 18];
static size_t said;

static void __attribute__((format(printf, 1, 2))) say(const char *format, ...) {
	va_list a;
	va_start(a, format);
	if (said < sizeof out) said += (size_t)vsnprintf(out + said, sizeof out - said, format, a);
	va_end(a);
}
static void say_result(long n) {
	if (n >= 0) say(" = %ld", n);
	else say(" = %s", strerrorname_np(errno));
}
static uint64_t mix(uint64_t a, uint64_t b) {
	uint64_t x = a * 0x9e3779b97f4a7c15 ^ (b + 1) * 0xd1b54a32d192ed03;
	x ^= x >> 31;
	x *= 0x94d049bb133111eb;
	return (x ^ x >> 29) | 1;
}
static int under(uint64_t *x, int n) { return (int)((draw(x) >> 11) % (uint64_t)n); }
static bool one_in(uint64_t *x, int n) { return under(x, n) == 0; }
static int size(uint64_t *x) {
	static const int most[] = {1, 2, 10, 100, 1500, 5000, 20000};
	return one_in(x, 12) ? 0 : 1 + under(x, most[under(x, 7)]);
}

// ---- bytes

static char byte_at(int conn, int side, uint64_t at) { return (char)((at * 0x9e3779b97f4a7c15 >> 56) + (uint64_t)(conn * 2 + side)); }
static void compose(int conn, int side, char *b, size_t n) {
	for (size_t i = 0; i < n; i++) b[i] = byte_at(conn, side, ways[conn][side].sent + i);
}
// took checks that the n bytes that a side has read are the next ones of its way, and counts them unless keeps is set.
static void took(int conn, int side, const char *b, long n, bool keeps, bool thrown) {
	struct way *w = &ways[conn][!side];
	if (n <= 0) return;
	for (long i = 0; i < n && !thrown; i++)
		if (b[i] != byte_at(conn, !side, w->got + (uint64_t)i)) {
			say(" WRONG at %ld", i);
			break;
		}
	if (!keeps) w->got += (uint64_t)n;
}
static uint64_t unread(int conn, int side) { return ways[conn][!side].sent - ways[conn][!side].got; }
// drained tells whether no bytes are unread at either end. If a connection leaves the rings for good with unread bytes, its peer must run;
// in lockstep the peer waits.
static bool drained(int conn) { return !unread(conn, 0) && !unread(conn, 1) && !ways[conn][0].full && !ways[conn][1].full; }

// split describes n bytes of b by v in pieces, some of them empty.
static int split(uint64_t *x, struct iovec v[4], char *b, size_t n) {
	int pieces = 1 + under(x, 4);
	for (int i = 0; i < pieces; i++) {
		size_t k = i == pieces - 1 ? n : (size_t)under(x, (int)n + 1);
		v[i] = (struct iovec){b, k};
		b += k;
		n -= k;
	}
	return pieces;
}

// ---- calls

static void give(const struct command *c, int fd) {
	static const int flags[] = {0, 0, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_DONTWAIT | MSG_NOSIGNAL};
	uint64_t x = c->x;
	struct way *w = &ways[c->conn][c->side];
	struct iovec v[4];
	size_t n = (size_t)size(&x);
	ssize_t r = 0, done = 0;
	int how = under(&x, 7), flag = how < 2 ? 0 : flags[under(&x, 5)];
	if (w->full) { // by now the kernel may have room for more
		if ((r = send(fd, big, 0, MSG_DONTWAIT)) < 0) say_result(r);
		return;
	}
	if (n + w->sent - w->got > UNREAD) { // this would fill the way, as only FILL may
		say("too much");
		return;
	}
	if ((how == 1 || how == 6) && !n) n = 1; // for no bytes the kernel does not look at the connection
	compose(c->conn, c->side, big, n);
	int nv = split(&x, v, big, n);
	struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = (size_t)(nv / 2)}}, {.msg_hdr = {.msg_iov = v + nv / 2, .msg_iovlen = (size_t)(nv - nv / 2)}}};
	say("%s %zu flags %x", (const char *[]){"write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile"}[how], n, flag);
	switch (how) {
	case 0: r = write(fd, big, n); break;
	case 1: r = writev(fd, v, nv); break;
	case 2: r = send(fd, big, n, flag); break;
	case 3: r = sendto(fd, big, n, flag, 0, 0); break;
	case 4: r = sendmsg(fd, &(struct msghdr){.msg_iov = v, .msg_iovlen = (size_t)nv}, flag); break;
	case 5:
		r = sendmmsg(fd, m, 2, flag);
		say_result(r);
		for (int i = 0; i < r; i++) done += m[i].msg_len;
		if (r > 0) r = done;
		break;
	case 6: {
		int file = memfd_create("twin", 0);
		off_t at = 0;
		if (file < 0 || write(file, big, n) != (ssize_t)n) err(1, "memfd");
		bool own = lseek(file, 0, SEEK_SET) == 0 && one_in(&x, 2);
		r = sendfile(fd, file, own ? 0 : &at, n + (size_t)under(&x, 2) * 100);
		int was = errno;
		say(" at %ld", own ? (long)lseek(file, 0, SEEK_CUR) : (long)at);
		close(file);
		errno = was;
	}
	}
	if (r < 0 && errno == ECONNRESET && w->ends) errno = EPIPE; // after the writer has ended its way, the kernel may report either
	say_result(r);
	if (r > 0) w->sent += (uint64_t)r;
}

// read_all reads a way that was filled.
static void read_all(int conn, int side, int fd) {
	struct way *w = &ways[conn][!side];
	ssize_t n;
	for (int tries = 0;;) {
		n = recv(fd, in, sizeof in, MSG_DONTWAIT);
		if (n > 0) took(conn, side, in, n, false, false);
		else if (n == 0 && w->got < w->sent && tries++ < 50) usleep(1000); // after shutdown() reads may return 0 while bytes are still on their way
		else if (n == 0 || errno != EAGAIN || w->got >= w->sent || poll(&(struct pollfd){fd, POLLIN, 0}, 1, 2000) <= 0) break;
	}
	w->full = false;
	if (ways[conn][side].ends) return say("what is left"); // a reset may have come before them
	if (w->got != w->sent) return say("not all"); // a reset throws bytes away; with the library it is reported at both ends
	say("all");
	say_result(n);
}
static void take(const struct command *c, int fd) {
	static const int flags[] = {0, 0, 0, MSG_PEEK, MSG_TRUNC, MSG_WAITALL, MSG_PEEK | MSG_TRUNC}; // PEEK and WAITALL: see peeks_all in calls.c
	uint64_t x = c->x;
	struct iovec v[4];
	size_t n = (size_t)size(&x) * (one_in(&x, 3) ? 3 : 1);
	int how = under(&x, n ? 6 : 4) + (n ? 0 : 2), flag = how < 2 ? 0 : flags[under(&x, 7)] | (one_in(&x, 3) ? 0 : MSG_DONTWAIT);
	if (how == 5 && (ways[c->conn][0].ends || ways[c->conn][1].ends)) how = 4; // the kernel looks for errors before bytes in recvmmsg(), after them in other calls
	const bool ends = ways[c->conn][c->side].ends;
	if (ends && how > 2) how = 2; // of an end that is shut down, the other calls return more than a result
	if (!n || how == 5) flag |= MSG_DONTWAIT; // the kernel waits for no bytes in vain, then returns 0
	bool keeps = flag & MSG_PEEK, thrown = flag & MSG_TRUNC;
	if (ways[c->conn][!c->side].full) {
		read_all(c->conn, c->side, fd);
		return;
	}
	int nv = split(&x, v, in, n);
	struct sockaddr_storage a;
	socklen_t l = sizeof a;
	struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = (size_t)(nv / 2)}}, {.msg_hdr = {.msg_iov = v + nv / 2, .msg_iovlen = (size_t)(nv - nv / 2)}}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = (size_t)nv, .msg_name = &a, .msg_namelen = l, .msg_control = big, .msg_controllen = 64};
	say("%s %zu flags %x", (const char *[]){"read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg"}[how], n, flag);
	ssize_t r = 0;
	int tries = 0;
again: // a read that found nothing asks the kernel only every other time
	switch (how) {
	case 0: r = read(fd, in, n); break;
	case 1: r = readv(fd, v, nv); break;
	case 2: r = recv(fd, in, n, flag); break;
	case 3:
		r = recvfrom(fd, in, n, flag, (struct sockaddr *)&a, &l);
		if (r >= 0) say(" from %u", l);
		break;
	case 4:
		r = recvmsg(fd, &h, flag);
		if (r >= 0) say(" name %u control %zu flags %x", h.msg_namelen, h.msg_controllen, h.msg_flags);
		break;
	case 5:
		r = recvmmsg(fd, m, 2, flag | (one_in(&x, 2) ? MSG_WAITFORONE : 0), 0);
		for (int i = 0; i < r; i++) {
			say(" %u flags %x", m[i].msg_len, m[i].msg_hdr.msg_flags);
			took(c->conn, c->side, i ? v[nv / 2].iov_base : in, m[i].msg_len, keeps, thrown);
		}
		say_result(r);
		return;
	}
	if (r < 0 && errno == EAGAIN && !tries++) goto again;
	if (r < 0 && errno == ECONNRESET && ends) r = 0; // after shutdown() by the reader and later bytes from the peer, the kernel may report either
	if (r > 0 && (size_t)r < n && !keeps && !thrown && unread(c->conn, c->side) > (uint64_t)r) { // a read may stop where the kernel's bytes end and a ring's begin
		ssize_t more = recv(fd, in + r, n - (size_t)r, MSG_DONTWAIT);
		if (more > 0) r += more;
	}
	say_result(r);
	took(c->conn, c->side, in, r, keeps, thrown);
}

// more has the kernel hold bytes back, then release them. It skips ended ways: bytes sent at once would provoke a reset, held bytes do not yet.
static void more(const struct command *c, int fd) {
	uint64_t x = c->x;
	struct way *w = &ways[c->conn][c->side];
	int cork = under(&x, 2), sizes[2] = {size(&x), 1 + under(&x, 100)};
	if (w->full || ways[c->conn][!c->side].ends || w->sent - w->got + (uint64_t)(sizes[0] + sizes[1]) > UNREAD) return;
	if (cork) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){1}, sizeof(int));
	say(cork ? "cork" : "more");
	for (int i = 0; i < 2; i++) {
		compose(c->conn, c->side, big, (size_t)sizes[i]);
		ssize_t r = send(fd, big, (size_t)sizes[i], cork || i ? 0 : MSG_MORE);
		say_result(r);
		if (r > 0) w->sent += (uint64_t)r;
	}
	if (cork) setsockopt(fd, IPPROTO_TCP, TCP_CORK, &(int){0}, sizeof(int));
}
static void fill(const struct command *c, int fd) {
	struct way *w = &ways[c->conn][c->side];
	ssize_t n;
	if (w->ends || ways[c->conn][!c->side].ends) return; // see SHUT
	for (int again = 0; again < 3; again++) {
		do {
			compose(c->conn, c->side, big, 30000);
			if ((n = send(fd, big, 30000, MSG_DONTWAIT)) > 0) w->sent += (uint64_t)n, w->full = true;
		} while (n > 0);
		usleep(1000);
	}
	w->fills++;
	say("fill");
	say_result(n);
}

// some draws a descriptor of this process; -1 if 20 draws find only closed ones.
static int some(uint64_t *x, int name[3]) {
	for (int i = 0; i < 20; i++) {
		int *at = &number[name[0] = under(x, CONNS)][name[1] = under(x, 2)][name[2] = under(x, NUMBERS)];
		if (*at >= 0) return *at;
	}
	return -1;
}
static const struct timespec *nap(uint64_t *x) {
	static const struct timespec none, some = {0, 2000000};
	return one_in(x, 6) ? &some : &none;
}
static void look_at(const struct command *c, int fd) {
	uint64_t x = c->x;
	struct pollfd p[4] = {{fd, 0, 0}};
	int n = 1 + under(&x, 4), name[3];
	for (int i = 0; i < n; i++) {
		if (i) p[i].fd = some(&x, name);
		p[i].events = (short)(draw(&x) >> 20 & (POLLIN | POLLOUT | POLLPRI | POLLRDHUP | POLLRDNORM | POLLWRNORM));
	}
	const struct timespec *t = nap(&x);
	int r = one_in(&x, 2) ? ppoll(p, (nfds_t)n, t, 0) : poll(p, (nfds_t)n, (int)(t->tv_nsec / 1000000));
	say("poll");
	for (int i = 0; i < n; i++) say(" %x/%x", (unsigned)p[i].revents & ~(unsigned)POLLERR, (unsigned)p[i].events); // an earlier read with bytes may have taken the error
	say_result(r);
}
static void choose(const struct command *c, int fd) {
	uint64_t x = c->x;
	fd_set s[3];
	int at[4] = {fd}, n = 1 + under(&x, 4), most = 0, name[3];
	for (int k = 0; k < 3; k++) FD_ZERO(&s[k]);
	for (int i = 0; i < n; i++) {
		if (i && (at[i] = some(&x, name)) < 0) at[i] = fd;
		for (int k = 0; k < 3; k++)
			if (one_in(&x, 2)) FD_SET(at[i], &s[k]);
		if (at[i] > most) most = at[i];
	}
	struct timespec t = *nap(&x);
	struct timeval v = {0, t.tv_nsec / 1000};
	bool p = one_in(&x, 2);
	int r = p ? pselect(most + 1, &s[0], &s[1], &s[2], &t, 0) : select(most + 1, &s[0], &s[1], &s[2], &v);
	say("select");
	for (int i = 0; i < n && r >= 0; i++) say(" %d%d%d", FD_ISSET(at[i], &s[0]) != 0, FD_ISSET(at[i], &s[1]) != 0, FD_ISSET(at[i], &s[2]) != 0);
	say_result(r);
}

static uint32_t interest(uint64_t *x) {
	uint32_t e = (one_in(x, 6) ? 0 : EPOLLIN) | (one_in(x, 3) ? EPOLLOUT : 0) | (one_in(x, 3) ? EPOLLRDHUP : 0) | (one_in(x, 10) ? EPOLLPRI : 0) |
	             (one_in(x, 12) ? EPOLLRDNORM : 0) | (one_in(x, 2) ? EPOLLET : 0);
	// With EPOLLEXCLUSIVE only the kernel reports edges, and it has none for bytes that a ring brings behind unread ones.
	return e | (one_in(x, 4) ? EPOLLONESHOT : one_in(x, 12) && !(e & EPOLLET) ? EPOLLEXCLUSIVE : 0);
}
// A seen is what the waits of one call report for one registration.
struct seen {
	uint32_t name, events;
	int times;
};
static uint32_t asked[SETS][CONNS << 8]; // what registrations ask for, by name; 0: none
static unsigned room[SETS][CONNS << 8];  // 1 + the way's fills when an edge last reported room
static int by_name(const void *a, const void *b) { return (int)((const struct seen *)a)->name - (int)((const struct seen *)b)->name; }
// say_events reports n events and those of as many more waits as it takes: which of several events comes first does not matter, and a wait
// that finds something in the rings asks the kernel only every 16th time. A "~" precedes an edge: the library may report a true edge more
// often than the kernel, but not for ever.
static void say_events(int s, const struct epoll_event *v, int n, int max) {
	struct seen all[64];
	struct epoll_event more[32];
	int have = 0;
	for (int i = 0; i < 150 && n > 0; i++) {
		for (int k = 0; k < n; k++) {
			uint32_t u = v[k].data.u32;
			int at = 0;
			while (at < have && all[at].name != u) at++;
			if (at == have) all[have++] = (struct seen){.name = u};
			all[at].events |= v[k].events & ~(uint32_t)EPOLLERR; // see look_at
			all[at].times++;
		}
		n = epoll_wait(set[s], more, max, 0);
		v = more;
	}
	qsort(all, (size_t)have, sizeof *all, by_name);
	for (int i = 0; i < have; i++) {
		uint32_t u = all[i].name, a = u == INNER ? EPOLLET : asked[s][u]; // a set within another may hold edges
		bool edge = (a & (EPOLLET | EPOLLONESHOT)) == EPOLLET;
		if (edge && u != INNER) { // with each edge the kernel repeats unchanged room; the rings do not
			const unsigned fills = ways[u >> 8][u >> 4 & 1].fills + 1;
			if (room[s][u] == fills) all[i].events &= ~(uint32_t)(EPOLLOUT | EPOLLWRNORM);
			else if (all[i].events & (EPOLLOUT | EPOLLWRNORM)) room[s][u] = fills;
		}
		say(" %s%x:%x", edge ? "~" : "", u, all[i].events);
		if ((a & EPOLLONESHOT) && all[i].times > 1) say(" %d times", all[i].times);
		if (edge && u != INNER && all[i].times > 3) say(" again and again");
	}
}
static void control(const struct command *c, int fd, int slot) {
	uint64_t x = c->x;
	int s = under(&x, SETS), op = (int[]){EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL}[under(&x, 4)];
	struct epoll_event v = {interest(&x), {.u32 = (uint32_t)(c->conn << 8 | c->side << 4 | slot)}};
	say("ctl set %d op %d events %x", s, op, v.events);
	for (int i = 0; i < NUMBERS && op == EPOLL_CTL_ADD; i++) // the rings report an end that is in a set under two descriptors only once
		if (i != slot && asked[s][(v.data.u32 & ~0xfu) | (uint32_t)i]) return say(" by one number");
	int r = epoll_ctl(set[s], op, fd, &v);
	if (r == 0) asked[s][v.data.u32] = op == EPOLL_CTL_DEL ? 0 : v.events, room[s][v.data.u32] = 0;
	say_result(r);
}
static void wait_for(const struct command *c) {
	uint64_t x = c->x;
	struct epoll_event v[32];
	int s = under(&x, SETS), how = under(&x, 3), max = one_in(&x, 4) ? 1 : 32, n;
	const struct timespec *t = nap(&x);
	switch (how) {
	case 0: n = epoll_wait(set[s], v, max, (int)(t->tv_nsec / 1000000)); break;
	case 1: n = epoll_pwait(set[s], v, max, (int)(t->tv_nsec / 1000000), 0); break;
	default: n = epoll_pwait2(set[s], v, max, t, 0);
	}
	say("wait set %d", s);
	if (n < 0) return say_result(n);
	say_events(s, v, n, max);
}

// keep stores a descriptor of an end if there is room for it, or closes it.
static void keep(const struct command *c, int fd) {
	for (int i = 0; i < NUMBERS; i++)
		if (number[c->conn][c->side][i] < 0) {
			number[c->conn][c->side][i] = fd;
			return;
		}
	close(fd);
}
static void duplicate(const struct command *c, int fd) {
	uint64_t x = c->x;
	int to = under(&x, NUMBERS), *at = &number[c->conn][c->side][to], how = under(&x, 5), name[3], r;
	if (*at < 0) {
		r = how == 0 ? dup(fd) : how == 1 ? fcntl(fd, F_DUPFD, 10) : how == 2 ? fcntl(fd, F_DUPFD_CLOEXEC, 10) : how == 3 ? dup2(fd, fd) : dup(fd);
		say("dup %d to %d", how, to);
		if (r >= 0 && how != 3) *at = r;
		say("%s", r >= 0 ? " = ok" : " fails");
		return;
	}
	int other = some(&x, name); // replaces another descriptor, as programs do that hand a socket over
	if (other < 0 || other == fd) return;
	r = how < 3 ? dup2(fd, other) : dup3(fd, other, 0);
	say("dup over %d.%d.%d %s", name[0], name[1], name[2], r == other ? "ok" : "fails");
	number[name[0]][name[1]][name[2]] = -1;
	ways[name[0]][name[1]].ends = true;
	keep(c, r);
}
static void option(const struct command *c, int fd) {
	static const struct {
		const char *name;
		int level, option, value;
	} options[] = { // TCP_NOTSENT_LOWAT is not drawn: the kernel counts it as an edge
		{"NODELAY", IPPROTO_TCP, TCP_NODELAY, 1}, {"CORK", IPPROTO_TCP, TCP_CORK, -1}, {"ERROR", SOL_SOCKET, SO_ERROR, -1},
		{"ERROR", SOL_SOCKET, SO_ERROR, -1}, {"KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE, 1}, {"SNDBUF", SOL_SOCKET, SO_SNDBUF, 300000},
		{"TYPE", SOL_SOCKET, SO_TYPE, -1}, {"USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT, 60000}, {"DOMAIN", SOL_SOCKET, SO_DOMAIN, -1},
	};
	uint64_t x = c->x;
	int which = under(&x, 13);
	socklen_t l;
	if (which < 9) {
		int v = options[which].value, r = v < 0 || one_in(&x, 2) ? 0 : setsockopt(fd, options[which].level, options[which].option, &v, sizeof v);
		say("option %s", options[which].name);
		say_result(r);
		if (options[which].option == SO_SNDBUF && options[which].level == SOL_SOCKET) return; // the kernel's own buffer grows with traffic
		r = getsockopt(fd, options[which].level, options[which].option, &v, &(socklen_t){sizeof v});
		if (r == 0) say(" %d", v);
		say_result(r);
	} else if (which == 9) {
		struct linger g = {under(&x, 2), 0};
		int r = setsockopt(fd, SOL_SOCKET, SO_LINGER, &g, sizeof g);
		say("linger %d", g.l_onoff);
		say_result(r);
	} else if (which == 10) {
		struct timeval t = {0, 1000 * (5 + under(&x, NAP))};
		int r = setsockopt(fd, SOL_SOCKET, under(&x, 2) ? SO_RCVTIMEO : SO_SNDTIMEO, &t, sizeof t);
		say("timeout");
		say_result(r);
	} else {
		struct tcp_info t;
		l = sizeof t;
		int r = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &l);
		say("state %d", r ? 0 : t.tcpi_state == 4 ? 5 : t.tcpi_state); // FIN_WAIT1: an acknowledgement may be late
	}
}
static void low(const struct command *c, int fd) { // a value above 1 makes the connection leave the rings
	uint64_t x = c->x;
	int v = 1 + under(&x, 2) * under(&x, 100), r;
	if (c->conn != LAST || !drained(c->conn)) v = 1;
	r = setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v);
	say("lowat %d", v);
	say_result(r);
}
static void nonblock(const struct command *c, int fd) {
	uint64_t x = c->x;
	int on = under(&x, 2), how = under(&x, 2), fl = fcntl(fd, F_GETFL);
	int r = how ? ioctl(fd, FIONBIO, &on) : fcntl(fd, F_SETFL, on ? fl | O_NONBLOCK : fl & ~O_NONBLOCK);
	say("nonblock %d was %d", on, !!(fl & O_NONBLOCK));
	say_result(r);
}
static void stdio(const struct command *c, int fd) {
	uint64_t x = c->x;
	struct way *w = &ways[c->conn][c->side];
	if (c->conn != LAST || !drained(c->conn)) return;
	int d = dup(fd), n = 1 + under(&x, 2000);
	FILE *f = fdopen(d, "w");
	compose(c->conn, c->side, big, (size_t)n);
	size_t k = f ? fwrite(big, 1, (size_t)n, f) : 0;
	int r = f ? fflush(f) : -1;
	say("stdio %zu", k);
	say_result(r);
	if (r == 0) w->sent += k;
	if (f) fclose(f);
}
static void through_pipe(const struct command *c, int fd) {
	uint64_t x = c->x;
	struct way *w = &ways[c->conn][c->side];
	int p[2], n = 1 + under(&x, 2000);
	if (c->conn != LAST || !drained(c->conn) || pipe2(p, O_NONBLOCK)) return;
	compose(c->conn, c->side, big, (size_t)n);
	if (under(&x, 2)) {
		if (write(p[1], big, (size_t)n) != n) err(1, "pipe");
		ssize_t r = splice(p[0], 0, fd, 0, (size_t)n, SPLICE_F_NONBLOCK);
		say("splice to");
		say_result(r);
		if (r > 0) w->sent += (uint64_t)r;
	} else {
		ssize_t r = splice(fd, 0, p[1], 0, (size_t)n, SPLICE_F_NONBLOCK);
		say("splice from");
		say_result(r);
	}
	close(p[0]);
	close(p[1]);
}

// ---- descriptors to another process

static void pass(const struct command *by, int fd) {
	char control[CMSG_SPACE(sizeof(int))] = "";
	struct msghdr h = {.msg_iov = &(struct iovec){"p", 1}, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
	for (int i = 0; i < NUMBERS * SETS; i++) epoll_ctl(set[i % SETS], EPOLL_CTL_DEL, number[by->conn][by->side][i / SETS], 0); // see CLOSE
	say("pass");
	say_result(sendmsg(passing[0], &h, 0));
}
static void get_passed(const struct command *c) {
	char control[CMSG_SPACE(sizeof(int))], b;
	struct msghdr h = {.msg_iov = &(struct iovec){&b, 1}, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	int fd = -1;
	if (recvmsg(passing[1], &h, MSG_DONTWAIT) > 0 && CMSG_FIRSTHDR(&h)) memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof fd);
	say("taken %s", fd >= 0 ? "ok" : "none");
	if (fd < 0) return;
	keep(c, fd);
}

// ---- a thread that sleeps

static pid_t child; // 0, or the forked child: its PID in the parent, its own PID in itself. A child does not use the sets that it shares with its parent

static struct sleeper {
	pthread_t t;
	struct command c;
	int fd, how, err, n;
	_Atomic pid_t tid;
	_Atomic bool done;
	ssize_t r;
	struct pollfd p;
	struct epoll_event v[16];
	char b[3000];
} sleeper;
static void *sleeps(void *a) {
	struct sleeper *s = a;
	int tries = 0;
	s->tid = gettid();
	switch (s->how) {
	case 0:
	case 1:
		do s->r = recv(s->fd, s->b, (size_t)s->n, s->how ? MSG_PEEK : 0);
		while (s->r < 0 && errno == EAGAIN && !tries++); // it asks the kernel only every other time
		break;
	case 2: s->r = poll(&s->p, 1, 2 * NAP); break;
	default: s->r = epoll_wait(set[s->how - 3], s->v, 16, 2 * NAP);
	}
	s->err = errno;
	s->done = true;
	return 0;
}
static void begin_sleep(const struct command *c, int fd) {
	uint64_t x = c->x;
	struct sleeper *s = &sleeper;
	s->c = *c;
	s->how = under(&x, 3 + SETS);
	s->n = 1 + under(&x, (int)sizeof s->b);
	s->fd = fd;
	s->p = (struct pollfd){fd, (short)(POLLIN | (one_in(&x, 3) ? POLLRDHUP : 0)), 0};
	s->tid = 0;
	s->done = false;
	if (ways[c->conn][!c->side].full || (child && s->how > 2)) s->how = 2; // what it would read cannot be compared
	if (pthread_create(&s->t, 0, sleeps, s)) err(1, "thread");
	while (!s->done && (!s->tid || state_of(getpid(), s->tid) != 'S')) usleep(100);
	usleep(1000);
	say("sleep in %s", (const char *[]){"recv", "peek", "poll", "set 0", "set 1"}[s->how]);
}
static void end_sleep(void) {
	struct sleeper *s = &sleeper;
	pthread_join(s->t, 0);
	errno = s->err;
	say("woken");
	if (s->how == 2) say(" %x", (unsigned)s->p.revents & ~(unsigned)POLLERR);
	if (s->how > 2) return say_events(s->how - 3, s->v, (int)s->r, 16);
	say_result(s->r);
	if (s->how < 2) took(s->c.conn, s->c.side, s->b, s->r, s->how == 1, false);
}

// ---- a process

// warm_up sends or receives bytes that do not count as positions, and reports whether they came by the kernel.
static void warm_up(const struct command *c, int fd) {
	char b[64] = "warm";
	if (c->kind == WARM_SEND) {
		if (write(fd, b, sizeof b) != sizeof b) err(1, "warm");
		return;
	}
	static uint64_t had[CONNS][2];
	for (size_t n = 0; n < sizeof b;) {
		ssize_t k = read(fd, b, sizeof b - n);
		if (k <= 0 && errno != EAGAIN) err(1, "warm");
		if (k > 0) n += (size_t)k;
	}
	uint64_t has = received(fd), *was = &had[c->conn][c->side];
	say("%s", has - *was < sizeof b ? "moved" : "kernel");
	*was = has;
}
static void carry_out(const struct command *c) {
	uint64_t x = c->x;
	int fd = -1, slot = (int)(c->x >> 7 & 3);
	for (int i = 0; i < NUMBERS && fd < 0; i++) fd = number[c->conn][c->side][slot = (slot + 1) % NUMBERS];
	if (child && (c->kind == WAIT || c->kind == CTL || c->kind == NEST)) return;
	if (c->kind == WAIT) return wait_for(c);
	if (c->kind == JOIN) return end_sleep();
	if (c->kind == TAKE) return get_passed(c);
	if (c->kind == NEST) {
		struct epoll_event v = {EPOLLIN, {.u32 = INNER}}; // an edge of a set that is not waited for itself may be missed
		say("nest");
		return say_result(epoll_ctl(set[0], one_in(&x, 3) ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, set[1], &v));
	}
	if (fd < 0) return say("closed");
	switch (c->kind) {
	case SEND: return give(c, fd);
	case RECV: return take(c, fd);
	case MORE: return more(c, fd);
	case FILL: return fill(c, fd);
	case POLL: return look_at(c, fd);
	case SELECT: return choose(c, fd);
	case CTL: return control(c, fd, slot);
	case DUP: return duplicate(c, fd);
	case CLOSE: // a set still reports a closed descriptor while the file is open elsewhere; the library does so only for duplicates that it knows of
		ways[c->conn][c->side].ends = true;
		say("close");
		number[c->conn][c->side][slot] = -1;
		return say_result(close(fd));
	case SHUT: {
		int how = (int[]){SHUT_WR, SHUT_WR, SHUT_RD, SHUT_RDWR}[under(&x, 4)];
		if (ways[c->conn][!c->side].full) how = SHUT_WR; // it is undefined how much is read after an end that shutdown() made
		ways[c->conn][c->side].ends = true;
		say("shutdown %d", how);
		return say_result(shutdown(fd, how));
	}
	case OPTION: return option(c, fd);
	case NONBLOCK: return nonblock(c, fd);
	case COUNT: {
		int n = -1, r = ioctl(fd, FIONREAD, &n);
		say("FIONREAD %d", ways[c->conn][!c->side].full ? 0 : n);
		return say_result(r);
	}
	case PASS:
		if (c->conn == LAST && drained(c->conn)) pass(c, fd);
		return;
	case STDIO: return stdio(c, fd);
	case SPLICE: return through_pipe(c, fd);
	case LOWAT: return low(c, fd);
	case SLEEP: return begin_sleep(c, fd);
	default: return warm_up(c, fd);
	}
}
// serve carries out the driver's commands. A child takes its parent's place until END.
static void serve(void) {
	for (struct command c;;) {
		said = 0;
		out[0] = 0;
		if (recv(to_driver, &c, sizeof c, 0) != sizeof c) _exit(0);
		if (c.kind == FORK && !child) {
			if ((child = fork()) < 0) err(1, "fork");
			if (child) {
				int status;
				waitpid(child, &status, 0);
				child = 0;
				say("child %x", (unsigned)status);
			} else {
				child = getpid();
				say("fork");
			}
		} else if (c.kind == END) {
			bool empty = true;
			for (int i = 0; i < CONNS; i++) empty &= drained(i);
			if (empty && (c.x & 64)) execl("/bin/true", "true", (char *)0);
			_exit(0);
		} else if (c.kind != FORK) {
			carry_out(&c);
		}
		if (send(to_driver, out, said + 1, 0) < 0) _exit(1);
	}
}

// ---- the driver

static int to[2], processes;
static bool forked[2];
static const char *tell(int who, struct command c) {
	static char answer[sizeof out];
	if (send(to[who], &c, sizeof c, 0) < 0 || recv(to[who], answer, sizeof answer, 0) <= 0) {
		printf("process %d has died\n", who);
		exit(1);
	}
	return answer;
}
static void report(int i, int who, struct command c) {
	const char *s = tell(who, c);
	if (*s) printf("%d: process %d, %d.%d: %s\n", i, who, c.conn, c.side, s);
	fflush(stdout);
}
static void warm(void) {
	bool must = getenv("TWIN_PROMOTED") != 0;
	double until = now() + 10;
	for (int good = 0, i = 0; good < 3 && (must || i < 5); i++) {
		good++;
		for (int n = 0; n < CONNS * 2; n++) {
			struct command c = {1, WARM_SEND, n / 2, n & 1};
			tell((n & 1) % processes, c);
			c.kind = WARM_RECV;
			c.side = !c.side;
			if (strcmp(tell(c.side % processes, c), "moved")) good = 0;
		}
		if (must && now() > until) {
			printf("NOT PROMOTED\n");
			exit(1);
		}
	}
}
static void drive(uint64_t seed, int i) {
	uint64_t x = mix(seed, (uint64_t)i);
	int total = 0, kind = 0;
	for (int k = 0; k < KIND_COUNT; k++) total += often[k];
	for (int at = under(&x, total); at >= often[kind]; kind++) at -= often[kind];
	struct command c = {draw(&x) | 1, (enum kind)kind, under(&x, CONNS), under(&x, 2)};
	int who = (c.side ^ one_in(&x, 15)) % processes;
	if (kind == FORK) {
		report(i, who, (struct command){c.x, forked[who] ? END : FORK, 0, 0});
		forked[who] = !forked[who];
		return;
	}
	report(i, who, c);
	if (kind == PASS) {
		c.kind = TAKE;
		report(i, (who + 1) % processes, c);
	}
	if (kind == SLEEP) {
		static const enum kind wakes[] = {SEND, SEND, SEND, SEND, SHUT, CLOSE};
		struct command w = {draw(&x) | 1, wakes[under(&x, 6)], c.conn, !c.side};
		report(i, w.side % processes, w);
		c.kind = JOIN;
		report(i, who, c);
	}
}

// connects makes this process's ends, one connection after the other.
static void connects(int from, const struct sockaddr_in *a, int who) {
	for (int c = 0; c < CONNS; c++)
		for (int side = 0; side < 2; side++) {
			if (side % processes != who) continue;
			int fd = side ? accept(from, 0, 0) : socket(AF_INET, SOCK_STREAM, 0);
			if (fd < 0 || (!side && connect(fd, (const struct sockaddr *)a, sizeof *a))) err(1, "connect");
			setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
			setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, NAP * 1000}, sizeof(struct timeval));
			setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){0, NAP * 1000}, sizeof(struct timeval));
			number[c][side][0] = fd;
		}
	close(from);
}
int main(int argc, char **argv) {
	if (argc != 5) errx(2, "twin SEED 1|2 warm|cold LIST");
	uint64_t seed = strtoull(argv[1], 0, 10);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t l = sizeof a;
	int from = socket(AF_INET, SOCK_STREAM, 0), wire[2][2], between[2][2];
	processes = atoi(argv[2]);
	signal(SIGPIPE, SIG_IGN);
	memset(number, -1, sizeof number);
	ways = mmap(0, CONNS * sizeof *ways, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (ways == MAP_FAILED || bind(from, (struct sockaddr *)&a, l) || listen(from, CONNS) || getsockname(from, (struct sockaddr *)&a, &l)) err(1, "listen");
	for (int i = 0; i < 2; i++)
		if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, wire[i]) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, between[i])) err(1, "socketpair");
	for (int i = 0; i < processes; i++) {
		to[i] = wire[i][0];
		pid_t p = fork();
		if (p < 0) err(1, "fork");
		if (p) continue;
		to_driver = wire[i][1];
		close(wire[0][0]);
		close(wire[1][0]);
		passing[0] = between[i][0];
		passing[1] = between[processes - 1 - i][1];
		for (int s = 0; s < SETS; s++) set[s] = epoll_create1(0);
		connects(from, &a, i);
		serve();
	}
	close(from);
	close(wire[0][1]);
	close(wire[1][1]);
	if (!strcmp(argv[3], "warm")) warm();
	for (char *at = argv[4]; *at;) {
		long i = strtol(at, &at, 10), last = *at == '-' ? strtol(at + 1, &at, 10) : i;
		for (; i <= last; i++) drive(seed, (int)i);
		if (*at) at++;
	}
	return 0;
}
