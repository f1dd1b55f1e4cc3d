// A process meets a second broker while it runs. Its event loop must wake for connections that either broker promoted. With a port, it
// writes to a server there.
#include <err.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pair.h"
#include "promoted.h"
#include "rounds.h"

enum { ROUNDS = 5, CONNECTIONS = 2 };
static int ep, c[CONNECTIONS], s[CONNECTIONS];

static void ping(int i) {
	char b;
	if (send(c[i], "x", 1, 0) != 1 || recv(s[i], &b, 1, 0) != 1) err(1, "ping");
}
static bool promotes(int i) { // within 20 seconds; a native connection never is
	for (double until = now() + 20; now() < until; usleep(10000)) {
		uint64_t had = received(s[i]);
		for (int k = 0; k < 10; k++) ping(i);
		if (received(s[i]) - had < 10) return true;
	}
	return false;
}
static void *loop(void *x) {
	struct epoll_event v;
	char b;
	(void)x;
	if (epoll_wait(ep, &v, 1, 5000) != 1 || recv(v.data.fd, &b, 1, 0) != 1 || recv(v.data.fd, &b, 1, MSG_DONTWAIT) >= 0) err(1, "loop");
	return 0;
}

static long broker(void) { // identifies a broker by the change time of its socket; 0 if there is none
	struct stat st;
	const char *path = getenv("SMCGW_SOCKET");
	return path && !stat(path, &st) ? st.st_ctim.tv_sec * 1000000000 + st.st_ctim.tv_nsec : 0;
}

// writes sends to a server until that closes the connection, and never reads.
static void writes(int port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(fd, (void *)&a, sizeof a)) err(1, "connect");
	while (send(fd, "x", 1, MSG_NOSIGNAL) == 1) usleep(1000);
}

int main(int argc, char **argv) {
	long first = broker();
	int late = 0;
	alarm(60);
	if (argc > 1) {
		writes(atoi(argv[1]));
		return 0;
	}
	ep = epoll_create1(0);
	for (int n = 0; n < CONNECTIONS; n++) {
		pair(&c[n], &s[n]);
		if (first && !promotes(n)) errx(1, "connection %d is not promoted", n);
		struct epoll_event v = {EPOLLIN, {.fd = s[n]}};
		if (epoll_ctl(ep, EPOLL_CTL_ADD, s[n], &v)) err(1, "epoll_ctl");
		for (int i = 0; i < ROUNDS * (n + 1); i++) {
			pthread_t t;
			pthread_create(&t, 0, loop, 0);
			usleep(20000);
			double at = now();
			if (send(c[i % (n + 1)], "x", 1, 0) != 1) err(1, "send");
			pthread_join(t, 0);
			late += now() - at > 2;
		}
		while (first && !n && (!broker() || broker() == first)) usleep(10000);
	}
	printf("late: %d\n", late);
}
