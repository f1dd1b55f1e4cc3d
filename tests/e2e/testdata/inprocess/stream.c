// A stream whose every byte is checked, and counted on stdout:
//   stream serve PORT                        one connection at a time, each to its end
//   stream send ADDRESS PORT BYTES CHUNK PAUSE  CHUNK bytes, a pause of PAUSE microseconds, and so on; then the end, which
//                                               SIGTERM makes come early
// The server answers each 4 KiB by 8 bytes that count them; the sender waits for the end of those.
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static uint8_t at(uint64_t i) { return (uint8_t)(i * 131 + (i >> 8) * 7 + (i >> 16)); }

static void die(const char *what) {
	printf("error %s: %s\n", what, strerror(errno));
	fflush(stdout);
	exit(1);
}

static void tell(uint64_t n) {
	static struct timespec last;
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if ((now.tv_sec - last.tv_sec) * 1000 + (now.tv_nsec - last.tv_nsec) / 1000000 < 50) return;
	last = now;
	printf("at %llu\n", (unsigned long long)n);
	fflush(stdout);
}

static int write_all(int s, const void *p, size_t n) {
	for (const char *b = p; n;) {
		ssize_t w = write(s, b, n);
		if (w < 0) return -1;
		b += w;
		n -= w;
	}
	return 0;
}

static int serve(int port) {
	int on = 1, l = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
	if (bind(l, (void *)&a, sizeof a) < 0 || listen(l, 8) < 0) die("listen");
	printf("serving\n");
	fflush(stdout);
	static uint8_t b[65536];
	for (;;) {
		socklen_t len = sizeof a;
		int s = accept(l, (void *)&a, &len);
		if (s < 0) die("accept");
		printf("saw %s:%d\n", inet_ntoa(a.sin_addr), ntohs(a.sin_port));
		fflush(stdout);
		uint64_t n = 0, told = 0;
		ssize_t r;
		while ((r = read(s, b, sizeof b)) > 0) {
			for (ssize_t i = 0; i < r; i++)
				if (b[i] != at(n + i)) {
					printf("error: byte %llu is %u\n", (unsigned long long)(n + i), b[i]);
					fflush(stdout);
					return 1;
				}
			n += r;
			for (; told + 4096 <= n; told += 4096) {
				uint64_t v = told + 4096;
				if (write_all(s, &v, sizeof v) < 0) goto reset;
			}
			tell(n);
		}
	reset:
		printf(r != 0 ? "reset after %llu\n" : "whole %llu\n", (unsigned long long)n);
		fflush(stdout);
		close(s);
	}
}

static volatile sig_atomic_t ends;

static void end(int sig) {
	(void)sig;
	ends = 1;
}

static void *answers(void *arg) {
	int s = *(int *)arg;
	uint64_t want = 4096, v;
	for (;; want += 4096) {
		for (size_t have = 0; have < sizeof v;) {
			ssize_t r = read(s, (char *)&v + have, sizeof v - have);
			if (r < 0) die("read");
			if (r == 0) return (void *)(uintptr_t)(want - 4096);
			have += r;
		}
		if (v != want) {
			printf("error: answer %llu for %llu\n", (unsigned long long)v, (unsigned long long)want);
			fflush(stdout);
			exit(1);
		}
	}
}

int main(int n, char **v) {
	signal(SIGPIPE, SIG_IGN);
	if (n == 3 && !strcmp(v[1], "serve")) return serve(atoi(v[2]));
	if (n != 7) return 2;
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(v[3]))};
	inet_pton(AF_INET, v[2], &a.sin_addr);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(s, (void *)&a, sizeof a) < 0) die("connect");
	signal(SIGTERM, end);
	uint64_t total = strtoull(v[4], 0, 10), chunk = strtoull(v[5], 0, 10);
	uint8_t *b = malloc(chunk);
	pthread_t t;
	pthread_create(&t, 0, answers, &s);
	for (uint64_t i = 0; i < total && !ends; i += chunk) {
		for (uint64_t k = 0; k < chunk; k++) b[k] = at(i + k);
		if (write_all(s, b, chunk) < 0) die("write");
		tell(i + chunk);
		if (atoi(v[6])) usleep(atoi(v[6]));
	}
	shutdown(s, SHUT_WR);
	void *got;
	pthread_join(t, &got);
	printf("whole %llu\n", (unsigned long long)(uintptr_t)got);
	return 0;
}
