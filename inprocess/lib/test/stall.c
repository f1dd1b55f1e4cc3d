// stall HOW: a peer tries to make a writer wait that must not. No call of the writer may sleep for long, nor may close(). Only calls in which
// the writer slept count: a busy machine may leave it off the CPU for a while, which is not its fault.
//
// HOW is "tokens" (the peer arms its doorbell for every byte and never takes a token), "frozen" (the peer recalls and freezes the ring, and
// reads nothing) or "stopped" (SIGSTOP).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "promoted.h"
#include "rounds.h"

#define FOR 3.0
#define SOON 0.01
#define SOON_CLOSED 0.5

static long sleeps(void) {
	struct rusage r;
	getrusage(RUSAGE_THREAD, &r);
	return r.ru_nvcsw;
}
static void fail(const char *what) {
	printf("FAIL %s (%m)\n", what);
	fflush(stdout);
	_exit(1);
}
static void peer(const struct sockaddr_in *s, const char *how) {
	char b[64] = "warm";
	int fd = socket(AF_INET, SOCK_STREAM, 0), small = 4096;
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	if (connect(fd, (const struct sockaddr *)s, sizeof *s) < 0) fail("connect");
	for (int i = 0, good = 0; i < 2000 && good < 3; i++) {
		uint64_t had = received(fd);
		if (write(fd, b, sizeof b) != sizeof b) fail("write");
		for (size_t n = 0; n < sizeof b;) {
			ssize_t k = read(fd, b, sizeof b - n);
			if (k <= 0) fail("read");
			n += (size_t)k;
		}
		good = received(fd) - had < sizeof b ? good + 1 : 0;
		if (i > 20) usleep(500);
		if (!getenv("LD_PRELOAD") && i > 50) break;
	}
	struct smci_end *e = own();
	if (getenv("LD_PRELOAD") && !e) fail("not promoted");
	if (write(fd, "!", 1) != 1) fail("write");
	if (!strcmp(how, "stopped")) raise(SIGSTOP);
	for (uint32_t i = 1; e && !strcmp(how, "tokens"); i++) e->arm = i << 8 | SMCI_ARM_SELF;
	usleep(500000);
	if (e && !strcmp(how, "frozen")) e->flags |= SMCI_RECALL | SMCI_FROZEN;
	for (;;) pause();
}

int main(int argc, char **argv) {
	struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t l = sizeof s;
	static char b[65536];
	if (argc < 2) return 2;
	signal(SIGPIPE, SIG_IGN);
	int from = socket(AF_INET, SOCK_STREAM, 0), small = 4096;
	if (!strcmp(argv[1], "tokens")) setsockopt(from, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	if (bind(from, (struct sockaddr *)&s, l) < 0 || listen(from, 1) < 0 || getsockname(from, (struct sockaddr *)&s, &l) < 0) fail("listen");
	pid_t p = fork();
	if (p == 0) peer(&s, argv[1]);
	int fd = accept(from, 0, 0), ep = epoll_create1(0);
	for (;;) {
		ssize_t n = read(fd, b, 64);
		if (n <= 0) fail("the peer has ended");
		if (b[n - 1] == '!') break;
		if (write(fd, b, (size_t)n) != n) fail("write");
	}
	fcntl(fd, F_SETFL, O_NONBLOCK);
	struct epoll_event v = {EPOLLIN | EPOLLOUT, {.fd = fd}};
	epoll_ctl(ep, EPOLL_CTL_ADD, fd, &v);
	if (!strcmp(argv[1], "frozen")) { // leave bytes in the ring, without filling it
		if (write(fd, b, 40000) != 40000) fail("write");
		usleep(1000000);
	}
	double longest = 0, at, until = now() + FOR;
	size_t size = !strcmp(argv[1], "tokens") ? 1 : sizeof b, full = 0;
	while (now() < until) {
		long slept = sleeps();
		at = now();
		ssize_t n = write(fd, b, size);
		int err = errno;
		if (now() - at > longest && sleeps() != slept) longest = now() - at;
		errno = err;
		if (n >= 0) continue;
		if (errno != EAGAIN) break; // the library has detected the peer and ended the connection
		full++;
		int k = epoll_wait(ep, &v, 1, 20);
		if (k == 1 && (v.events & EPOLLIN)) (void)!read(fd, b, sizeof b);
	}
	if (full > FOR / 0.02 * 5) fail("EPOLLOUT and EAGAIN in turn");
	at = now();
	close(fd);
	double closing = now() - at;
	kill(p, SIGKILL);
	waitpid(p, 0, 0);
	if (longest > SOON || closing > SOON_CLOSED) {
		printf("FAIL: a call took %.3f s, close() %.3f s\n", longest, closing);
		return 1;
	}
	printf("ok\n");
	if (getenv("STALL_SHOW")) printf("%.6f %.6f full %zu\n", longest, closing, full);
	return 0;
}
