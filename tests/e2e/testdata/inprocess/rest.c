// A connection at rest:
//   rest serve PORT                   answers each 64 bytes by as many, one connection at a time; and the end of the questions, later
//   rest ask ADDRESS PORT ROUNDS      asks until SIGTERM and that often, waits for the peer's kernel to have everything, and then for the end
//   rest tell ADDRESS PORT ROUNDS     asks as long, and after a while only writes, now and then
//   rest end ADDRESS PORT ROUNDS      asks as long, ends its direction, and waits for the answer to that
//   rest leave ADDRESS PORT ROUNDS    asks as long, writes what is taken in two seconds, in which nothing is read, and is killed
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static char b[64], big[10000];

static void die(const char *what) {
	printf("error %s: %s\n", what, strerror(errno));
	exit(1);
}
static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
static struct sockaddr_in address(const char *ip, const char *port) {
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
	if (inet_pton(AF_INET, ip, &a.sin_addr) != 1) die("address");
	return a;
}
static void takes_all(int s) {
	ssize_t k;
	size_t n = sizeof b;
	sleep(3);
	while ((k = read(s, big, sizeof big)) > 0) n += (size_t)k;
	printf("got %zu, then %s\n", n, k ? strerror(errno) : "the end");
}
static void serve(const char *port) {
	struct sockaddr_in a = address("0.0.0.0", port);
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(l, (void *)&a, sizeof a) < 0 || listen(l, 8) < 0) die("listen");
	puts("serving");
	for (;;) {
		int s = accept(l, 0, 0);
		if (s < 0) die("accept");
		ssize_t n;
		while ((n = recv(s, b, sizeof b, MSG_WAITALL)) == sizeof b)
			if (b[0] == 't') puts("told");
			else if (b[0] == 'l') takes_all(s);
			else if (write(s, b, sizeof b) != sizeof b) break;
		if (!n) {
			puts("no more questions");
			sleep(1);
			if (write(s, b, sizeof b) == sizeof b) poll(&(struct pollfd){s, 0, 0}, 1, 60000); // until the peer is gone
		}
		close(s);
	}
}
// The signal interrupts no call: it stays pending, unless a thread of the library takes it.
static volatile sig_atomic_t signalled;
static void note(int number) {
	(void)number;
	signalled = 1;
}
static void hold_back(void) {
	sigset_t set;
	signal(SIGTERM, note);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, 0);
}
static int ending(void) {
	sigset_t set;
	sigpending(&set);
	return signalled || sigismember(&set, SIGTERM);
}
static int ask(struct sockaddr_in a, int rounds) {
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(s, (void *)&a, sizeof a) < 0) die("connect");
	puts("asking");
	double slowest = 0;
	for (; rounds > 0; rounds -= ending()) {
		double t = now();
		if (write(s, b, sizeof b) != sizeof b) die("write");
		if (recv(s, b, sizeof b, MSG_WAITALL) != sizeof b) die("read");
		if (now() - t > slowest) slowest = now() - t;
		usleep(500);
	}
	printf("slowest answer %.0f ms\n", slowest / 1e3);
	return s;
}

int main(int argc, char **argv) {
	setvbuf(stdout, 0, _IOLBF, 0);
	if (argc == 3) serve(argv[2]);
	if (argc != 5) return 2;
	hold_back();
	struct sockaddr_in a = address(argv[2], argv[3]);
	int left = 1, s = ask(a, atoi(argv[4]));
	if (!strcmp(argv[1], "tell")) {
		sleep(2);
		for (b[0] = 't'; write(s, b, sizeof b) == sizeof b;) usleep(300000);
	}
	if (!strcmp(argv[1], "leave")) {
		size_t n = 0;
		b[0] = big[0] = 'l';
		if (write(s, b, sizeof b) != sizeof b) die("write");
		for (double until = now() + 2e6; now() < until;) {
			ssize_t k = send(s, big, sizeof big, MSG_DONTWAIT);
			if (k > 0) n += (size_t)k;
			else usleep(1000);
		}
		printf("gave %zu\n", n + sizeof b);
		kill(getpid(), SIGKILL);
	}
	if (!strcmp(argv[1], "end")) {
		if (shutdown(s, SHUT_WR) < 0) die("shutdown");
		if (recv(s, b, sizeof b, MSG_WAITALL) != sizeof b) die("answer");
		puts("answered");
		return 0;
	}
	for (int i = 0; i < 2000 && left; i++) {
		usleep(1000);
		if (ioctl(s, SIOCOUTQ, &left) < 0) die("SIOCOUTQ");
	}
	printf("owes %d\n", left);
	ssize_t n = read(s, b, sizeof b);
	printf("then %s\n", n < 0 ? strerror(errno) : n ? "bytes" : "the end");
}
