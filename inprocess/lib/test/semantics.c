// semantics list, or semantics FAMILY [CASE]: what calls on a connection do, one case after the other, each in a process of its own. A case
// prints what it sees, which must be the same natively and with the library. With SEMANTICS_PROMOTED in the environment a case begins only
// once the kernel no longer counts the bytes of its connections, so it cannot pass by staying native.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
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
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../sys.h"
#include "promoted.h"
#include "rounds.h"

#define WITHIN 50 // seconds for one case, on a busy machine

extern char **environ;
static const char *name;
static char family = '4';
static char big[4 << 20], in[4 << 20];

// say prints. It evaluates its arguments from left to right.
#define say(...) SAY_N(__VA_ARGS__, SAY5, SAY4, SAY3, SAY2, SAY1, say_it)(__VA_ARGS__)
#define SAY_N(f, a, b, c, d, e, name, ...) name
#define IN_ORDER(...) do { __VA_ARGS__ } while (0)
#define SAY1(f, a) IN_ORDER(__auto_type a_ = (a); say_it(f, a_);)
#define SAY2(f, a, b) IN_ORDER(__auto_type a_ = (a); __auto_type b_ = (b); say_it(f, a_, b_);)
#define SAY3(f, a, b, c) IN_ORDER(__auto_type a_ = (a); __auto_type b_ = (b); __auto_type c_ = (c); say_it(f, a_, b_, c_);)
#define SAY4(f, a, b, c, d) IN_ORDER(__auto_type a_ = (a); __auto_type b_ = (b); __auto_type c_ = (c); __auto_type d_ = (d); say_it(f, a_, b_, c_, d_);)
#define SAY5(f, a, b, c, d, e) IN_ORDER(__auto_type a_ = (a); __auto_type b_ = (b); __auto_type c_ = (c); __auto_type d_ = (d); __auto_type e_ = (e); say_it(f, a_, b_, c_, d_, e_);)
static void say_it(const char *format, ...) {
	va_list a;
	va_start(a, format);
	printf("%s: ", name);
	vprintf(format, a);
	printf("\n");
	fflush(stdout);
	va_end(a);
}
// res names the result of a call.
static const char *res(long n) {
	static __thread char b[8][32];
	static __thread int i;
	char *p = b[i++ & 7];
	if (n >= 0) snprintf(p, 32, "%ld", n);
	else snprintf(p, 32, "%s", strerrorname_np(errno));
	return p;
}
static void ms(int n) { // signals do not end it
	double until = now() + n / 1e3, left;
	while ((left = until - now()) > 0) usleep((unsigned)(left * 1e6) + 1);
}
// about tells whether about so much time has passed. A slow machine may take up to 3 seconds more.
static const char *about(double began, double want) {
	static __thread char b[32];
	double d = now() - began;
	if (d > want - 0.02 && d < want + 3) return "in time";
	snprintf(b, sizeof b, "after %.3f s", d);
	return b;
}
static void die(const char *what) {
	printf("%s: BROKEN %s: %m\n", name, what);
	fflush(stdout);
	_exit(9);
}

// ---- connections

static socklen_t address(struct sockaddr_storage *s) {
	memset(s, 0, sizeof *s);
	if (family == '4') {
		*(struct sockaddr_in *)s = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
		return sizeof(struct sockaddr_in);
	}
	struct sockaddr_in6 *a = (struct sockaddr_in6 *)s;
	a->sin6_family = AF_INET6;
	inet_pton(AF_INET6, family == '6' ? "::1" : "::ffff:127.0.0.1", &a->sin6_addr);
	return sizeof *a;
}
static int window, segment; // SO_SNDBUF and SO_RCVBUF, and TCP_MAXSEG; 0: the system's
static int new_socket(int domain) {
	int fd = socket(domain, SOCK_STREAM, 0);
	if (segment) setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof segment);
	if (!window) return fd;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &window, sizeof window);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window);
	return fd;
}
static int listener(struct sockaddr_storage *s, socklen_t *l) {
	*l = address(s);
	int fd = new_socket(s->ss_family);
	if (bind(fd, (struct sockaddr *)s, *l) < 0 || listen(fd, 16) < 0 || getsockname(fd, (struct sockaddr *)s, l) < 0) die("listen");
	return fd;
}
static bool moved(int from, int to) { // moves 64 bytes; false if the kernel carried them
	char b[64] = "warm";
	uint64_t had = received(to);
	if (write(from, b, sizeof b) != sizeof b) die("write");
	for (size_t n = 0; n < sizeof b;) {
		ssize_t k = read(to, b, sizeof b - n);
		if (k <= 0) die("read");
		n += (size_t)k;
	}
	return received(to) - had < sizeof b;
}
#define PROMOTED_WITHIN 15 // seconds
// warm moves bytes until both directions are promoted, or for a while if they need not be.
static void warm(int a, int b) {
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	double until = now() + PROMOTED_WITHIN;
	for (int i = 0, good = 0; good < 3 && i < (must ? 1 << 30 : 10); i++) {
		bool ab = moved(a, b), ba = moved(b, a);
		good = ab && ba ? good + 1 : 0;
		if (must && now() > until) {
			say("NOT PROMOTED");
			_exit(9);
		}
		if (must && i > 20) usleep(1000);
	}
}
static void cold(int *a, int *b) {
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l);
	*a = new_socket(s.ss_family);
	if (connect(*a, (struct sockaddr *)&s, l) < 0) die("connect");
	*b = accept(from, 0, 0);
	close(from);
}
static void pair(int *a, int *b) {
	cold(a, b);
	warm(*a, *b);
}
// stage is 1 once the peer's process has read all that came before its f. f may say more.
static _Atomic int *stage;
static void reached(int n) {
	while (*stage < n) ms(1);
}
// peer forks a process at the other end, which runs f once both ends are warm.
static pid_t peer(int *a, void (*f)(int b)) {
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l);
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	if (!stage && (stage = mmap(0, sizeof *stage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED) die("mmap");
	*stage = 0;
	pid_t p = fork();
	if (p == 0) {
		int b = accept(from, 0, 0);
		close(from);
		char c[64];
		for (;;) { // echo until told to begin
			ssize_t n = read(b, c, sizeof c);
			if (n <= 0) _exit(8);
			if (c[0] == '!') break;
			if (write(b, c, (size_t)n) != n) _exit(8);
		}
		*stage = 1;
		f(b);
		_exit(0);
	}
	*a = new_socket(s.ss_family);
	if (connect(*a, (struct sockaddr *)&s, l) < 0) die("connect");
	close(from);
	char c[64] = "warm";
	double until = now() + PROMOTED_WITHIN;
	for (int i = 0, good = 0; good < 3 && i < (must ? 1 << 30 : 10); i++) {
		uint64_t had = received(*a);
		if (write(*a, c, sizeof c) != sizeof c) die("write");
		for (size_t n = 0; n < sizeof c;) {
			ssize_t k = read(*a, c, sizeof c - n);
			if (k <= 0) die("read");
			n += (size_t)k;
		}
		good = received(*a) - had < sizeof c ? good + 1 : 0;
		if (must && now() > until) {
			say("NOT PROMOTED");
			_exit(9);
		}
		if (must && i > 20) usleep(1000);
	}
	if (write(*a, "!", 1) != 1) die("write");
	reached(1);
	ms(30);
	return p;
}
static void reap(pid_t p) {
	int status;
	if (waitpid(p, &status, 0) != p) die("waitpid");
	say("peer %s %d", WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}
static int queued(int fd) {
	int q = -1;
	ioctl(fd, FIONREAD, &q);
	return q;
}
static const char *revents(int fd, short events, int timeout) {
	static __thread char b[4][96];
	static __thread int i;
	char *s = b[i++ & 3];
	struct pollfd p = {fd, events, 0};
	int n = poll(&p, 1, timeout);
	snprintf(s, 96, "%d%s%s%s%s%s%s%s", n, p.revents & POLLIN ? " in" : "", p.revents & POLLOUT ? " out" : "", p.revents & POLLRDHUP ? " rdhup" : "", p.revents & POLLHUP ? " hup" : "",
	         p.revents & POLLERR ? " err" : "", p.revents & POLLPRI ? " pri" : "", p.revents & POLLNVAL ? " nval" : "");
	return s;
}
static const char *happens(int ep, int timeout) {
	static __thread char b[4][96];
	static __thread int i;
	char *s = b[i++ & 3];
	struct epoll_event v[4];
	int n = epoll_wait(ep, v, 4, timeout);
	uint32_t e = n > 0 ? v[0].events : 0;
	snprintf(s, 96, "%s%s%s%s%s%s", res(n), e & EPOLLIN ? " in" : "", e & EPOLLOUT ? " out" : "", e & EPOLLRDHUP ? " rdhup" : "", e & EPOLLHUP ? " hup" : "", e & EPOLLERR ? " err" : "");
	return s;
}
static void add(int ep, int fd, uint32_t events) {
	struct epoll_event v = {events, {.fd = fd}};
	if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &v) < 0) die("epoll_ctl");
}
static void mod(int ep, int fd, uint32_t events) {
	struct epoll_event v = {events, {.fd = fd}};
	if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &v) < 0) die("epoll_ctl");
}
static size_t take(int fd, size_t n) { // reads n bytes, or what there is before the end
	size_t done = 0;
	while (done < n) {
		ssize_t k = read(fd, in + done, n - done);
		if (k <= 0) break;
		done += (size_t)k;
	}
	return done;
}
static void give(int fd, const char *s) {
	if (write(fd, s, strlen(s)) != (ssize_t)strlen(s)) die("give");
}
// write_much writes more than any buffer holds.
static ssize_t write_much(int fd) {
	struct iovec v[16];
	for (int i = 0; i < 16; i++) v[i] = (struct iovec){big, sizeof big};
	return writev(fd, v, 16);
}
static void nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }
// fill writes until no more is taken.
static size_t fill(int fd) {
	size_t n = 0;
	ssize_t k;
	for (;;) {
		while ((k = send(fd, big + n % 65536, 10000, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0) n += (size_t)k;
		if (errno != EAGAIN) die("fill");
		ms(20);
		if ((k = send(fd, big + n % 65536, 10000, MSG_DONTWAIT | MSG_NOSIGNAL)) <= 0) return n;
		n += (size_t)k;
	}
}
// drain reads until nothing has come for 300 ms. It does not compare the bytes.
static size_t drain(int fd) {
	size_t n = 0;
	ssize_t k;
	for (int idle = 0; idle < 30;) {
		while ((k = recv(fd, in, sizeof in, MSG_DONTWAIT)) > 0) n += (size_t)k, idle = 0;
		if (k == 0 || errno != EAGAIN) break;
		ms(10);
		idle++;
	}
	return n;
}
struct thread {
	pthread_t t;
	int fd, flags;
	size_t n;
	ssize_t r;
	int err;
	_Atomic bool done;
};
static void *read_thread(void *a) {
	struct thread *t = a;
	t->r = recv(t->fd, in, t->n, t->flags);
	t->err = errno;
	t->done = true;
	return 0;
}
static void *write_thread(void *a) {
	struct thread *t = a;
	t->r = send(t->fd, big, t->n, t->flags);
	t->err = errno;
	t->done = true;
	return 0;
}
static void *write_much_thread(void *a) {
	struct thread *t = a;
	t->r = write_much(t->fd);
	t->err = errno;
	t->done = true;
	return 0;
}
static void begin(struct thread *t, void *(*f)(void *)) {
	t->done = false;
	pthread_create(&t->t, 0, f, t);
	ms(50);
}
static const char *finish(struct thread *t) {
	pthread_join(t->t, 0);
	errno = t->err;
	return res(t->r);
}

// ---- reading and writing

static void peek(void) {
	int a, b;
	pair(&a, &b);
	char c[20] = "";
	give(a, "hello");
	say("%s %s", res(recv(b, c, 3, MSG_PEEK)), c);
	say("%s %s, queued %d", res(recv(b, c, 10, MSG_PEEK)), c, queued(b));
	say("%s, queued %d", res(read(b, c, 2)), queued(b));
	memset(c, 0, sizeof c);
	say("%s %s", res(recv(b, c, 10, MSG_PEEK)), c);
	say("%s %s", res(read(b, c, 10)), c);
	say("%s %s", res(recv(b, c, 10, MSG_PEEK | MSG_DONTWAIT)), res(recv(b, c, 10, MSG_DONTWAIT)));
	struct thread t = {.fd = b, .n = 10, .flags = MSG_PEEK};
	begin(&t, read_thread);
	say("peek waits: %d", !t.done);
	give(a, "later");
	say("%s, queued %d", finish(&t), queued(b));
	take(b, 5);
	t = (struct thread){.fd = b, .n = 10, .flags = MSG_PEEK | MSG_WAITALL};
	give(a, "01234");
	begin(&t, read_thread);
	say("peek of all waits: %d", !t.done);
	give(a, "56789");
	say("%s, queued %d", finish(&t), queued(b));
}
static void peeks_on(void) { // a 4-byte header must peek whole once its bytes are there, wherever they are
	int a, b, stuck = 0, wrong = 0;
	pair(&a, &b);
	for (int round = 0; round < 2; round++) {
		size_t sent = 0, at = 0, more = 3;
		for (ssize_t n; sent < 150000 && (n = send(a, big + sent, 9001, MSG_DONTWAIT)) > 0;) sent += (size_t)n;
		while (sent - at >= 4) {
			ssize_t p = 0;
			for (int tries = 0; tries < 50 && (p = recv(b, in, 4, MSG_PEEK | MSG_DONTWAIT)) < 4; tries++) usleep(1000);
			stuck += p < 4 && queued(b) >= 4;
			wrong += p == 4 && memcmp(in, big + at, 4);
			if (read(b, in, 1) != 1) die("read");
			wrong += in[0] != big[at++];
			if (sent - at == 10 && more && more--) sent += (size_t)write(a, big + sent, 1000); // these go by another way than what is left
		}
		say("%d stuck %d wrong %d", round, stuck, wrong);
		take(b, sent - at);
	}
}
static void peeks_across(void) { // until all is there, while the connection is promoted
	int a, b, stuck = 0;
	cold(&a, &b);
	pid_t p = fork();
	if (p == 0) {
		close(b);
		for (int i = 0; i < 40; i++) {
			for (int j = 0; j < 5; j++)
				if (write(a, big + 1060 * j, 1060) != 1060) _exit(1);
			if (read(a, in, 1) != 1) _exit(2);
		}
		_exit(0);
	}
	close(a);
	for (int i = 0; i < 40; i++) {
		double until = now() + 4;
		ssize_t n;
		while ((n = recv(b, in, 5300, MSG_PEEK)) < 5300 && now() < until) usleep(100);
		stuck += n < 5300 || memcmp(in, big, 5300);
		take(b, 5300);
		give(b, "x");
	}
	say("stuck %d", stuck);
	reap(p);
}
static void in_doubt(void) { // each byte may be the beginning of something else, and the other end's library does not say that it is not
	int a, b, c, d, late = 0, wrong = 0;
	pair(&c, &d);
	cold(&a, &b);
	struct thread t = {.fd = b, .n = 1};
	begin(&t, read_thread);
	for (int i = 0; i < 3000; i++) {
		char x = (char)i, y;
		double from = now();
		if (write(b, &x, 1) != 1 || read(a, &y, 1) != 1) die("bytes");
		late += now() - from > 1;
		wrong += x != y;
	}
	give(a, "x");
	say("late %d wrong %d, %s", late, wrong, finish(&t));
}
static void shown(void) { // while bytes are exchanged, the kernel's connection is not still for long
	int a, b;
	struct tcp_info i;
	socklen_t l = sizeof i;
	uint32_t had = 0;
	pair(&a, &b);
	ms(500);
	for (double began = now(); now() - began < 4; poll(0, 0, 10)) {
		give(a, "12345");
		take(b, 5);
		if (getsockopt(b, IPPROTO_TCP, TCP_INFO, &i, &l) < 0) die("TCP_INFO");
		if (!had) had = i.tcpi_segs_in;
	}
	say("%d", i.tcpi_segs_in > had + 2);
	give(a, "end");
	close(a);
	say("%zu %s", take(b, 3), res(read(b, in, 10)));
}
static void counts(void) {
	int a, b, q;
	pair(&a, &b);
	say("%d %d", queued(a), queued(b));
	give(a, "12345");
	for (int i = 0; i < 500 && queued(b) < 5; i++) ms(10);
	say("%d", queued(b));
	take(b, 5);
	for (int i = 0; i < 500 && !ioctl(a, SIOCOUTQ, &q) && q; i++) ms(10);
	say("%d out %s %d", queued(b), res(ioctl(a, SIOCOUTQ, &q)), q);
	size_t n = fill(a);
	ioctl(a, SIOCOUTQ, &q);
	say("full: %d", q > 0);
	q = queued(b);
	say("at once: %d", recv(b, in, (size_t)q, 0) == q);
	say("same: %d", n - (size_t)q == drain(b));
	ms(100);
	ioctl(a, SIOCOUTQ, &q);
	say("empty: %d %d", q, queued(b));
	say("%s", res(ioctl(a, FIONREAD, (void *)0)));
}
static void waitall(void) {
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = b, .n = 10, .flags = MSG_WAITALL};
	give(a, "0123");
	begin(&t, read_thread);
	say("waits: %d", !t.done);
	give(a, "456789x");
	say("%s, queued %d", finish(&t), queued(b));
	take(b, 1);
	give(a, "abc");
	say("%s", res(recv(b, in, 10, MSG_WAITALL | MSG_DONTWAIT)));
	t = (struct thread){.fd = b, .n = 3 << 20, .flags = MSG_WAITALL};
	begin(&t, read_thread);
	for (int i = 0; i < 3; i++) say("wrote %s", res(write(a, big + (i << 20), 1 << 20)));
	say("%s, right %d", finish(&t), !memcmp(in, big, 3 << 20));
	begin(&t, read_thread);
	give(a, "short");
	shutdown(a, SHUT_WR);
	say("the end: %s", finish(&t));
	say("%s", res(read(b, in, 1)));
}
static void timeouts(void) {
	int a, b;
	pair(&a, &b);
	struct timeval tv = {0, 200000}, got;
	socklen_t l = sizeof got;
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	getsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &got, &l);
	say("set %ld", (long)got.tv_usec);
	double at = now();
	say("read %s %s", res(read(b, in, 10)), about(at, 0.2));
	give(a, "abc");
	at = now();
	say("partly %s %s", res(recv(b, in, 10, MSG_WAITALL)), about(at, 0.2));
	size_t n = fill(a);
	at = now();
	say("write %s %s", res(write(a, big, 10)), about(at, 0.2));
	say("same: %d", n == drain(b));
	at = now();
	ssize_t k = write_much(a);
	say("more: %d %s", k > 0 && k < 16 * (ssize_t)sizeof big, about(at, 0.2));
	say("same: %d", k == (ssize_t)drain(b));
}
static void timeout_later(void) { // than a read that slept without one
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = b, .n = 1};
	begin(&t, read_thread);
	give(a, "x");
	say("%s", finish(&t));
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 200000}, sizeof(struct timeval));
	double at = now();
	say("%s %s", res(read(b, in, 10)), about(at, 0.2));
}
static void dontwait(void) {
	int a, b;
	pair(&a, &b);
	say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
	nonblocking(b);
	say("%s %s", res(read(b, in, 10)), res(recv(b, in, 10, MSG_WAITALL)));
	give(a, "xy");
	say("%s %s", res(recv(b, in, 10, MSG_WAITALL)), res(read(b, in, 10)));
	int zero = 0;
	ioctl(b, FIONBIO, &zero);
	struct thread t = {.fd = b, .n = 10};
	begin(&t, read_thread);
	say("waits: %d", !t.done);
	give(a, "z");
	say("%s", finish(&t));
	int d = dup(b);
	nonblocking(d);
	say("by a duplicate: %s", res(read(b, in, 10)));
}
static void vectors(void) {
	int a, b;
	pair(&a, &b);
	char c[3][4] = {"", "", ""};
	struct iovec o[5] = {{"ab", 2}, {"", 0}, {"cde", 3}, {0, 0}, {"f", 1}}, i[3] = {{c[0], 3}, {c[1], 0}, {c[2], 2}};
	say("writev %s", res(writev(a, o, 5)));
	say("readv %s %s %s", res(readv(b, i, 3)), c[0], c[2]);
	say("preadv2 %s %s", res(preadv2(b, i, 3, -1, 0)), c[0]);
	say("pwritev2 %s poll %s preadv2 %s at an offset %s", res(pwritev2(a, o, 5, -1, 0)), revents(b, POLLIN, 1000), res(preadv2(b, i, 3, -1, RWF_NOWAIT)), res(preadv2(b, i, 3, 5, 0)));
	say("left %zu, then %s", take(b, 1), res(preadv2(b, i, 3, -1, RWF_NOWAIT)));
	struct iovec many[1025];
	for (int k = 0; k < 1024; k++) many[k] = (struct iovec){big + k * 100, 100};
	say("many %s", res(writev(a, many, 1024)));
	take(b, 102400);
	say("right %d, too many %s", !memcmp(in, big, 102400), res(writev(a, many, 1025)));
	for (int k = 0; k < 1024; k++) many[k] = (struct iovec){in + 1000000 + k * 100, 100};
	say("wrote %s", res(write(a, big, 102400)));
	struct msghdr h = {.msg_iov = many, .msg_iovlen = 1024};
	say("many %s right %d", res(recvmsg(b, &h, MSG_WAITALL)), !memcmp(in + 1000000, big, 102400));
}
static void messages(void) {
	int a, b;
	pair(&a, &b);
	struct iovec o[3] = {{"one", 3}, {"two", 3}, {"three", 5}}, i[3] = {{in, 3}, {in + 3, 3}, {in + 6, 10}};
	struct mmsghdr s[3], r[3];
	memset(s, 0, sizeof s);
	memset(r, 0, sizeof r);
	for (int k = 0; k < 3; k++) {
		s[k].msg_hdr = (struct msghdr){.msg_iov = o + k, .msg_iovlen = 1};
		r[k].msg_hdr = (struct msghdr){.msg_iov = i + k, .msg_iovlen = 1};
	}
	say("sent %s: %u %u %u", res(sendmmsg(a, s, 3, 0)), s[0].msg_len, s[1].msg_len, s[2].msg_len);
	say("got %s: %u %u %u", res(recvmmsg(b, r, 3, 0, 0)), r[0].msg_len, r[1].msg_len, r[2].msg_len);
	say("%.11s", in);
	say("none %s", res(recvmmsg(b, r, 3, MSG_DONTWAIT, 0)));
	give(a, "abcd");
	say("one %s", res(recvmmsg(b, r, 3, MSG_WAITFORONE, 0)));
	say("some %s", res(recvmmsg(b, r, 3, MSG_DONTWAIT, 0)));
	struct sockaddr_storage from;
	char control[100];
	struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = i, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
	give(a, "x");
	say("recvmsg %s", res(recvmsg(b, &m, 0)));
	say("name %u control %zu flags %d", m.msg_namelen, (size_t)m.msg_controllen, m.msg_flags);
	socklen_t l = sizeof from;
	give(a, "y");
	say("recvfrom %s", res(recvfrom(b, in, 1, 0, (struct sockaddr *)&from, &l)));
	give(a, "discarded");
	say("trunc %s", res(recv(b, 0, 4, MSG_TRUNC)));
	say("left %s %.5s", res(read(b, in, 10)), in);
	address(&from);
	say("sendto %s", res(sendto(a, "q", 1, 0, (struct sockaddr *)&from, sizeof from)));
	say("got %s", res(read(b, in, 10)));
}
static void nothing(void) {
	int a, b;
	pair(&a, &b);
	say("read %s write %s", res(read(b, in, 0)), res(write(a, big, 0)));
	say("recv %s send %s", res(recv(b, in, 0, MSG_DONTWAIT)), res(send(a, big, 0, 0)));
	say("readv %s writev %s", res(readv(b, 0, 0)), res(writev(a, 0, 0)));
	give(a, "x");
	say("read %s recv %s then %s", res(read(b, in, 0)), res(recv(b, in, 0, 0)), res(read(b, in, 5)));
	close(a);
	say("the end: %s", res(read(b, in, 0)));
	say("closed: read %s write %s poll %s", res(read(a, in, 1)), res(write(a, in, 1)), revents(a, POLLIN, 0));
	say("send %s recv %s", res(send(a, in, 1, 0)), res(recv(a, in, 1, 0)));
	say("negative: %s %s", res(read(-1, in, 1)), res(close(-1)));
}
static void numbers(void) {
	int a, b;
	pair(&a, &b);
	say("write %s", res(syscall(SYS_write, a, "hello", 5L)));
	say("read %s", res(syscall(SYS_read, b, in, 10L)));
	say("sendto %s", res(syscall(SYS_sendto, a, "hello", 5L, 0L, 0L, 0L)));
	say("recvfrom %s", res(syscall(SYS_recvfrom, b, in, 10L, 0L, 0L, 0L)));
	struct iovec v = {"vector", 6}, w = {in, 10};
	say("writev %s", res(syscall(SYS_writev, a, &v, 1L)));
	say("readv %s", res(syscall(SYS_readv, b, &w, 1L)));
	say("getpid %d", syscall(SYS_getpid) == getpid());
	say("close %s", res(syscall(SYS_close, (long)a)));
	say("the end %s", res(syscall(SYS_read, b, in, 10L)));
}
static void files(void) {
	int a, b, p[2];
	pair(&a, &b);
	FILE *f = tmpfile();
	fwrite(big, 1, 1 << 20, f);
	fflush(f);
	int fd = fileno(f);
	off_t at = 1000;
	say("sendfile %s at %ld", res(sendfile(a, fd, &at, 5000)), (long)at);
	say("right %d", take(b, 5000) == 5000 && !memcmp(in, big + 1000, 5000));
	lseek(fd, 100, SEEK_SET);
	say("sendfile %s at %ld", res(sendfile(a, fd, 0, 5000)), (long)lseek(fd, 0, SEEK_CUR));
	say("right %d", take(b, 5000) == 5000 && !memcmp(in, big + 100, 5000));
	at = (1 << 20) - 10;
	say("to the end %s at %ld then %s", res(sendfile(a, fd, &at, 5000)), (long)at, res(sendfile(a, fd, &at, 10)));
	take(b, 10);
	struct thread t = {.fd = b, .n = 1 << 20, .flags = MSG_WAITALL};
	begin(&t, read_thread);
	at = 0;
	size_t n = 0;
	ssize_t k;
	while (n < 1 << 20 && (k = sendfile(a, fd, &at, (1 << 20) - n)) > 0) n += (size_t)k;
	say("all %zu %s right %d", n, finish(&t), !memcmp(in, big, 1 << 20));
	if (pipe(p) < 0) die("pipe");
	if (write(p[1], "spliced", 7) != 7) die("pipe");
	say("sendfile of a pipe %s", res(sendfile(a, p[0], 0, 100)));
	say("splice %s", res(splice(p[0], 0, a, 0, 100, 0)));
	say("%s %.7s", res(read(b, in, 100)), in);
	give(a, "back");
	say("splice %s", res(splice(b, 0, p[1], 0, 100, 0)));
	say("%s %.4s", res(read(p[0], in, 100)), in);
	give(b, "other way");
	say("%s", res(read(a, in, 100)));
}
// spliced_beside_reader: a thread writes by splice() while another sleeps in read(), until the other end has answered.
struct splices {
	int fd, answer; // answer: after so many bytes
	bool right;
};
static void *answers(void *x) {
	struct splices *s = x;
	char c;
	s->right = true;
	for (int n = 0; read(s->fd, &c, 1) == 1; n++) {
		s->right &= c == big[n];
		if (n == s->answer) give(s->fd, "answer");
	}
	return 0;
}
static void spliced_beside_reader(void) {
	uint64_t x = (uint64_t)getpid();
	int right = 0, p[2];
	if (pipe(p) < 0) die("pipe");
	for (int i = 0; i < 20; i++) {
		struct splices s = {.answer = (int)(draw(&x) % 100)};
		struct thread t = {.n = 1};
		pthread_t other;
		pair(&t.fd, &s.fd);
		begin(&t, read_thread);
		pthread_create(&other, 0, answers, &s);
		for (int n = 0; n <= s.answer || !t.done; n++)
			if (write(p[1], big + n, 1) != 1 || (splice(p[0], 0, t.fd, 0, 1, 0) != 1 && (read(p[0], in, 1) != 1 || write(t.fd, in, 1) != 1))) die("splice");
		finish(&t);
		shutdown(t.fd, SHUT_WR);
		pthread_join(other, 0);
		right += s.right;
		close(t.fd);
		close(s.fd);
	}
	say("right %d", right);
}
static void stdio(void) {
	int a, b;
	pair(&a, &b);
	give(b, "before\n");
	FILE *f = fdopen(a, "r+"), *g = fdopen(dup(b), "r+");
	char line[100];
	say("%s", fgets(line, sizeof line, f) ? line : "none");
	fprintf(f, "first %d\nsecond\n", 1);
	fflush(f);
	say("%s", fgets(line, sizeof line, g) ? line : "none");
	say("%s", fgets(line, sizeof line, g) ? line : "none");
	fprintf(g, "answer\n");
	fflush(g);
	say("%s", fgets(line, sizeof line, f) ? line : "none");
	fclose(f);
	say("the end %d", fgets(line, sizeof line, g) == 0);
	int had[] = {dup(0), dup(1)};
	pair(&a, &b); // on stdin and stdout, as a server that inetd starts has it
	give(a, "standard\n");
	dup2(b, 0);
	dup2(b, 1);
	close(b);
	char *got = fgets(line, sizeof line, stdin);
	printf("output\n");
	fflush(stdout);
	dup2(had[0], 0);
	dup2(had[1], 1);
	say("%s", got ? line : "none");
	say("%zu %.7s", take(a, 7), in);
	say("%s", res(read(a, in, 10)));
}
static void as_stdin(void) { // accept() returns it as descriptor 0
	struct sockaddr_storage s;
	socklen_t l;
	char line[10] = "";
	int from = listener(&s, &l), a = new_socket(s.ss_family);
	if (connect(a, (struct sockaddr *)&s, l) < 0) die("connect");
	close(STDIN_FILENO);
	int b = accept(from, 0, 0);
	for (int i = 0; i < 200; i++) {
		moved(a, b);
		moved(b, a);
		usleep(500);
	}
	give(a, "a line\n");
	if (!fgets(line, sizeof line, stdin)) die("fgets");
	say("%d %.6s", b, line);
}
static void dprint(void) {
	int a, b;
	pair(&a, &b);
	give(a, "1");
	say("dprintf %s", res(dprintf(a, "%d-%s", 5, "x")));
	ms(20);
	take(b, 4);
	say("%.4s", in);
	give(a, "after");
	say("%zu", take(b, 5));
	give(b, "back");
	say("%zu", take(a, 4));
}

// ---- waiting

static void polls(void) {
	int a, b;
	pair(&a, &b);
	say("idle %s, for %s", revents(b, POLLIN | POLLOUT, 0), revents(b, POLLIN, 0));
	double at = now();
	say("time-out %s %s", revents(b, POLLIN, 100), about(at, 0.1));
	give(a, "x");
	say("%s, for none %s", revents(b, POLLIN | POLLOUT | POLLRDHUP, 100), revents(b, 0, 0));
	say("again %s", revents(b, POLLIN, 100));
	take(b, 1);
	say("read %s", revents(b, POLLIN, 0));
	struct pollfd p[3] = {{a, POLLIN, 0}, {b, POLLIN, 0}, {-1, POLLIN, 0}};
	give(b, "y");
	say("two %s: %d %d %d", res(poll(p, 3, 100)), p[0].revents, p[1].revents, p[2].revents);
	struct timespec ts = {0, 50000000};
	say("ppoll %s", res(ppoll(p, 3, &ts, 0)));
	take(a, 1);
	size_t n = fill(a);
	say("full %s", revents(a, POLLOUT, 0));
	say("same %d", n == drain(b));
	say("empty %s", revents(a, POLLOUT, 1000));
	shutdown(a, SHUT_WR);
	ms(50);
	say("half %s, for in %s", revents(b, POLLIN | POLLOUT | POLLRDHUP, 100), revents(b, POLLIN, 0));
	say("self %s", revents(a, POLLIN | POLLOUT | POLLRDHUP, 0));
	close(b);
	ms(50);
	say("closed %s", revents(a, POLLIN | POLLRDHUP, 100));
	say("nval %s", revents(b, POLLIN, 0));
}
static void selects(void) {
	int a, b;
	pair(&a, &b);
	fd_set r, w, x;
#define SETS IN_ORDER(FD_ZERO(&r); FD_ZERO(&w); FD_ZERO(&x); FD_SET(a, &r); FD_SET(b, &r); FD_SET(a, &w); FD_SET(b, &x);)
#define SEEN FD_ISSET(a, &r), FD_ISSET(b, &r), FD_ISSET(a, &w), FD_ISSET(b, &x)
	struct timeval t = {0, 100000};
	SETS;
	int n = select(100, &r, &w, &x, &t);
	say("idle %s: %d %d %d %d", res(n), SEEN);
	SETS;
	give(a, "x");
	n = select(100, &r, &w, &x, 0);
	say("%s: %d %d %d %d", res(n), SEEN);
	SETS;
	n = select(100, &r, 0, 0, 0);
	say("read only %s: %d %d", res(n), FD_ISSET(a, &r), FD_ISSET(b, &r));
	take(b, 1);
	SETS;
	t = (struct timeval){0, 100000};
	double at = now();
	n = select(100, &r, 0, &x, &t);
	say("time-out %s %s left %ld", res(n), about(at, 0.1), (long)t.tv_usec);
	struct timespec ts = {0, 100000000};
	SETS;
	at = now();
	n = pselect(100, &r, 0, 0, &ts, 0);
	say("pselect %s %s", res(n), about(at, 0.1));
	give(b, "y");
	SETS;
	n = pselect(100, &r, 0, 0, &ts, 0);
	say("pselect %s: %d %d", res(n), FD_ISSET(a, &r), FD_ISSET(b, &r));
	close(a);
	SETS;
	FD_CLR(a, &r);
	ms(20);
	n = select(100, &r, 0, 0, 0);
	say("closed %s: %d %s", res(n), FD_ISSET(b, &r), res(read(b, in, 10)));
	SETS;
	say("bad %s", res(select(100, &r, 0, 0, 0)));
}
static void far_timeouts(void) { // so long that they never expire
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	for (int i = 0; i < 8; i++) {
		fd_set r;
		FD_ZERO(&r);
		FD_SET(b, &r);
		struct timespec ts = {i & 4 ? LONG_MAX : 10000000000, 999999999};
		struct timeval tv = {ts.tv_sec, 999999};
		struct epoll_event v;
		if (i % 4 == 3 && i == 3) add(ep, b, EPOLLIN);
		struct thread t = {.fd = a, .n = 1};
		if (fork() == 0) {
			ms(50);
			write_thread(&t);
			_exit(0);
		}
		double at = now();
		int n = i % 4 == 0 ? ppoll(&(struct pollfd){b, POLLIN, 0}, 1, &ts, 0) : i % 4 == 1 ? select(b + 1, &r, 0, 0, &tv) : i % 4 == 2 ? pselect(b + 1, &r, 0, 0, &ts, 0) : epoll_pwait2(ep, &v, 1, &ts, 0);
		say("%d %s %s", i, res(n), about(at, 0.05));
		take(b, 1);
		wait(0);
	}
}
static void far_options(void) { // likewise, of the socket
	int a, b;
	pair(&a, &b);
	struct timeval tv = {LONG_MAX / 1000, 0};
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	struct thread t = {.fd = b, .n = 10, .flags = MSG_WAITALL}, u = {.fd = a};
	begin(&t, read_thread);
	give(a, "0123");
	ms(50);
	give(a, "456789");
	say("%s", finish(&t));
	begin(&u, write_much_thread);
	ms(300);
	say("all %d", drain(b) == 16 * sizeof big);
	say("%s", finish(&u));
}
static void select_many(void) { // descriptors above FD_SETSIZE, and all descriptors
	int a, b, n;
	struct rlimit l = {4096, 4096};
	static fd_set r[8];
	if (getrlimit(RLIMIT_NOFILE, &l)) die("getrlimit");
	l.rlim_cur = l.rlim_max < 4096 ? l.rlim_max : 4096;
	setrlimit(RLIMIT_NOFILE, &l);
	pair(&a, &b);
	for (int i = 0; i < 6; i++) {
		int fd = i < 3 ? b : dup2(b, 1200);
		say("none %s", res(recv(fd, in, 1, MSG_DONTWAIT)));
		give(a, "x");
		memset(r, 0, sizeof r);
		((unsigned long *)r)[fd / 64] |= 1ul << fd % 64;
		struct timeval tv = {1, 0};
		n = select(i % 3 ? 4096 : fd + 1, r, 0, 0, &tv);
		say("%s %d", res(n), (int)(((unsigned long *)r)[fd / 64] >> fd % 64 & 1));
		take(fd, 1);
		tv = (struct timeval){0, 50000};
		n = select(i % 3 ? 4096 : fd + 1, r, 0, 0, &tv);
		say("%s", res(n));
	}
}
static void level(void) {
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN | EPOLLRDHUP);
	say("none %s", happens(ep, 50));
	give(a, "abcd");
	say("%s again %s", happens(ep, 1000), happens(ep, 1000));
	take(b, 2);
	say("half read %s", happens(ep, 100));
	take(b, 2);
	say("read %s", happens(ep, 50));
	mod(ep, b, EPOLLIN | EPOLLOUT);
	say("out %s", happens(ep, 50));
	for (int i = 0; i < 100; i++) {
		give(a, "m");
		struct epoll_event v;
		if (epoll_wait(ep, &v, 1, 1000) != 1 || !(v.events & EPOLLIN) || take(b, 1) != 1) die("message");
	}
	mod(ep, b, EPOLLIN | EPOLLRDHUP);
	say("after %s", happens(ep, 20));
	struct epoll_event v = {EPOLLIN, {.u64 = 0x123456789abcdefull}};
	epoll_ctl(ep, EPOLL_CTL_MOD, b, &v);
	give(a, "x");
	memset(&v, 0, sizeof v);
	say("%s data %llx", res(epoll_wait(ep, &v, 1, 1000)), (unsigned long long)v.data.u64);
	say("twice %s", res((epoll_ctl(ep, EPOLL_CTL_ADD, b, &v))));
	say("removed %s", res(epoll_ctl(ep, EPOLL_CTL_DEL, b, 0)));
	say("none %s, removed again %s", happens(ep, 20), res(epoll_ctl(ep, EPOLL_CTL_DEL, b, 0)));
	add(ep, b, EPOLLIN | EPOLLRDHUP);
	say("added %s", happens(ep, 100));
	shutdown(a, SHUT_WR);
	ms(20);
	take(b, 1);
	say("end %s %s", happens(ep, 100), res(read(b, in, 1)));
	shutdown(b, SHUT_WR);
	ms(20);
	say("both %s", happens(ep, 100));
	close(b);
	say("closed %s", happens(ep, 20));
}
static void edge(void) {
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	nonblocking(a);
	add(ep, b, EPOLLIN | EPOLLET);
	say("none %s", happens(ep, 50));
	give(a, "abcd");
	say("%s again %s", happens(ep, 1000), happens(ep, 50));
	take(b, 2);
	say("half read %s", happens(ep, 50));
	give(a, "ef");
	say("more %s again %s", happens(ep, 1000), happens(ep, 50));
	give(a, "gh");
	say("unread and more %s again %s", happens(ep, 1000), happens(ep, 50));
	take(b, 6);
	say("all read %s, %s", happens(ep, 50), res(recv(b, in, 1, MSG_DONTWAIT)));
	give(a, "x");
	say("after EAGAIN %s", happens(ep, 1000));
	mod(ep, b, EPOLLIN | EPOLLET);
	say("again by MOD %s then %s", happens(ep, 1000), happens(ep, 50));
	take(b, 1);
	for (int i = 0; i < 200; i++) {
		give(a, "message");
		struct epoll_event v;
		if (epoll_wait(ep, &v, 1, 1000) != 1) die("message");
		while (recv(b, in, i % 3 ? 100 : 3, MSG_DONTWAIT) > 0) {}
	}
	say("after %s", happens(ep, 20));
	int out = epoll_create1(0);
	add(out, a, EPOLLOUT | EPOLLET);
	say("out %s again %s", happens(out, 100), happens(out, 50));
	size_t n = fill(a);
	while (epoll_wait(out, &(struct epoll_event){0}, 1, 0) > 0) {}
	say("full %s", happens(out, 50));
	size_t m = drain(b);
	say("room %s", happens(out, 1000));
	say("same %d", n == m + drain(b));
	shutdown(a, SHUT_WR);
	say("end %s again %s", happens(ep, 1000), happens(ep, 50));
}
static void edge_drained(void) { // programs stop at a short count: what comes later, bytes or room, must raise an edge
	int a, b, ep = epoll_create1(0), out = epoll_create1(0);
	pair(&a, &b);
	nonblocking(a);
	nonblocking(b);
	add(ep, b, EPOLLIN | EPOLLET);
	for (int round = 0; round < 30; round++) {
		bool told = round % 3 == 2; // FIONREAD says how much to read
		size_t n = round & 1 ? fill(a) : 0, m = 0;
		for (ssize_t k; !(round & 1) && n < 66000 + (size_t)round * 1000 && (k = write(a, big, 1000)) > 0;) n += (size_t)k;
		while (m < n && !strncmp(happens(ep, 1000), "1 in", 4))
			for (;;) {
				size_t q = told ? (size_t)queued(b) : 30000 + (size_t)round * 1000, want = q < sizeof in ? q : sizeof in;
				ssize_t k = want ? read(b, in, want) : 0;
				if (k > 0) m += (size_t)k;
				if (k < (ssize_t)want || !want) break;
			}
		if (m != n) say("round %d stalls at %zu of %zu", round, m, n);
	}
	happens(ep, 0);
	add(out, a, EPOLLOUT | EPOLLET);
	size_t n = 0, m = 0;
	for (int round = 0; round < 30; round++) {
		if (strcmp(happens(out, 1000), "1 out")) say("round %d: no edge for a writer after %zu", round, n);
		for (ssize_t k = 20000, had; k == 20000 && (had = (k = write(a, big, 20000))) > 0;) n += (size_t)had;
		for (ssize_t k; (k = read(b, in, sizeof in)) > 0 || (m < n && poll(&(struct pollfd){b, POLLIN, 0}, 1, 1000) == 1);) m += k > 0 ? (size_t)k : 0;
	}
	say("same %d", m == n);
}
static void edge_behind_kernel(void) { // bytes come by a ring while some from before the promotion are unread
	int a, b, ep = epoll_create1(0);
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	double until = now() + 5;
	cold(&a, &b);
	setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	if (write(a, big, 6000) != 6000) die("write");
	say("read %zu", take(b, 80));
	for (uint64_t was = 0; must && received(b) - was > 1 && now() < until; ms(20)) { // fewer than two: a token for both
		was = received(b);
		give(b, "x");
		take(a, 1);
		give(a, "x");
		give(a, "x");
	}
	say("promoted %d", now() < until);
	add(ep, b, EPOLLIN | EPOLLET);
	for (int i = 0; i < 4; i++) {
		say("%s", happens(ep, 1000));
		give(a, "more");
	}
	say("%d", take(b, 5000) == 5000);
}
static void closed_early(void) { // a set must not report a descriptor that was closed while the broker looks at it
	int ep = epoll_create1(0), a, b, n = 0;
	pair(&a, &b);
	for (int i = 0; i < 500; i++) {
		cold(&a, &b);
		add(ep, b, EPOLLIN | EPOLLRDHUP | (i & 1 ? EPOLLET : 0));
		for (int k = 0; k < 1 + i % 3; k++) {
			give(a, "x");
			take(b, 1);
		}
		close(b);
		close(a);
		struct epoll_event v;
		n += epoll_wait(ep, &v, 1, i % 50 ? 0 : 2) != 0;
	}
	say("events %d", n);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	close(b);
	say("%s", happens(ep, 0));
}
static void answered_by_reset(void) { // because the peer has not read what was sent
	int a, b;
	pair(&a, &b);
	for (int i = 0; i < 2; i++) { // sent before the promotion, then sent by the ring
		if (i) pair(&a, &b);
		else cold(&a, &b);
		give(a, "unread");
		for (int k = 0; k < 200; k++) {
			give(b, "x");
			take(a, 1);
		}
		close(b);
		ms(20);
		say("%s then %s", res(read(a, in, 10)), res(read(a, in, 10)));
		close(a);
	}
}
static void oneshot(void) {
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN | EPOLLONESHOT);
	give(a, "ab");
	say("%s again %s", happens(ep, 1000), happens(ep, 50));
	mod(ep, b, EPOLLIN | EPOLLONESHOT);
	say("armed %s again %s", happens(ep, 1000), happens(ep, 50));
	take(b, 2);
	mod(ep, b, EPOLLIN | EPOLLONESHOT);
	say("empty %s", happens(ep, 50));
	give(a, "c");
	say("new %s again %s", happens(ep, 1000), happens(ep, 50));
	for (int i = 0; i < 200; i++) {
		take(b, 1);
		mod(ep, b, EPOLLIN | EPOLLONESHOT | (i & 1 ? EPOLLET : 0));
		give(a, "m");
		struct epoll_event v;
		if (epoll_wait(ep, &v, 1, 1000) != 1) die("message");
	}
	give(a, "n");
	say("off %s", happens(ep, 50));
	take(b, 2);
	close(a);
	say("end while off %s", happens(ep, 50));
	mod(ep, b, EPOLLIN | EPOLLONESHOT);
	say("end %s %s", happens(ep, 1000), res(read(b, in, 1)));
}
static void oneshot_room(void) { // while the other end goes to the kernel
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	give(b, "unread");
	add(ep, b, EPOLLIN | EPOLLOUT | EPOLLONESHOT);
	setsockopt(a, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int));
	ms(20);
	say("%s", happens(ep, 0));
	give(a, "x");
	ms(20);
	say("%s", happens(ep, 0));
	mod(ep, b, EPOLLIN | EPOLLONESHOT);
	say("%s", happens(ep, 0));
}
static void oneshot_off(void) { // once disabled it must report nothing, not even a reset
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		give(a, "x");
		add(ep, b, EPOLLIN | EPOLLONESHOT | (i & 1 ? EPOLLET : 0));
		say("%s", happens(ep, 1000));
		if (i & 2) take(b, 1);
		setsockopt(a, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
		close(a);
		ms(20);
		say("reset %s", happens(ep, 50));
		mod(ep, b, EPOLLONESHOT);
		say("armed %s then %s", happens(ep, 50), happens(ep, 50));
		close(b);
		close(ep);
	}
}
static void exclusive(void) {
	int a, b, ep[2] = {epoll_create1(0), epoll_create1(0)};
	pair(&a, &b);
	for (int i = 0; i < 2; i++) add(ep[i], b, EPOLLIN | EPOLLEXCLUSIVE);
	say("none %s", happens(ep[0], 20));
	for (int i = 0; i < 50; i++) {
		give(a, "x");
		struct epoll_event v;
		if (epoll_wait(ep[i & 1], &v, 1, 1000) != 1) die("message");
		take(b, 1);
	}
	say("after %s %s", happens(ep[0], 20), happens(ep[1], 20));
}
// exclusive_busy: a reader that looks before it is told. The library does not see such a set, so a report for what is read must not last.
static void exclusive_busy(void) {
	int a, b, ep = epoll_create1(0), most = 0;
	struct epoll_event v;
	pair(&a, &b);
	add(ep, b, EPOLLIN | EPOLLEXCLUSIVE);
	for (int i = 0; i < 200; i++) {
		int n = 0;
		give(a, "x");
		while (recv(b, in, 1, MSG_DONTWAIT) != 1) {}
		while (n < 50 && epoll_wait(ep, &v, 1, 5) == 1 && recv(b, in, 1, MSG_DONTWAIT) < 0) n++;
		if (n > most) most = n;
	}
	say("again and again %d", most > 9);
}
static void nested(void) {
	int a, b, inner = epoll_create1(0), outer = epoll_create1(0);
	pair(&a, &b);
	add(inner, b, EPOLLIN);
	add(outer, inner, EPOLLIN);
	say("none %s, poll %s", happens(outer, 20), revents(inner, POLLIN, 20));
	for (int i = 0; i < 50; i++) {
		give(a, "x");
		struct epoll_event v;
		if (epoll_wait(outer, &v, 1, 1000) != 1 || v.data.fd != inner || epoll_wait(inner, &v, 1, 0) != 1 || v.data.fd != b) die("message");
		take(b, 1);
	}
	say("after %s %s", happens(outer, 20), happens(inner, 20));
	give(a, "y");
	say("poll %s", revents(inner, POLLIN, 1000));
	take(b, 1);
	close(outer);
	int later = epoll_create1(0); // a set that is polled, and was waited in before
	add(later, b, EPOLLIN);
	for (int i = 0; i < 20; i++) {
		give(a, "x");
		say("later %s", happens(later, 1000));
		take(b, 1);
		if (recv(b, in, 1, MSG_DONTWAIT) != -1) die("more");
		give(a, "x");
		say("poll %s", revents(later, POLLIN, 1000));
		take(b, 1);
	}
}
static void sets(void) {
	int a, b, ep[3] = {epoll_create1(0), epoll_create1(0), epoll_create1(0)};
	pair(&a, &b);
	for (int in = 1; in < 8; in++) { // in: a bit for each set that has the connection
		for (int i = 0; i < 3; i++)
			if (in >> i & 1) add(ep[i], b, EPOLLIN | (i == 2 ? EPOLLET : 0));
		for (int r = 0; r < 20; r++) {
			struct epoll_event v;
			give(a, "x");
			for (int i = 0; i < 3; i++)
				if ((in >> i & 1) && epoll_wait(ep[(i + r) % 3], &v, 1, in >> (i + r) % 3 & 1 ? 1000 : 0) != (in >> (i + r) % 3 & 1)) say("sets %d round %d set %d", in, r, (i + r) % 3);
			take(b, 1);
			if (r % 3 == 0 && recv(b, &v, 1, MSG_DONTWAIT) != -1) die("more");
		}
		for (int i = 0; i < 3; i++)
			if (in >> i & 1) epoll_ctl(ep[i], EPOLL_CTL_DEL, b, 0);
	}
	add(ep[0], b, EPOLLIN);
	give(a, "w");
	say("one %s", happens(ep[0], 1000));
	take(b, 1);
	give(a, "y");
	close(ep[0]);
	int other = epoll_create1(0);
	say("poll %s", revents(b, POLLIN, 1000));
	add(other, b, EPOLLIN);
	say("other %s", happens(other, 1000));
	take(b, 1);
	give(a, "z");
	close(other);
	say("poll %s %zu", revents(b, POLLIN, 1000), take(b, 1));
}
// leave_hot sends bytes while no thread waits, to a connection in a set that has reported it before.
static void leave_hot(int ep, int a, int b) {
	give(a, "x");
	say("told %s", happens(ep, 1000));
	take(b, 1);
	say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
	give(a, "yz");
}
static void moved_set(void) { // as an acceptor moves its connections to its workers
	static const uint32_t how[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
	int a, b, ep[2] = {epoll_create1(0), epoll_create1(0)};
	pair(&a, &b);
	for (int i = 0; i < 16; i++) {
		int from = ep[i & 1], to = ep[i < 12 ? ~i & 1 : i & 1];
		add(from, b, EPOLLIN);
		leave_hot(from, a, b);
		if (i % 4 < 2 || i >= 12) epoll_ctl(from, EPOLL_CTL_DEL, b, 0);
		if (i >= 12) { // by a descriptor of its own
			int d = dup(b);
			close(b);
			b = d;
		}
		add(to, b, how[i / 2 % 3]);
		say("%d all %s", i, happens(to, 1000));
		take(b, 1);
		mod(to, b, how[i / 2 % 3]);
		say("rest %s", happens(to, 1000));
		take(b, 1);
		mod(to, b, how[i / 2 % 3]);
		say("none %s", happens(to, 0));
		give(a, "w");
		say("more %s", happens(to, 1000));
		take(b, 1);
		epoll_ctl(from, EPOLL_CTL_DEL, b, 0);
		epoll_ctl(to, EPOLL_CTL_DEL, b, 0);
	}
}
static void edge_in_sets(void) { // each set must report it
	for (int i = 0; i < 4; i++) {
		int a, b, c, ep[2] = {epoll_create1(0), epoll_create1(0)};
		pair(&a, &b);
		c = i & 1 ? dup(b) : b;
		add(ep[0], b, EPOLLIN | EPOLLET);
		leave_hot(ep[0], a, b);
		add(ep[1], c, EPOLLIN | EPOLLET);
		for (int k = 0; k < 4; k++) {
			say("%d.%d %s %s", i, k, happens(ep[~i >> 1 & 1], 200), happens(ep[i >> 1], 200));
			if (k & 1) say("rest %s", res(recv(b, in, sizeof in, MSG_DONTWAIT)));
			if (k & 1) say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
			give(a, "more");
		}
		if (c != b) close(c);
		close(b);
	}
}
static void moved_to_child(void) { // which waits in a set of its own, in its parent's, or in poll()
	for (int i = 0; i < 6; i++) {
		int a, b, ep = epoll_create1(0), p[2];
		pair(&a, &b);
		add(ep, b, EPOLLIN);
		leave_hot(ep, a, b);
		if (pipe(p)) die("pipe");
		pid_t child = fork();
		if (child == 0) {
			char c;
			close(p[1]);
			int set = i % 3 == 1 ? ep : epoll_create1(0);
			if (i % 3 == 0) add(set, b, EPOLLIN);
			for (int k = 0; k < 4; k++) {
				if (k == 2 && read(p[0], &c, 1)) _exit(3);
				say("%d.%d %s", i, k, i % 3 == 2 ? revents(b, POLLIN, 2000) : happens(set, 2000));
				take(b, 1);
			}
			_exit(0);
		}
		close(p[0]);
		if (i < 3) close(b);
		ms(100);
		give(a, "uv");
		close(p[1]);
		reap(child);
		if (i < 3) continue;
		give(a, "t");
		say("parent %s", happens(ep, 2000));
		take(b, 1);
	}
}
static _Atomic int handled;
static int pool_ep;
static void *pool(void *x) {
	struct epoll_event v;
	(void)x;
	for (;;) {
		if (epoll_wait(pool_ep, &v, 1, -1) != 1) continue;
		char c;
		ssize_t n = recv(v.data.fd, &c, 1, MSG_DONTWAIT);
		if (n == 1 && c == 'q') return 0;
		if (n == 1) {
			atomic_fetch_add(&handled, 1);
			if (send(v.data.fd, "a", 1, 0) != 1) die("answer");
		}
		mod(pool_ep, v.data.fd, EPOLLIN | EPOLLONESHOT);
	}
}
static void threads(void) {
	enum { N = 4 };
	int a[N], b[N];
	pthread_t t[3];
	pool_ep = epoll_create1(0);
	for (int i = 0; i < N; i++) {
		pair(&a[i], &b[i]);
		add(pool_ep, b[i], EPOLLIN | EPOLLONESHOT);
	}
	for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, pool, 0);
	for (int r = 0; r < 500; r++) {
		for (int i = 0; i < N; i++) give(a[i], "m");
		for (int i = 0; i < N; i++) take(a[i], 1);
	}
	say("handled %d", handled);
	for (int i = 0; i < 3; i++) give(a[i], "q");
	for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
	say("ended");
}
static void *wait_thread(void *x) {
	struct thread *t = x;
	struct epoll_event v;
	t->r = epoll_wait(t->fd, &v, 1, 3000);
	t->err = errno;
	if (t->r == 1 && t->n) t->r = recv(v.data.fd, in, 1, 0);
	t->done = true;
	return 0;
}
// Two threads wait in one set. While one handles a message for long, the other must see the next message.
static void followers(void) {
	int a[2], b[2], ep = epoll_create1(0);
	for (int i = 0; i < 2; i++) {
		pair(&a[i], &b[i]);
		add(ep, b[i], EPOLLIN | EPOLLET);
	}
	for (int r = 0; r < 20; r++) {
		struct thread t[2] = {{.fd = ep, .n = 1}, {.fd = ep, .n = 1}};
		begin(&t[0], wait_thread);
		begin(&t[1], wait_thread);
		give(a[0], "x");
		ms(r % 3);
		give(a[1], "y");
		double at = now();
		const char *p = finish(&t[0]), *q = finish(&t[1]);
		if (strcmp(p, "1") || strcmp(q, "1") || now() - at > 2) say("round %d: %s %s", r, p, q);
	}
	say("done");
}
static void many_sets(void) { // as programs have that run a thread for each of many processors
	int a, b, ep = -1;
	pair(&a, &b);
	for (int i = 0; i < 150; i++)
		if ((ep = epoll_create1(0)) < 0) die("epoll_create1");
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 20; i++) {
		leave_hot(ep, a, b);
		say("%d %s", i, happens(ep, 1000));
		take(b, 2);
	}
}
static void registered_first(void) { // registered before it is connected
	for (int i = 0; i < 4; i++) {
		struct sockaddr_storage s;
		socklen_t l;
		int from = listener(&s, &l), b = socket(s.ss_family, SOCK_STREAM, 0), ep = epoll_create1(0), d = dup(ep);
		add(i & 2 ? d : ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		if (connect(b, (struct sockaddr *)&s, l)) die("connect");
		int a = accept(from, 0, 0);
		close(from);
		warm(a, b);
		for (int k = 0; k < 4; k++) {
			leave_hot(ep, a, b);
			say("%d.%d %s", i, k, happens(ep, 1000));
			take(b, 2);
		}
		struct thread t = {.fd = d, .n = 1};
		give(a, "x");
		say("told %s %zu %s", happens(ep, 1000), take(b, 1), res(recv(b, in, 1, MSG_DONTWAIT)));
		begin(&t, wait_thread);
		double at = now();
		give(a, "y");
		say("woken %s %s", finish(&t), now() - at < 2 ? "soon" : "late");
		mod(ep, b, 0);
		int other = dup(b);
		give(a, "z");
		add(ep, other, EPOLLIN | EPOLLONESHOT);
		say("%s then %s", happens(ep, 1000), happens(ep, 20));
		say("%zu", take(other, 1));
		close(b);
		give(a, "v");
		mod(ep, other, EPOLLIN | EPOLLONESHOT);
		say("%s %zu", happens(d, 1000), take(other, 1));
	}
}
static void came_before(void) { // one wait reports what came long before a connection's bytes before them: servers act in this order
	int a, b, ep = epoll_create1(0), p[2];
	pair(&a, &b);
	if (pipe(p)) die("pipe");
	add(ep, b, EPOLLIN);
	add(ep, p[0], EPOLLIN);
	for (int i = 0; i < 5; i++) {
		struct epoll_event v[4];
		leave_hot(ep, a, b);
		take(b, 2);
		epoll_wait(ep, v, 4, 0); // natively it had b as ready
		if (write(p[1], "x", 1) != 1) die("write");
		ms(30);
		give(a, "y");
		ms(30);
		int n = epoll_wait(ep, v, 4, 1000);
		say("%d %s", n, n == 2 && v[0].data.fd == p[0] ? "first" : "not first");
		take(b, 1);
		take(p[0], 1);
	}
}
static void one_at_a_time(void) { // one connection always has bytes: a set that returns one event must report the others, too
	int a, b, ep = epoll_create1(0), p[2], told = 0;
	pair(&a, &b);
	if (pipe(p)) die("pipe");
	add(ep, b, EPOLLIN);
	add(ep, p[0], EPOLLIN);
	leave_hot(ep, a, b);
	if (write(a, big, 50000) != 50000 || write(p[1], "x", 1) != 1) die("write");
	for (int i = 0; i < 100; i++) {
		struct epoll_event v;
		if (epoll_wait(ep, &v, 1, 1000) != 1) die("epoll_wait");
		if (v.data.fd == b) take(b, 100);
		else told++;
	}
	say("told %d", told > 0);
	while (recv(b, in, sizeof in, MSG_DONTWAIT) > 0) {}
	take(p[0], 1);
	leave_hot(ep, a, b);
	if (write(p[1], "x", 1) != 1) die("write");
	told = 0;
	for (int i = 0; i < 20; i++, ms(15)) { // the pipe still has its byte
		struct epoll_event v;
		if (epoll_wait(ep, &v, 1, 1000) != 1) die("epoll_wait");
		told += v.data.fd == b;
	}
	say("told often %d", told > 5);
}
static void set_polled(void) { // another loop waits for the set, as GLib does
	for (int i = 0; i < 6; i++) {
		int a, b, ep = epoll_create1(0), outer = epoll_create1(0);
		pair(&a, &b);
		add(ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		leave_hot(ep, a, b);
		if (i / 2 == 2) add(outer, ep, EPOLLIN);
		for (int k = 0; k < 8; k++) {
			fd_set r;
			FD_ZERO(&r);
			FD_SET(ep, &r);
			struct timeval tv = {1, 0};
			const char *s = i / 2 == 0 ? revents(ep, POLLIN, 1000) : i / 2 == 1 ? res(select(ep + 1, &r, 0, 0, &tv)) : happens(outer, 1000);
			say("%d.%d %s: %s", i, k, s, happens(ep, 0));
			if (i & 1 && !k) take(b, 1);
			take(b, 1);
			if (i & 1) say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
			if (k || i & 1) give(a, "w");
		}
		close(a);
		close(b);
	}
}
static void read_by_duplicate(void) { // by a duplicate of the registered descriptor
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0), other = epoll_create1(0);
		pair(&a, &b);
		int d = dup(b);
		add(ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		if (i & 2) add(other, d, EPOLLIN);
		for (int k = 0; k < 5; k++) {
			give(a, "x");
			say("%d.%d %s %s", i, k, happens(ep, 1000), happens(other, i & 2 ? 1000 : 0));
			take(d, 1);
			if (k & 1) say("none %s", res(recv(d, in, 1, MSG_DONTWAIT)));
		}
		close(b);
		close(d);
	}
}
static void promoted_meanwhile(void) { // while another thread already sleeps in the set
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0);
		cold(&a, &b);
		add(ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		struct thread t[2] = {{.fd = ep, .n = 1}, {.fd = ep, .n = 1}};
		mod(ep, b, 0);
		for (int k = 0; k < 1 + i / 2; k++) begin(&t[k], wait_thread);
		warm(a, b);
		mod(ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		double at = now();
		for (int k = 0; k < 1 + i / 2; k++) {
			give(a, "x");
			ms(50);
		}
		for (int k = 0; k < 1 + i / 2; k++) say("%d woken %s %s", i, finish(&t[k]), now() - at < 2 ? "soon" : "late");
	}
}
static double cpu(void) { // seconds of processor time
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static void closed_unsent(void) { // close a registered descriptor with bytes that the peer has not read, and use its number again
	for (int i = 0; i < 3; i++) {
		int a, b, c, d, ep = epoll_create1(0);
		pair(&a, &b);
		add(ep, a, i == 0 ? EPOLLIN | EPOLLOUT : i == 1 ? EPOLLIN | EPOLLRDHUP : EPOLLIN | EPOLLRDHUP | EPOLLET);
		if (i) say("none %s", happens(ep, 0));
		size_t n = fill(a);
		close(a);
		double at = cpu();
		say("none %s", happens(ep, 300));
		say("idle %d", cpu() - at < 0.15);
		pair(&c, &d);
		say("same number %d", c == a || d == a);
		add(ep, c, EPOLLIN);
		say("none %s", happens(ep, 50));
		if (i == 2) ms(2500);
		size_t got = 0;
		ssize_t k;
		while ((k = read(b, in, sizeof in)) > 0) got += (size_t)k;
		say("all %d", got == n);
		say("end %s", res(k));
		close(b);
		ms(100);
		say("none %s", happens(ep, 50));
		give(d, "x");
		say("one %s", happens(ep, 1000));
		take(c, 1);
		close(c);
		close(d);
		close(ep);
	}
}
static void range_above(void) { // close all descriptors above those of a connection, as daemons do
	int a, b;
	pair(&a, &b);
	say("%d", close_range((unsigned)(a > b ? a : b) + 1, ~0u, 0));
	for (int i = 0; i < 3; i++) {
		ms(200); // whoever moves the bytes sleeps
		give(a, "hello");
		say("%zu", take(b, 5));
		ms(200);
		give(b, "world");
		say("%zu", take(a, 5));
	}
	shutdown(a, SHUT_WR);
	say("%s", res(read(b, in, 1)));
}
static void closed_in_set(void) { // close the registered descriptor while a duplicate is open
	int a, b, ep = epoll_create1(0), other = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	add(other, b, EPOLLIN);
	leave_hot(ep, a, b);
	take(b, 2);
	say("none %s", happens(ep, 0));
	int c = dup(b);
	close(b);
	for (int i = 0; i < 4; i++) {
		struct epoll_event v = {0};
		struct thread t = {.fd = ep};
		say("none %s %s", happens(ep, 20), happens(other, 0));
		begin(&t, wait_thread);
		give(a, "xy");
		say("woken %s", finish(&t));
		say("event %s", res(epoll_wait(other, &v, 1, 1000)));
		say("of %d data %d", v.events, v.data.u64 == (uint64_t)b);
		say("%s", res(read(c, in, 1)));
		say("left %s %s", happens(ep, 1000), happens(other, 1000));
		say("%s", res(read(c, in, 1)));
	}
	give(a, "z");
	say("again %s", happens(ep, 1000));
	close(c);
	say("none %s %s", happens(ep, 0), happens(other, 0));
	pair(&a, &c);
	add(ep, c, EPOLLIN);
	give(a, "z");
	say("new %s %s", happens(ep, 1000), happens(other, 0));
}
static void by_number(void) { // the same calls by syscall()
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 3; i++) {
		struct epoll_event v = {0};
		struct pollfd p = {b, POLLIN, 0};
		struct timespec t = {0, 10000000};
		fd_set r;
		FD_ZERO(&r);
		FD_SET(b, &r);
		say("none %s", res(syscall(SYS_epoll_pwait2, ep, &v, 1, &t, 0, 8)));
		say("none %s %d", res(syscall(SYS_ppoll, &p, 1, &t, 0, 8)), t.tv_nsec == 0);
		t.tv_sec = 3;
		give(a, "x");
		say("one %s", res(syscall(SYS_epoll_pwait2, ep, &v, 1, &t, 0, 8)));
		say("data %d", v.data.fd == b);
		say("one %s %d", res(syscall(SYS_ppoll, &p, 1, &t, 0, 8)), t.tv_sec == 2);
		say("one %s %d", res(syscall(SYS_pselect6, b + 1, &r, 0, 0, &t, 0)), t.tv_sec == 2);
		say("%s", res(read(b, in, 10)));
	}
}
static void kernel_aio(void) { // by syscall(), as libaio and Seastar do it
	int a, b;
	aio_context_t to = 0;
	pair(&a, &b);
	say("%s", res(syscall(SYS_io_setup, 4, &to)));
	for (int i = 0; i < 6; i++) {
		struct iocb c = {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = (uint32_t)b, .aio_buf = POLLIN}, *list[] = {&c};
		struct io_event ev = {0};
		struct timespec t = {3, 0};
		if (i > 2) c = (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)b, .aio_buf = (uintptr_t)in, .aio_nbytes = 10};
		if (i > 2) give(a, "hello");
		say("submit %s", res(syscall(SYS_io_submit, to, 1, list)));
		if (i <= 2) give(a, "hello");
		say("%s %d", res(syscall(SYS_io_getevents, to, 1, 1, &ev, &t)), i > 2 ? (int)ev.res : ((int)ev.res & POLLIN) != 0);
		if (i <= 2) say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
		say("%.5s", in);
		memset(in, 0, 10);
	}
	struct iocb *none[] = {(struct iocb *)8};
	say("%s %s", res(syscall(SYS_io_submit, to, 1, none)), res(syscall(SYS_io_submit, to, -1L, none)));
}
static void set_duplicated(void) { // registered by one descriptor of the set, waited in by the other
	int a, b, ep = epoll_create1(0), d = fcntl(ep, F_DUPFD_CLOEXEC, 3);
	pair(&a, &b);
	for (int i = 0; i < 6; i++) {
		add(i & 1 ? ep : d, b, i < 3 ? EPOLLIN : EPOLLIN | EPOLLET);
		for (int k = 0; k < 4; k++) {
			leave_hot(k & 1 ? d : ep, a, b);
			struct epoll_event v = {0};
			say("%s data %d", res(epoll_wait(k & 1 ? d : ep, &v, 1, 1000)), v.data.fd == b);
			take(b, 2);
		}
		epoll_ctl(d, EPOLL_CTL_DEL, b, 0);
	}
	add(d, b, EPOLLIN);
	leave_hot(ep, a, b);
	close(ep);
	say("other number %s", happens(d, 1000));
	take(b, 2);
	leave_hot(d, a, b);
	ep = epoll_create1(0);
	say("%s", res(dup3(ep, d, O_CLOEXEC) == d));
	say("another set %s", happens(d, 0));
	add(d, b, EPOLLIN);
	say("%s", happens(ep, 1000));
	take(b, 2);
}
static void resumed(void) { // while a thread sleeps in the set
	int a, b, ep[2] = {epoll_create1(0), epoll_create1(0)};
	pair(&a, &b);
	add(ep[0], b, EPOLLIN);
	for (int i = 0; i < 8; i++) {
		leave_hot(ep[0], a, b);
		mod(ep[0], b, 0);
		struct thread t = {.fd = ep[i & 1], .n = 1};
		begin(&t, wait_thread);
		ms(50);
		if (i & 1) add(ep[1], b, i & 2 ? EPOLLIN | EPOLLONESHOT : EPOLLIN);
		else mod(ep[0], b, EPOLLIN | (i & 2 ? EPOLLET : 0));
		say("%d woken %s", i, finish(&t));
		take(b, 1);
		if (i & 1) epoll_ctl(ep[1], EPOLL_CTL_DEL, b, 0);
		mod(ep[0], b, EPOLLIN);
	}
}
static void paused(void) { // one connection of a set is not read for a while
	int a[2], b[2], ep = epoll_create1(0);
	for (int i = 0; i < 2; i++) {
		pair(&a[i], &b[i]);
		add(ep, b[i], EPOLLIN);
	}
	for (int i = 0; i < 12; i++) {
		struct thread t = {.fd = ep, .n = 1};
		for (int k = 0; k < 2; k++) {
			give(a[k], "x");
			say("told %s", happens(ep, 1000));
			take(b[k], 1);
			say("none %s", res(recv(b[k], in, 1, MSG_DONTWAIT)));
		}
		if (i & 1) begin(&t, wait_thread);
		if (i % 3 == 2) epoll_ctl(ep, EPOLL_CTL_DEL, b[0], 0);
		else mod(ep, b[0], i % 3 ? EPOLLIN | EPOLLONESHOT : 0);
		if (i % 3 == 1) { // it fires, and is not armed again
			give(a[0], "o");
			if (i & 1) say("%s", finish(&t));
			else say("%s %zu", happens(ep, 1000), take(b[0], 1));
			if (i & 1) begin(&t, wait_thread);
		}
		if (!(i & 1)) begin(&t, wait_thread);
		give(a[0], "paused");
		ms(20);
		double at = now();
		give(a[1], "y");
		say("%d woken %s %s", i, finish(&t), now() - at < 2 ? "soon" : "late");
		give(a[0], "more");
		give(a[1], "z");
		begin(&t, wait_thread);
		say("again %s", finish(&t));
		if (i % 3 == 2) add(ep, b[0], EPOLLIN);
		else mod(ep, b[0], EPOLLIN);
		say("resumed %s %zu", happens(ep, 1000), take(b[0], 10));
		say("none %s", happens(ep, 0));
	}
}
static void paused_after_much(void) { // the last bytes that it read came by the kernel
	int a[2], b[2], ep = epoll_create1(0);
	for (int i = 0; i < 2; i++) {
		pair(&a[i], &b[i]);
		add(ep, b[i], EPOLLIN);
	}
	for (int i = 0; i < 6; i++) {
		for (int k = 0; k < 2; k++) {
			give(a[k], "x");
			say("told %s", happens(ep, 1000));
			take(b[k], 1);
			say("none %s", res(recv(b[k], in, 1, MSG_DONTWAIT)));
		}
		say("same %d", fill(a[0]) == drain(b[0]));
		mod(ep, b[0], 0);
		struct thread t = {.fd = ep, .n = 1};
		begin(&t, wait_thread);
		for (int k = 0; k < 3; k++) {
			give(a[0], "paused");
			ms(5);
		}
		double at = now();
		give(a[1], "y");
		say("%d woken %s %s", i, finish(&t), now() - at < 2 ? "soon" : "late");
		mod(ep, b[0], EPOLLIN);
		say("resumed %s %zu", happens(ep, 1000), drain(b[0]));
	}
}
static void shared_set(void) {
	int a, b, ep = epoll_create1(0), p[2];
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	give(a, "x");
	say("parent %s", happens(ep, 1000));
	take(b, 1);
	if (pipe(p) < 0) die("pipe");
	pid_t c = fork();
	if (c == 0) {
		for (int i = 0; i < 20; i++) {
			struct epoll_event v;
			if (epoll_wait(ep, &v, 1, 3000) != 1) _exit(3);
			if (read(b, in, 1) != 1) _exit(4);
			if (write(p[1], "k", 1) != 1) _exit(5);
		}
		_exit(0);
	}
	for (int i = 0; i < 20; i++) {
		give(a, "y");
		if (read(p[0], in, 1) != 1) break;
		if (i == 10) break;
	}
	for (int i = 0; i < 9; i++) { // the child is no longer told one at a time
		give(a, "z");
		ms(2);
	}
	reap(c);
	say("parent %s", happens(ep, 20));
	give(a, "w");
	say("parent %s %s", happens(ep, 1000), res(read(b, in, 10)));
}
static void woken(void) {
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	struct thread t = {.fd = ep, .n = 1};
	begin(&t, wait_thread);
	add(ep, b, EPOLLIN); // while the thread waits
	ms(20);
	give(a, "x");
	say("added while waiting %s", finish(&t));
	for (int i = 0; i < 30; i++) {
		begin(&t, wait_thread);
		give(a, "x");
		const char *r = finish(&t);
		if (strcmp(r, "1")) say("round %d: %s", i, r);
	}
	say("none %s", happens(ep, 10));
	t.n = 0;
	mod(ep, b, 0);
	give(a, "x");
	begin(&t, wait_thread);
	mod(ep, b, EPOLLIN);
	say("asked for while waiting %s", finish(&t));
	take(b, 1);
}
static void mixed(void) { // a socket whose reader changes its way of waiting
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 60; i++) {
		if (i % 7 == 0) give(a, "m");
		struct thread t = {.fd = a};
		fd_set r;
		FD_ZERO(&r);
		FD_SET(b, &r);
		struct timeval tv = {2, 0};
		(void)t;
		if (i % 7) give(a, "m");
		switch (i % 5) {
		case 0:
			if (poll(&(struct pollfd){b, POLLIN, 0}, 1, 2000) != 1) die("poll");
			break;
		case 1:
			if (select(b + 1, &r, 0, 0, &tv) != 1) die("select");
			break;
		case 2:
			if (strcmp(happens(ep, 2000), "1 in")) die("epoll");
			break;
		case 3: // a wait for another socket in between
			if (poll(&(struct pollfd){a, POLLIN, 0}, 1, 2) != 0) die("other");
		}
		if (take(b, 1) != 1) die("take");
		if (i % 3 == 0 && recv(b, in, 1, MSG_DONTWAIT) != -1) die("more");
	}
	say("done");
}

// ---- ends

static void ends_unasked(void) { // nothing has waited for the end
	for (int i = 0; i < 3; i++) {
		int a, b;
		pair(&a, &b);
		nonblocking(b);
		for (int k = 0; k < 3; k++) say("%s", res(read(b, in, 10)));
		if (i == 1) give(b, "unread");
		ms(100); // longer than Nagle's algorithm holds it back
		if (i) close(a);
		else shutdown(a, SHUT_WR);
		ms(50);
		say("end %s", res(read(b, in, 10)));
		say("again %s", res(read(b, in, 10)));
	}
}
static void half(void) {
	int a, b;
	pair(&a, &b);
	say("%s", res(shutdown(a, 3)));
	give(a, "last");
	shutdown(a, SHUT_WR);
	say("after shutdown: write %s", res(send(a, "x", 1, MSG_NOSIGNAL)));
	say("%s %s %s", res(read(b, in, 100)), res(read(b, in, 100)), res(read(b, in, 100)));
	struct thread t = {.fd = b, .n = 3 << 20};
	begin(&t, write_thread);
	size_t n = take(a, 3 << 20);
	say("back %zu right %d, wrote %s", n, !memcmp(in, big, n), finish(&t));
	shutdown(b, SHUT_WR);
	say("%s", res(read(a, in, 100)));
}
static void half_read(void) {
	int a, b;
	pair(&a, &b);
	say("none %s", res(recv(b, in, 10, MSG_DONTWAIT)));
	shutdown(b, SHUT_RD);
	say("read %s poll %s", res(recv(b, in, 10, MSG_DONTWAIT)), revents(b, POLLIN | POLLRDHUP, 0));
	say("write %s", res(write(b, "x", 1)));
	say("%s", res(read(a, in, 10)));
}
static void half_written(void) { // an end that is shut for reading must still write
	int a, b;
	pair(&a, &b);
	give(a, "unread");
	shutdown(a, SHUT_RD);
	say("%s %s", res(recv(a, in, 10, MSG_DONTWAIT)), res(read(a, in, 10)));
	say("write %s", res(write(a, "more", 4)));
	say("%zu %.10s", take(b, 10), in);
}
static void writes_to_closed(void) { // after its end: the kernel takes the first bytes, and knows the answer to them by the next ones
	for (int way = 0; way < 3; way++) {
		int a, b;
		pair(&a, &b);
		close(b);
		ms(100);
		if (way == 1) say("in %s", revents(a, POLLIN, 1000));
		if (way == 2) say("end %s", res(read(a, in, 1)));
		say("%s", res(send(a, "x", 1, MSG_NOSIGNAL)));
		ms(100);
		say("%s", res(send(a, "x", 1, MSG_NOSIGNAL)));
		close(a);
	}
}
static void shut_reader(void) {
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = b, .n = 10};
	begin(&t, read_thread);
	shutdown(b, SHUT_RD);
	say("SHUT_RD: %s", finish(&t));
	pair(&a, &b);
	t.fd = b;
	begin(&t, read_thread);
	shutdown(b, SHUT_RDWR);
	say("SHUT_RDWR: %s, peer %s", finish(&t), res(read(a, in, 10)));
	pair(&a, &b);
	fill(a);
	t = (struct thread){.fd = a, .n = 1 << 20, .flags = MSG_NOSIGNAL};
	begin(&t, write_thread);
	say("waits %d", !t.done);
	shutdown(a, SHUT_WR);
	say("writer: %d", t.done || (pthread_join(t.t, 0), t.r <= 0 || t.r < 1 << 20));
	pair(&a, &b);
	t = (struct thread){.fd = b, .n = 10};
	begin(&t, read_thread);
	shutdown(a, SHUT_WR);
	say("peer's: %s", finish(&t));
}
static void closed_while_writing(void) {
	for (int i = 0; i < 5; i++) {
		int a, b;
		pair(&a, &b);
		signal(SIGPIPE, SIG_IGN);
		struct thread t = {.fd = a, .n = 1 << 20};
		pthread_create(&t.t, 0, write_thread, &t);
		ms(1 + 5 * i);
		close(a);
		ms(150);
		close(b);
		finish(&t);
		say("%d ended", i);
	}
}
static void closed_by_another(void) {
	int a, b;
	struct thread t;
	for (int i = 0; i < 10; i++) { // shutdown() has told the reader, however soon close() follows
		pair(&a, &b);
		t = (struct thread){.fd = b, .n = 10};
		begin(&t, read_thread);
		shutdown(b, SHUT_RDWR);
		close(b);
		say("reader %s, peer %s", finish(&t), res(read(a, in, 10)));
		close(a);
	}
	pair(&a, &b);
	nonblocking(b);
	int ep = epoll_create1(0);
	add(ep, b, EPOLLIN);
	t = (struct thread){.fd = ep};
	begin(&t, wait_thread);
	close(b);
	say("waiter waits %d", !t.done);
	say("peer %s", res(read(a, in, 10)));
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	give(a, "x");
	say("waiter %s", finish(&t));
}
static void *writes_on(void *a) {
	struct thread *t = a;
	while (send(t->fd, "x", 1, MSG_NOSIGNAL) == 1) t->n++;
	t->err = errno;
	return 0;
}
static void *reads_on(void *a) {
	struct thread *t = a;
	while ((t->r = recv(t->fd, in, sizeof in, 0)) > 0) t->n += (size_t)t->r;
	t->err = errno;
	return 0;
}
static void closed_under_writer(void) { // all bytes that its writer was told are written must arrive
	int a, b, bad = 0;
	size_t sent = 0;
	pair(&a, &b);
	struct thread r = {.fd = b};
	pthread_create(&r.t, 0, reads_on, &r);
	for (int i = 200; i >= 0; i--) {
		struct thread t = {.fd = i ? dup(a) : a};
		pthread_create(&t.t, 0, writes_on, &t);
		usleep(300);
		close(t.fd);
		pthread_join(t.t, 0);
		sent += t.n;
		bad += t.err != EBADF;
	}
	const char *end = finish(&r);
	say("%s, all %d, not closed %d", end, r.n == sent, bad);
	for (int i = 0; i < 100; i++) {
		pair(&a, &b);
		r = (struct thread){.fd = b};
		pthread_create(&r.t, 0, reads_on, &r);
		struct thread t = {.fd = a};
		pthread_create(&t.t, 0, writes_on, &t);
		usleep(300);
		close(a);
		pthread_join(t.t, 0);
		finish(&r);
		bad += r.r != 0 || r.n != t.n;
		close(b);
	}
	say("lost %d", bad);
}
static void reads_by_closed(void) { // another connection has the number by the time the bytes come
	int a, b, c, d;
	pair(&a, &b);
	pair(&c, &d);
	struct thread t = {.fd = dup(b), .n = 10};
	begin(&t, read_thread);
	say("same number %d", dup2(d, t.fd) == t.fd);
	give(a, "hello");
	say("%s %.5s", finish(&t), in);
	give(c, "other");
	say("%zu %.5s", take(d, 5), in);
}
// brings writes until no more is taken, and tells whether as much is read.
static bool brings(int from, int to) {
	size_t n = fill(from), got = 0;
	ssize_t k;
	for (int i = 0; i < 100 && got <= n; i++) {
		while ((k = recv(to, in, sizeof in, MSG_DONTWAIT)) > 0) got += (size_t)k;
		if (got >= n && i > 2) break;
		usleep(1000);
	}
	return got == n;
}
static void late_for_closed(void) { // bytes for threads that still read, after as many other connections as it takes to reuse their entries
	enum { ENTRIES = 65536, KEPT = 64, AT_ONCE = 100, LAST = 80 };
	int a, b, e, f, c[AT_ONCE], d[AT_ONCE], bad = 0;
	pair(&a, &b);
	cold(&e, &f);
	struct thread t = {.fd = b, .n = 10}, u = {.fd = f, .n = 10}; // u's read is the kernel's
	begin(&t, read_thread);
	begin(&u, read_thread);
	close(b);
	close(f);
	struct linger reset = {1, 0};
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l);
	for (int used = 4 + KEPT; used < ENTRIES - (2 * AT_ONCE - KEPT); used += 2 * AT_ONCE - KEPT) { // the entries freed last are reused
		for (int i = 0; i < AT_ONCE; i++) {
			c[i] = new_socket(s.ss_family);
			if (connect(c[i], (struct sockaddr *)&s, l) < 0) die("connect");
			d[i] = accept(from, 0, 0);
			setsockopt(c[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
		}
		for (int i = 0; i < AT_ONCE; i++) {
			close(c[i]);
			close(d[i]);
		}
	}
	for (int i = 0; i < LAST; i++) cold(&c[i], &d[i]);
	for (int i = 0; i < 20 * LAST; i++) { // they are promoted, but for the one that has u's entry
		moved(c[i % LAST], d[i % LAST]);
		moved(d[i % LAST], c[i % LAST]);
	}
	give(a, "late");
	give(e, "late");
	finish(&t);
	finish(&u);
	for (int i = LAST / 2; i < LAST; i++) bad += !brings(c[i], d[i]) || !brings(d[i], c[i]);
	say("%d bad", bad);
}
static void lingers(void) {
	int a, b;
	pair(&a, &b);
	struct linger l = {1, 0};
	setsockopt(a, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	give(a, "data");
	close(a);
	ms(50);
	say("0: %s %s %s", res(read(b, in, 10)), res(read(b, in, 10)), res(read(b, in, 10)));
	pair(&a, &b);
	l.l_linger = 5;
	setsockopt(a, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	give(a, "data");
	double at = now();
	say("5: close %s, %s", res(close(a)), now() - at < 3 ? "soon" : "late");
	say("%s %s", res(read(b, in, 10)), res(read(b, in, 10)));
}
static void resets_at_exit(int b) {
	struct linger l = {1, 0};
	setsockopt(b, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	give(b, "data");
	take(b, 1);
	_exit(0);
}
static void resets_no_more(int b) {
	struct linger l = {1, 0};
	setsockopt(b, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	l.l_onoff = 0;
	setsockopt(b, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	give(b, "data");
	take(b, 1);
	_exit(0);
}
static void lingers_at_exit(void) { // in a process that ends without close()
	void (*const how[])(int) = {resets_at_exit, resets_no_more};
	for (int i = 0; i < 2; i++) {
		int a;
		pid_t p = peer(&a, how[i]);
		say("%zu", take(a, 4));
		give(a, "x");
		reap(p);
		say("%s %s", res(read(a, in, 10)), res(read(a, in, 10)));
		close(a);
	}
}
static void unread(void) {
	int a, b;
	pair(&a, &b);
	give(a, "unread");
	give(b, "data");
	ms(20);
	close(b);
	ms(50);
	say("%s %s %s", res(read(a, in, 10)), res(read(a, in, 10)), res(read(a, in, 10)));
	pair(&a, &b);
	give(a, "x");
	take(b, 1);
	close(b);
	ms(50);
	say("all read: %s %s", res(read(a, in, 10)), res(read(a, in, 10)));
}
static void waits(int b) {
	(void)b;
	pause();
}
// destroy ends a connection from outside, as ss -K does.
static void destroy(int fd) {
	struct sockaddr_in from, to;
	socklen_t l = sizeof from, m = sizeof to;
	struct {
		struct nlmsghdr h;
		struct inet_diag_req_v2 r;
	} ask = {{sizeof ask, SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK, 1, 0}, {.sdiag_family = AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u}};
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
	} said;
	int nl = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
	if (nl < 0 || getsockname(fd, (struct sockaddr *)&from, &l) || getpeername(fd, (struct sockaddr *)&to, &m)) die("destroy");
	ask.r.id = (struct inet_diag_sockid){.idiag_sport = from.sin_port, .idiag_dport = to.sin_port, .idiag_src = {from.sin_addr.s_addr}, .idiag_dst = {to.sin_addr.s_addr},
	                                     .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}};
	if (send(nl, &ask, sizeof ask, 0) != sizeof ask || recv(nl, &said, sizeof said, 0) < (ssize_t)sizeof said) die("destroy");
	close(nl);
	say("destroyed %d", said.e.error);
}
static void aborted(void) { // the reader's end
	for (int i = 0; i < 2 && family == '4'; i++) {
		int a, b;
		pair(&a, &b);
		if (i) give(a, "abc");
		ms(50);
		destroy(b);
		for (int k = 0; k < 3; k++) say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
		for (int k = 0; k < 2; k++) say("write %s", res(send(b, in, 10, MSG_NOSIGNAL)));
	}
}
static void destroyed(void) { // the same, by a reader that waits
	int a, b;
	if (family != '4') return;
	pair(&a, &b);
	destroy(b);
	for (int k = 0; k < 2; k++) say("%s", res(read(b, in, 10)));
	say("write %s", res(send(b, in, 10, MSG_NOSIGNAL)));
}
static void left_and_reset(void) { // by an end that has gone to the kernel for good, with or without bytes on their way
	for (int i = 0; i < 2; i++) {
		int a, b;
		pair(&a, &b);
		setsockopt(a, SOL_SOCKET, SO_ZEROCOPY, &(int){1}, sizeof(int));
		if (i) fill(a);
		setsockopt(a, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
		close(a);
		ms(50);
		ssize_t k;
		while ((k = read(b, in, sizeof in)) > 0) {}
		say("end %s", res(k));
		say("%s", res(read(b, in, 10)));
		say("write %s", res(send(b, in, 10, MSG_NOSIGNAL)));
	}
}
static void killed(void) {
	int a;
	pid_t p = peer(&a, waits);
	kill(p, SIGKILL);
	reap(p);
	say("%s %s", res(read(a, in, 10)), res(read(a, in, 10)));
}
static void writes_and_waits(int b) {
	give(b, "01234567890123456789");
	*stage = 2;
	pause();
}
static void killed_after_writing(void) {
	int a;
	pid_t p = peer(&a, writes_and_waits);
	reached(2);
	ms(50);
	kill(p, SIGKILL);
	reap(p);
	say("%s %s %s", res(read(a, in, 7)), res(read(a, in, 100)), res(read(a, in, 100)));
}
static void writes_more(int b) {
	for (int i = 0; i < 8; i++) {
		if (write(b, big + 1000 * i, 1000) != 1000) die("write");
		ms(30);
	}
	*stage = 2;
	pause();
}
static void killed_after_more(void) {
	int a;
	size_t n = 0;
	ssize_t k;
	pid_t p = peer(&a, writes_more);
	reached(2);
	kill(p, SIGKILL);
	reap(p);
	while ((k = read(a, in + n, sizeof in - n)) > 0) n += (size_t)k;
	say("%zu right %d, then %s", n, !memcmp(in, big, n), res(k));
}
static void killed_after_option(void) { // which moves the stream to the kernel, while the writer is stopped
	int a;
	pid_t p = peer(&a, writes_and_waits);
	reached(2);
	kill(p, SIGSTOP);
	ms(50);
	say("%d", setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, sizeof(int)));
	kill(p, SIGKILL);
	reap(p);
	say("%s %s %s", res(read(a, in, 7)), res(read(a, in, 100)), res(read(a, in, 100)));
}
static void reads_and_waits(int b) {
	take(b, 7);
	*stage = 2;
	pause();
}
static void reads_and_dies(int b) {
	take(b, 7);
	kill(getpid(), SIGKILL);
}
static void killed_after_reading(void) { // all: that is an end of the stream
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < 2; i++) {
		int a;
		pid_t p = peer(&a, i ? reads_and_dies : reads_and_waits);
		give(a, "request");
		if (!i) {
			reached(2);
			ms(50);
			kill(p, SIGKILL);
		}
		reap(p);
		say("%s %s", res(read(a, in, 10)), res(read(a, in, 10)));
		say("write %s", res(write(a, "x", 1)));
		ms(50);
		say("write %s", res(write(a, "x", 1)));
		close(a);
	}
}
static void killed_with_unread(void) { // in its own memory, in the other's, in both, in neither
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < 4; i++) {
		int a, ep = epoll_create1(0);
		pid_t p = peer(&a, i & 1 ? writes_and_waits : waits);
		if (i & 2) give(a, "never read");
		ms(50);
		add(ep, a, EPOLLIN);
		kill(p, SIGKILL);
		reap(p);
		say("%d epoll %d", i, strstr(happens(ep, 1000), "in") != 0);
		if (i & 1) say("%d %s", i, res(read(a, in, 7)));
		say("%d %s %s", i, res(read(a, in, 100)), res(read(a, in, 100)));
		say("%d %s", i, res(read(a, in, 100)));
		say("%d write %s", i, res(write(a, "x", 1)));
		ms(50);
		say("%d write %s", i, res(write(a, "x", 1)));
		close(a);
	}
}
static void fills_and_waits(int b) {
	fill(b);
	pause();
}
static void fills_more(int b) { // while nothing is read
	for (int i = 0; i < 5; i++) {
		fill(b);
		ms(200);
	}
	*stage = 2;
	pause();
}
static void killed_after_spill(void) { // with bytes unread, while the other end reads from the kernel
	int a;
	pid_t p = peer(&a, fills_and_waits);
	ms(100);
	drain(a);
	give(a, "never read");
	kill(p, SIGKILL);
	reap(p);
	say("%s", res(read(a, in, 10)));
	say("%s", res(read(a, in, 10)));
}
static void killed_with_both_full(void) { // which natively resets at once: what the other end wrote will never be read
	for (int i = 0; i < 2; i++) {
		int a;
		window = i ? 65536 : 0; // so the other end's kernel lacks most of it
		pid_t p = peer(&a, fills_more);
		for (int k = 0; k < 5; k++) {
			fill(a);
			ms(200);
		}
		reached(2);
		kill(p, SIGKILL);
		reap(p);
		say("told %d", poll(&(struct pollfd){a, POLLERR, 0}, 1, 10000));
		say("write %s", res(send(a, in, 10, MSG_NOSIGNAL)));
		while (read(a, in, sizeof in) > 0) {}
		say("write %s", res(send(a, in, 10, MSG_NOSIGNAL)));
		close(a);
	}
}
static int left_over[2];
static size_t n_given;
static void reads_all_but_one(int b) {
	reached(2);
	if (read(left_over[0], &n_given, sizeof n_given) != sizeof n_given) die("told");
	take(b, n_given - 1);
	*stage = 3;
	pause();
}
static void killed_with_one_unread(void) { // of what the ring had no room for
	int a;
	if (pipe(left_over)) die("pipe");
	pid_t p = peer(&a, reads_all_but_one);
	for (int i = 0; i < 5; i++) { // while nothing is read
		n_given += fill(a);
		ms(200);
	}
	if (write(left_over[1], &n_given, sizeof n_given) != sizeof n_given) die("told");
	*stage = 2;
	reached(3);
	ms(50);
	kill(p, SIGKILL);
	reap(p);
	say("%s", res(read(a, in, 10)));
	say("%s", res(read(a, in, 10)));
	say("write %s", res(send(a, in, 10, MSG_NOSIGNAL)));
}
static int told; // where it reports how much it has written
static void ends_by(int b, const char *how) {
	char c;
	give(b, "r");
	if (poll(&(struct pollfd){b, POLLIN, 0}, 1, 5000) != 1 || read(b, &c, 1) != 1) die("read");
	size_t n = 0;
	for (int i = 0; i < (window ? 5 : 1); i++) { // while nothing is read
		n += fill(b);
		ms(window ? 200 : 0);
	}
	if (write(told, &n, sizeof n) != sizeof n) die("told");
	if (*how == 'k') kill(getpid(), SIGKILL);
	if (*how == 'd' && dup(b) >= 0) exit(0);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	if (*how == 'p') execlp("true", "true", (char *)0);
	_exit(0);
}
static void ends_by_exit(int b) { ends_by(b, "exit"); }
static void ends_by_kill(int b) { ends_by(b, "kill"); }
static void ends_by_duplicate(int b) { ends_by(b, "duplicate"); }
static void ends_by_program(int b) { ends_by(b, "program"); }
static void ends_unread(void) { // after an answer that the other end has not yet begun to read
	void (*const how[])(int) = {ends_by_exit, ends_by_kill, ends_by_duplicate, ends_by_program};
	for (int i = 0; i < 8; i++) {
		int a, p[2];
		size_t n = 0;
		if (pipe(p)) die("pipe");
		told = p[1];
		window = i < 4 ? 0 : 65536; // so the other end's kernel lacks most of it
		pid_t c = peer(&a, how[i % 4]);
		take(a, 1);
		ms(50);
		give(a, "x");
		if (read(p[0], &n, sizeof n) != sizeof n) die("told");
		reap(c);
		say("%d all %d", i, take(a, n) == n);
		say("then %s", res(read(a, in, 10)));
		close(a);
		close(p[0]);
		close(p[1]);
	}
}
static int left[2]; // where the child that survives reports what it has read
static void *forks_and_kills(void *p) {
	struct thread *t = p;
	char c[10];
	ssize_t n;
	ms(50);
	if (fork()) kill(getpid(), SIGKILL);
	ms(100);
	while ((n = read(t->fd, c, sizeof c)) > 0)
		if (write(t->fd, c, (size_t)n) != n) _exit(3);
	if (write(left[1], n ? "err" : "end", 3) != 3) _exit(4);
	_exit(0);
}
static void killed_while_reading(int b) {
	struct thread t = {.fd = b};
	pthread_create(&t.t, 0, forks_and_kills, &t);
	say("%s", res(read(b, in, 1)));
}
static void survived(void) { // a child must go on after its parent died with a thread asleep in a read
	int a;
	char s[10] = "";
	if (pipe(left)) die("pipe");
	pid_t p = peer(&a, killed_while_reading);
	reap(p);
	for (int i = 0; i < 3; i++) {
		give(a, "hello");
		say("%zu %.5s", take(a, 5), in);
	}
	shutdown(a, SHUT_WR);
	say("%s %s", res(read(left[0], s, 3)), s);
}
static void echoes(int b) {
	for (char c; read(b, &c, 1) == 1 && write(b, &c, 1) == 1;) {}
}
static void survived_pings(void) { // a parent must go on after its child died anywhere in an exchange of single bytes
	int a, wrong = 0;
	pid_t p = peer(&a, echoes);
	for (int i = 0; i < 60 && !wrong; i++) {
		ssize_t n;
		pid_t c = fork();
		if (!c)
			while (write(a, "c", 1) == 1 && read(a, in, 1) == 1) {}
		usleep(1000 + (useconds_t)i * 137 % 4000);
		kill(c, SIGKILL);
		waitpid(c, 0, 0);
		while (poll(&(struct pollfd){a, POLLIN, 0}, 1, 20) == 1) { // what it has not read
			if ((n = read(a, in, 100)) <= 0 || strspn(in, "c") < (size_t)n) {
				wrong = i + 1;
				break;
			}
		}
		if (i == 59) setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, sizeof(int)); // the kernel shows all from here on
		setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &(int){1}, sizeof(int));
		for (char k = 'd'; k < 'z' && !wrong; k++) {
			if (write(a, &k, 1) != 1) wrong = i + 1;
			do {
				if (read(a, in, 1) != 1) in[0] = 0;
			} while (k == 'd' && in[0] == 'c'); // that came late
			if (in[0] != k) wrong = i + 1;
		}
	}
	say("wrong at %d", wrong);
	close(a);
	reap(p);
}
static void probed(void) { // an idle connection is probed before each use, until its peer has died
	for (int i = 1; i < 4; i++) {
		int a;
		pid_t p = peer(&a, echoes);
		for (int k = 0; k < i; k++) {
			give(a, "x");
			take(a, 1);
			if (k + 1 < i) say("%s", res(recv(a, in, 1, MSG_DONTWAIT)));
		}
		kill(p, SIGKILL);
		reap(p);
		ms(20);
		say("after %d: %s", i, res(recv(a, in, 1, MSG_DONTWAIT)));
		close(a);
	}
}
// resident returns how many kilobytes of memory this process shares with its peers.
static long resident(void) {
	char line[256];
	long all = 0, k;
	bool ours = false;
	char mode[5];
	FILE *f = fopen("/proc/self/smaps", "r");
	while (f && fgets(line, sizeof line, f)) {
		if (sscanf(line, "%*x-%*x %4s", mode) == 1) ours = !strcmp(mode, "rw-s") && strstr(line, "memfd:smcgw-end");
		if (ours && sscanf(line, "Rss: %ld", &k) == 1) all += k;
	}
	if (f) fclose(f);
	return all;
}
static void bursts_once(void) { // a ring that has grown shrinks although the program is never at rest
	int a, b;
	pair(&a, &b);
	for (int i = 0; i < 8; i++) {
		size_t sent = 0, got = 0;
		for (ssize_t n; (n = send(a, big, 100000, MSG_DONTWAIT)) > 0;) sent += (size_t)n;
		for (ssize_t n; got < sent && (n = read(b, in, sizeof in)) > 0;) got += (size_t)n;
	}
	say("grown %d", !getenv("SEMANTICS_PROMOTED") || resident() > 1024);
	for (int i = 0; i < 150; i++) {
		give(a, "x");
		take(b, 1);
		ms(10);
	}
	say("small %d", resident() < 1024);
}
static void killed_blocks(void) {
	int a;
	pid_t p = peer(&a, waits);
	signal(SIGPIPE, SIG_IGN);
	struct thread t = {.fd = a}, r = {.fd = a, .n = 10};
	begin(&t, write_much_thread);
	begin(&r, read_thread);
	kill(p, SIGKILL);
	reap(p);
	finish(&t);
	finish(&r);
	say("writer gave up %d, reader ended %d", t.r < 16 * (ssize_t)sizeof big, r.r == 0 || (r.r < 0 && (r.err == ECONNRESET || r.err == EPIPE)));
}
static _Atomic int pipes, hups;
static void on_pipe(int s) { s == SIGPIPE ? pipes++ : hups++; }
static void broken_pipe(void) {
	int a, b;
	signal(SIGPIPE, on_pipe);
	pair(&a, &b);
	close(b);
	ms(50);
	say("first %s", res(write(a, "x", 1)));
	ms(50);
	say("second %s signals %d", res(write(a, "x", 1)), pipes);
	say("third %s signals %d", res(send(a, "x", 1, MSG_NOSIGNAL)), pipes);
	say("read %s", res(read(a, in, 1)));
	pair(&a, &b);
	shutdown(a, SHUT_WR);
	say("own %s signals %d", res(write(a, "x", 1)), pipes);
	say("own %s signals %d", res(writev(a, &(struct iovec){"x", 1}, 1)), pipes);
}
static const char *so_error(int fd) {
	int v = -1;
	socklen_t l = sizeof v;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &l)) return "fails";
	return v ? strerrorname_np(v) : "none";
}
static void so_errors(void) { // a reset is reported by SO_ERROR
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		if (i >= 2) add(ep, b, i & 1 ? EPOLLIN | EPOLLET | EPOLLRDHUP : EPOLLIN);
		give(a, "x");
		say("told %s", i < 2 ? revents(b, POLLIN, 1000) : happens(ep, 1000));
		take(b, 1);
		say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		give(b, "unread");
		ms(5);
		close(a);
		ms(50);
		say("%d %s", i, i < 2 ? revents(b, POLLIN | POLLOUT | POLLRDHUP, 1000) : happens(ep, 1000));
		say("error %s", so_error(b));
		if (i & 1) say("write %s", res(send(b, "y", 1, MSG_NOSIGNAL)));
		say("read %s then %s", res(read(b, in, 2)), res(read(b, in, 10)));
		say("write %s", res(send(b, "y", 1, MSG_NOSIGNAL)));
		say("error %s, write nothing %s", so_error(b), res(send(b, "y", 0, MSG_NOSIGNAL)));
		close(b);
	}
}
static const char *all_events(int ep) { // reports them as numbers
	static __thread char b[4][32];
	static __thread int i;
	struct epoll_event v;
	int n = epoll_wait(ep, &v, 1, 0);
	snprintf(b[++i & 3], 32, "%s %x", res(n), n > 0 ? v.events : 0);
	return b[i & 3];
}
static void beside_bytes(void) { // what a set reports for an end whose bytes are partly read
	const uint32_t asked[] = {EPOLLRDNORM, EPOLLRDNORM | EPOLLOUT | EPOLLONESHOT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLONESHOT, EPOLLIN | EPOLLONESHOT};
	for (int i = 0; i < 5; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		give(a, "0123456789");
		say("%d: read %zu", i, take(b, 3));
		if (i == 1) say("same %d", fill(b) == drain(a)); // makes the kernel carry what b writes
		add(ep, b, asked[i]);
		if (i == 2) shutdown(a, SHUT_WR);
		ms(20);
		say("%s", all_events(ep));
		say("then %s", all_events(ep));
		int d = dup(b);
		close(b);
		say("by another number %s, read %zu", all_events(ep), take(d, 7));
		say("then %s", all_events(ep));
	}
}
static void many_ends(void) { // recvmmsg() returns an end for each message
	int a, b;
	struct iovec v = {in, 10};
	struct mmsghdr m[3] = {{.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}}};
	pair(&a, &b);
	give(a, "some");
	shutdown(a, SHUT_WR);
	ms(20);
	say("%s: %u", res(recvmmsg(b, m, 3, 0, 0)), m[0].msg_len);
	say("%s: %u %u %u", res(recvmmsg(b, m, 3, 0, 0)), m[0].msg_len, m[1].msg_len, m[2].msg_len);
}
static void reset_behind_bytes(void) { // found by a read that still returns bytes
	for (int i = 0; i < 2; i++) {
		int a, b;
		pair(&a, &b);
		signal(SIGPIPE, on_pipe);
		pipes = 0;
		give(a, "some");
		give(b, "unread");
		ms(20);
		close(a);
		ms(20);
		say("read %s", res(recv(b, in, 10, i ? MSG_TRUNC : MSG_WAITALL)));
		say("write %s, %d signals", res(write(b, "y", 1)), pipes);
		say("read %s, write %s, %d signals", res(read(b, in, 10)), res(write(b, "y", 1)), pipes);
	}
}
static void shut_and_reset(void) {
	for (int i = 0; i < 6; i++) {
		int a, b;
		fd_set r;
		pair(&a, &b);
		say("%d: none %s", i, res(recv(a, in, 1, MSG_DONTWAIT)));
		if (i < 5) give(a, "unread");
		if (i < 3) shutdown(a, (int[]){SHUT_RD, SHUT_WR, SHUT_RDWR}[i]);
		if (i < 5) close(b);
		else shutdown(a, SHUT_RDWR);
		ms(20);
		FD_ZERO(&r);
		FD_SET(a, &r);
		if (i == 3) say("select %s", res(select(a + 1, &r, 0, 0, 0)));
		if (i == 3) say("error %s", so_error(a));
		if (i == 5) say("write %s", res(send(b, "y", 1, MSG_NOSIGNAL)));
		ms(20);
		int left = i == 5 ? b : a;
		if (i & 1) say("write %s", res(send(left, "y", 1, MSG_NOSIGNAL)));
		say("read %s then %s", res(read(left, in, 2)), res(read(left, in, 2)));
		say("write %s", res(send(left, "y", 1, MSG_NOSIGNAL)));
	}
}
static void exits_reading(int b) {
	take(b, 4);
	exit(0);
}
static void exits(void) {
	int a;
	pid_t p = peer(&a, exits_reading);
	give(a, "1234");
	reap(p);
	say("%s", res(read(a, in, 10)));
}

// ---- signals

static void on_alarm(int s) { (void)s; }
static void alarm_in(int flags, int after) {
	struct sigaction s = {.sa_handler = on_alarm, .sa_flags = flags};
	sigaction(SIGALRM, &s, 0);
	struct itimerval t = {{0, 0}, {0, after * 1000}};
	setitimer(ITIMER_REAL, &t, 0);
}
// alarms repeats a signal, in case the machine was too busy to begin the call before the first one; 0 stops it.
static void alarms(int every) {
	struct sigaction s = {.sa_handler = on_alarm};
	sigaction(SIGALRM, &s, 0);
	struct itimerval t = {{0, every * 1000}, {0, every * 1000}};
	setitimer(ITIMER_REAL, &t, 0);
}
static void restarted_reads(void) { // two threads wait for the end: what ends their sleeps before it must not show in errno, where OpenSSL looks
	int a, b;
	struct sigaction s = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
	sigaction(SIGUSR1, &s, 0);
	pair(&a, &b);
	struct thread t = {.fd = b, .n = 1}, u = t;
	begin(&t, read_thread);
	begin(&u, read_thread);
	for (int i = 0; i < 10; i++) {
		pthread_kill(t.t, SIGUSR1);
		pthread_kill(u.t, SIGUSR1);
		ms(5);
	}
	shutdown(a, SHUT_WR);
	say("%s", finish(&t));
	say("%s", finish(&u));
	say("%d %d", t.err, u.err);
}
#define INTERRUPTED(what, every, call)  \
	do {                            \
		alarms(every);          \
		const char *got = call; \
		alarms(0);              \
		say(what " %s", got);   \
	} while (0)
static void *later(void *x) {
	ms(300);
	give((int)(long)x, "x");
	return 0;
}
static void blocks_alarm(void) {
	sigset_t s;
	sigemptyset(&s);
	sigaddset(&s, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &s, 0);
}
static void *later_blocked(void *x) {
	blocks_alarm();
	return later(x);
}
static void interrupts(void) {
	int a, b, ep = epoll_create1(0);
	pthread_t t;
	pair(&a, &b);
	INTERRUPTED("read", 100, res(read(b, in, 10)));
	INTERRUPTED("recv peek", 100, res(recv(b, in, 10, MSG_PEEK)));
	INTERRUPTED("poll", 100, revents(b, POLLIN, 2000));
	add(ep, b, EPOLLIN);
	INTERRUPTED("epoll", 100, happens(ep, 2000));
	fd_set r;
	FD_ZERO(&r);
	FD_SET(b, &r);
	struct timeval tv = {2, 0};
	INTERRUPTED("select", 100, res(select(b + 1, &r, 0, 0, &tv)));
	give(a, "ab");
	INTERRUPTED("all", 100, res(recv(b, in, 10, MSG_WAITALL)));
	fill(a);
	INTERRUPTED("write", 100, res(write(a, big, 10)));
	drain(b);
	alarms(200);
	ssize_t n = write_much(a);
	alarms(0);
	say("partly %d", n > 0 && n < 16 * (ssize_t)sizeof big);
	say("same %d", n == (ssize_t)drain(b));
	pthread_create(&t, 0, later_blocked, (void *)(long)a);
	ms(10);
	alarm_in(SA_RESTART, 100);
	say("restarted read %s", res(read(b, in, 10)));
	pthread_join(t, 0);
	pthread_create(&t, 0, later_blocked, (void *)(long)a);
	ms(10);
	alarm_in(SA_RESTART, 100);
	say("restarted epoll %s", happens(ep, 2000));
	pthread_join(t, 0);
}
static void *drip_thread(void *x) {
	struct thread *t = x;
	for (int i = 0; i < 6; i++) {
		ms(300);
		give(t->fd, "d");
	}
	return 0;
}
static void *sip_thread(void *x) {
	struct thread *t = x;
	static char some[1 << 20];
	for (int i = 0; i < 8; i++) {
		ms(200);
		recv(t->fd, some, 400000, MSG_DONTWAIT);
	}
	t->done = true;
	return 0;
}
static void whole_timeouts(void) { // a call must return in time, however often bytes move meanwhile
	int a, b;
	pair(&a, &b);
	struct timeval tv = {0, 500000};
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	struct thread t = {.fd = a};
	pthread_create(&t.t, 0, drip_thread, &t);
	ssize_t k = recv(b, in, 10, MSG_WAITALL);
	say("some %d", k > 0 && k < 5);
	pthread_join(t.t, 0);
	drain(b);
	int two = 2;
	setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two); // from here on by the kernel
	t = (struct thread){.fd = b};
	pthread_create(&t.t, 0, sip_thread, &t);
	k = write_much(a);
	say("some %d, in time %d", k > 0 && k < 16 * (ssize_t)sizeof big, !t.done);
	pthread_join(t.t, 0);
	write_much(a);
	tv.tv_sec = 3;
	setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	alarm_in(SA_RESTART, 200);
	double at = now();
	write_much(a);
	say("interrupted: %d", now() - at < 2);
}
static void files_interrupted(void) { // files sent to an end that does not read
	int a, b, f = memfd_create("f", 0);
	pair(&a, &b);
	if (ftruncate(f, 64 << 20)) die("truncate");
	alarms(300);
	double at = now();
	off_t o = 0;
	ssize_t n = sendfile(a, f, &o, 64 << 20);
	alarms(0);
	say("partly %d, at %d, %s", n > 0 && n < 64 << 20, o == n, now() - at < 3 ? "soon" : "late");
	say("same %d", n == (ssize_t)drain(b));
	struct timeval tv = {0, 300000};
	setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
	o = 0;
	at = now();
	n = sendfile(a, f, &o, 64 << 20);
	say("partly %d, at %d, %s", n > 0 && n < 64 << 20, o == n, now() - at < 3 ? "soon" : "late");
	say("same %d", n == (ssize_t)drain(b));
}
static void *drain_later(void *x) {
	blocks_alarm();
	ms(300);
	drain((int)(long)x);
	return 0;
}
static void restarted_write(void) {
	int a, b;
	pthread_t t;
	pair(&a, &b);
	fill(a);
	pthread_create(&t, 0, drain_later, (void *)(long)b);
	ms(10);
	alarm_in(SA_RESTART, 100);
	say("%s", res(write(a, big, 10)));
	pthread_join(t, 0);
	fill(a);
	signal(SIGUSR1, SIG_IGN);
	pthread_create(&t, 0, drain_later, (void *)(long)b);
	ms(10);
	alarm_in(SA_RESTART, 50);
	kill(getpid(), SIGUSR1);
	say("%s", res(write(a, big, 10)));
	pthread_join(t, 0);
	sigset_t none;
	sigemptyset(&none);
	struct timespec ts = {2, 0};
	struct pollfd p = {b, POLLIN, 0};
	drain(b);
	blocks_alarm();
	alarm_in(0, 50);
	ms(100);
	say("masked ppoll %s", res(ppoll(&p, 1, &ts, &none)));
	alarm_in(0, 50);
	ms(100);
	int ep = epoll_create1(0);
	add(ep, b, EPOLLIN);
	struct epoll_event v;
	say("masked epoll_pwait %s", res(epoll_pwait(ep, &v, 1, 2000, &none)));
}
static sigjmp_buf out;
static void jumps(int s) {
	(void)s;
	siglongjmp(out, 1);
}
static void jump_in(int after) {
	struct sigaction act = {.sa_handler = jumps};
	sigaction(SIGALRM, &act, 0);
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, after * 1000}}, 0);
}
static void alarmed(void) { // during a write that nobody reads; a busy machine may be too late for a signal or two
	bool soon = false;
	for (int i = 0; i < 5 && !soon; i++) {
		int a, b;
		pair(&a, &b);
		double t = now();
		alarms(0);
		setitimer(ITIMER_REAL, &(struct itimerval){{3, 0}, {0, 300000}}, 0);
		soon = write_much(a) > 0 && now() - t < 2;
		alarms(0);
		close(a);
		close(b);
	}
	say("soon %d", soon);
}
static void jumped(void) { // a handler jumps out of a waiting call, as FTP clients do
	static int a, b;
	pair(&a, &b);
	for (volatile int i = 0; i < 2; i++) {
		if (!sigsetjmp(out, 1)) {
			jump_in(300);
			say("read %s", res(read(b, in, 10)));
		}
		give(a, "xy");
		say("%s", res(read(b, in, 10)));
		if (!sigsetjmp(out, 1)) {
			jump_in(300);
			say("poll %s", revents(b, POLLIN, 3000));
		}
		give(a, "xy");
		say("poll %s", revents(b, POLLIN, 3000));
		say("%s", res(read(b, in, 10)));
	}
	for (volatile int i = 0; i < 3; i++) {
		if (!sigsetjmp(out, 1)) {
			jump_in(300);
			say("write %s", res(write_much(a)));
		}
		say("much %d", drain(b) > 65536);
		say("%s", res(send(a, "x", 1, MSG_DONTWAIT)));
		say("%s", res(read(b, in, 10)));
		give(a, "abc");
		say("%s %.3s", res(read(b, in, 10)), in);
		give(b, "de");
		say("%s %.2s", res(read(a, in, 10)), in);
	}
	struct iovec v[200];
	for (int i = 0; i < 200; i++) v[i] = (struct iovec){big + i, 1};
	say("%s", res(writev(a, v, 200)));
	say("%zu right %d", take(b, 200), !memcmp(in, big, 200));
	close(a);
	say("%s", res(read(b, in, 10)));
}
static void *cancel_read(void *x) { return (void *)read((int)(long)x, in, 10); }
static void *cancel_write(void *x) { return (void *)write_much((int)(long)x); }
static void *cancel_poll(void *x) {
	struct pollfd p = {(int)(long)x, POLLIN, 0};
	return (void *)(long)poll(&p, 1, -1);
}
static void *cancel_epoll(void *x) {
	struct epoll_event v;
	return (void *)(long)epoll_wait((int)(long)x, &v, 1, -1);
}
static void cancelled(void) {
	int a, b, ep = epoll_create1(0);
	pthread_t t;
	void *r;
	pair(&a, &b);
#define CANCEL(f, x)                                     \
	do {                                             \
		pthread_create(&t, 0, f, (void *)(long)(x)); \
		ms(50);                                  \
		pthread_cancel(t);                       \
		pthread_join(t, &r);                     \
		say(#f " %d", r == PTHREAD_CANCELED);    \
	} while (0)
	CANCEL(cancel_read, b);
	give(a, "abc");
	say("%s", res(read(b, in, 10)));
	CANCEL(cancel_read, b);
	CANCEL(cancel_poll, b);
	give(a, "abc");
	say("%s %s", revents(b, POLLIN, 1000), res(read(b, in, 10)));
	add(ep, b, EPOLLIN);
	CANCEL(cancel_epoll, ep);
	give(a, "abc");
	say("%s %s", happens(ep, 1000), res(read(b, in, 10)));
	CANCEL(cancel_epoll, ep);
	for (int i = 0; i < 5; i++) {
		give(a, "abc");
		say("%s %s", happens(ep, 1000), res(read(b, in, 10)));
	}
	CANCEL(cancel_write, a);
	say("some %d", drain(b) > 0);
	give(a, "abc");
	say("%s", res(read(b, in, 10)));
}

// Threads that a call never lets wait must be cancelled by it nevertheless.
static void *always_writes(void *fd) {
	for (double at = now(); write((int)(long)fd, "x", 1) == 1; at = now())
		while (now() < at + 50e-6) {}
	return 0;
}
static void *always_reads(void *fd) {
	char c;
	for (double at = now(); read((int)(long)fd, &c, 1) == 1; at = now())
		while (now() < at + 50e-6) {}
	return 0;
}
static void *always_waits(void *ep) {
	struct epoll_event v;
	while (epoll_wait((int)(long)ep, &v, 1, -1) == 1) {}
	return 0;
}
static void cancelled_busy(void) {
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	fill(a);
	for (int i = 0; i < 3; i++) {
		pthread_t t;
		void *r = 0;
		if (!i) drain(b);
		pthread_create(&t, 0, i == 0 ? always_writes : i == 1 ? always_reads : always_waits, (void *)(long)(i == 0 ? a : i == 1 ? b : ep));
		double at = now();
		for (bool told = false; pthread_tryjoin_np(t, &r) && now() < at + 10;) {
			if (now() > at + 0.2 && !told) told = !pthread_cancel(t);
			if (!i) recv(b, in, sizeof in, MSG_DONTWAIT);
		}
		say("%d", r == PTHREAD_CANCELED);
		if (!i) fill(a);
	}
}
static void cancelled_writer(void) { // while the kernel has taken a part of what it was given
	int a, b, bad = 0;
	window = 16384;
	for (int i = 0; i < 3; i++) {
		pair(&a, &b);
		struct thread t = {.fd = a};
		begin(&t, write_much_thread);
		ms(100);
		for (int k = 0; k < 4 + i; k++) {
			recv(b, in, 20000, MSG_DONTWAIT);
			ms(5);
		}
		pthread_cancel(t.t);
		pthread_join(t.t, 0);
		drain(b);
		for (int k = 0; k < 20; k++) { // again in the ring
			give(a, "hello");
			bad += take(b, 5) != 5 || memcmp(in, "hello", 5);
			if (k % 5 == 0) ms(2);
		}
		bad += fill(a) != drain(b); // and in the kernel
		close(a);
		close(b);
	}
	say("bad %d", bad);
}
static void cancelled_reader(void) { // just as it is woken: it may have taken something, but what comes later must be whole
	int a, b, bad = 0;
	pair(&a, &b);
	for (int i = 0; i < 30; i++) {
		struct thread t = {.fd = b, .n = 10};
		pthread_create(&t.t, 0, read_thread, &t);
		ms(2);
		give(a, "abc");
		pthread_cancel(t.t);
		pthread_join(t.t, 0);
		drain(b);
		if (i % 6 == 5) bad += fill(a) != drain(b);
	}
	say("bad %d", bad);
}
static void cancelled_before(void) { // before the promotion: the counts that a cancelled thread left must not count any more
	struct sockaddr_storage s;
	socklen_t l;
	pthread_t t;
	void *r;
	int from = listener(&s, &l), a = socket(s.ss_family, SOCK_STREAM, 0);
	if (connect(a, (struct sockaddr *)&s, l) < 0) die("connect");
	int b = accept(from, 0, 0);
	CANCEL(cancel_read, b);
	warm(a, b);
	CANCEL(cancel_poll, b);
	uint64_t had = received(b);
	for (int i = 0; i < 100; i++) {
		give(a, "abc");
		revents(b, POLLIN, 0);
		if (take(b, 3) != 3) die("read");
	}
	say("without tokens %d", !getenv("SEMANTICS_PROMOTED") || received(b) - had < 20);
}

// ---- sharing

static void *sum_thread(void *x) {
	struct thread *t = x;
	char c[100];
	ssize_t n;
	uint64_t sum = 0;
	while ((n = read(t->fd, c, sizeof c)) > 0) {
		for (ssize_t i = 0; i < n; i++) sum += (unsigned char)c[i];
		t->n += (size_t)n;
	}
	t->r = (ssize_t)sum;
	return 0;
}
static void two_threads(void) {
	int a, b;
	pair(&a, &b);
	struct thread t[2] = {{.fd = b}, {.fd = b}};
	uint64_t sum = 0;
	size_t n = 0;
	for (int i = 0; i < 2; i++) pthread_create(&t[i].t, 0, sum_thread, &t[i]);
	for (int i = 0; i < 3000; i++) {
		size_t k = (size_t)(1 + i % 700);
		if (write(a, big + i, k) != (ssize_t)k) die("write");
		for (size_t j = 0; j < k; j++) sum += (unsigned char)big[(size_t)i + j];
		n += k;
		if (i % 100 == 0) ms(1);
	}
	shutdown(a, SHUT_WR);
	for (int i = 0; i < 2; i++) pthread_join(t[i].t, 0);
	say("right %d", t[0].n + t[1].n == n && (uint64_t)(t[0].r + t[1].r) == sum);
}
static void two_processes(void) {
	int a, b, p[2];
	pair(&a, &b);
	if (pipe(p) < 0) die("pipe");
	pid_t c[2];
	for (int i = 0; i < 2; i++) {
		if ((c[i] = fork()) > 0) continue;
		close(a);
		struct thread t = {.fd = b};
		sum_thread(&t);
		uint64_t r[2] = {t.n, (uint64_t)t.r};
		if (write(p[1], r, sizeof r) != sizeof r) _exit(3);
		_exit(0);
	}
	close(b);
	uint64_t sum = 0, n = 0, got[2] = {0, 0}, r[2];
	for (int i = 0; i < 3000; i++) {
		size_t k = (size_t)(1 + i % 700);
		if (write(a, big + i, k) != (ssize_t)k) die("write");
		for (size_t j = 0; j < k; j++) sum += (unsigned char)big[(size_t)i + j];
		n += k;
		if (i % 100 == 0) ms(1);
	}
	close(a);
	for (int i = 0; i < 2; i++) {
		if (read(p[0], r, sizeof r) != sizeof r) die("result");
		got[0] += r[0];
		got[1] += r[1];
		reap(c[i]);
	}
	say("right %d", got[0] == n && got[1] == sum);
}
static void both_write(void) {
	int a, b;
	pair(&a, &b);
	pid_t c = fork();
	if (c == 0) {
		for (int i = 0; i < 500; i++)
			if (write(a, "cccccccc", 8) != 8) _exit(3);
		_exit(0);
	}
	for (int i = 0; i < 500; i++) give(a, "pppppppp");
	reap(c);
	close(a);
	size_t n = take(b, sizeof in), whole = 0;
	for (size_t i = 0; i + 8 <= n; i += 8) whole += !memcmp(in + i, "cccccccc", 8) || !memcmp(in + i, "pppppppp", 8);
	say("%zu, %zu whole", n, whole);
}
static void fork_server(void) {
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a, b;
	for (int round = 0; round < 2; round++) {
		a = socket(s.ss_family, SOCK_STREAM, 0);
		if (connect(a, (struct sockaddr *)&s, l) < 0) die("connect");
		b = accept(from, 0, 0);
		if (round) warm(a, b); // the child has a promoted connection in the second round
		pid_t c = fork();
		if (c == 0) {
			close(a);
			close(from);
			ssize_t n;
			while ((n = read(b, in, 1000)) > 0)
				if (write(b, in, (size_t)n) != n) _exit(3);
			_exit((int)n);
		}
		close(b);
		for (int i = 0; i < 200; i++) {
			give(a, "question");
			if (take(a, 8) != 8) die("answer");
		}
		shutdown(a, SHUT_WR);
		say("%s", res(read(a, in, 10)));
		reap(c);
		close(a);
	}
}
static void child_closes(int a, int b) {
	pid_t c = fork();
	if (c == 0) {
		close(a);
		close(b);
		_exit(0);
	}
	reap(c);
}
static int made_how;
static int made(void *p) {
	int b = *(int *)p;
	ms(50);
	if (take(b, 6) != 6 || memcmp(in, "before", 6)) _exit(3);
	give(b, "hello");
	if (take(b, 5) != 5 || memcmp(in, "after", 5)) _exit(4);
	_exit(0);
}
static void makes(int b) { // a child by a system call, which libc does not see, or by libc's clone()
	static char stack[65536] __attribute__((aligned(16)));
	uint64_t args[11] = {[4] = SIGCHLD};
	pid_t p = made_how == 0   ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
		  : made_how == 1 ? (pid_t)syscall(SYS_clone3, args, sizeof args)
				  : clone(made, stack + sizeof stack, SIGCHLD, &b);
	if (p == 0) made(&b);
	close(b);
	reap(p);
}
static void cloned(void) {
	for (made_how = 0; made_how < 3; made_how++) {
		int a;
		pid_t p = peer(&a, makes);
		give(a, "before");
		say("%zu %.5s", take(a, 5), in);
		give(a, "after");
		reap(p);
		say("%s", res(read(a, in, 10)));
		close(a);
	}
}
static void clone_connects(void) { // a child by a system call makes connections under numbers that it has inherited
	int a, b, c, d, p[2], q[2];
	char x = 'x';
	pair(&a, &b);
	if (pipe(p) || pipe(q)) die("pipe");
	pid_t k = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (k == 0) {
		if (read(p[0], &x, 1) != 1) _exit(1);
		close(a);
		close(b);
		cold(&a, &b);
		for (int i = 0; i < 100; i++) moved(a, b);
		if (write(q[1], &x, 1) != 1 || read(p[0], &x, 1) != 1) _exit(2);
		for (int i = 0; i < 100; i++) moved(b, a);
		_exit(0);
	}
	close(a);
	close(b);
	pair(&a, &b);
	if (write(p[1], &x, 1) != 1 || read(q[0], &x, 1) != 1) die("pipe");
	pair(&c, &d);
	for (int i = 0; i < 3; i++) {
		give(a, "first");
		give(c, "second");
		say("%zu %.5s", take(b, 5), in);
		say("%zu %.6s", take(d, 6), in);
	}
	if (write(p[1], &x, 1) != 1) die("pipe");
	reap(k);
}
static volatile sig_atomic_t forked_in_handler;
static void forks_soon(void) { setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 3000}}, 0); }
static void forks_in_handler(int s) {
	int err = errno;
	pid_t p = fork();
	(void)s;
	if (p == 0) _exit(0);
	if (p > 0) waitpid(p, 0, 0);
	forked_in_handler++;
	if (forked_in_handler < 30) forks_soon(); // not before, and no more: a busy machine would do nothing else
	errno = err;
}
static void fork_in_handler(void) { // while the program forks, too
	int a, b;
	pair(&a, &b);
	struct sigaction h = {.sa_handler = forks_in_handler, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &h, 0);
	forks_soon();
	for (int i = 0; i < 300 || forked_in_handler < 30; i++) {
		pid_t c = fork();
		if (c == 0) _exit(0);
		if (c > 0) waitpid(c, 0, 0);
	}
	setitimer(ITIMER_REAL, &(struct itimerval){0}, 0);
	give(a, "xy");
	say("%s", res(read(b, in, 10)));
	close(a);
	say("%s", res(read(b, in, 10)));
}
static void *changes_set(void *x) {
	const int *fd = x;
	for (;;) epoll_ctl(fd[0], EPOLL_CTL_MOD, fd[1], &(struct epoll_event){EPOLLIN, {0}});
	return 0;
}
static void fork_beside_set(void) { // before there is a connection
	int fd[2] = {epoll_create1(0), epoll_create1(0)};
	pthread_t t;
	add(fd[0], fd[1], EPOLLIN);
	pthread_create(&t, 0, changes_set, fd);
	for (int i = 0; i < 200; i++) {
		pid_t c = fork();
		if (c == 0) {
			close(fd[1]);
			_exit(0);
		}
		if (waitpid(c, 0, 0) != c) die("waitpid");
	}
	say("done");
}
static void forked_closes(void) {
	int a, b;
	pair(&a, &b);
	child_closes(a, b);
	give(a, "still");
	say("%s", res(read(b, in, 10)));
	give(b, "here");
	say("%s", res(read(a, in, 10)));
	pid_t c = fork();
	if (c == 0) { // the child leaves without a close
		_exit(0);
	}
	reap(c);
	close(a);
	say("%s", res(read(b, in, 10)));
}
static void daemons(void) { // goes on in the background with its connections
	int a, b, p[2];
	pair(&a, &b);
	if (pipe(p)) die("pipe");
	pid_t c = fork();
	if (c == 0) {
		close(a);
		if (daemon(1, 1)) _exit(1);
		int d = dup(b);
		char t[20] = "";
		for (int i = 0; i < 5; i++) {
			if (i & 1 && poll(&(struct pollfd){d, POLLIN, 0}, 1, 2000) != 1) break;
			ssize_t n = read(i & 1 ? d : b, t, sizeof t);
			if (n <= 0 || write(d, t, (size_t)n) != n) break;
		}
		close(b);
		int e = open("/dev/null", O_RDWR);
		if (write(e, "n", 1) != 1 || write(d, "end", 3) != 3) _exit(2);
		if (write(p[1], "k", 1) != 1) _exit(3);
		ms(20);
		_exit(0);
	}
	reap(c);
	close(b);
	for (int i = 0; i < 5; i++) {
		give(a, "hello");
		say("%s", res(read(a, in, 5)));
	}
	say("%s", res(read(p[0], in, 1)));
	say("%zu then %s", take(a, 3), res(read(a, in, 1)));
}
static pthread_mutex_t busy = PTHREAD_MUTEX_INITIALIZER;
static int closes = -1;
static void before_fork(void) { pthread_mutex_lock(&busy); }
static void after_fork(void) { pthread_mutex_unlock(&busy); }
static void born(void) {
	pthread_mutex_unlock(&busy);
	close(closes);
}
static void *busy_thread(void *x) { // as the event loop of a library does that pauses while its process forks
	(void)x;
	for (int i = 0; i < 20; i++) {
		int a, b, ep = epoll_create1(0);
		pthread_mutex_lock(&busy);
		ms(1);
		pair(&a, &b);
		add(ep, b, EPOLLIN);
		give(a, "x");
		if (epoll_wait(ep, &(struct epoll_event){0}, 1, 2000) != 1 || read(b, in + 100, 10) != 1) die("read");
		pthread_mutex_unlock(&busy);
		close(a);
		close(b);
		close(ep);
		ms(1);
	}
	return 0;
}
static void fork_handlers(void) { // close a connection in the child, and wait for threads that use connections
	int a, b;
	pair(&a, &b);
	while (open("/dev/null", O_RDONLY) < b) {} // leave no lower number free
	pthread_atfork(before_fork, after_fork, born);
	closes = b;
	for (int i = 0; i < 3; i++) {
		pid_t c = fork();
		if (c == 0) {
			int n = open("/dev/zero", O_RDONLY);
			say("same %d %s", n == b, res(read(n, in, 10)));
			_exit(0);
		}
		reap(c);
		give(a, "xy");
		say("%s", res(read(b, in, 10)));
	}
	closes = -1;
	pthread_t t;
	pthread_create(&t, 0, busy_thread, 0);
	for (int i = 0; i < 20; i++) {
		pid_t c = fork();
		if (c == 0) _exit(0);
		if (waitpid(c, 0, 0) != c) die("waitpid");
		ms(3);
	}
	pthread_join(t, 0);
	give(a, "xy");
	say("%s", res(read(b, in, 10)));
}
static void fork_while_writing(void) { // while a thread waits in a write
	int a, b, q = 0;
	pair(&a, &b);
	struct thread t = {.fd = a};
	begin(&t, write_much_thread);
	ms(200);
	double at = now();
	child_closes(a, b);
	say("child %s", about(at, 0));
	at = now();
	say("%s %d %s", res(ioctl(a, SIOCOUTQ, &q)), q > 0, about(at, 0));
	int d = dup(a);
	at = now();
	close(d);
	say("close %s", about(at, 0));
}
static void runs(int fd, const char *how) {
	char *argv[] = {"cat", 0};
	if (!strcmp(how, "vfork") || !strcmp(how, "fork")) {
		pid_t p = *how == 'v' ? vfork() : fork();
		if (p == 0) {
			dup2(fd, 0);
			dup2(fd, 1);
			close(fd);
			execvp("cat", argv);
			_exit(9);
		}
		return;
	}
	posix_spawn_file_actions_t f;
	posix_spawn_file_actions_init(&f);
	posix_spawn_file_actions_adddup2(&f, fd, 0);
	posix_spawn_file_actions_adddup2(&f, fd, 1);
	pid_t p;
	if (posix_spawnp(&p, "cat", &f, 0, argv, environ)) die("spawn");
}
static void programs(void) {
	const char *how[] = {"fork", "vfork", "spawn"};
	for (int i = 0; i < 3; i++) {
		int a, b;
		pair(&a, &b);
		fcntl(a, F_SETFD, FD_CLOEXEC);
		give(a, "before");
		runs(b, how[i]);
		close(b);
		give(a, "after");
		say("%s %zu %.11s", how[i], take(a, 11), in);
		for (int k = 0; k < 20; k++) {
			give(a, "ping");
			if (take(a, 4) != 4) die("ping");
		}
		shutdown(a, SHUT_WR);
		say("%s", res(read(a, in, 10)));
		close(a);
		int status;
		wait(&status);
		say("status %d", status);
	}
}
static void helper(void) { // a server starts a program that lives on: its connections must go on as before
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	fcntl(a, F_SETFD, FD_CLOEXEC);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	fcntl(ep, F_SETFD, FD_CLOEXEC);
	for (int round = 0; round < 2; round++) {
		pid_t c = fork();
		if (c == 0) {
			execl("/does/not/exist", "sleep", "100", (char *)0);
			give(a, "still here");
			if (!round) _exit(take(b, 10) == 10 ? 0 : 3);
			if (take(b, 10) == 10) execlp("sleep", "sleep", "100", (char *)0);
			_exit(3);
		}
		if (!round) reap(c);
		ms(100);
	}
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 50; i++) moved(a, b);
	uint64_t had = received(b);
	for (int i = 0; i < 500; i++) {
		give(a, "x");
		const char *s = happens(ep, 1000);
		if (strcmp(s, "1 in")) say("%s", s);
		take(b, 1);
	}
	say("few bytes by the kernel %d", !getenv("SEMANTICS_PROMOTED") || received(b) - had < 50);
	close(a);
	say("%s", res(read(b, in, 10)));
}
static int mappings(void) {
	char line[500];
	int n = 0;
	FILE *f = fopen("/proc/self/maps", "re");
	while (f && fgets(line, sizeof line, f)) n += strstr(line, "memfd:") != 0;
	if (f) fclose(f);
	return n;
}
static void unmapped(void) { // after a program has ended, its parent must not still map what it had
	int had = 0;
	for (int i = 0; i < 6; i++) {
		int a, b;
		pair(&a, &b);
		fcntl(a, F_SETFD, FD_CLOEXEC);
		pid_t p = fork();
		if (p == 0) {
			execlp("sleep", "sleep", "100", (char *)0);
			_exit(9);
		}
		ms(100);
		close(a);
		close(b);
		kill(p, SIGKILL);
		waitpid(p, 0, 0);
		if (i == 1) had = mappings();
	}
	say("%d more", mappings() - had);
}
static void unrelated_programs(void) {
	int a, b;
	pair(&a, &b);
	fcntl(a, F_SETFD, FD_CLOEXEC);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	for (int i = 0; i < 3; i++) {
		say("system %d", system("exit 3") >> 8);
		pid_t p = vfork();
		if (p == 0) {
			close(a);
			close(b);
			execlp("true", "true", (char *)0);
			_exit(9);
		}
		int status;
		waitpid(p, &status, 0);
		FILE *f = popen("echo out", "r");
		char line[10] = "";
		if (!fgets(line, sizeof line, f)) die("popen");
		say("popen %.3s %d", line, pclose(f));
		give(a, "still");
		say("%s", res(read(b, in, 10)));
		give(b, "here");
		say("%s", res(read(a, in, 10)));
	}
}
static void shells(void) { // libc starts them, and they use the connection
	int a, b;
	char command[100], line[10] = "";
	pair(&a, &b);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	snprintf(command, sizeof command, "echo hello >&%d", a);
	say("system %d", system(command));
	say("%zu %.5s", take(b, 6), in);
	give(a, "more");
	say("%zu %.4s", take(b, 4), in);
	pair(&a, &b);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	give(b, "line\n");
	snprintf(command, sizeof command, "read x <&%d; echo $x", a);
	FILE *f = popen(command, "r");
	if (!fgets(line, sizeof line, f)) die("popen");
	say("popen %.4s %d", line, pclose(f));
}
static pid_t starts(const char *command, const char *how) {
	char *argv[] = {"sh", "-c", (char *)(uintptr_t)command, 0};
	pid_t p;
	if (*how == 's') {
		if (posix_spawn(&p, "/bin/sh", 0, 0, argv, environ)) die("spawn");
	} else if ((p = vfork()) == 0) {
		execv("/bin/sh", argv);
		_exit(9);
	}
	return p;
}
static void fails_to_start(void) { // while bytes are unread that another program could not read
	int a, b;
	pid_t p;
	char *argv[] = {"none", 0};
	pair(&a, &b);
	size_t n = fill(a);
	say("spawn %d", posix_spawn(&p, "/does/not/exist", 0, 0, argv, environ));
	say("inherited %d", fcntl(b, F_GETFD));
	say("exec %s", res(execv("/does/not/exist", argv)));
	say("inherited %d", fcntl(b, F_GETFD));
	say("system %d", system("exit 3") >> 8);
	say("inherited %d", fcntl(b, F_GETFD));
	say("same %d", n == drain(b));
}
static void speaks_later(void) { // a program that has held the connection since before it could be promoted
	const char *how[] = {"vfork", "spawn"};
	for (int i = 0; i < 2; i++) {
		int a, b, go[2];
		char command[100];
		cold(&a, &b);
		if (pipe(go)) die("pipe");
		fcntl(b, F_SETFD, FD_CLOEXEC);
		snprintf(command, sizeof command, "read x <&%d; echo hello >&%d", go[0], a);
		pid_t p = starts(command, how[i]);
		for (int k = 0; k < 200; k++) {
			moved(a, b);
			moved(b, a);
			usleep(500);
		}
		give(go[1], "go\n");
		reap(p);
		say("%s %zu %.5s", how[i], take(b, 6), in);
	}
}
static void inherits(void) {
	int a, b;
	pair(&a, &b);
	char number[100];
	snprintf(number, sizeof number, "echo by the shell >&%d; read x <&%d; echo got $x >&%d", a, a, a);
	pid_t p = fork();
	if (p == 0) {
		close(b);
		execl("/bin/bash", "bash", "-c", number, (char *)0);
		_exit(9);
	}
	close(a);
	say("%zu %.12s", take(b, 13), in);
	give(b, "line\n");
	say("%zu %.8s", take(b, 9), in);
	reap(p);
	say("%s", res(read(b, in, 10)));
}
static void left_to_child(void) { // which does nothing with it
	int a, b;
	pair(&a, &b);
	pid_t p = fork();
	if (p == 0) {
		close(b);
		ms(500);
		_exit(0);
	}
	for (int i = 0; i < 50; i++) give(a, "01234567890123456789");
	close(a);
	say("%zu", take(b, 1000));
	reap(p);
}
static void writes_and_stops(int b) {
	give(b, "01234567890123456789");
	raise(SIGSTOP);
	if (take(b, 2) != 2) _exit(3);
}
static void inherits_from_stopped(void) { // what a stopped peer has sent must come, at the latest when it runs again
	int a, status;
	char number[100];
	pid_t p = peer(&a, writes_and_stops);
	snprintf(number, sizeof number, "head -c 20 <&%d; echo; echo x >&%d", a, a);
	pid_t c = fork();
	if (c == 0) {
		execl("/bin/bash", "bash", "-c", number, (char *)0);
		_exit(9);
	}
	waitpid(p, &status, WUNTRACED);
	ms(2500);
	kill(p, SIGCONT);
	reap(c);
	reap(p);
}
static void send_fd(int by, int fd) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c;
	struct iovec v = {"f", 1};
	memset(&c, 0, sizeof c);
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
	c.h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
	if (sendmsg(by, &h, 0) != 1) die("sendmsg");
}
static int receive_fd(int by) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c;
	char x;
	struct iovec v = {&x, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
	int fd;
	if (recvmsg(by, &h, 0) != 1) return -1;
	memcpy(&fd, CMSG_DATA(&c.h), sizeof fd);
	return fd;
}
// taker forks a process that receives a descriptor by the socket that is returned in by, and runs f with it.
static pid_t taker(int *by, void (*f)(int fd)) {
	int u[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, u) < 0) die("socketpair");
	pid_t p = fork();
	if (p == 0) {
		int fd = receive_fd(u[1]);
		if (fd < 0) _exit(3);
		f(fd);
		_exit(0);
	}
	*by = u[0];
	return p;
}
static void answers_each(int b) {
	for (int i = 0; i < 20; i++)
		if (take(b, 1) != 1 || write(b, "!", 1) != 1) _exit(7);
}
// set_of_another waits in a set that another process has made.
static void set_of_another(void) {
	int a, sv[2], got = 0;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0) die("socketpair");
	pid_t maker = fork();
	if (maker == 0) {
		send_fd(sv[1], epoll_create1(0));
		_exit(0);
	}
	int ep = receive_fd(sv[0]);
	reap(maker);
	pid_t p = peer(&a, answers_each);
	add(ep, a, EPOLLIN);
	for (int i = 0; i < 20; i++) {
		struct epoll_event v;
		give(a, "?");
		ms(2);
		if (epoll_wait(ep, &v, 1, 2000) != 1) break;
		got += read(a, in, 100) == 1;
	}
	say("answers %d", got);
	close(a);
	reap(p);
}
static void echoes_all(int b) {
	char c[100];
	ssize_t n;
	while ((n = read(b, c, sizeof c)) > 0)
		if (write(b, c, (size_t)n) != n) _exit(4);
	if (n < 0) _exit(5);
}
static void passed(void) {
	int a, b, by;
	pid_t p = taker(&by, echoes_all); // before the connection is made
	pair(&a, &b);
	give(a, "before");
	send_fd(by, b);
	close(b);
	give(a, "after");
	say("%zu %.11s", take(a, 11), in);
	for (int k = 0; k < 20; k++) {
		give(a, "ping");
		if (take(a, 4) != 4) die("ping");
	}
	shutdown(a, SHUT_WR);
	say("%s", res(read(a, in, 10)));
	reap(p);
}
static void asks_often(int fd) {
	ms(100);
	for (int i = 0; i < 20; i++) {
		give(fd, "after");
		if (take(fd, 5) != 5) _exit(3);
	}
}
static void passed_on(void) { // while the other end is in a process of its own
	int a, by;
	pid_t c = taker(&by, asks_often), p = peer(&a, echoes_all);
	give(a, "before");
	say("%zu", take(a, 6));
	send_fd(by, a);
	close(a);
	reap(c);
	reap(p);
}
static void asks_and_shuts(int b) {
	give(b, "request");
	shutdown(b, SHUT_WR);
	size_t n = take(b, 100);
	_exit(n == 6 && !memcmp(in, "answer", 6) ? 0 : 5);
}
static void answers_at_end(int fd) {
	ms(100);
	say("%s", res(read(fd, in, 10)));
	give(fd, "answer");
}
static void passed_at_end(void) { // after the end of the other direction was read
	int a, by;
	pid_t c = taker(&by, answers_at_end), p = peer(&a, asks_and_shuts);
	say("%zu", take(a, 100));
	send_fd(by, a);
	close(a);
	reap(c);
	reap(p);
}
static void takes_unread(int fd) {
	if (take(fd, 6) != 6 || memcmp(in, "unread", 6)) _exit(4);
	take(fd, 2);
	give(fd, "after");
}
static void passed_full(void) { // while the kernel has no room for more of what the peer sends
	int a, b, by, small = 4096;
	pid_t p = taker(&by, takes_unread);
	cold(&a, &b);
	setsockopt(a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	setsockopt(b, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	size_t full = fill(a);
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	double until = now() + 5;
	for (int i = 0; i < 10 || (must && now() < until); i++)
		if (moved(b, a) && i > 10) break;
	if (must && !moved(b, a)) say("NOT PROMOTED");
	give(b, "unread");
	send_fd(by, a);
	close(a);
	say("%d", take(b, full) == full);
	give(b, "go");
	say("%zu %.5s", take(b, 5), in);
	reap(p);
}
static void takes_much(int fd) {
	for (size_t n = 0; n < 400000; n += 10000)
		if (take(fd, 10000) != 10000 || memcmp(in, big, 10000)) _exit(4);
	give(fd, "after");
}
static void passed_much(void) { // with more unread than the first size of the ring
	int a, b, by;
	pid_t p = taker(&by, takes_much);
	pair(&a, &b);
	for (int i = 0; i < 3; i++) { // so that both rings have grown
		if (send(a, big, 100000, 0) != 100000 || take(b, 100000) != 100000) die("large");
	}
	for (size_t n = 0; n < 400000;) {
		ssize_t k = send(a, big + n % 10000, 10000 - n % 10000, MSG_DONTWAIT);
		if (k <= 0) die("unread");
		n += (size_t)k;
	}
	send_fd(by, b);
	close(b);
	say("%zu %.5s", take(a, 5), in);
	reap(p);
}
static void hand_on(int b, void (*reads)(int fd)) { // passes b to a program that reads later
	int u[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, u) < 0) die("socketpair");
	pid_t p = fork();
	if (p == 0) {
		int fd = receive_fd(u[1]);
		ms(3500);
		reads(fd);
		_exit(0);
	}
	ms(300);
	send_fd(u[0], b);
	close(b);
	waitpid(p, 0, 0);
}
static void says_how_much(int fd) {
	size_t n = take(fd, sizeof in);
	if (write(fd, &n, sizeof n) != sizeof n) die("write");
}
static void hands_on_late(int b) { hand_on(b, says_how_much); }
static void shut_full(void) { // what was written must come before the end, however late it is read
	int a;
	size_t n = 0, got = 0;
	ssize_t k;
	window = 4096;
	pid_t p = peer(&a, hands_on_late);
	while (n < 60000 && (k = send(a, big, 1000, MSG_DONTWAIT)) > 0) n += (size_t)k;
	ms(600);
	say("%s", res(shutdown(a, SHUT_WR)));
	say("%d", (int)recv(a, &got, sizeof got, MSG_WAITALL));
	if (got != n) say("%zu of %zu came before the end", got, n);
	say("%s", res(read(a, in, 10)));
	reap(p);
}
static int report[2];
static void reports_the_end(int fd) {
	ssize_t n[2] = {(ssize_t)take(fd, sizeof in)};
	n[1] = read(fd, in, 1) < 0 ? errno : 0;
	if (write(report[1], n, sizeof n) != sizeof n) die("write");
}
static void hands_on_for_good(int b) { hand_on(b, reports_the_end); }
static void closed_full(void) { // as shut_full, by close()
	int a;
	size_t n = 0;
	ssize_t k, got[2];
	if (pipe(report) < 0) die("pipe");
	window = 4096;
	pid_t p = peer(&a, hands_on_for_good);
	while (n < 60000 && (k = send(a, big, 1000, MSG_DONTWAIT)) > 0) n += (size_t)k;
	ms(600);
	double at = now();
	close(a);
	say("closed %s", now() - at < 1 ? "soon" : "late");
	if (read(report[0], got, sizeof got) != sizeof got) die("report");
	if ((size_t)got[0] != n) say("%zd of %zu", got[0], n);
	say("%zd", got[1]);
	reap(p);
}
static void reads_slowly(int b) {
	ssize_t n[2] = {0}, k;
	for (int i = 0; (k = read(b, in, 4000)) > 0; i++) {
		n[0] += k;
		poll(&(struct pollfd){b, POLLIN, 0}, 1, 5000);
		if (i % 4 == 0) ms(i ? 5 : 300);
	}
	n[1] = k < 0 ? errno : 0;
	if (write(report[1], n, sizeof n) != sizeof n) die("write");
}
static void closed_much(void) { // by an end that has nothing to read, and whose peer takes long to read
	for (int i = 0; i < 3; i++) {
		int a;
		ssize_t n = 0, k, got[2];
		if (pipe(report) < 0) die("pipe");
		window = (int[]){4096, 65536, 0}[i];
		pid_t p = peer(&a, reads_slowly);
		while (n < 1500000 && (k = send(a, big, 50000, 0)) > 0) n += k;
		close(a);
		if (read(report[0], got, sizeof got) != sizeof got) die("report");
		if (got[0] != n) say("%zd of %zd", got[0], n);
		say("%zd", got[1]);
		reap(p);
	}
}

#define GOES_ON (32 << 20)
static int stall, pauses;
static size_t piece;
static void stalls(int b) {
	ssize_t n = 0, k;
	for (int i = 0; i < pauses; i++) {
		ms(stall);
		for (ssize_t to = n + GOES_ON / 8; n < to && (k = read(b, in, piece)) > 0;) n += k;
	}
	while ((k = read(b, in, piece)) > 0) n += k;
	if (k < 0) n = -errno;
	if (write(report[1], &n, sizeof n) != sizeof n) die("write");
}
static void never_waits(bool edge, double for_seconds) { // to a peer that stands still, without ever waiting in a write
	int a, ep = epoll_create1(0);
	ssize_t n = 0, k, got;
	segment = 1448;
	if (pipe(report) < 0) die("pipe");
	pid_t p = peer(&a, stalls);
	nonblocking(a);
	add(ep, a, EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0));
	const double until = now() + for_seconds;
	while (n < GOES_ON || now() < until) {
		struct epoll_event v;
		if ((k = write(a, big, piece)) > 0) n += k;
		else if (errno != EAGAIN || epoll_wait(ep, &v, 1, 5000) != 1) break;
	}
	close(a);
	if (read(report[0], &got, sizeof got) != sizeof got) die("report");
	say("all %d", got == n && n >= GOES_ON);
	close(ep);
	reap(p);
}
static void goes_on(void) { // after a short time
	stall = 150;
	pauses = 4;
	piece = 10000;
	for (int edge = 0; edge < 2; edge++) never_waits(edge, 0);
}
static void asks_again(void) { // after a long time, in which the kernel takes more than the library keeps
	stall = 2000;
	pauses = 1;
	piece = 3000;
	window = 3 << 20;
	never_waits(false, 5);
}

static void resets_when_told(int b) {
	char c;
	ssize_t k;
	for (size_t n = 0; n < sizeof big && (k = send(b, big + n, sizeof big - n, 0)) > 0;) n += (size_t)k;
	if (read(b, &c, 1) != 1) die("told");
	setsockopt(b, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(b);
}
static void reset_half(void) { // by a peer whose bytes have come through the kernel in the end, while the own go by the ring
	for (int i = 0; i < 3; i++) {
		int a, ep = epoll_create1(0), r;
		pid_t p = peer(&a, resets_when_told);
		struct pollfd q = {a, POLLIN, 0};
		struct epoll_event v = {EPOLLIN | EPOLLRDHUP, {.fd = a}};
		epoll_ctl(ep, EPOLL_CTL_ADD, a, &v);
		v.events = 0;
		ms(400);
		say("%zu", take(a, sizeof big));
		if (send(a, "x", 1, 0) != 1) die("tell");
		r = i == 2 ? 0 : i ? poll(&q, 1, 5000) : epoll_wait(ep, &v, 1, 5000);
		say("%d %x %x", r, i == 1 ? q.revents : 0, v.events);
		say("%s", res(read(a, in, 10)));
		say("%s", res(read(a, in, 10)));
		close(ep);
		close(a);
		reap(p);
	}
}
static void reads_more_and_ends(int b) {
	ms(700);
	take(b, 3000000);
	take(b, 1);
	_exit(0);
}
static void ends_after_spill(void) { // and after more by the ring: it had read everything
	int a;
	size_t n = 0;
	ssize_t k;
	pid_t p = peer(&a, reads_more_and_ends);
	for (int i = 0; i < 30; i++, ms(20))
		while (n < 3000000 && (k = send(a, big, 3000000 - n < 50000 ? 3000000 - n : 50000, MSG_DONTWAIT)) > 0) n += (size_t)k;
	ms(300);
	while (n < 3000000 && (k = send(a, big, 3000000 - n, 0)) > 0) n += (size_t)k;
	ms(200);
	if (send(a, "x", 1, 0) != 1) die("tell");
	say("%s", res(read(a, in, 10)));
	reap(p);
}

// ---- descriptors

static void waits_owing(void) { // while another connection has bytes that the kernel has no room for
	int a, b, c, d, two = 2;
	window = 8192;
	pair(&a, &b);
	window = 0;
	pair(&c, &d);
	struct timeval tv = {0, 300000};
	setsockopt(d, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	for (size_t n = 0; n < 50000;) {
		ssize_t k = send(a, big + n, 50000 - n, MSG_DONTWAIT);
		if (k <= 0) break;
		n += (size_t)k;
	}
	setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two);
	double at = now();
	say("%s %s", res(read(d, in, 10)), about(at, 0.3));
	at = now();
	say("%s %s", res(recv(d, in, 10, MSG_PEEK)), about(at, 0.3));
	drain(b);
}
static void *take_thread(void *x) {
	struct thread *t = x;
	t->r = (ssize_t)take(t->fd, t->n);
	t->done = true;
	return 0;
}
static void owes(void) { // while its process waits in a set without connections, writes to another connection, or only sleeps
	for (int i = 0; i < 3; i++) {
		int a, b, c, d, two = 2, ep = epoll_create1(0);
		window = 8192;
		pair(&a, &b);
		window = 0;
		pair(&c, &d);
		size_t n = 0;
		for (ssize_t k; n < 50000 && (k = send(a, big + n, 50000 - n, MSG_DONTWAIT)) > 0; n += (size_t)k);
		setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two);
		struct thread t = {.fd = b, .n = n};
		pthread_create(&t.t, 0, take_thread, &t);
		if (i == 0) say("%s", happens(ep, 2000));
		if (i == 1) alarm_in(0, 900), write_much(c);
		if (i == 2) select(0, 0, 0, 0, &(struct timeval){1, 0});
		say("%d done %d", i, t.done);
		shutdown(a, SHUT_WR);
		pthread_join(t.t, 0);
		say("all %d right %d", t.r == (ssize_t)n, !memcmp(in, big, n));
	}
}
static void duplicates(void) {
	int a, b;
	pair(&a, &b);
	int c = dup(b), d = dup2(b, 77), e = dup3(b, 78, O_CLOEXEC), f = fcntl(b, F_DUPFD, 80), g = fcntl(b, F_DUPFD_CLOEXEC, 80);
	say("%d %d %d %d", d, e, f >= 80, g >= 80);
	int all[] = {b, c, d, e, f, g};
	for (int i = 0; i < 6; i++) {
		give(a, "x");
		say("%s %s", res(read(all[i], in, 10)), res(write(all[i], "y", 1)));
		take(a, 1);
		close(all[i]);
		if (i < 5) say("peer %s", res(recv(a, in, 1, MSG_DONTWAIT)));
	}
	say("peer %s", res(read(a, in, 1)));
	int x, y;
	pair(&x, &y);
	pair(&a, &b);
	say("over %d", dup2(b, y) == y);
	say("its peer %s", res(read(x, in, 1)));
	give(a, "z");
	say("%s", res(read(y, in, 10)));
	close(b);
	give(y, "w");
	say("%s", res(read(a, in, 10)));
	say("same %d %s", dup2(y, y) == y, res(dup3(y, y, 0)));
	give(a, "v");
	say("%s", res(read(y, in, 10)));
	say("bad %s, %s", res(dup2(999, y)), (give(a, "u"), res(read(y, in, 10))));
	int n = open("/dev/null", O_RDWR);
	dup2(n, y);
	say("null %s, peer %s", res(read(y, in, 10)), res(read(a, in, 10)));
}
static void ranges(void) {
	int a, b;
	pair(&a, &b);
	b = dup2(b, 50) == 50 ? (close(b), 50) : -1;
	say("close_range %s", res(close_range(50, 60, 0)));
	say("%s %s", res(read(a, in, 1)), res(read(b, in, 1)));
	pair(&a, &b);
	say("cloexec %s", res(close_range(3, 100, CLOSE_RANGE_CLOEXEC)));
	give(a, "x");
	say("%s", res(read(b, in, 10)));
	int n = open("/dev/null", O_RDWR);
	say("%d", n < 100);
	closefrom(3);
	say("%s %s", res(read(a, in, 1)), res(read(b, in, 1)));
	pair(&a, &b); // the library's own descriptors are still open
	give(a, "x");
	say("%s", res(read(b, in, 10)));
	double soonest = 1;
	for (int i = 0; i < 20; i++) { // it must not try every possible number
		double at = now();
		closefrom(3000);
		if (now() - at < soonest) soonest = now() - at;
	}
	say("%s", soonest < 0.01 ? "soon" : "late");
	closefrom(b);
	say("%s", res(write(a, "x", 1)));
	pair(&a, &b);
	give(a, "x");
	say("backwards %s", res(close_range((unsigned)b, (unsigned)b - 1, 0)));
	say("no such flag %s", res(close_range((unsigned)b, (unsigned)b, 0x100)));
	say("%s %c", res(read(b, in, 10)), in[0]);
	for (int fd = 3; fd < 2000; fd++) close(fd);
	pair(&a, &b);
	give(a, "x");
	say("%s", res(read(b, in, 10)));
}
static void few(void) {
	struct rlimit r = {8, 8};
	setrlimit(RLIMIT_NOFILE, &r);
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a = socket(s.ss_family, SOCK_STREAM, 0), b;
	if (connect(a, (struct sockaddr *)&s, l) < 0 || (b = accept(from, 0, 0)) < 0) die("connect");
	close(from);
	for (int i = 0; i < 100; i++) {
		give(a, "x");
		if (take(b, 1) != 1) die("take");
	}
	while (open("/dev/null", O_RDWR) >= 0) {} // the library holds some of these numbers
	say("%d", errno == EMFILE);
	give(a, "x");
	say("%zu", take(b, 1));
}
static void reused(void) { // another file gets the connection's number
	for (int i = 0; i < 20; i++) {
		int a, b, p[2];
		pair(&a, &b);
		close(b);
		if (pipe(p) < 0) die("pipe");
		give(p[1], "pipe");
		if (read(p[0], in, 10) != 4) die("pipe");
		close(a);
		close(p[0]);
		close(p[1]);
	}
	say("done");
}

// ---- options

static int option(int fd, int level, int o) {
	int v = -1;
	socklen_t l = sizeof v;
	getsockopt(fd, level, o, &v, &l);
	return l == sizeof v ? v : -2;
}
static void options(void) {
	int a, b, v;
	pair(&a, &b);
	socklen_t l = sizeof v;
#define OPTION(level, o) option(a, level, o)
	say("nodelay %d cork %d", OPTION(IPPROTO_TCP, TCP_NODELAY), OPTION(IPPROTO_TCP, TCP_CORK));
	v = 1;
	say("%s", res(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &v, sizeof v)));
	say("nodelay %d", OPTION(IPPROTO_TCP, TCP_NODELAY));
	v = 7;
	setsockopt(a, IPPROTO_TCP, TCP_CORK, &v, sizeof v);
	say("cork %d", OPTION(IPPROTO_TCP, TCP_CORK));
	give(a, "corked");
	v = 0;
	setsockopt(a, IPPROTO_TCP, TCP_CORK, &v, sizeof v);
	say("%zu", take(b, 6));
	say("cork %d error %d type %d domain %d", OPTION(IPPROTO_TCP, TCP_CORK), OPTION(SOL_SOCKET, SO_ERROR), OPTION(SOL_SOCKET, SO_TYPE), OPTION(SOL_SOCKET, SO_DOMAIN) == (family == '4' ? AF_INET : AF_INET6));
	say("short %s", res(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &v, 1)));
	say("unsent %d", OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT));
	v = 100000;
	setsockopt(a, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &v, sizeof v);
	say("unsent %d", OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT));
	for (int i = -1; i <= 0; i++) {
		setsockopt(a, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &i, sizeof i);
		say("unsent %d", OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT));
	}
	int clamp = OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP);
	v = 0;
	say("no window %s, same %d", res(setsockopt(a, IPPROTO_TCP, TCP_WINDOW_CLAMP, &v, sizeof v)), OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP) == clamp);
	v = 50000;
	say("window %s", res(setsockopt(a, IPPROTO_TCP, TCP_WINDOW_CLAMP, &v, sizeof v)));
	say("window %d", OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP));
	char small;
	l = 1;
	say("get short %s %u", res(getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &small, &l)), l);
	struct tcp_info t;
	l = sizeof t;
	say("info %s state %d", res(getsockopt(a, IPPROTO_TCP, TCP_INFO, &t, &l)), t.tcpi_state);
	v = 1;
	say("keepalive %s", res(setsockopt(a, SOL_SOCKET, SO_KEEPALIVE, &v, sizeof v)));
	struct sockaddr_storage s, p;
	socklen_t m = sizeof s, k = sizeof p;
	getpeername(a, (struct sockaddr *)&s, &m);
	getsockname(b, (struct sockaddr *)&p, &k);
	say("names %d", m == k && !memcmp(&s, &p, m));
}
static void low(void) {
	int a, b, v = 10;
	pair(&a, &b);
	say("%s", res(setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v)));
	give(a, "01234");
	say("five %s", revents(b, POLLIN, 100));
	give(a, "56789");
	say("ten %s", revents(b, POLLIN, 1000));
	say("%s", res(read(b, in, 100)));
	struct thread t = {.fd = b, .n = 100};
	give(a, "abc");
	begin(&t, read_thread);
	say("waits %d", !t.done);
	give(a, "defghijklmnop");
	say("%s", finish(&t));
}
static _Atomic int urgent;
static void on_urgent(int s) { (void)s, urgent++; }
static void *low_thread(void *a) {
	setsockopt(*(int *)a, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, sizeof(int));
	return 0;
}
// reset_in_messages: the call that meets a reset is the one in which the connection goes back to the kernel.
static void reset_in_messages(void) {
	struct iovec v[3] = {{in, 1}, {in + 1, 1}, {in + 2, 1}};
	struct mmsghdr m[3] = {{{.msg_iov = v, .msg_iovlen = 1}, 0}, {{.msg_iov = v + 1, .msg_iovlen = 1}, 0}, {{.msg_iov = v + 2, .msg_iovlen = 1}, 0}};
	int a, b;
	pthread_t t;
	pair(&a, &b);
	give(a, "w");
	say("%s", revents(b, POLLIN, 1000));
	pthread_create(&t, 0, low_thread, &a);
	for (int i = 0; i < 200; i++, ms(5)) poll(&(struct pollfd){b, POLLOUT, 0}, 1, 0);
	pthread_join(t, 0);
	give(a, "x");
	setsockopt(a, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(a);
	ms(50);
	int n = 0, resets = 0;
	for (int i = 0; i < 3; i++) {
		int k = i ? (int)read(b, in, 1) : recvmmsg(b, m, 3, MSG_WAITFORONE, 0);
		if (k > 0) n += k;
		else if (k < 0) resets += errno == ECONNRESET;
	}
	say("bytes %d resets %d", n, resets);
}
// by_bytes sends single bytes of big until they go by a ring, or, natively, 1,000.
static size_t by_bytes(int a, int b, size_t sent) {
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	double until = now() + PROMOTED_WITHIN;
	size_t got = 0;
	for (int i = 0, still = 0; must ? still < 100 : i < 1000; i++) {
		if (must && now() > until) {
			say("NOT PROMOTED");
			_exit(9);
		}
		uint64_t had = received(b);
		if (write(a, big + sent++ % sizeof big, 1) != 1 || read(b, in + got++ % sizeof in, 1) != 1) die("byte");
		still = received(b) == had ? still + 1 : 0;
		if (i % 20 == 0) ms(1);
	}
	return sent;
}
// reset_then_splice: the library is told of a reset before a call that rings cannot serve.
static void reset_then_splice(void) {
	int a, b, c, d, p[2], resets = 0;
	pair(&c, &d); // so that the library knows the broker
	cold(&a, &b);
	if (pipe(p)) die("pipe");
	give(a, "0123456789");
	by_bytes(b, a, 0); // only b opens its direction
	setsockopt(a, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(a);
	ms(50);
	say("%s", res(read(b, in, 20)));
	for (int i = 0; i < 3; i++) {
		long k = i ? read(b, in, 20) : splice(b, 0, p[1], 0, 20, 0);
		if (!k) break; // the end
		resets += k < 0 && errno == ECONNRESET;
	}
	say("resets before the end %d", resets);
}
// low_behind: bytes that came before the ring are unread, so the connection cannot leave it yet. A call does not wait for that.
static void low_behind(void) {
	size_t first = 30000, sent, got;
	int a, b, c, d;
	pair(&c, &d);
	cold(&a, &b);
	if (write(a, big, first) != (ssize_t)first) die("write");
	sent = by_bytes(a, b, first);
	got = sent - first;
	double at = now();
	int r = setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &(int){2}, sizeof(int));
	say("%d slow %d", r, now() - at > 1.8);
	shutdown(a, SHUT_WR);
	for (ssize_t n; (n = read(b, in + got, sizeof in - got)) > 0; got += (size_t)n) {}
	say("right %d", got == sent && !memcmp(in, big, sent));
}
static void counted_behind(void) { // such bytes are counted, however many they are
	size_t first = 120000, sent, got;
	int a, b, c, d, q = 0;
	pair(&c, &d);
	cold(&a, &b);
	setsockopt(b, SOL_SOCKET, SO_RCVBUF, &(int){1 << 20}, sizeof(int));
	if (write(a, big, first) != (ssize_t)first) die("write");
	sent = by_bytes(a, b, first);
	got = sent - first;
	for (int i = 0, most = (int)first - 1000; i < 100 && q < most; i++, ms(1)) ioctl(b, FIONREAD, &q);
	say("counted %d", q > 100000);
	shutdown(a, SHUT_WR);
	for (ssize_t n; (n = read(b, in + got, 5000)) > 0; got += (size_t)n) ioctl(b, FIONREAD, &q);
	say("right %d left %d", got == sent && !memcmp(in, big, sent), q);
}
static void shut_early(void) { // shutdown() of reading before a connection is promoted
	size_t sent;
	int a, b, c, d;
	pair(&c, &d);
	cold(&a, &b);
	shutdown(b, SHUT_RD);
	sent = by_bytes(b, a, 0);
	give(b, "not read yet");
	for (int i = 0; i < 2; i++) say("%s", res(read(b, in, 10)));
	ms(20);
	say("write %s", res(write(b, "more", 4)));
	say("%zu right %d", take(a, 16), sent > 0 && !memcmp(in, "not read yetmore", 16));
}
static void file_from(void) { // a socket as the source of sendfile(), which the kernel does into a pipe
	int a, b, p[2];
	pair(&a, &b);
	if (pipe(p)) die("pipe");
	give(a, "0123456789");
	ms(20);
	say("%s", res(read(b, in, 2)));
	say("%s", res(sendfile(p[1], b, 0, 4)));
	say("%s", res(read(p[0], in, 10)));
	say("%.4s", in);
	say("%s %.4s", res(read(b, in, 10)), in);
	give(a, "more");
	say("%zu %.4s", take(b, 4), in);
}
// exchanged moves bytes both ways for as long as a promotion takes.
static void exchanged(int a, int b) {
	for (int i = 0; i < 200; i++) {
		moved(a, b);
		moved(b, a);
		if (i > 20) usleep(1000);
	}
}
static void low_inherited(void) { // from the listening socket
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a = socket(s.ss_family, SOCK_STREAM, 0), b, v = 10;
	setsockopt(from, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v);
	if (connect(a, (struct sockaddr *)&s, l) < 0 || (b = accept(from, 0, 0)) < 0) die("accept");
	exchanged(a, b);
	give(a, "01234");
	say("five %s", revents(b, POLLIN, 100));
	give(a, "56789");
	say("ten %s", revents(b, POLLIN, 1000));
	say("%s", res(read(b, in, 100)));
}
static void inq_early(void) { // an option that is set before the connection is made
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a = socket(s.ss_family, SOCK_STREAM, 0), b, left = 0;
	setsockopt(a, IPPROTO_TCP, TCP_INQ, &(int){1}, sizeof(int));
	if (connect(a, (struct sockaddr *)&s, l) < 0 || (b = accept(from, 0, 0)) < 0) die("accept");
	exchanged(a, b);
	give(b, "0123456789");
	ms(20);
	char c[64];
	struct msghdr h = {.msg_iov = &(struct iovec){in, 4}, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
	say("%s", res(recvmsg(a, &h, 0)));
	struct cmsghdr *x = h.msg_controllen ? CMSG_FIRSTHDR(&h) : 0;
	if (x && x->cmsg_level == IPPROTO_TCP && x->cmsg_type == TCP_CM_INQ) memcpy(&left, CMSG_DATA(x), sizeof left);
	say("left %d", left);
}
static void writes_late_and_exits(int b) {
	ms(150);
	give(b, "01234567890123456789");
}
static void low_at_end(void) { // after the peer's end, an option makes the kernel serve the rest
	int a, two = 2;
	pid_t p = peer(&a, writes_late_and_exits);
	say("%s", revents(a, POLLIN, 10));
	reap(p);
	say("%s", res(setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two)));
	say("%s", res(read(a, in, 7)));
	say("%s", res(read(a, in, 100)));
	say("%s", res(read(a, in, 100)));
}
static void token_and_exits(int b) { // what it reads by the ring leaves a token unread
	for (int i = 0; i < 10; i++) {
		if (!strstr(revents(b, POLLIN, 1000), "in")) _exit(7);
		if (read(b, in, 1) != 1) _exit(8);
		give(b, "k");
	}
	give(b, "01234567890123456789");
}
static void low_after_token(void) { // as low_at_end, where the kernel has ended the connection by a reset
	int a, two = 2;
	pid_t p = peer(&a, token_and_exits);
	for (int i = 0; i < 10; i++) {
		give(a, "x");
		ms(2);
		if (read(a, in, 1) != 1) die("read");
	}
	reap(p);
	say("%s", res(setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two)));
	say("%s", res(read(a, in, 7)));
	say("%s", res(read(a, in, 100)));
	say("%s", res(read(a, in, 100)));
}
static void oob(void) {
	int a, b;
	pair(&a, &b);
	signal(SIGURG, on_urgent);
	fcntl(b, F_SETOWN, getpid());
	give(a, "ab");
	say("send %s", res(send(a, "!", 1, MSG_OOB)));
	give(a, "cd");
	ms(100);
	char c = 0;
	say("signals %d poll %s", urgent, revents(b, POLLPRI | POLLIN, 100));
	say("%s", res(read(b, in, 10)));
	say("oob %s %c", res(recv(b, &c, 1, MSG_OOB)), c);
	say("%s", res(read(b, in, 10)));
	say("oob again %s", res(recv(b, &c, 1, MSG_OOB | MSG_DONTWAIT)));
}
static void oob_passed(void) { // reads stop at an urgent byte that nobody takes, and pass it
	int a, b;
	pair(&a, &b);
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 100000}, sizeof(struct timeval));
	give(a, "ab");
	say("send %s", res(send(a, "!", 1, MSG_OOB)));
	give(a, "cd");
	ms(50);
	say("all %s", res(recv(b, in, 10, MSG_WAITALL)));
	say("peek %s", res(recv(b, in, 10, MSG_PEEK)));
	say("%s", res(read(b, in, 10)));
	say("send %s", res(send(a, "!", 1, MSG_OOB)));
	ms(50);
	say("poll %s", revents(b, POLLIN | POLLPRI, 100));
	say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
	say("poll %s", revents(b, POLLIN | POLLPRI, 100));
}
static void oob_last(void) { // end with an urgent byte that nobody reads; the other end closes with bytes on their way
	for (int i = 0; i < 4; i++) {
		int a, b;
		pair(&a, &b);
		if (i & 1) fcntl(b, F_SETFL, O_NONBLOCK);
		give(a, "ab");
		say("send %s", res(send(a, "!", 1, MSG_OOB)));
		if (i < 2) shutdown(a, SHUT_WR);
		ms(50);
		say("poll %s", revents(b, POLLIN, 100));
		say("%s", res(read(b, in, 10)));
		if (i >= 2) shutdown(a, SHUT_WR);
		ms(50);
		say("poll %s", revents(b, POLLIN, 100));
		say("%s", res(recv(b, in, 10, MSG_PEEK)));
		say("%s", res(read(b, in, 10)));
		size_t n = fill(b), got = 0;
		close(b);
		ssize_t k;
		while ((k = read(a, in, sizeof in)) > 0) got += (size_t)k;
		say("all %d", got == n);
		say("end %s", res(k));
		close(a);
	}
}
static _Atomic int ios;
static void on_io(int s) { (void)s, ios++; }
static void async(void) {
	int a, b;
	signal(SIGIO, on_io);
	pair(&a, &b);
	fcntl(b, F_SETOWN, getpid());
	fcntl(b, F_SETFL, O_ASYNC | O_NONBLOCK);
	for (int i = 0; i < 5; i++) {
		int had = ios;
		give(a, "x");
		for (int k = 0; k < 1000 && ios == had; k++) usleep(1000);
		say("signal %d readable %s read %s", ios > had, revents(b, POLLIN, 1000), res(read(b, in, 10)));
	}
}
static void async_connects(void) { // the socket had the flag before it was a connection
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a = new_socket(s.ss_family), b;
	signal(SIGIO, on_io);
	fcntl(a, F_SETOWN, getpid());
	fcntl(a, F_SETFL, O_ASYNC);
	if (connect(a, (struct sockaddr *)&s, l) < 0) die("connect");
	b = accept(from, 0, 0);
	for (int i = 0; i < 100; i++) {
		moved(a, b);
		moved(b, a);
	}
	for (int i = 0; i < 5; i++) {
		int had = ios;
		give(b, "x");
		for (int k = 0; k < 1000 && ios == had; k++) usleep(1000);
		say("signal %d read %s", ios > had, res(recv(a, in, 10, MSG_DONTWAIT)));
	}
}

// ---- memory that is not there

static sigjmp_buf after_fault;
static void on_fault(int s, siginfo_t *i, void *context) {
	(void)context;
	pipes += s == SIGSEGV && i->si_code > 0;
	siglongjmp(after_fault, 1);
}
static void maps_bytes(void) { // a getsockopt() that reads
	int a, b;
	pair(&a, &b);
	give(a, "hello");
	struct tcp_zerocopy_receive z = {.length = 65536, .copybuf_address = (uintptr_t)in, .copybuf_len = 100};
	socklen_t n = sizeof z;
	void *m = mmap(0, z.length, PROT_READ, MAP_SHARED, b, 0);
	if (m == MAP_FAILED) die("mmap");
	z.address = (uintptr_t)m;
	ms(20);
	say("%s %d %.5s", res(getsockopt(b, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &z, &n)), z.copybuf_len, in);
	give(a, "more");
	say("%s", res(read(b, in, 10)));
}
static void bad_memory(void) {
	long page = sysconf(_SC_PAGESIZE);
	char *volatile edge = mmap(0, 2 * (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (edge == MAP_FAILED || mprotect(edge + page, (size_t)page, PROT_NONE)) die("mmap");
	void *bad[] = {0, (void *)8, edge + page, (void *)-1, (void *)(1ul << 60)};
	int a, b;
	pair(&a, &b);
	nonblocking(a);
	nonblocking(b);
	setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
	edge += page;
	for (int i = 0; i < 5; i++) {
		struct iovec v[2] = {{in, 2}, {bad[i], 9}};
		struct msghdr h = {.msg_iov = v, .msg_iovlen = 2};
		give(a, "abc");
		say("%d read %s %s", i, res(read(b, bad[i], 10)), res(recv(b, bad[i], 10, MSG_PEEK)));
		say("%d readv %s", i, res(readv(b, v + 1, 1)));
		say("%d write %s %s", i, res(write(a, bad[i], 10)), res(send(a, bad[i], 100000, MSG_NOSIGNAL)));
		say("%d writev %s %s", i, res(writev(a, v + 1, 1)), res(sendmsg(a, bad[i], 0)));
		say("%d recvmsg %s", i, res(recvmsg(b, bad[i], 0)));
		struct msghdr unread = {.msg_iov = bad[i], .msg_iovlen = 1};
		say("%d iov %s %s", i, res(readv(b, bad[i], 2)), res(writev(a, bad[i], 2)));
		say("%d one iov %s %s", i, res(readv(b, bad[i], 1)), res(writev(a, bad[i], 1)));
		say("%d in message %s %s", i, res(recvmsg(b, &unread, 0)), res(sendmsg(a, &unread, 0)));
		say("%d poll %s", i, res(poll(bad[i], 1, 0)));
		if (i < 3) say("%d FIONREAD %s", i, res(ioctl(b, FIONREAD, bad[i])));
		say("%d option %s", i, res(setsockopt(b, IPPROTO_TCP, TCP_NODELAY, bad[i], 4)));
		h.msg_iovlen = 1;
		say("%d all is there: %s %.3s", i, res(recvmsg(b, &h, MSG_PEEK)), in);
		say("%d %s %.3s", i, res(read(b, in, 10)), in);
	}
	give(a, "abc"); // if a part of the memory is valid
	say("part %s", res(read(b, edge - 2, 10)));
	say("%s", res(read(b, in, 10)));
	say("part %s", res(write(a, edge - 2, 10)));
	give(a, "x");
	say("%s", res(read(b, in, 10)));
	int ep = epoll_create1(0);
	add(ep, b, EPOLLIN);
	give(a, "x");
	say("epoll_ctl %s", res(epoll_ctl(ep, EPOLL_CTL_MOD, b, bad[2])));
	say("epoll_wait %s", res(epoll_wait(ep, bad[2], 4, 1000)));
	say("%s", res(read(b, in, 10)));
	// The program's own handlers are as it has set them.
	struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, was;
	sigaction(SIGSEGV, &act, &was);
	say("default %d", was.sa_handler == SIG_DFL);
	sigaction(SIGSEGV, 0, &was);
	say("own %d flags %d", was.sa_sigaction == on_fault, was.sa_flags & SA_SIGINFO);
	give(a, "abc");
	say("read %s write %s", res(read(b, edge, 10)), res(write(a, edge, 10)));
	for (volatile int i = 0; i < 2; i++)
		if (!sigsetjmp(after_fault, 1)) *edge = 1;
	say("handled %d", pipes);
	say("read %s write %s %s", res(read(b, edge, 10)), res(write(a, edge, 10)), res(read(b, in, 10)));
	say("signal %d %d", (void *)signal(SIGSEGV, SIG_DFL) == (void *)on_fault, signal(SIGSEGV, SIG_DFL) == SIG_DFL);
	for (int i = 0; i < 2; i++) { // without a handler the program ends
		pid_t p = fork();
		if (p == 0) {
			setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
			if (i) kill(getpid(), SIGSEGV);
			*edge = 1;
			_exit(0);
		}
		reap(p);
	}
}

// ---- room

static void full(void) {
	int a, b;
	pair(&a, &b);
	nonblocking(a);
	size_t n = fill(a);
	say("%s poll %s", res(write(a, "x", 1)), revents(a, POLLOUT, 0));
	say("at least %d", n >= 100000);
	say("same %d", drain(b) == n);
	say("%s poll %s", res(write(a, "x", 1)), revents(a, POLLOUT, 1000));
	take(b, 1);
	for (int i = 0; i < 3; i++) { // as a stream is read a little at a time
		n = fill(a);
		size_t m = 0;
		while (m < n && poll(&(struct pollfd){b, POLLIN, 0}, 1, 1000) == 1) {
			ssize_t k = read(b, in, 5000 + (size_t)i);
			if (k <= 0) break;
			m += (size_t)k;
		}
		say("same %d", m == n);
	}
}
static void refill(void) { // promoted while its buffers are full, with both ends in one thread, which sends files
	int file = memfd_create("file", 0);
	if (write(file, big, sizeof big) != sizeof big) die("file");
	for (int round = 0; round < 4; round++) {
		double began = now();
		int a, b;
		cold(&a, &b);
		nonblocking(a);
		nonblocking(b);
		uint64_t w = 0, r = 0;
		bool right = true;
		for (int i = 0; right && (i < 3000 || r < w); i++) {
			size_t at = w % sizeof big, n = sizeof big - at < 70000 ? sizeof big - at : 70000;
			ssize_t k = i < 3000 ? sendfile(a, file, &(off_t){(off_t)at}, n) : 0;
			if (k > 0) w += (size_t)k;
			if (i >= 3000 && poll(&(struct pollfd){b, POLLIN, 0}, 1, 1000) != 1) break;
			if (i < 100) continue;
			at = r % sizeof big;
			n = sizeof big - at < 3000 + (size_t)i % 777 ? sizeof big - at : 3000 + (size_t)i % 777;
			k = read(b, in, n);
			if (k <= 0) continue;
			right = !memcmp(in, big + at, (size_t)k);
			r += (size_t)k;
		}
		say("right %d all %d in time %d", right, r == w, now() - began < 20);
		fcntl(a, F_SETFL, 0);
		fcntl(b, F_SETFL, 0);
		warm(a, b);
	}
}
enum { BY_POLL, BY_SELECT, LEVEL, EDGE, ONESHOT, ADDED, CHANGED, NESTED, ROOM_WAYS };
static void *room_thread(void *x) {
	struct thread *t = x;
	fd_set w;
	FD_ZERO(&w);
	if (t->flags == BY_SELECT) FD_SET(t->fd, &w);
	struct epoll_event v = {0};
	if (t->flags == BY_POLL) t->r = poll(&(struct pollfd){t->fd, POLLOUT, 0}, 1, 10000);
	else if (t->flags == BY_SELECT) t->r = select(t->fd + 1, 0, &w, 0, &(struct timeval){10, 0});
	else t->r = epoll_wait(t->fd, &v, 1, 10000);
	t->err = errno;
	t->done = true;
	return 0;
}
static void room(void) { // a nonblocking writer that found no room must be told of it
	for (int way = 0; way < ROOM_WAYS; way++) {
		int a, b, ep = epoll_create1(0), outer = epoll_create1(0);
		pair(&a, &b);
		nonblocking(a);
		if (way == LEVEL || way == NESTED) add(ep, a, EPOLLOUT);
		if (way == EDGE) add(ep, a, EPOLLIN | EPOLLOUT | EPOLLET);
		if (way == ONESHOT) add(ep, a, EPOLLONESHOT);
		if (way == CHANGED) add(ep, a, EPOLLIN);
		if (way == NESTED) add(outer, ep, EPOLLIN);
		for (int round = 0; round < 3; round++) {
			size_t n = 0;
			ssize_t k;
			if (way == EDGE) happens(ep, 0);
			while ((k = write(a, big, 60000)) > 0) n += (size_t)k;
			say("%d %s", way, res(k));
			if (way == ADDED) add(ep, a, EPOLLOUT);
			if (way == CHANGED) mod(ep, a, EPOLLIN | EPOLLOUT);
			if (way == ONESHOT) mod(ep, a, EPOLLOUT | EPOLLONESHOT);
			struct thread t = {.fd = way <= BY_SELECT ? a : way == NESTED ? outer : ep, .flags = way};
			begin(&t, room_thread);
			say("all %d", drain(b) == n);
			say("%s", finish(&t));
			if (way > BY_SELECT && way != ONESHOT && way != EDGE) say("%s", happens(ep, 0));
			if (way == ADDED) epoll_ctl(ep, EPOLL_CTL_DEL, a, 0);
			if (way == CHANGED) mod(ep, a, EPOLLIN);
		}
		close(a);
		close(b);
		close(ep);
		close(outer);
	}
}
static void writer_waits(void) {
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = a};
	begin(&t, write_much_thread);
	ms(100);
	say("waits %d", !t.done);
	for (int i = 0; i < 16; i++) {
		memset(in, 0, sizeof in);
		size_t n = take(b, sizeof in);
		if (n != sizeof in || memcmp(in, big, n)) say("part %d: %zu", i, n);
	}
	say("%s", finish(&t));
	for (int i = 0; i < 3; i++) { // with pauses, so that each side sleeps in turn
		size_t n;
		t.n = 1 << 20;
		begin(&t, write_thread);
		for (n = 0; n < 1 << 20; n += take(b, 65536)) ms(2);
		say("%s right %d", finish(&t), !memcmp(in, big + n - 65536, 65536));
	}
}
static void renumbered(void) { // by the time of a fork, another connection has the number by which it was read
	int a, b, c, d;
	for (int way = 0; way < 3; way++) {
		pair(&a, &b);
		say("poll %s", revents(b, POLLIN, 0));
		give(a, "x");
		say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
		say("none %s", res(recv(b, in, 10, MSG_DONTWAIT)));
		int ep = epoll_create1(0), other = dup(b);
		if (way == 1) close(b);
		if (way == 2) syscall(SYS_close, b);
		cold(&c, &d);
		if (dup2(d, b) != b) die("dup2");
		close(d);
		give(c, "hello");
		add(ep, other, EPOLLIN);
		pid_t p = fork();
		if (p == 0) _exit(0);
		waitpid(p, 0, 0);
		say("the other's %s %.5s", res(recv(b, in, 10, MSG_DONTWAIT)), in);
		say("none %s %s", res(recv(other, in, 10, MSG_DONTWAIT)), happens(ep, 0));
		give(a, "yz");
		say("poll %s %s", revents(other, POLLIN, 1000), happens(ep, 1000));
		say("%s %.2s", res(read(other, in, 10)), in);
		close(ep);
		close(other);
		close(a);
		close(b);
		close(c);
	}
}
static _Atomic int looked_at;
static void *looks(void *x) { // a thread that only waits takes no bytes
	const struct thread *t = x;
	while (!t->done) {
		struct pollfd p = {looked_at, POLLIN, 0};
		poll(&p, 1, 1);
	}
	return 0;
}
static void *peeks(void *x) {
	const struct thread *t = x;
	char c;
	while (!t->done) recv(t->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
	return 0;
}
static void renumbered_in_poll(void) { // while one thread polls that number, and another peeks by a duplicate
	int a, b, c, d, lost = 0;
	struct thread t = {0}, u = {0};
	pair(&a, &b);
	u.fd = dup(b);
	looked_at = b;
	begin(&t, looks);
	begin(&u, peeks);
	double until = now() + 3;
	while (!lost && now() < until) {
		cold(&c, &d);
		give(c, "hello");
		give(a, "x");
		if (recv(u.fd, in, 10, 0) != 1) die("recv");
		if (dup2(d, b) != b) die("dup2");
		close(d);
		lost = recv(b, in, 10, MSG_DONTWAIT) != 5;
		if (dup2(u.fd, b) != b) die("dup2");
		close(c);
	}
	t.done = u.done = true;
	pthread_join(t.t, 0);
	pthread_join(u.t, 0);
	say("lost %d", lost);
}
static void was_in_set(void) { // the connection's number was that of another file, which was closed while in a set
	for (int way = 0; way < 8; way++) {
		int a, b, p[2], ep = epoll_create1(0), other = epoll_create1(0);
		if (pipe(p) < 0) die("pipe");
		give(p[1], "pipe");
		add(ep, p[0], way & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		close(p[0]);
		if (way < 4) pair(&a, &b);
		else cold(&a, &b);
		if (b != p[0]) {
			if (dup2(b, p[0]) != p[0]) die("dup2");
			close(b);
			b = p[0];
		}
		add(other, b, EPOLLIN);
		if (way >= 4) warm(a, b);
		say("none %s %s", happens(ep, 0), happens(other, 0));
		leave_hot(other, a, b);
		if (way & 2) {
			pid_t q = fork();
			if (q == 0) _exit(0);
			waitpid(q, 0, 0);
		}
		say("one %s, none %s", happens(other, 1000), happens(ep, 0));
		int c = dup(b);
		add(other, c, EPOLLIN);
		say("none %s", happens(ep, 0));
		take(b, 2);
		say("none %s", happens(ep, 0));
		if (way & 1) { // now in that set, too
			add(ep, b, EPOLLIN);
			give(a, "x");
			say("one %s", happens(ep, 1000));
			take(b, 1);
		}
		close(a);
		close(b);
		close(c);
		close(p[1]);
		close(ep);
		close(other);
	}
}
static void set_after_set(void) { // as programs do that have a loop for each task, such as by asyncio.run()
	int a, b;
	pair(&a, &b);
	for (int i = 0; i < 6; i++) {
		int ep = epoll_create1(0);
		add(ep, b, EPOLLIN);
		for (int k = 0; k < 1 + i / 2; k++) {
			struct thread t = {.fd = ep};
			begin(&t, wait_thread);
			double at = now();
			give(a, "x");
			say("%d.%d: %s %s", i, k, finish(&t), now() - at < 2 ? "at once" : "late");
			take(b, 1);
			say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		}
		close(ep);
	}
}
static void promotes_in_child(void) { // the child goes on with a connection, and opens some of its own
	int a, b, c, d;
	char x;
	pair(&a, &b);
	pid_t p = fork();
	if (p == 0) {
		int ep = epoll_create1(0);
		struct epoll_event v;
		close(a);
		pair(&c, &d);
		add(ep, d, EPOLLIN);
		add(ep, b, EPOLLIN);
		while (epoll_wait(ep, &v, 1, 10000) == 1) {
			if (read(b, &x, 1) != 1) _exit(0);
			if (recv(b, &x, 1, MSG_DONTWAIT) != -1 || write(b, "r", 1) != 1) die("child");
		}
		_exit(1);
	}
	close(b);
	for (int i = 0; i < 6; i++) {
		ms(100);
		double at = now();
		give(a, "x");
		take(a, 1);
		say("%d: %s", i, now() - at < 2 ? "at once" : "late");
	}
	close(a);
	int status;
	waitpid(p, &status, 0);
	say("status %x", status);
}
static void by_turns(int a, int b, int from, int to) { // calls from one number to another: a byte is written, then awaited and read
	int ep = epoll_create1(0);
	struct epoll_event v;
	add(ep, b, EPOLLIN);
	for (int i = from; i < to; i++) {
		if (!(i & 1)) give(a, "x");
		else if (epoll_wait(ep, &v, 1, 5000) != 1 || take(b, 1) != 1) die("read");
		if (i == 1) ms(20); // both ends have asked
	}
	close(ep);
}
static void forked_early(void) { // after some calls: the parent closes what its child goes on with, before that or meanwhile
	int a, b, bad = 0;
	pair(&a, &b); // what follows asks at the first call
	for (int i = 0; i < 40; i++) {
		int c, d, status;
		cold(&c, &d);
		by_turns(c, d, 0, i % 5);
		pid_t p = fork();
		if (p == 0) {
			if (i & 1) ms(5);
			by_turns(c, d, i % 5, 40);
			close(c);
			close(d);
			_exit(0);
		}
		usleep((unsigned)i * 25);
		close(c);
		close(d);
		if (waitpid(p, &status, 0) != p || status) bad++;
	}
	close(a);
	close(b);
	say("%d failed", bad);
}
static void child_passes(void) { // a child passes on what its parent has closed, and the peer has not written
	int a, b, by, status;
	cold(&a, &b);
	bool must = getenv("SEMANTICS_PROMOTED") != 0;
	double until = now() + PROMOTED_WITHIN;
	for (int good = 0; good < 3 && must;) {
		good = moved(a, b) ? good + 1 : 0;
		if (now() > until) die("promote");
	}
	int u[2], sv[2];
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, u) < 0 || pipe(sv) < 0) die("socketpair");
	pid_t p = fork();
	if (p == 0) {
		char c;
		if (read(sv[0], &c, 1) != 1) _exit(8);
		give(a, "child");
		send_fd(u[1], a);
		_exit(0);
	}
	close(a);
	if (write(sv[1], "x", 1) != 1) die("write");
	double at = now();
	by = receive_fd(u[0]);
	say("passed %s, %d", now() - at < 1 ? "at once" : "late", by >= 0);
	waitpid(p, &status, 0);
	say("status %x", status);
	say("%zu", take(b, 5));
	give(by, "this");
	say("%zu", take(b, 4));
	give(b, "that");
	say("%zu", take(by, 4));
}
static void looked_asleep(void) { // a reader that was woken leaves bytes, which a later wait must find
	int a, b;
	pair(&a, &b);
	for (int way = 0; way < 4; way++) {
		struct thread t = {.fd = b, .n = way == 2 ? 1 : 3, .flags = way < 2 ? MSG_PEEK : 0};
		int ep = epoll_create1(0);
		begin(&t, read_thread);
		pid_t p = way & 1 ? 0 : fork();
		if (p == 0 && !(way & 1)) {
			pause();
			_exit(0);
		}
		give(a, "hello");
		say("%d: %s", way, finish(&t));
		add(ep, b, EPOLLIN);
		say("poll %s epoll %s queued %d", revents(b, POLLIN, 500), happens(ep, 500), queued(b));
		say("%zu", take(b, way < 2 ? 5 : way == 2 ? 4 : 2));
		say("poll %s epoll %s", revents(b, POLLIN, 0), happens(ep, 0));
		if (p) {
			kill(p, SIGKILL);
			waitpid(p, 0, 0);
		}
		close(ep);
		close(a);
		close(b);
		pair(&a, &b); // one that was never waited for
	}
}
static void bulk(void) { // bytes are checked
	int a, b;
	pair(&a, &b);
	for (int i = 0; i < 10; i++) {
		struct thread t = {.fd = i & 1 ? b : a, .n = sizeof big};
		pthread_create(&t.t, 0, write_thread, &t);
		memset(in, 0, sizeof in);
		size_t n = take(i & 1 ? a : b, sizeof in);
		pthread_join(t.t, 0);
		say("%zu right %d", n, !memcmp(in, big, n));
	}
}
static void late_connect(void) { // nonblocking, as event loops do it
	struct sockaddr_storage s;
	socklen_t l;
	int from = listener(&s, &l), a = socket(s.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0), v = -1;
	int r = connect(a, (struct sockaddr *)&s, l);
	say("connect %s", r == 0 || errno == EINPROGRESS ? "begun" : res(r));
	say("poll %s", revents(a, POLLOUT, 1000));
	l = sizeof v;
	say("%s %d", res(getsockopt(a, SOL_SOCKET, SO_ERROR, &v, &l)), v);
	int b = accept4(from, 0, 0, SOCK_NONBLOCK | SOCK_CLOEXEC);
	say("%s", res(read(b, in, 1)));
	fcntl(a, F_SETFL, 0);
	fcntl(b, F_SETFL, 0);
	warm(a, b);
	give(a, "x");
	say("%s", res(read(b, in, 10)));
	close(from);
	close(a);
	close(b);
	a = socket(s.ss_family, SOCK_STREAM, 0);
	l = sizeof s;
	say("refused %s", res(connect(a, (struct sockaddr *)&s, address(&s))));
}
static void *poll_thread(void *x) {
	struct thread *t = x;
	t->r = poll(&(struct pollfd){t->fd, POLLIN, 0}, 1, 3000);
	t->err = errno;
	t->done = true;
	return 0;
}
static void two_ways_at_once(void) { // one thread polls, another waits in a set, a third reads
	int a, b, ep = epoll_create1(0);
	pair(&a, &b);
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 10; i++) {
		leave_hot(ep, a, b);
		take(b, 2);
		say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		struct thread t = {.fd = ep}, u = {.fd = b};
		begin(&t, wait_thread);
		begin(&u, poll_thread);
		double at = now();
		give(a, "y");
		say("woken %s %s %s", finish(&t), finish(&u), now() - at < 2 ? "soon" : "late");
		take(b, 1);
		say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
		begin(&u, poll_thread);
		begin(&t, wait_thread);
		at = now();
		give(a, "y");
		say("woken %s %s %s", finish(&t), finish(&u), now() - at < 2 ? "soon" : "late");
		take(b, 1);
	}
}

static _Atomic bool reading;
static void *reads_on_thread(void *x) { // leaves to others what does not come at once
	struct thread *t = x;
	reading = true;
	for (int i = 0; i < 300; i++)
		if (recv(t->fd, in, 1, MSG_DONTWAIT) > 0) die("byte");
	t->done = true;
	return 0;
}
static void polls_beside_reader(void) { // another thread is in a nonblocking read just as this one goes to sleep
	int a, b;
	pair(&a, &b);
	revents(b, POLLIN, 0);
	int late = 0;
	for (int i = 0; i < 60; i++) {
		struct thread t = {.fd = b}, u = {.fd = b};
		give(a, "x");
		take(b, 1);
		reading = false;
		pthread_create(&t.t, 0, reads_on_thread, &t);
		while (!reading) {}
		pthread_create(&u.t, 0, poll_thread, &u);
		pthread_join(t.t, 0);
		ms(1);
		double at = now();
		give(a, "y");
		pthread_join(u.t, 0);
		late += now() - at > 1 || u.r != 1;
		take(b, 1);
		if (late > 2) break;
	}
	say("late %d", late);
}

static void moved_beside_reader(void) { // moved to a set in which another thread sleeps
	int a, b, one = epoll_create1(0), two = epoll_create1(0), late = 0;
	pair(&a, &b);
	for (int i = 0; i < 60; i++) {
		struct thread t = {.fd = b}, u = {.fd = two};
		add(one, b, EPOLLIN);
		give(a, "x");
		take(b, 1);
		begin(&u, wait_thread);
		reading = false;
		pthread_create(&t.t, 0, reads_on_thread, &t);
		while (!reading) {}
		for (volatile int j = 0; j < 1000 * (i % 8); j++) {}
		epoll_ctl(one, EPOLL_CTL_DEL, b, 0);
		add(two, b, EPOLLIN);
		pthread_join(t.t, 0);
		ms(1);
		double at = now();
		give(a, "y");
		pthread_join(u.t, 0);
		late += now() - at > 1 || u.r != 1;
		take(b, 1);
		epoll_ctl(two, EPOLL_CTL_DEL, b, 0);
		if (late > 2) break;
	}
	say("late %d", late);
}

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static int high(int fd) {
	int n = fcntl(fd, F_DUPFD_CLOEXEC, 300);
	close(fd);
	return n;
}
static void *connects(void *x) { // moves its descriptors above 300, so that low numbers are free
	struct thread *t = x;
	for (int i = 0; i < 150 && !t->done; i++) {
		int a, b;
		pthread_mutex_lock(&opening);
		cold(&a, &b);
		a = high(a);
		b = high(b);
		pthread_mutex_unlock(&opening);
		warm(a, b);
		close(a);
		close(b);
	}
	t->done = true;
	return 0;
}
static void chosen(void) { // dup2() to free numbers must not be undone by the library
	struct thread t = {0};
	int from = high(open("/dev/null", O_RDWR)), lowest = dup(from), lost = 0;
	close(lowest);
	begin(&t, connects);
	for (int i = 0; !t.done; i++) {
		int fd = lowest + i % 3;
		pthread_mutex_lock(&opening);
		if (dup2(from, fd) != fd) die("dup2");
		pthread_mutex_unlock(&opening);
		usleep(20);
		lost += fcntl(fd, F_GETFD) < 0;
		pthread_mutex_lock(&opening);
		close(fd);
		pthread_mutex_unlock(&opening);
	}
	pthread_join(t.t, 0);
	say("lost %d", lost != 0);
}

static void goes_by_kernel(int b) {
	int n = 2;
	ms(100);
	give(b, "x");
	setsockopt(b, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
	_exit(read(b, in, 10) == 0 ? 0 : 6);
}
static void closed_after_all(void) { // after the other end has left the ring for the kernel
	int a;
	pid_t p = peer(&a, goes_by_kernel);
	say("%s", revents(a, POLLIN, 1000));
	ms(300);
	say("%zu", take(a, 1));
	close(a);
	reap(p);
}
static void closed_by_child(void) { // which shares the set with its parent
	for (int i = 0; i < 3; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		add(ep, b, i ? EPOLLIN | EPOLLET : EPOLLIN);
		for (int k = 0; k < 3; k++) {
			give(a, "x");
			say("told %s", happens(ep, 1000));
			say("%s", res(recv(b, in, 10, MSG_DONTWAIT)));
			say("none %s", res(recv(b, in, 10, MSG_DONTWAIT)));
			if (k) continue;
			pid_t p = fork();
			if (p == 0) {
				close(b);
				if (i == 2) close(ep);
				_exit(0);
			}
			waitpid(p, 0, 0);
		}
		shutdown(a, SHUT_WR);
		say("told %s", happens(ep, 1000));
		say("end %s", res(recv(b, in, 10, MSG_DONTWAIT)));
		close(a);
		close(b);
		close(ep);
	}
}
static void used_by_duplicate(void) { // in a set, by its first number, since before it was connected
	for (int i = 0; i < 2; i++) {
		int a, b, ep = epoll_create1(0);
		struct epoll_event v = {i ? EPOLLIN | EPOLLET : EPOLLIN, {.u64 = 12345}};
		struct sockaddr_storage s;
		socklen_t l;
		int from = listener(&s, &l), c;
		b = new_socket(s.ss_family);
		if (epoll_ctl(ep, EPOLL_CTL_ADD, b, &v) < 0) die("epoll_ctl");
		if (connect(b, (struct sockaddr *)&s, l) < 0) die("connect");
		a = accept(from, 0, 0);
		close(from);
		c = dup(b);
		warm(a, c);
		for (int k = 0; k < 4; k++) {
			give(a, "xyz");
			say("%s", res(epoll_wait(ep, &v, 1, 1000)));
			say("data %d, %d", v.data.u64 == 12345, v.events);
			say("%s", res(recv(c, in, 3, MSG_DONTWAIT)));
			say("none %s %s", res(recv(c, in, 3, MSG_DONTWAIT)), happens(ep, 20));
		}
		close(a);
		close(b);
		close(c);
		close(ep);
	}
}
static void polls_later(int b) { // what would wake it comes while it is elsewhere
	revents(b, POLLIN, 1000);
	take(b, 1);
	if (recv(b, in, 1, MSG_DONTWAIT) >= 0) die("byte");
	give(b, "xyz");
	ms(300);
	if (revents(b, POLLIN, 10000)[0] != '1' || take(b, 1) != 1) _exit(7);
}
static void recalled(void) { // a reader's bytes come by the kernel from now on, while the writer is elsewhere
	int a, p[2];
	pid_t q = peer(&a, polls_later);
	if (pipe(p) < 0) die("pipe");
	give(a, "x");
	ms(100);
	say("%s", res(splice(a, 0, p[1], 0, 100, 0)));
	say("%s %.3s", res(read(p[0], in, 100)), in);
	give(a, "y");
	reap(q);
}

static void no_children_signal(void) { // which would end reads, for all threads
	sigset_t s;
	sigemptyset(&s);
	sigaddset(&s, SIGCHLD);
	sigprocmask(SIG_BLOCK, &s, 0);
}
static void gives_late(int b) {
	ms(2500);
	give(b, "at last");
	ms(500);
}
// timed_beside_program: a reader with a time-out sleeps while another thread runs a program, which inherits the connection.
static void timed_beside_program(void) {
	int a;
	no_children_signal();
	pid_t p = peer(&a, gives_late);
	setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, 500000}, sizeof(struct timeval));
	struct thread t = {.fd = a, .n = 100};
	begin(&t, read_thread);
	if (system("true")) die("system");
	say("%s", finish(&t));
	double at = now();
	say("%s %s", res(read(a, in, 100)), about(at, 0.5));
	while (read(a, in, 100) < 0) {}
	say("%.7s", in);
	reap(p);
}
static void resets_late(int b) {
	give(b, "first");
	ms(800);
	setsockopt(b, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(b);
}
// reset_beside_program: the reset ends a read that has some bytes, and is the next call's news.
static void reset_beside_program(void) {
	int a;
	no_children_signal();
	pid_t p = peer(&a, resets_late);
	struct thread r = {.fd = a, .n = 100, .flags = MSG_WAITALL};
	begin(&r, read_thread);
	ms(100);
	if (system("true")) die("system");
	say("%s", finish(&r));
	say("%s", res(read(a, in, 1)));
	say("%s", res(read(a, in, 1)));
	reap(p);
}
// renumbered_beside_program: the number of a reader or writer is another file's when its bytes can move. That file has bytes, or room.
static void renumbered_beside_program(void) {
	enum { READS, READS_ALL, READS_MORE, WRITES };
	const size_t much = 3 << 20;
	no_children_signal();
	for (int how = READS; how <= WRITES; how++) {
		int a, b, p[2], of = how == WRITES;
		pair(&a, &b);
		if (pipe(p) < 0) die("pipe");
		int other = dup(a), small = 16384;
		struct thread t = {.fd = a, .n = how == WRITES ? much : 5, .flags = how == READS || how == WRITES ? 0 : MSG_WAITALL};
		setsockopt(a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
		size_t before = 0;
		for (ssize_t k; how == WRITES && (k = send(a, big, 100000, MSG_DONTWAIT)) > 0;) before += (size_t)k;
		begin(&t, how == WRITES ? write_thread : read_thread);
		if (how == READS_MORE) give(b, "r");
		ms(50);
		if (how != READS_MORE && system("true")) die("system");
		if (how == READS_ALL) give(b, "r");
		for (size_t n = 0; how == WRITES && n < before; n += take(b, before - n < sizeof in ? before - n : sizeof in)) {}
		ms(50);
		if (dup2(p[of], a) != a) die("dup2");
		if (how != READS && how != WRITES) give(p[1], "wrong");
		if (how == WRITES) say("%zu right %d", take(b, much), !memcmp(in, big, much));
		else give(b, how == READS ? "right" : "ight");
		say("%d %s other %d", how, finish(&t), queued(p[0]));
		if (how != WRITES) say("%.5s", in);
		close(a);
		close(other);
	}
}
// urgent_beside_program: an urgent byte ends a read of a connection that went back to the kernel in the middle of the call.
static void urgent_beside_program(void) {
	int a, b;
	pair(&a, &b);
	no_children_signal();
	struct thread t = {.fd = a, .n = 10, .flags = MSG_WAITALL};
	begin(&t, read_thread);
	give(b, "a");
	ms(50);
	if (system("true")) die("system");
	give(b, "bc");
	ms(50);
	if (send(b, "!", 1, MSG_OOB) != 1) die("send");
	give(b, "de");
	say("%s %.3s", finish(&t), in);
	say("urgent %s %c", res(recv(a, in, 1, MSG_OOB)), in[0]);
	say("%zu %.2s", take(a, 2), in);
}
static void slowly(void) { // one call to read and one to write, which last a second
	const size_t much = 3 << 20;
	int a, b, small = 16384;
	pair(&a, &b);
	setsockopt(a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	struct thread r = {.fd = a, .n = 10, .flags = MSG_WAITALL}, w = {.fd = a, .n = much};
	begin(&r, read_thread);
	for (int i = 0; i < 10; i++, ms(100)) give(b, "x");
	say("read %s", finish(&r));
	size_t before = 0, n = 0;
	for (ssize_t k; (k = send(a, big, 100000, MSG_DONTWAIT)) > 0;) before += (size_t)k;
	begin(&w, write_thread);
	for (; n < before; n += take(b, before - n < 300000 ? before - n : 300000)) ms(50);
	for (n = 0; n < much; n += 300000, ms(50)) {
		size_t k = much - n < 300000 ? much - n : 300000;
		if (take(b, k) != k || memcmp(in, big + n, k)) say("wrong at %zu", n);
	}
	say("written %s", finish(&w));
}
// A signal ends a call that has moved some bytes, even if its handler restarts others.
static void signalled_midway(void) {
	const size_t much = sizeof big;
	int a, b, small = 16384;
	pair(&a, &b);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGUSR1, on_alarm); // with SA_RESTART
	setsockopt(a, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	struct thread r = {.fd = a, .n = 10, .flags = MSG_WAITALL}, w = {.fd = a, .n = much};
	begin(&r, read_thread);
	ms(50);
	pthread_kill(r.t, SIGUSR1);
	ms(50);
	give(b, "abc");
	ms(50);
	while (queued(a)) ms(1);
	pthread_kill(r.t, SIGUSR1);
	say("read %s", finish(&r));
	while (send(a, big, 100000, MSG_DONTWAIT) > 0) {}
	begin(&w, write_thread);
	ms(50);
	take(b, 100000);
	ms(50);
	struct thread other = {.fd = a, .n = much}; // behind it
	begin(&other, write_thread);
	ms(150);
	pthread_kill(w.t, SIGUSR1);
	pthread_join(w.t, 0);
	say("written %d", w.r > 0 && w.r < (ssize_t)much);
	close(b);
	pthread_join(other.t, 0);
}
static void numbers_left(void) { // descriptors of the library's take none from a program with a soft limit
	struct rlimit r;
	int a, b, n = 0;
	if (getrlimit(RLIMIT_NOFILE, &r)) die("getrlimit");
	r.rlim_cur = 60;
	setrlimit(RLIMIT_NOFILE, &r);
	for (int i = 0; i < 8; i++) pair(&a, &b);
	while (dup(b) >= 0) n++;
	getrlimit(RLIMIT_NOFILE, &r);
	say("%d %s %d", n, so_error(b), (int)r.rlim_cur);
}
// only_writes: an end that has only written closes after the other end has gone back to the kernel.
static void only_writes(void) {
	const size_t much = 200000;
	int a, b, p[2];
	cold(&a, &b);
	if (pipe(p) < 0) die("pipe");
	for (int i = 0, good = 0; good < 3; i++) {
		good = moved(b, a) ? good + 1 : 0;
		if (!getenv("SEMANTICS_PROMOTED") && i > 10) break;
		if (i > 5000) {
			say("NOT PROMOTED");
			_exit(9);
		}
		if (i > 20) usleep(1000);
	}
	give(b, "unread");
	say("%s", res(splice(a, 0, p[1], 0, 100, 0)));
	struct thread t = {.fd = b, .n = much};
	begin(&t, write_thread);
	say("%zu right %d", take(a, 1000), !memcmp(in, big, 1000));
	ms(100);
	pthread_join(t.t, 0);
	say("%ld", (long)t.r);
	close(b);
	ms(50);
	say("%zu then %s", take(a, much), res(read(a, in, 1)));
}
static int urgent_fd;
static void sends_urgent(int s) {
	(void)s;
	if (send(urgent_fd, "!", 1, MSG_OOB) != 1) die("urgent");
}
static void *gives_later(void *x) {
	const struct thread *t = x;
	ms(300);
	give(t->fd, "whole");
	return 0;
}
// urgent_in_handler: a handler that interrupts a read sends an urgent byte.
static void urgent_in_handler(void) {
	int a, b;
	pair(&a, &b);
	urgent_fd = a;
	sigaction(SIGALRM, &(struct sigaction){.sa_handler = sends_urgent, .sa_flags = SA_RESTART}, 0);
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 100000}}, 0);
	struct thread t = {.fd = b};
	pthread_create(&t.t, 0, gives_later, &t);
	say("%s %.5s", res(read(a, in, 100)), in);
	pthread_join(t.t, 0);
}
// whole_beside_program: a write and a read of all bytes are in progress while another thread runs a program.
static void whole_beside_program(void) {
	const size_t much = 3 << 20;
	int a, b;
	pair(&a, &b);
	no_children_signal();
	struct thread w = {.fd = a, .n = much}, r = {.fd = a, .n = 100, .flags = MSG_WAITALL};
	begin(&w, write_thread);
	if (system("true")) die("system");
	say("%zu right %d", take(b, much), !memcmp(in, big, much));
	say("%s", finish(&w));
	close(a);
	close(b);
	pair(&a, &b);
	r.fd = a;
	begin(&r, read_thread);
	give(b, "first");
	ms(50);
	if (system("true")) die("system");
	if (write(b, big, 95) != 95) die("write");
	say("%s %.5s right %d", finish(&r), in, !memcmp(in + 5, big, 95));
}
// kept_by_child: a thread sleeps in a read while its process closes a connection that a child keeps.
static void kept_by_child(void) {
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = a, .n = 1};
	begin(&t, read_thread);
	pid_t p = fork();
	if (p == 0) {
		close(b);
		ms(400);
		_exit(0);
	}
	ms(50);
	close(a);
	give(b, "xy");
	pthread_join(t.t, 0);
	reap(p);
}

static _Atomic int foreign;
static void *own_data(void *x) { // a set must return the data that was registered
	const struct thread *t = x;
	while (!t->done) {
		struct epoll_event v[2];
		int n = epoll_wait(t->fd, v, 2, 0);
		for (int i = 0; i < n; i++) foreign += v[i].data.u64 != 12345;
	}
	return 0;
}
static void comes_and_goes(void) { // registered, promoted and closed while another thread waits in the set
	struct thread t = {.fd = epoll_create1(0)};
	begin(&t, own_data);
	for (int i = 0; i < 60 && !foreign; i++) {
		int a, b;
		struct epoll_event v = {EPOLLIN | EPOLLOUT, {.u64 = 12345}};
		cold(&a, &b);
		if (epoll_ctl(t.fd, EPOLL_CTL_ADD, b, &v) < 0) die("epoll_ctl");
		warm(a, b);
		close(b);
		close(a);
	}
	t.done = true;
	pthread_join(t.t, 0);
	say("foreign %d", foreign != 0);
}
static void exits_blocked(int b) {
	struct thread t = {.fd = b};
	begin(&t, write_much_thread);
	ms(300);
	exit(3);
}
static void exits_writing(void) { // while another thread writes what no reader takes
	int a;
	ssize_t n;
	pid_t p = peer(&a, exits_blocked);
	double began = now();
	reap(p);
	say("%s", about(began, 0.3));
	while ((n = read(a, in, sizeof in)) > 0) {}
	say("%s", res(n));
}
static void file_limit(void) {
	int a, b;
	struct rlimit r = {1 << 20, 1 << 20};
	setrlimit(RLIMIT_FSIZE, &r);
	cold(&a, &b);
	give(a, "x");
	say("%s", res(read(b, in, 10)));
}
static void deep_bound(void) { // an object that is loaded so calls libc's functions past any library before it
	int a, b, c, d;
	pair(&a, &b);
	give(b, "before");
	if (!dlopen("libresolv.so.2", RTLD_NOW | RTLD_DEEPBIND)) die("dlopen");
	void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
	__typeof__(&read) its_read = (__typeof__(&read))dlsym(libc, "read");
	__typeof__(&poll) its_poll = (__typeof__(&poll))dlsym(libc, "poll");
	if (!its_read || !its_poll) die("dlsym");
	say("%d", its_poll(&(struct pollfd){a, POLLIN, 0}, 1, 5000));
	say("%s %.6s", res(its_read(a, in, 6)), in);
	cold(&c, &d);
	for (int i = 0; i < 200; i++) {
		char x = (char)i, y = 0;
		int from = i & 1 ? b : d, to = i & 1 ? a : c;
		if (write(from, &x, 1) != 1 || its_poll(&(struct pollfd){to, POLLIN, 0}, 1, 5000) != 1 || its_read(to, &y, 1) != 1 || x != y) say("wrong at %d", i);
		if (write(to, &x, 1) != 1 || read(from, &y, 1) != 1 || x != y) say("wrong back at %d", i);
		if (i >= 20) usleep(500);
	}
	say("%d", its_poll(&(struct pollfd){a, POLLIN, 0}, 1, 0) + its_poll(&(struct pollfd){c, POLLIN, 0}, 1, 0));
}
static void address_limit(void) { // what the library cannot get must cost the program nothing
	struct rlimit r = {60 << 20, 60 << 20};
	pthread_key_t k;
	setrlimit(RLIMIT_AS, &r);
	for (int i = 0; i < PTHREAD_KEYS_MAX + 10; i++) {
		int a, b;
		cold(&a, &b);
		close(a);
		close(b);
	}
	say("%d", pthread_key_create(&k, 0));
}
static void vfork_numbers(void) { // descriptors that the next program knows by number, or that are other files in the child than in the parent
	int a, b, q[2];
	pair(&a, &b);
	fcntl(a, F_SETFD, FD_CLOEXEC);
	give(a, "before");
	pid_t p = vfork();
	if (p == 0) {
		close(0);
		close(1);
		if (dup(b) != 0 || fcntl(b, F_DUPFD, 1) != 1) _exit(8);
		close(b);
		execlp("cat", "cat", (char *)0);
		_exit(9);
	}
	close(b);
	give(a, "after");
	say("%zu %.11s", take(a, 11), in);
	shutdown(a, SHUT_WR);
	say("%s", res(read(a, in, 10)));
	reap(p);
	pair(&a, &b);
	fcntl(b, F_SETFD, FD_CLOEXEC);
	int null = open("/dev/null", O_RDONLY);
	if (pipe(q) < 0) die("pipe");
	if ((p = vfork()) == 0) {
		dup2(null, a);
		dup2(q[1], 1);
		execlp("echo", "echo", "hello", (char *)0);
		_exit(9);
	}
	say("%s", res(read(q[0], in, 100)));
	reap(p);
	for (int i = 0; i < 3; i++) {
		give(b, "x");
		say("%s %s", res(read(a, in, 10)), res(write(a, "y", 1)));
		say("%s", res(read(b, in, 10)));
	}
}
static void paced(void) { // before it is promoted, and afterwards
	unsigned rate = 1 << 20;
	for (int i = 0; i < 2; i++) {
		int a, b;
		if (i) pair(&a, &b);
		else cold(&a, &b);
		say("%s", res(setsockopt(a, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate)));
		if (!i)
			for (int k = 0; k < 20; k++) moved(a, b);
		struct thread t = {.fd = a, .n = 1 << 20};
		double at = now();
		begin(&t, write_thread);
		say("%zu slow %d", take(b, 1 << 20), now() - at > 0.5);
		say("%s", finish(&t));
	}
}
static void connects_again(void) { // reuses a connection's socket for another peer
	int a, b, v = -1;
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	struct sockaddr_storage s;
	socklen_t l, k = sizeof v;
	pair(&a, &b);
	int from = listener(&s, &l);
	give(a, "lost");
	ms(30);
	say("%s", res(connect(a, &none, sizeof none)));
	say("%s", res(read(b, in, 10)));
	say("%s", res(read(a, in, 10)));
	getsockopt(a, IPPROTO_TCP, TCP_NODELAY, &v, &k);
	say("%s nodelay %d", res(connect(a, (struct sockaddr *)&s, l)), v);
	int c = accept(from, 0, 0);
	give(a, "new");
	say("%s %.3s", res(read(c, in, 10)), in);
	warm(a, c);
	give(c, "answer");
	say("%zu %.6s", take(a, 6), in);
	close(a);
	say("%s", res(read(c, in, 10)));
}
static void vfork_writes(void) { // its parent goes on with the connection
	int a, b;
	cold(&a, &b);
	pid_t p = vfork();
	if (p == 0) {
		for (int i = 0; i < 100; i++)
			if (write(a, "x", 1) != 1 || read(b, in, 1) != 1) _exit(9);
		_exit(0);
	}
	reap(p);
	int null = open("/dev/null", O_RDWR), n = fcntl(null, F_DUPFD, 1000), wrong = 0;
	for (; n < 1004; n = fcntl(null, F_DUPFD, n + 1)) wrong += close(n) != 0;
	say("%d", wrong);
	warm(a, b);
	give(a, "x");
	say("%s", res(read(b, in, 10)));
}
static void writes_and_sleeps(int b) {
	give(b, "unread");
	ms(8000);
}
static void spawns_writing(void) { // another thread has just begun to wait for a peer that does not run
	int a, status;
	pid_t p = peer(&a, writes_and_sleeps), c;
	char *argv[] = {"true", 0};
	struct thread t = {.fd = a};
	signal(SIGPIPE, SIG_IGN);
	pthread_create(&t.t, 0, write_much_thread, &t);
	ms(10);
	double began = now();
	if (posix_spawnp(&c, "true", 0, 0, argv, environ)) die("spawn");
	say("soon %d", now() - began < 4);
	waitpid(c, &status, 0);
	say("status %d", status);
	kill(p, SIGKILL);
	reap(p);
	finish(&t);
}
static void dontwait_beside(void) { // beside a thread that writes what no reader takes
	for (int i = 0; i < 3; i++) {
		int a, b;
		struct thread t;
		pair(&a, &b);
		t = (struct thread){.fd = a};
		signal(SIGPIPE, SIG_IGN);
		pthread_create(&t.t, 0, write_much_thread, &t);
		for (double until = now() + 0.3; now() < until;)
			if (send(a, "x", 1, MSG_DONTWAIT) < 0 && errno != EAGAIN) die("send");
		say("back %d", !t.done);
		shutdown(a, SHUT_RDWR);
		finish(&t);
		close(a);
		close(b);
	}
}
static void second_writer(void) { // interrupted while the first writer waits
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = a};
	begin(&t, write_much_thread);
	ms(300);
	alarms(200);
	double at = now();
	write_much(a);
	alarms(0);
	say("%s", now() - at < 2 ? "soon" : "late");
	shutdown(a, SHUT_RDWR);
	finish(&t);
}

static void *last_thread(void *x) { // runs once its waker sleeps
	struct thread *t = x;
	struct epoll_event v;
	sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
	t->r = epoll_wait(t->fd, &v, 1, 3000);
	t->err = errno;
	return 0; // on a busy machine it may have run before, and seen what is gone
}
static void unwanted_as_told(void) { // what is about to wake a thread in the set is withdrawn, and something else comes
	int a[2], b[2], ep = epoll_create1(0), other = epoll_create1(0);
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	for (int i = 0; i < 9; i++) {
		struct thread t = {.fd = ep};
		for (int k = 0; k < 2; k++) {
			pair(&a[k], &b[k]);
			add(ep, b[k], i & 1 || i == 8 ? EPOLLIN | EPOLLRDHUP | EPOLLET : EPOLLIN);
			give(a[k], "x");
			say("told %s", happens(ep, 1000));
			take(b[k], 1);
			say("none %s", res(recv(b[k], in, 1, MSG_DONTWAIT)));
		}
		begin(&t, last_thread);
		give(a[0], "left");
		if (i / 2 == 0) mod(ep, b[0], 0);
		if (i / 2 == 1) epoll_ctl(ep, EPOLL_CTL_DEL, b[0], 0);
		if (i / 2 == 2) close(b[0]);
		if (i / 2 == 3) {
			add(other, b[0], EPOLLIN);
			take(b[0], 4);
			say("none %s", res(recv(b[0], in, 1, MSG_DONTWAIT)));
		}
		if (i / 2 == 4) { // this wait takes the edge, unless the thread ran and has it already
			shutdown(a[0], SHUT_WR);
			take(b[0], 4);
			happens(ep, 0);
		}
		double at = now();
		give(a[1], "y");
		say("%d woken %s %s", i, finish(&t), now() - at < 2 ? "soon" : "late");
		if (i / 2 != 2) close(b[0]);
		close(a[0]);
		close(b[1]);
		close(a[1]);
	}
}

static void nested_beside_reader(void) { // a woken reader leaves bytes
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0), outer = epoll_create1(0);
		pair(&a, &b);
		struct thread t = {.fd = b, .n = 1}, u = {.fd = i & 1 ? ep : outer};
		begin(&t, read_thread);
		add(ep, b, EPOLLIN);
		add(outer, ep, EPOLLIN);
		if (i & 2) {
			give(a, "abc");
			say("%s", finish(&t));
			say("%d %s", i, i & 1 ? revents(ep, POLLIN, 1000) : happens(outer, 1000));
			continue;
		}
		begin(&u, i & 1 ? poll_thread : wait_thread);
		double at = now();
		give(a, "abc");
		say("%s", finish(&t));
		say("%d %s %s", i, finish(&u), now() - at < 2 ? "soon" : "late");
	}
}
static void waits_beside_reader(void) { // a woken reader leaves bytes
	int late = 0;
	for (int i = 0; i < 8; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		struct thread t = {.fd = b, .n = 1}, u = {.fd = ep};
		begin(&t, read_thread);
		add(ep, b, i & 1 ? EPOLLIN | EPOLLET : EPOLLIN);
		begin(&u, wait_thread);
		double at = now();
		give(a, "abc");
		finish(&t);
		late += strcmp(finish(&u), "1") || now() - at > 2;
		close(a);
		close(b);
		close(ep);
		if (late > 2) break;
	}
	say("late %d", late);
}
static void polled_beside_reader(void) { // a woken reader leaves bytes
	int late = 0;
	for (int i = 0; i < 8; i++) {
		int a, b;
		pair(&a, &b);
		struct thread t = {.fd = b, .n = 1}, u = {.fd = b};
		begin(&t, read_thread);
		begin(&u, poll_thread);
		double at = now();
		give(a, "abc");
		finish(&t);
		late += strcmp(finish(&u), "1") || now() - at > 2;
		close(a);
		close(b);
		if (late > 2) break;
	}
	say("late %d", late);
}
// slow_page maps memory that takes 200 ms to fault in: a read into it stands still meanwhile.
struct slow {
	pthread_t t;
	int fd;
	char *page;
};
static void *slow_thread(void *x) {
	struct slow *s = x;
	struct uffd_msg m;
	struct uffdio_zeropage z = {.range = {(uintptr_t)s->page, 4096}};
	if (read(s->fd, &m, sizeof m) != sizeof m) die("a fault");
	ms(200);
	if (ioctl(s->fd, UFFDIO_ZEROPAGE, &z) < 0) die("a page");
	return 0;
}
static void slow_page(struct slow *s) {
	struct uffdio_api a = {.api = UFFD_API};
	s->page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct uffdio_register r = {.range = {(uintptr_t)s->page, 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
	s->fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	if (s->fd < 0 || ioctl(s->fd, UFFDIO_API, &a) < 0 || ioctl(s->fd, UFFDIO_REGISTER, &r) < 0) die("userfaultfd");
	pthread_create(&s->t, 0, slow_thread, s);
}
static void *slow_reader(void *x) {
	struct thread *t = x;
	struct slow s;
	slow_page(&s);
	t->r = recv(t->fd, s.page, 1, 0);
	t->err = errno;
	pthread_join(s.t, 0);
	return 0;
}
static void polled_beside_slow_reader(void) { // which is about to leave bytes
	for (int i = 0; i < 4; i++) {
		int a, b;
		pair(&a, &b);
		struct thread t = {.fd = b}, u = {.fd = b};
		begin(&t, slow_reader);
		give(a, "abc");
		ms(50);
		begin(&u, poll_thread);
		double at = now();
		say("%s", finish(&t));
		say("%s %s", finish(&u), now() - at < 2 ? "soon" : "late");
		close(a);
		close(b);
	}
}
static void reader_beside_reader(void) { // the first leaves bytes
	int late = 0;
	for (int i = 0; i < 8; i++) {
		int a, b;
		pair(&a, &b);
		struct timeval tv = {3, 0};
		setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
		struct thread t = {.fd = b, .n = 1, .flags = i & 1 ? MSG_PEEK : 0}, u = {.fd = b, .n = 1};
		begin(&t, read_thread);
		begin(&u, read_thread);
		double at = now();
		give(a, "abc");
		bool x = strcmp(finish(&t), "1"), y = strcmp(finish(&u), "1");
		late += x || y || now() - at > 2;
		close(a);
		close(b);
		if (late > 2) break;
	}
	say("late %d", late);
}

static void stuck_path(void) { // of one of two connections between the same processes
	int a[2], b[2], ep = epoll_create1(0), seven = 7;
	struct sock_filter drop[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, SKF_AD_OFF + SKF_AD_MARK), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 7, 0, 1),
	                             BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, ~0u)};
	const struct sock_fprog drops = {4, drop};
	for (int i = 0; i < 2; i++) {
		struct sockaddr_storage s;
		socklen_t l;
		int from = listener(&s, &l);
		a[i] = new_socket(s.ss_family);
		if (connect(a[i], (struct sockaddr *)&s, l) < 0) die("connect");
		b[i] = accept(from, 0, 0);
		close(from);
		warm(a[i], b[i]);
		if (SYS(setsockopt, b[i], SOL_SOCKET, SO_ATTACH_FILTER, &drops, sizeof drops) < 0) die("filter"); // unseen
		add(ep, b[i], EPOLLIN);
		say("none %s", res(recv(b[i], in, 1, MSG_DONTWAIT)));
		leave_hot(ep, a[i], b[i]);
		take(b[i], 2);
		say("none %s", res(recv(b[i], in, 1, MSG_DONTWAIT)));
	}
	if (setsockopt(a[0], SOL_SOCKET, SO_MARK, &seven, sizeof seven) < 0) return; // only root may set the mark
	struct thread t = {.fd = ep};
	begin(&t, wait_thread);
	double at = now();
	give(a[0], "lost");
	ms(50);
	give(a[1], "y");
	say("woken %s %s", finish(&t), now() - at < 2 ? "soon" : "late");
}
static void *parts_thread(void *x) {
	struct thread *t = x;
	for (int i = 0; i < 3; i++, ms(100))
		if (write(t->fd, big, 5000) != 5000) die("write");
	return 0;
}
static void discarded(void) { // recv() and recvmsg() with MSG_TRUNC
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = a};
	pthread_create(&t.t, 0, parts_thread, &t);
	say("all %s, queued %d", res(recv(b, 0, 15000, MSG_TRUNC | MSG_WAITALL)), queued(b));
	pthread_join(t.t, 0);
	for (int i = 0; i < 3; i++) {
		if (write(a, big, 60000) != 60000) die("write");
		ms(20);
		say("%s", res(recv(b, 0, 50000, MSG_TRUNC | MSG_PEEK)));
		say("%s", res(recv(b, 0, 100000, MSG_TRUNC | MSG_PEEK | MSG_DONTWAIT)));
		struct iovec v = {0, 1000};
		struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
		say("%s", res(recvmsg(b, &h, MSG_TRUNC)));
		memset(in, 'i', 10);
		v.iov_base = in;
		say("%s %.10s", res(recvmsg(b, &h, MSG_TRUNC)), in);
		say("%s", res(recv(b, 0, 100000, MSG_TRUNC)));
		say("%s", res(recv(b, 0, 100000, MSG_TRUNC | MSG_PEEK | MSG_DONTWAIT)));
	}
}
static void *timed_thread(void *x) { // the last to run on this processor
	struct thread *t = x;
	struct epoll_event v;
	sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
	double at = now();
	t->r = epoll_wait(t->fd, &v, 1, 1500);
	t->err = errno;
	t->n = now() - at > 2.2;
	return 0;
}
static void timed_while_promoted(void) { // in a wait that began before anything was promoted
	int a, b, ep = epoll_create1(0);
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	struct thread t = {.fd = ep};
	begin(&t, timed_thread);
	pair(&a, &b);
	say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
	give(a, "x");
	ms(1000);
	add(ep, b, EPOLLIN);
	take(b, 1);
	say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
	pthread_setschedparam(t.t, SCHED_OTHER, &(struct sched_param){0});
	say("%s", finish(&t));
	say("late %zu", t.n);
}
static void *small_thread(void *x) {
	struct thread *t = x;
	ms(600);
	give(t->fd, "0123456789");
	return 0;
}
static void nothing_asked(void) { // reads of 0 bytes
	int a, b;
	pair(&a, &b);
	struct thread t = {.fd = a};
	struct msghdr h = {0};
	struct iovec v = {in, 0};
	h.msg_iov = &v;
	h.msg_iovlen = 1;
	for (int i = 0; i < 3; i++) {
		begin(&t, small_thread);
		double at = now();
		say("%s", i == 0 ? res(recv(b, in, 0, 0)) : i == 1 ? res(recvmsg(b, &h, 0)) : res(read(b, in, 0)));
		say("soon %d", now() - at < 0.3);
		pthread_join(t.t, 0);
		say("%zu", take(b, 10));
	}
	struct timeval tv = {0, 200000};
	setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	say("never %s, at once %s", res(recv(b, in, 0, 0)), res(recv(b, in, 0, MSG_DONTWAIT)));
}
static void peeked_then_polled(void) { // by a reader that slept, at an end that has gone to the kernel for good
	for (int i = 0; i < 3; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		int two = 2;
		setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two);
		give(a, "x");
		take(b, 1);
		struct thread t = {.fd = b, .n = 1, .flags = MSG_PEEK};
		begin(&t, read_thread);
		give(a, "y");
		say("%d %s, queued %d", i, finish(&t), queued(b));
		if (i == 0) say("%s", revents(b, POLLIN, 1000));
		if (i == 1) {
			add(ep, b, EPOLLIN);
			say("%s", happens(ep, 1000));
		}
		if (i == 2) {
			close(b);
			ms(50);
			say("%s", res(read(a, in, 1)));
			continue;
		}
		say("%zu %c", take(b, 1), in[0]);
		close(a);
		close(b);
	}
}
static void *idle_poll_thread(void *x) { // the last to run on this processor
	sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
	return poll_thread(x);
}
static void *idle_read_thread(void *x) {
	sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0});
	return read_thread(x);
}
static void taken_before(void) { // one thread takes what woke another, then does something else
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET((unsigned)sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	for (int i = 0; i < 4; i++) {
		int a, b, ep = epoll_create1(0);
		pair(&a, &b);
		if (i & 1) add(ep, b, EPOLLIN);
		else revents(b, POLLIN, 0);
		struct timeval tv = {3, 0};
		setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
		struct thread t = {.fd = b, .n = 1};
		begin(&t, i / 2 ? idle_read_thread : idle_poll_thread);
		give(a, "x");
		for (int k; (k = (int)recv(b, in, 10, MSG_DONTWAIT)) != 1;) { // the other thread was first; try again
			finish(&t);
			begin(&t, i / 2 ? idle_read_thread : idle_poll_thread);
			give(a, "x");
		}
		for (int k = 0; k < 2; k++) say("none %s", res(recv(b, in, 10, MSG_DONTWAIT)));
		double at = now();
		give(a, "y");
		pthread_setschedparam(t.t, SCHED_OTHER, &(struct sched_param){0});
		say("%d %s %s", i, finish(&t), now() - at < 2 ? "soon" : "late");
		close(a);
		close(b);
		close(ep);
	}
}
static void writes_first(void) { // by a thread that has both ends; natively the kernel takes that much
	for (int i = 0; i < 2; i++) {
		int a, b, f = memfd_create("f", 0);
		pair(&a, &b);
		for (int j = 0; j < 2; j++) {
			off_t at = 0;
			double began = now();
			if (write(f, big, 1500000) < 0) die("memfd");
			say("%s", i ? res(sendfile(a, f, &at, 1500000)) : res(write(a, big, 1500000)));
			say("%s", about(began, 0));
			say("%zu right %d", take(b, 1500000), !memcmp(in, big, 1500000));
			warm(a, b);
		}
	}
}
// What both ends do: each writes n bytes before it reads. used: megabytes have gone both ways before; idle: then nothing, for so long that
// memory is given back; polls: nonblocking writes.
static struct { bool used, idle, polls; size_t n; } both;
static void moves_much(int fd, bool writes) {
	for (int i = 0; i < 128; i++)
		if (writes ? write(fd, big, 65536) != 65536 : take(fd, 65536) != 65536) die("moves_much");
}
static void idles(int fd, bool asks) { // as a server does
	struct epoll_event v;
	char c;
	int ep = epoll_create1(0);
	nonblocking(fd);
	add(ep, fd, EPOLLIN);
	for (int i = 0; i < 4; i++) {
		if (asks) give(fd, "?");
		if (epoll_wait(ep, &v, 1, 5000) != 1 || read(fd, &c, 1) != 1) die("idles");
		if (!asks) give(fd, "!");
	}
	epoll_wait(ep, &v, 1, 2200); // until the other end has waited as long
	close(ep);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}
static bool writes_then_reads(int fd, bool first) {
	if (both.used) {
		moves_much(fd, first);
		moves_much(fd, !first);
	}
	if (both.idle) idles(fd, first);
	if (both.polls) nonblocking(fd);
	for (size_t n = 0; n < both.n;) {
		ssize_t k = write(fd, big + n % sizeof big, 16384 - n % 16384);
		struct pollfd p = {fd, POLLOUT, 0};
		if (k > 0) n += (size_t)k;
		else if (errno != EAGAIN || poll(&p, 1, 5000) != 1) return false;
	}
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	for (size_t n = 0; n < both.n; n += 16384)
		if (take(fd, 16384) != 16384 || memcmp(in, big + n % sizeof big, 16384)) return false;
	return true;
}
static void second_of_both(int fd) {
	_exit(!writes_then_reads(fd, false));
}
static void both_first(void) {
	const size_t sizes[] = {256 << 10, 512 << 10, 1 << 20, 2 << 20, 3 << 20};
	for (int i = 0; i < 6; i++) { // fresh connections, used ones, and ones that were idle
		both.used = i >= 2;
		both.idle = i >= 4;
		both.polls = i & 1;
		segment = both.used ? 1448 : 0; // until they are used, the kernel's buffers are small, as between hosts
		for (int j = both.idle ? 4 : both.used ? 3 : 0; j < 5; j++) {
			int a;
			both.n = sizes[j];
			pid_t c = peer(&a, second_of_both);
			say("%d %zu right %d", i, both.n, writes_then_reads(a, true));
			reap(c);
			close(a);
		}
	}
}
static void *say_reads_thread(void *b) {
	say("%s", res(read(*(int *)b, in, 1)));
	say("%s", res(read(*(int *)b, in, 1)));
	return 0;
}
// without_numbers: poll() fails.
static void without_numbers(void) {
	int a, b;
	pthread_t t;
	pair(&a, &b);
	setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, 0});
	pthread_create(&t, 0, say_reads_thread, &b);
	ms(50);
	give(a, "x");
	ms(50);
	shutdown(a, SHUT_WR);
	pthread_join(t, 0);
}
// left_by_many: readers that were woken by tokens leave bytes, of more connections than the library lists.
#define MANY 300
static void left_by_many(void) {
	static int a[MANY], b[MANY];
	static struct thread t[MANY];
	struct rlimit r = {2000, 2000};
	struct epoll_event v[MANY];
	int ep = epoll_create1(0), n = 0, m = 0;
	setrlimit(RLIMIT_NOFILE, &r);
	for (int i = 0; i < MANY; i++) {
		pair(&a[i], &b[i]);
		t[i] = (struct thread){.fd = b[i], .n = 4};
		pthread_create(&t[i].t, 0, read_thread, &t[i]);
	}
	ms(300);
	for (int i = 0; i < MANY; i++) give(a[i], "headbody");
	for (int i = 0; i < MANY; i++) pthread_join(t[i].t, 0);
	for (int i = 0; i < MANY; i++) n += poll(&(struct pollfd){b[i], POLLIN, 0}, 1, 50) == 1;
	for (int i = 0; i < MANY; i++) add(ep, b[i], EPOLLIN);
	for (int i = 0; i < 20 && m < MANY; i++) {
		int k = epoll_wait(ep, v, MANY, 100);
		for (int j = 0; j < k; j++) m += take(v[j].data.fd, 4) == 4;
	}
	say("polled %d waited for %d", n, m);
}
static void bad_lengths(void) { // and times, which the kernel refuses before it does anything
	volatile size_t huge = SIZE_MAX;
	struct iovec v[] = {{in, 2}, {in + 10, huge}, {in + 20, 2}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
	int a, b;
	pair(&a, &b);
	give(a, "abc");
	ms(30);
	say("read %s readv %s %s", res(read(b, in, huge)), res(readv(b, v, 3)), res(readv(b, v + 1, 1)));
	say("recvmsg %s recv %s", res(recvmsg(b, &h, 0)), res(recv(b, in, huge, MSG_PEEK)));
	say("write %s writev %s %s", res(write(a, in, huge)), res(writev(a, v, 3)), res(writev(a, v + 1, 1)));
	int file = memfd_create("f", 0);
	say("sendmsg %s sendfile %s, of none %s", res(sendmsg(a, &h, 0)), res(sendfile(a, file, 0, huge)), res(sendfile(a, -1, 0, 1)));
	const struct timespec times[] = {{-1, 0}, {0, -1}, {0, 1000000000}};
	int ep = epoll_create1(0);
	add(ep, b, EPOLLIN);
	for (int i = 0; i < 3; i++) {
		struct timespec t = times[i];
		struct pollfd p = {b, POLLIN, 0};
		struct mmsghdr m = {.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}};
		fd_set r;
		FD_ZERO(&r);
		FD_SET(b, &r);
		say("%d %s %s %s", i, res(ppoll(&p, 1, &t, 0)), res(pselect(b + 1, &r, 0, 0, &t, 0)), res(recvmmsg(b, &m, 1, 0, &t)));
		say("%d %s", i, res(epoll_pwait2(ep, &(struct epoll_event){0}, 1, &t, 0)));
	}
	say("%zu %.3s %s", take(b, 3), in, res(recv(b, in, 10, MSG_DONTWAIT)));
}
static int tables[2];
static void *unshares(void *ranges) {
	if (ranges ? close_range((unsigned)tables[0], (unsigned)tables[0], CLOSE_RANGE_UNSHARE) : unshare(CLONE_FILES)) die("unshare");
	close(tables[0]);
	close(tables[1]);
	return 0;
}
static void closes_copies(void *ranges) {
	pthread_t t;
	pair(&tables[0], &tables[1]);
	pthread_create(&t, 0, unshares, ranges);
	pthread_join(t, 0);
	give(tables[0], "abc");
	say("%zu %.3s", take(tables[1], 3), in);
	give(tables[1], "de");
	say("%zu %.2s", take(tables[0], 2), in);
}
static void own_table(void) { closes_copies(0); } // of a thread, which closes its copies
static void own_range(void) { closes_copies(tables); }
static void other_pids(void) { // two processes that are both number 1 write
	int a, b;
	pid_t k[2];
	pair(&a, &b);
	for (int i = 0; i < 2; i++) {
		if ((k[i] = fork())) continue;
		int status = 0;
		if (unshare(CLONE_NEWPID)) _exit(1);
		pid_t first = fork();
		for (int n = 0; first == 0 && n < 600; n++)
			if (write(a, big, 1000) != 1000) _exit(2);
		if (first == 0) _exit(0);
		waitpid(first, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 3);
	}
	say("%zu", take(b, 1200000));
	for (int i = 0; i < 2; i++) reap(k[i]);
}
static void messages_left(void) { // recvmmsg() says how much of its time is left
	struct mmsghdr m[2] = {0};
	struct iovec v[2] = {{in, 4}, {in + 4, 4}};
	struct timespec t = {100, 0};
	int a, b;
	pair(&a, &b);
	for (int i = 0; i < 2; i++) {
		m[i].msg_hdr.msg_iov = &v[i];
		m[i].msg_hdr.msg_iovlen = 1;
	}
	give(a, "12345678");
	say("%s, some %d", res(recvmmsg(b, m, 2, 0, &t)), t.tv_sec < 100 && t.tv_sec > 50);
	t = (struct timespec){0, 1000000};
	struct thread later = {.fd = a};
	begin(&later, small_thread);
	say("%s, none %d", res(recvmmsg(b, m, 2, 0, &t)), !t.tv_sec && !t.tv_nsec);
	t = (struct timespec){7, 5};
	take(b, 6);
	say("%s, as it was %d", res(recvmmsg(b, m, 2, MSG_DONTWAIT, &t)), t.tv_sec == 7 && t.tv_nsec == 5);
	pthread_join(later.t, 0);
}
static void stamped(void) { // by the options that have a time of 64 bits everywhere
	const int names[] = {63, 64, 65}, values[] = {1, 1, 1 << 3 | 1 << 4}; // SO_TIMESTAMP_NEW, SO_TIMESTAMPNS_NEW, SO_TIMESTAMPING_NEW
	for (int i = 0; i < 3; i++) {
		int a, b;
		char c[200];
		pair(&a, &b);
		say("%s", res(setsockopt(b, SOL_SOCKET, names[i], &values[i], sizeof values[i])));
		ms(100); // until the kernel stamps
		give(a, "x");
		ms(50);
		struct iovec v = {in, 10};
		struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c, .msg_controllen = sizeof c};
		say("%d %s stamp %d", i, res(recvmsg(b, &h, 0)), h.msg_controllen > 0);
	}
}
static void bad_sets(void) {
	int a, b;
	pair(&a, &b);
	fd_set *bad = (fd_set *)16, some;
	for (int i = 0; i < 3; i++) {
		FD_ZERO(&some);
		FD_SET(b, &some);
		say("%d %s", i, res(select(b + 1, i == 0 ? bad : &some, i == 1 ? bad : 0, i == 2 ? bad : 0, &(struct timeval){0, 0})));
	}
}
static void many_parts(void) { // of what comes by the kernel
	static struct iovec v[1000];
	int a, b, two = 2;
	pair(&a, &b);
	for (int i = 0; i < 1000; i++) v[i] = (struct iovec){in + i, 1};
	setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &two, sizeof two);
	for (int i = 0; i < 2; i++) {
		if (write(a, big, 1500) != 1500) die("write");
		ms(50);
		if (i) nonblocking(b);
		say("%s right %d", res(readv(b, v, 1000)), !memcmp(in, big, 1000));
		say("%zu", take(b, 500));
	}
}
static void reads_all(int b) {
	reached(2);
	while (read(b, in, sizeof in) > 0) {}
	pause();
}
static void unacknowledged(void) { // SIOCOUTQ, until the other end has read everything
	int a, q = 1;
	pid_t p = peer(&a, reads_all);
	fill(a);
	nonblocking(a);
	shutdown(a, SHUT_WR);
	ioctl(a, SIOCOUTQ, &q);
	say("some %d", q > 0);
	*stage = 2;
	for (int i = 0; i < 1000 && !ioctl(a, SIOCOUTQ, &q) && q; i++) ms(10);
	say("none %d", q == 0);
	kill(p, SIGKILL);
	reap(p);
}
static void answers_by_program(int b) {
	char n[12];
	reached(2);
	if (take(b, 4) != 4) _exit(1);
	snprintf(n, sizeof n, "%d", b);
	execl("/bin/sh", "sh", "-c", "exec head -c 6 <&$0 >&$0", n, (char *)0);
	_exit(1);
}
static void asks_a_program(void) { // this end only asks for counts meanwhile
	const unsigned long asks[] = {FIONREAD, SIOCOUTQ};
	for (int i = 0; i < 2; i++) {
		int a, q = 0;
		pid_t p = peer(&a, answers_by_program);
		give(a, "0123456789");
		*stage = 2;
		for (int k = 0; k < 500 && !ioctl(a, asks[i], &q) && (q != 0) == i; k++) ms(10);
		say("%d", q);
		say("%zu %.6s", take(a, 6), in);
		reap(p);
		close(a);
	}
}
static void low_shown(void) {
	int a, b;
	pair(&a, &b);
	say("none %s", res(recv(b, in, 1, MSG_DONTWAIT)));
	say("%d %d", option(a, SOL_SOCKET, SO_RCVLOWAT), option(b, SOL_SOCKET, SO_RCVLOWAT));
}
static void bit_by_bit(void) { // bit by bit what came long ago, while the peer neither reads nor writes
	int a, b;
	pair(&a, &b);
	give(a, "unread");
	if (write(b, big, 50000) != 50000) die("write");
	ms(50);
	uint64_t had = received(b);
	size_t n = 0;
	for (double until = now() + 4; now() < until && n < 40000; usleep(300)) n += strcmp(revents(a, POLLIN, 0), "1 in") ? 0 : take(a, 2);
	say("more by the kernel %d", (int)(received(b) - had));
	say("%zu", n + take(a, 50000 - n));
	say("%zu %.6s", take(b, 6), in);
}
static void reads_to_end(int b) {
	size_t n = 0;
	ssize_t k;
	while ((k = read(b, in, sizeof in)) > 0) n += (size_t)k;
	say("%zu, then %s", n, res(k));
}
static void child_answers(int b) { // and ends without close(), while its kernel still has bytes to send
	int status = 0;
	pid_t c = fork();
	for (int i = 0; c == 0 && i < 20; i++)
		if (write(b, big, 100000) != 100000) _exit(1);
	if (c == 0) _exit(0);
	close(b);
	_exit(waitpid(c, &status, 0) == c && status == 0 ? 0 : 2);
}
static void left_to_forked(void) {
	int a;
	pid_t p = peer(&a, child_answers);
	reads_to_end(a);
	reap(p);
}
static void unreaped(void) { // a child has ended, and nobody has asked for its status
	for (int i = 0; i < 3; i++) {
		int a;
		pid_t p = peer(&a, reads_to_end), c = fork();
		siginfo_t s;
		if (c == 0) _exit(0);
		waitid(P_PID, (id_t)c, &s, WEXITED | WNOWAIT);
		if (write(a, big, (size_t)i * 1000000 + 10) != i * 1000000 + 10) die("write");
		close(a);
		reap(p);
	}
}
static void goes_on_alone(int b) { // a child, after its parent has ended without close()
	pid_t parent = getpid();
	if (fork()) kill(parent, SIGKILL);
	reached(3);
	give(b, "from the child");
	reached(4);
	say("child %zu %.3s", take(b, 3), in);
	close(b);
	*stage = 5;
	_exit(0);
}
static void orphaned(void) {
	const int later[] = {0, 100, 1500};
	for (int i = 0; i < 3; i++) {
		int a;
		pid_t p = peer(&a, goes_on_alone);
		reap(p);
		ms(later[i]);
		*stage = 3;
		say("%zu %.14s", take(a, 14), in);
		if (write(a, "yes", 3) != 3) say("write: %s", res(-1));
		*stage = 4;
		reached(5);
		say("then %s", res(read(a, in, 10)));
		close(a);
	}
}
static void exits_before_child(int b) {
	if (fork()) exit(0);
	reached(2);
	give(b, "from the child");
	_exit(0);
}
static void left_at_exit(void) { // to a child, which ends without close()
	for (int i = 0; i < 3; i++) {
		int a;
		pid_t p = peer(&a, exits_before_child);
		reap(p);
		*stage = 2;
		reads_to_end(a);
		close(a);
	}
}
#define CASES(X)                                                                                                                  \
	X(peek) X(peeks_on) X(peeks_across) X(counts) X(shown) X(in_doubt) X(waitall) X(timeouts) X(timeout_later) X(whole_timeouts) X(dontwait) X(vectors) X(messages) X(nothing) X(numbers) X(files) X(stdio) X(as_stdin) X(dprint) \
	X(polls) X(selects) X(far_timeouts) X(far_options) X(select_many) X(level) X(edge) X(edge_drained) X(edge_behind_kernel) X(closed_early) X(discarded) X(nothing_asked) X(timed_while_promoted) X(oneshot) X(oneshot_room) X(oneshot_off) X(exclusive) X(exclusive_busy) X(nested) X(sets) X(moved_set) X(edge_in_sets) X(many_sets) X(registered_first) X(two_ways_at_once) X(polls_beside_reader) X(moved_beside_reader) X(comes_and_goes) X(unwanted_as_told) X(nested_beside_reader) X(waits_beside_reader) X(polled_beside_reader) X(polled_beside_slow_reader) X(reader_beside_reader) X(spliced_beside_reader) X(timed_beside_program) X(whole_beside_program) X(only_writes) X(reset_beside_program) X(renumbered_beside_program) X(slowly) X(numbers_left) X(signalled_midway) X(urgent_beside_program) X(urgent_in_handler) X(kept_by_child) X(taken_before) X(stuck_path) X(peeked_then_polled) X(chosen) X(closed_by_child) X(used_by_duplicate) X(recalled) X(closed_after_all) X(came_before) X(one_at_a_time) X(set_polled) X(read_by_duplicate) X(promoted_meanwhile) X(closed_in_set) X(closed_unsent) X(range_above) X(by_number) X(kernel_aio) X(set_duplicated) X(resumed) X(paused) X(paused_after_much) X(moved_to_child) X(threads) X(followers) X(shared_set) X(woken) X(mixed) \
	X(beside_bytes) X(many_ends) X(ends_unasked) X(half) X(half_read) X(half_written) X(shut_reader) X(writes_to_closed) X(closed_while_writing) X(closed_by_another) X(closed_under_writer) X(reads_by_closed) X(late_for_closed) X(lingers) X(lingers_at_exit) X(answered_by_reset) X(unread) X(aborted) X(destroyed) X(left_and_reset) X(killed) X(killed_after_writing) X(killed_after_more) X(killed_after_option) X(killed_after_reading)            \
	X(killed_with_unread) X(ends_unread) X(killed_after_spill) X(killed_with_both_full) X(killed_with_one_unread) X(killed_blocks) X(survived) X(survived_pings) X(probed) X(bursts_once) X(broken_pipe) X(so_errors) X(shut_and_reset) X(reset_behind_bytes) X(exits) X(interrupts) X(files_interrupted) X(restarted_write) X(restarted_reads) X(alarmed) X(jumped) X(cancelled) X(cancelled_busy) X(cancelled_writer) X(cancelled_reader) X(cancelled_before)                \
	X(two_threads) X(two_processes) X(both_write) X(fork_server) X(forked_closes) X(cloned) X(clone_connects) X(daemons) X(fork_handlers) X(fork_in_handler) X(fork_beside_set) X(forked_early) X(child_passes) X(fork_while_writing) X(programs) X(helper) X(unrelated_programs) X(unmapped) X(shells) X(fails_to_start) X(speaks_later) X(inherits) X(left_to_child) X(inherits_from_stopped) \
	X(set_of_another) X(passed) X(passed_on) X(passed_at_end) X(passed_full) X(passed_much) X(shut_full) X(closed_full) X(closed_much) X(goes_on) X(asks_again) X(reset_half) X(ends_after_spill) X(waits_owing) X(owes) X(duplicates) X(renumbered) X(renumbered_in_poll) X(was_in_set) X(ranges) X(few) X(reused) X(options) X(maps_bytes) X(bad_memory) X(low) X(reset_then_splice) X(reset_in_messages) X(low_behind) X(counted_behind) X(shut_early) X(file_from) X(low_inherited) X(inq_early) X(low_at_end) X(low_after_token) X(oob) X(oob_passed) X(oob_last) X(async) X(async_connects) X(full) X(room) X(refill) X(writes_first) X(both_first) X(writer_waits) X(set_after_set) X(promotes_in_child) X(looked_asleep) X(bulk)      \
	X(late_connect) X(exits_writing) X(file_limit) X(address_limit) X(vfork_numbers) X(paced) X(connects_again) X(vfork_writes) X(spawns_writing) X(dontwait_beside) X(second_writer) X(without_numbers) X(messages_left) X(stamped) X(bad_sets) X(many_parts) X(unacknowledged) X(asks_a_program) X(low_shown) X(left_by_many) X(bad_lengths) X(own_table) X(own_range) X(other_pids) X(bit_by_bit) X(deep_bound) X(unreaped) X(left_to_forked) X(orphaned) X(left_at_exit)

int main(int argc, char **argv) {
	if (argc < 2) return 2;
	family = argv[1][0];
	for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 2654435761u >> 16);
	const struct { const char *name; void (*f)(void); } cases[] = {
#define CASE(f) {#f, f},
		CASES(CASE)};
	int failed = 0;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		if (!strcmp(argv[1], "list")) {
			puts(cases[i].name);
			continue;
		}
		if (argc > 2 && strcmp(argv[2], cases[i].name)) continue;
		name = cases[i].name;
		fflush(stdout);
		pid_t p = fork();
		if (p == 0) {
			setpgid(0, 0);
			cases[i].f();
			fflush(stdout);
			_exit(0);
		}
		int status = -1;
		double at = now();
		while (waitpid(p, &status, WNOHANG) == 0) {
			usleep(2000);
			if (now() - at < WITHIN) continue;
			say("HANGS");
			if (getenv("SEMANTICS_STOP")) {
				say("pid %d", p);
				pause();
			}
			kill(-p, SIGKILL);
			waitpid(p, &status, 0);
			break;
		}
		if (WIFSIGNALED(status)) say("signal %d", WTERMSIG(status));
		if (status) failed = 1;
		kill(-p, SIGKILL); // kill what the case has left
	}
	return failed;
}
