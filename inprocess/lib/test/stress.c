// stress MODES FAMILY SECONDS SEED [WINDOW]: one connection, both directions at once, every byte checked.
//
// MODES has one letter for each end: b threads that block, q the same with poll() before each call, l e o epoll (level, edge, one shot),
// p poll, s select. In upper case both ends are threads of one process. FAMILY is 4, 6 or m (IPv4 mapped into IPv6).
// WINDOW is SO_SNDBUF and SO_RCVBUF. With HOW and ROUNDS there are so many connections, of which one end is killed (k) or stopped for a
// while (s) at some moment; a ? in MODES is another mode in each round. What the other end has read must be a beginning of what was
// sent, all of it unless it was reset, and it must come to its end in time.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PERIOD 1048573 // a prime, so that a shift by any size of a buffer shows
#define LARGEST 300000
#define STALL 20.0 // seconds without a byte
#define END_WITHIN 5.0 // after the other end was killed; natively at once, but the machine may be busy

static unsigned char stream[2][PERIOD + LARGEST]; // what each end sends, over and over
struct end {
	int side, fd;
	char mode;
	uint64_t reads, writes; // states of random numbers
	int kind;               // of sizes, for a while
};
static struct shared {
	_Atomic uint64_t begun[2], sent[2], got[2], spurious[2], again[2], peeks[2];
	_Atomic bool begins[2], done[2], reset[2], failed;
	bool kills;
} *shared;
static double until;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static uint64_t draw(uint64_t *x) {
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x * 0x2545f4914f6cdd1dull;
}
static void fail(const char *what, int side, uint64_t at, long n) {
	int err = errno;
	shared->failed = true;
	printf("FAIL %s: side %d at %lu: %ld (%s)\n", what, side, at, n, strerror(err));
	fflush(stdout);
	if (getenv("STRESS_STOP")) pause();
	_exit(1);
}
static void check(struct end *e, const unsigned char *b, size_t n, const char *what) {
	uint64_t at = shared->got[e->side];
	const unsigned char *want = stream[!e->side] + at % PERIOD;
	if (!memcmp(b, want, n)) return;
	size_t i = 0;
	while (b[i] == want[i]) i++;
	printf("WRONG BYTE %02x, not %02x, %zu of %zu\n", b[i], want[i], i, n);
	fail(what, e->side, at, (long)n);
}

// size is mostly small or mostly large for a while: a ring that is always full hides what happens when it becomes empty.
static size_t size(struct end *e, uint64_t *x) {
	uint64_t r = draw(x);
	if (!(r >> 16 & 511)) e->kind = (int)(r >> 32 & 3);
	switch (e->kind) {
	case 0: return 1 + r % 64;
	case 1: return 1 + r % 4096;
	case 2: return r >> 40 & 3 ? 1 + r % 65536 : 1 + r % LARGEST;
	default: return r >> 40 & 1 ? 1 + r % 100 : 1 + r % 20000;
	}
}
static void rest(uint64_t *x) {
	uint64_t r = draw(x);
	if (!(r & 1023)) usleep((unsigned)(r >> 32 & 2047));
	else if (!(r & 63)) sched_yield();
}

static ssize_t take(struct end *e, bool nonblock) {
	static __thread unsigned char b[LARGEST];
	uint64_t r = draw(&e->reads);
	size_t n = size(e, &e->reads);
	ssize_t k;
	int q;
	rest(&e->reads);
	switch (r >> 8 & 15) {
	case 0:
		k = recv(e->fd, b, n, MSG_PEEK | (r >> 20 & 1 ? MSG_DONTWAIT : 0));
		if (k < 0 && errno == ECONNRESET) shared->reset[e->side] = true; // the kernel says it once
		if (k > 0) {
			check(e, b, (size_t)k, "peek");
			shared->peeks[e->side]++;
			int had = (int)k;
			if (ioctl(e->fd, FIONREAD, &q) < 0 || q < had) fail("FIONREAD after a peek", e->side, shared->got[e->side], q - had);
		}
		break;
	case 1:
		if (ioctl(e->fd, FIONREAD, &q) < 0 || q < 0) fail("FIONREAD", e->side, shared->got[e->side], q);
		break;
	}
	struct iovec v[3] = {{b, 1}, {b + 1, n / 2}, {b + 1 + n / 2, n - 1 - n / 2}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
	switch (r & 15) {
	case 0: k = recv(e->fd, b, n, n < 5000 ? MSG_WAITALL : 0); break;
	case 1: k = readv(e->fd, v, 3); break;
	case 2: k = recvmsg(e->fd, &h, 0); break;
	case 3: k = recvfrom(e->fd, b, n, nonblock ? MSG_DONTWAIT : 0, 0, 0); break;
	default: k = read(e->fd, b, n);
	}
	if (k > 0) {
		check(e, b, (size_t)k, "read");
		shared->got[e->side] += (uint64_t)k;
	}
	return k;
}
static ssize_t give(struct end *e) {
	uint64_t r = draw(&e->writes);
	size_t n = size(e, &e->writes);
	unsigned char *p = stream[e->side] + shared->sent[e->side] % PERIOD;
	struct iovec v[3] = {{p, 1}, {p + 1, n / 2}, {p + 1 + n / 2, n - 1 - n / 2}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
	ssize_t k;
	rest(&e->writes);
	shared->begun[e->side] = shared->sent[e->side] + n;
	switch (r & 15) {
	case 0: k = writev(e->fd, v, 3); break;
	case 1: k = sendmsg(e->fd, &h, MSG_NOSIGNAL); break;
	case 2: k = send(e->fd, p, n, MSG_NOSIGNAL | MSG_MORE); break;
	default: k = write(e->fd, p, n);
	}
	if (k > 0) shared->sent[e->side] += (uint64_t)k;
	return k;
}

static void await(struct end *e, short what) {
	struct pollfd p = {e->fd, what, 0};
	if (e->mode == 'q' && poll(&p, 1, -1) != 1) fail("poll", e->side, 0, p.revents);
}
// gone: the other end was killed, and this is what a call says then.
static bool gone(struct end *e) {
	if (!shared->kills || (errno != ECONNRESET && errno != EPIPE)) return false;
	shared->reset[e->side] = true;
	return true;
}
static void *reader(void *a) {
	struct end *e = a;
	for (;;) {
		await(e, POLLIN);
		ssize_t k = take(e, false);
		if (k == 0 || (k < 0 && gone(e))) return 0;
		if (k < 0 && errno != EAGAIN) fail("read", e->side, shared->got[e->side], k);
	}
}
static void *writer(void *a) {
	struct end *e = a;
	while (now() < until) {
		await(e, POLLOUT);
		if (give(e) >= 0) continue;
		if (gone(e)) return 0;
		fail("write", e->side, shared->sent[e->side], -1);
	}
	shutdown(e->fd, SHUT_WR);
	return 0;
}

// ready waits for what is asked for.
static short ready(struct end *e, int ep, short want) {
	if (e->mode == 'p') {
		struct pollfd p = {e->fd, want, 0};
		if (poll(&p, 1, -1) != 1) fail("poll", e->side, 0, p.revents);
		return (short)(p.revents | (p.revents & (POLLHUP | POLLERR) ? POLLIN | POLLOUT : 0));
	}
	if (e->mode == 's') {
		fd_set r, w;
		FD_ZERO(&r);
		FD_ZERO(&w);
		if (want & POLLIN) FD_SET(e->fd, &r);
		if (want & POLLOUT) FD_SET(e->fd, &w);
		if (select(e->fd + 1, &r, &w, 0, 0) < 1) fail("select", e->side, 0, -1);
		return (short)((FD_ISSET(e->fd, &r) ? POLLIN : 0) | (FD_ISSET(e->fd, &w) ? POLLOUT : 0));
	}
	struct epoll_event v;
	int n;
	while ((n = epoll_wait(ep, &v, 1, -1)) < 0 && errno == EINTR) {}
	if (n != 1 || v.data.fd != e->fd) fail("epoll_wait", e->side, 0, n);
	return (short)((v.events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? POLLIN : 0) | (v.events & (EPOLLOUT | EPOLLHUP | EPOLLERR) ? POLLOUT : 0));
}
static void events(struct end *e) {
	bool edge = e->mode == 'e', once = e->mode == 'o', epoll = edge || once || e->mode == 'l';
	int ep = epoll ? epoll_create1(0) : -1;
	short want = POLLIN | POLLOUT, set = want;
	struct epoll_event v = {EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0) | (once ? EPOLLONESHOT : 0), {.fd = e->fd}};
	fcntl(e->fd, F_SETFL, O_NONBLOCK);
	if (epoll && epoll_ctl(ep, EPOLL_CTL_ADD, e->fd, &v) < 0) fail("epoll_ctl", e->side, 0, ep);
	while (want) {
		short got = ready(e, ep, want);
		for (bool first = true; (got & want & POLLIN); first = false) {
			ssize_t k = take(e, true);
			if (k == 0 || (k < 0 && gone(e))) want &= (short)~POLLIN;
			else if (k < 0 && errno != EAGAIN) fail("read", e->side, shared->got[e->side], k);
			if (k < 0 && errno == EAGAIN) shared->again[e->side]++;
			if (k < 0 && errno == EAGAIN && first && !edge) shared->spurious[e->side]++;
			if (k <= 0 || (!edge && draw(&e->reads) & 1)) break;
		}
		while (got & want & POLLOUT) {
			if (now() > until) {
				shutdown(e->fd, SHUT_WR);
				want &= (short)~POLLOUT;
				break;
			}
			ssize_t k = give(e);
			if (k < 0 && gone(e)) want &= (short)~POLLOUT;
			else if (k < 0 && errno != EAGAIN) fail("write", e->side, shared->sent[e->side], k);
			if (k < 0 || (!edge && draw(&e->writes) & 1)) break;
		}
		if (!epoll || edge || (!once && set == want)) continue;
		v.events = (want & POLLIN ? EPOLLIN : 0) | (want & POLLOUT ? EPOLLOUT : 0) | (once ? EPOLLONESHOT : 0);
		set = want;
		if (epoll_ctl(ep, EPOLL_CTL_MOD, e->fd, &v) < 0) fail("epoll_ctl", e->side, 0, ep);
	}
	if (ep >= 0) close(ep);
}

static void *run(void *a) {
	struct end *e = a;
	shared->begins[e->side] = true;
	if (e->mode == 'b' || e->mode == 'q') {
		struct end w = *e;
		pthread_t t;
		pthread_create(&t, 0, writer, &w);
		reader(e);
		pthread_join(t, 0);
	} else {
		events(e);
	}
	close(e->fd);
	shared->done[e->side] = true;
	return 0;
}

static int family(char c) { return c == '4' ? AF_INET : AF_INET6; }
static void address(char c, struct sockaddr_storage *s, in_port_t port) {
	memset(s, 0, sizeof *s);
	if (c == '4') {
		struct sockaddr_in *a = (struct sockaddr_in *)s;
		*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = port, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	} else {
		struct sockaddr_in6 *a = (struct sockaddr_in6 *)s;
		a->sin6_family = AF_INET6;
		a->sin6_port = port;
		inet_pton(AF_INET6, c == '6' ? "::1" : "::ffff:127.0.0.1", &a->sin6_addr);
	}
}
static void buffers(int fd, int n) {
	if (!n) return;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &n, sizeof n);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &n, sizeof n);
}

// judge says what the other end of one that was killed has seen.
static void judge(int dead) {
	int side = !dead;
	uint64_t got = shared->got[side];
	if (got > shared->begun[dead]) fail("more than was sent", side, got, (long)shared->begun[dead]);
	if (!shared->reset[side] && got < shared->sent[dead]) fail("an end before the end", side, got, (long)(shared->sent[dead] - got));
}

static void connection(const char *modes, char c, double seconds, uint64_t seed, int window, char how) {
	struct sockaddr_storage s;
	struct end end[2];
	pthread_t thread[2];
	pid_t pid[2];
	bool one = isupper(modes[0]);
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull;
	memset(shared, 0, sizeof *shared);
	shared->kills = how == 'k';
	for (int i = 0; i < 2; i++)
		end[i] = (struct end){i, -1, (char)tolower(modes[i]), (seed * 4 + 1 + (unsigned)i) * 0x9e3779b97f4a7c15ull, (seed * 4 + 3 + (unsigned)i) * 0x9e3779b97f4a7c15ull, 3};
	int l = socket(family(c), SOCK_STREAM, 0);
	address(c, &s, 0);
	socklen_t n = sizeof s;
	buffers(l, window);
	if (bind(l, (struct sockaddr *)&s, sizeof s) < 0 || listen(l, 1) < 0 || getsockname(l, (struct sockaddr *)&s, &n) < 0) fail("listen", 0, 0, l);
	until = now() + seconds;
	for (int i = 0; i < 2; i++) {
		if (!one && (pid[i] = fork()) > 0) continue;
		signal(SIGPIPE, SIG_IGN);
		end[i].fd = i ? accept(l, 0, 0) : socket(family(c), SOCK_STREAM, 0);
		buffers(end[i].fd, window);
		if (!i && connect(end[i].fd, (struct sockaddr *)&s, n) < 0) fail("connect", 0, 0, 0);
		if (one) {
			pthread_create(&thread[i], 0, run, &end[i]);
			continue;
		}
		close(l);
		run(&end[i]);
		fflush(stdout);
		exit(0);
	}
	close(l);
	while (!(shared->begins[0] && shared->begins[1]) && now() < until + STALL) usleep(100);
	uint64_t last = 0;
	int victim = (int)(draw(&x) & 1);
	double began = now(), at = began, gap = 0, when = (double)(draw(&x) % 1000000) / 1e6, killed = 0;
	when = began + when * when * when * seconds; // rather early than late
	while (!(shared->done[0] && shared->done[1]) && !shared->failed) {
		double left = how && !killed && when > now() ? when - now() : 0.002;
		usleep((unsigned)((left < 0.002 ? left : 0.002) * 1e6) + 1);
		if (how && !killed && now() >= when) {
			killed = now();
			kill(pid[victim], how == 'k' ? SIGKILL : SIGSTOP);
			if (how == 's') {
				usleep((unsigned)(draw(&x) % 50000));
				kill(pid[victim], SIGCONT);
			}
		}
		if (how == 'k' && killed) {
			if (shared->done[!victim]) break;
			if (now() - killed > END_WITHIN) fail("no end after the other's", !victim, shared->got[!victim], pid[!victim]);
		}
		uint64_t sum = shared->got[0] + shared->got[1] + shared->sent[0] + shared->sent[1];
		if (sum != last) {
			last = sum;
			at = now();
		}
		if (now() - at > gap) gap = now() - at;
		if (gap < STALL) continue;
		errno = 0;
		printf("sent %lu %lu got %lu %lu pids %d %d\n", shared->sent[0], shared->sent[1], shared->got[0], shared->got[1], one ? getpid() : pid[0], one ? 0 : pid[1]);
		if (!one && !getenv("STRESS_STOP")) {
			kill(pid[0], SIGKILL);
			kill(pid[1], SIGKILL);
		}
		fail("stall", 0, last, 0);
	}
	bool dies = how == 'k' && killed && !shared->done[victim];
	for (int i = 0; i < 2; i++) {
		int status = 0;
		if (one) pthread_join(thread[i], 0);
		else if (waitpid(pid[i], &status, 0) != pid[i] || (status && !(how == 'k' && i == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))) shared->failed = true;
	}
	if (shared->failed) fail("an end has failed", 0, 0, 0);
	if (dies) judge(victim);
	else if (shared->got[0] != shared->sent[1] || shared->got[1] != shared->sent[0]) fail("bytes are missing", 0, shared->sent[1] - shared->got[0], (long)(shared->sent[0] - shared->got[1]));
	if (!how) printf("ok: sent %lu %lu, peeks %lu %lu, spurious %lu %lu of %lu %lu, longest gap %.3f s\n", shared->sent[0], shared->sent[1], shared->peeks[0], shared->peeks[1],
	       shared->spurious[0], shared->spurious[1], shared->again[0], shared->again[1], gap);
}

int main(int argc, char **argv) {
	if (argc < 5 || strlen(argv[1]) != 2) return 2;
	uint64_t seed = strtoull(argv[4], 0, 10), x = (seed + 1) * 0x9e3779b97f4a7c15ull;
	int window = argc > 5 ? atoi(argv[5]) : 0, rounds = argc > 7 ? atoi(argv[7]) : 1;
	char how = argc > 7 ? argv[6][0] : 0, modes[3] = "";
	setvbuf(stdout, 0, _IOLBF, 0);
	shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) return 2;
	for (int i = 0; i < 2; i++) {
		uint64_t y = 88172645463325252ull + (unsigned)i;
		for (int j = 0; j < PERIOD; j++) stream[i][j] = (unsigned char)(draw(&y) >> 20);
		memcpy(stream[i] + PERIOD, stream[i], LARGEST);
	}
	for (int r = 0; r < rounds; r++) {
		for (int i = 0; i < 2; i++) modes[i] = argv[1][i] == '?' ? "bqleops"[draw(&x) % 7] : argv[1][i];
		if (getenv("STRESS_SHOW")) printf("round %d: %s seed %lu\n", r, modes, seed + (unsigned)r);
		connection(modes, argv[2][0], atof(argv[3]), seed + (unsigned)r, window, how);
	}
	if (how) printf("ok: %d rounds\n", rounds);
	return 0;
}
