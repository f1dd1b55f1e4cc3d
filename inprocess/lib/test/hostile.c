// hostile FAMILY ROUNDS SEED: peers write nonsense into the memory that they share with a server, and into the server's own where they may.
// Only their own connections may suffer: the server must survive and reach the end of each of them, and an honest client must get every
// answer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "promoted.h"
#include "rounds.h"

#define END_WITHIN 10.0

static struct shared {
	_Atomic uint64_t answers, opened, closed, promoted, others, nonsense;
	_Atomic bool stop;
} *shared;
static struct sockaddr_storage server;
static socklen_t server_len;

static void fail(const char *what, long n) {
	printf("FAIL %s: %ld (%s)\n", what, n, strerror(errno));
	fflush(stdout);
	_exit(1);
}

// ---- the server: each connection waits in one of four ways

static void *serve(void *x) {
	int fd = (int)(long)x, way = (int)(shared->opened % 4), ep = epoll_create1(0);
	char b[30000];
	struct epoll_event v = {EPOLLIN | (way == 3 ? EPOLLET : 0), {.fd = fd}};
	if (way >= 2) epoll_ctl(ep, EPOLL_CTL_ADD, fd, &v);
	if (way) fcntl(fd, F_SETFL, O_NONBLOCK);
	for (;;) {
		struct pollfd p = {fd, POLLIN, 0};
		if (way == 1) poll(&p, 1, -1);
		if (way >= 2) epoll_wait(ep, &v, 1, -1);
		for (;;) {
			ssize_t n = read(fd, b, sizeof b);
			if (n < 0 && errno == EAGAIN) break;
			if (n <= 0) goto out;
			for (ssize_t done = 0; done < n;) {
				ssize_t k = write(fd, b + done, (size_t)(n - done));
				if (k < 0 && errno != EAGAIN) goto out;
				if (k > 0) done += k;
				p.events = POLLOUT;
				if (k < 0) poll(&p, 1, -1);
			}
			if (way != 3) break;
		}
	}
out:
	close(ep);
	close(fd);
	shared->closed++;
	return 0;
}
static void run_server(int l) {
	signal(SIGPIPE, SIG_IGN);
	for (;;) {
		int fd = accept(l, 0, 0);
		pthread_t t;
		if (fd < 0) continue;
		shared->opened++;
		if (pthread_create(&t, 0, serve, (void *)(long)fd)) fail("thread", 0);
		pthread_detach(t);
	}
}

// ---- clients

static int dial(void) {
	int fd = socket(server.ss_family, SOCK_STREAM, 0);
	struct timeval t = {10, 0};
	if (connect(fd, (struct sockaddr *)&server, server_len) < 0) fail("connect", fd);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
	return fd;
}
static bool ask(int fd, const char *b, char *to, size_t n) {
	if (write(fd, b, n) != (ssize_t)n) return false;
	for (size_t done = 0; done < n;) {
		ssize_t k = read(fd, to + done, n - done);
		if (k <= 0) return false;
		done += (size_t)k;
	}
	return !memcmp(b, to, n);
}
static void run_honest(uint64_t x) {
	static char b[20000], to[20000];
	int fd = dial();
	for (size_t i = 0; i < sizeof b; i++) b[i] = (char)draw(&x);
	while (!shared->stop) {
		size_t n = 1 + draw(&x) % 2000, at = draw(&x) % (sizeof b - n);
		if (draw(&x) % 50 == 0) n = sizeof b - at;
		if (!ask(fd, b + at, to, n)) fail("the honest client's answer", (long)shared->answers);
		shared->answers++;
	}
	close(fd);
}

static uint64_t nonsense(uint64_t *x, uint64_t was) {
	uint64_t r = draw(x);
	switch (r >> 60 & 7) {
	case 0: return was + 1;
	case 1: return was - 1;
	case 2: return was + (r & 0xffff);
	case 3: return was + (r & 0xffffffff);
	case 4: return 0;
	case 5: return ~0ull;
	case 6: return was ^ 1ull << (r & 63);
	default: return r;
	}
}
static void scribble(struct smci_end *e, uint64_t *x, uint32_t words) {
	struct smci_transition *t = &e->x[draw(x) % SMCI_TRANSITIONS];
#define SPOIL(bit, word) if (words >> (bit) & 1) word = (__typeof__(word + 0))nonsense(x, word)
	SPOIL(0, e->head);
	SPOIL(1, e->base);
	SPOIL(2, e->ksent);
	SPOIL(3, e->order);
	SPOIL(4, e->nx);
	SPOIL(5, e->want);
	SPOIL(6, e->tail);
	SPOIL(7, e->cx);
	SPOIL(8, e->arm);
	SPOIL(9, e->room);
	SPOIL(10, e->flags);
	SPOIL(11, t->r);
	SPOIL(12, t->k);
	SPOIL(13, e->reach);
	SPOIL(14, e->wish);
	shared->nonsense++;
}
static char b[1000], to[1000];
static int promoted(void) {
	int fd = dial(), good = 0;
	double until = now() + 2;
	for (int i = 0; good < 3 && now() < until; i++) {
		uint64_t had = received(fd);
		if (!ask(fd, b, to, sizeof b)) fail("before anything", i);
		good = received(fd) - had < sizeof b ? good + 1 : 0;
		if (i > 20) usleep(500);
	}
	return fd;
}
#define END "memfd:smcgw-end", SMCI_RING_AT + (1 << SMCI_ORDER_MIN)
// run_beyond sets a larger order in the server's own end than the server has mapped, and a base by which the next byte lies beyond the
// mapping. The server must not write there.
static void run_beyond(void) {
	int fd = promoted();
	struct smci_end *e = theirs(END);
	if (!own() || !e) _exit(0); // native, or not allowed to write there
	if (theirs("memfd:smcgw-desk", sizeof(struct smci_desk))) fail("a peer can write to the server's desk", 0);
	const uint64_t size = 1ull << SMCI_ORDER_MIN;
	for (int i = 0; i < 2; i++) { // the first answer stays unread, so that the ring's base does not change
		uint64_t head = e->head;
		memset(b, 'x' + i, sizeof b);
		if (i) {
			e->order = 40;
			e->base = head - 3 * size - 7;
		}
		if (write(fd, b, sizeof b) != sizeof b) fail("write beside nonsense", i);
		for (double until = now() + 5; e->head != head + sizeof b;)
			if (now() > until) fail("no answer is in the ring", i);
		if (i && memcmp((char *)e + SMCI_RING_AT + ((head - e->base) & (size - 1)), b, sizeof b)) fail("the server has written beyond its ring", i);
	}
	_exit(0);
}
static void run_hostile(uint64_t x) {
	int fd = promoted();
	struct smci_end *e = own();
	if (!e) _exit(0); // native: nothing to spoil
	shared->promoted++;
	signal(SIGSEGV, SIG_DFL);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	uint32_t words = draw(&x) & 1 ? 1u << draw(&x) % 15 : (uint32_t)draw(&x) & 0x7fff;
	struct smci_end *other = draw(&x) % 4 == 0 ? theirs(END) : 0;
	if (other) shared->others++;
	double until = now() + 0.005 + (double)(draw(&x) % 20000) / 1e6;
	for (int i = 0; now() < until; i++) {
		uint64_t r = draw(&x);
		if (r % 3 == 0) scribble(other ? other : e, &x, words);
		if (r % 5 == 1) (void)!write(fd, b, 1 + (r >> 20) % sizeof b); // a peer may break its own library
		if (r % 7 == 2) (void)!read(fd, to, sizeof to);
		if (r % 64 == 3) usleep(200);
	}
	if (draw(&x) & 1) kill(getpid(), SIGKILL);
	_exit(0);
}

int main(int argc, char **argv) {
	if (argc < 4) return 2;
	uint64_t x = (strtoull(argv[3], 0, 10) + 1) * 0x9e3779b97f4a7c15ull;
	int rounds = atoi(argv[2]);
	setvbuf(stdout, 0, _IOLBF, 0);
	shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (argv[1][0] == '4') {
		*(struct sockaddr_in *)&server = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
		server_len = sizeof(struct sockaddr_in);
	} else {
		*(struct sockaddr_in6 *)&server = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
		server_len = sizeof(struct sockaddr_in6);
	}
	int l = socket(server.ss_family, SOCK_STREAM, 0);
	if (bind(l, (struct sockaddr *)&server, server_len) < 0 || listen(l, 64) < 0 || getsockname(l, (struct sockaddr *)&server, &server_len) < 0) fail("listen", l);
	pid_t s = fork();
	if (s == 0) run_server(l);
	pid_t h = fork();
	if (h == 0) {
		run_honest(x);
		exit(0);
	}
	close(l);
	int status;
	pid_t beyond = fork();
	if (beyond == 0) run_beyond();
	waitpid(beyond, &status, 0);
	if (status) return 1;
	for (int r = 0; r < rounds; r++) {
		uint64_t seed = draw(&x), answers = shared->answers;
		pid_t p = fork();
		if (p == 0) run_hostile(seed | 1);
		double until = now() + END_WITHIN;
		while (waitpid(p, &status, WNOHANG) == 0) {
			usleep(1000);
			if (now() < until) continue;
			kill(p, SIGKILL); // its own nonsense may have hung it
			waitpid(p, &status, 0);
			break;
		}
		if (WIFEXITED(status) && WEXITSTATUS(status)) return 1;
		until = now() + END_WITHIN;
		while (shared->opened - shared->closed > 1 || shared->answers == answers) {
			if (waitpid(s, &status, WNOHANG) == s) fail("the server died of round", r);
			if (waitpid(h, &status, WNOHANG) == h) fail("the honest client ended in round", r);
			if (now() > until) fail(shared->answers == answers ? "no answer in round" : "the server does not come to an end in round", r + (getenv("HOSTILE_STOP") ? (pause(), 0) : 0));
			usleep(500);
		}
	}
	shared->stop = true;
	waitpid(h, &status, 0);
	if (status) fail("the honest client", status);
	kill(s, SIGKILL);
	waitpid(s, &status, 0);
	printf("ok: %d rounds, promoted %lu, in the server's memory %lu, nonsense %lu, answers %lu\n", rounds, shared->promoted, shared->others, shared->nonsense, shared->answers);
	return 0;
}
