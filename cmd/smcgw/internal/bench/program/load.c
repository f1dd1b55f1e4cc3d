// smcgw-load does the works of smcgw bench that stay on one connection. It is written in C because a Go program cannot
// have libsmcgw.so; smcgw starts it with or without the library.
//
//   smcgw-load serve    serves orders at the listening socket that is descriptor 3. On stdin: the session, 32 hexadecimal
//                       digits and a newline. It prints "ready", and ends with stdin.
//   smcgw-load          does one work. On stdin, a line: address, port, lowest and highest local port (0 0: any), work,
//                       milliseconds, session. One more byte ends an upload. It prints
//                         connected ADDRESS PORT      its own address
//                         begins                      the work, after the bytes sent to be promoted
//                         latency NANOSECONDS COUNT   of echoes, any number of times, with an error below 1 %
//                         done BYTES NANOSECONDS COUNT
//                       or "error" and the reason, and keeps the connection open until stdin ends.
//
// message.go and server.go define orders and works.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
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
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

enum { UPLOAD = 1, DOWNLOAD, ECHO_BACK };
enum { ORDER = 32, SESSION = 16, BLOCK = 128 << 10, PING = 64, GRACE = 10, LISTENER = 3, MAX_CONNS = 64 };
// What a stream sends before the work begins: more calls, over more time, than promotion takes.
enum { WARM_CALLS = 64, WARM_CALL = 1024, WARM = WARM_CALLS * WARM_CALL, WARM_PAUSE = 5000 };

static char block[BLOCK];
static uint8_t session[SESSION];
static _Atomic int conns;

static void die(const char *format, ...) {
	va_list l;
	va_start(l, format);
	printf("error ");
	vprintf(format, l);
	printf("\n");
	fflush(stdout);
	exit(1);
}

static uint64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static bool send_all(int s, const void *p, size_t n) {
	for (const char *b = p; n;) {
		ssize_t w = write(s, b, n);
		if (w < 0 && errno == EINTR) continue;
		if (w <= 0) return false;
		b += w;
		n -= (size_t)w;
	}
	return true;
}

// receive is read() that restarts after a signal.
static ssize_t receive(int s, void *p, size_t n) {
	for (;;) {
		ssize_t r = read(s, p, n);
		if (r >= 0 || errno != EINTR) return r;
	}
}

static bool receive_all(int s, void *p, size_t n) {
	for (char *b = p; n;) {
		ssize_t r = receive(s, b, n);
		if (r <= 0) return false;
		b += r;
		n -= (size_t)r;
	}
	return true;
}

static bool parse_session(const char *hex) {
	for (int i = 0; i < SESSION; i++)
		if (sscanf(hex + 2 * i, "%2hhx", &session[i]) != 1) return false;
	return true;
}

// bound makes calls on a connection fail that take longer than its work and the grace.
static void bound(int s, uint32_t ms) {
	struct timeval t = {.tv_sec = ms / 1000 + GRACE};
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

// no_delay sets TCP_NODELAY, as Go does on its sockets.
static void no_delay(int s) {
	int on = 1;
	setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

// serve_upload reads to the end, and answers with the number of bytes.
static bool serve_upload(int s, char *buf) {
	uint64_t n = 0;
	uint8_t count[8];
	ssize_t r;
	while ((r = receive(s, buf, BLOCK)) > 0) n += (uint64_t)r;
	for (int i = 0; i < 8; i++) count[i] = (uint8_t)(n >> (56 - 8 * i));
	return r == 0 && send_all(s, count, sizeof count);
}

static bool warm_up(int s) {
	for (int i = 0; i < WARM_CALLS; i++) {
		if (!send_all(s, block, WARM_CALL)) return false;
		usleep(WARM_PAUSE);
	}
	return true;
}

static bool serve_download(int s, uint32_t ms) {
	if (!warm_up(s)) return false;
	uint64_t end = now() + ms * UINT64_C(1000000);
	do
		if (!send_all(s, block, BLOCK)) return false;
	while (now() < end);
	return true;
}

static bool serve_echo(int s, char *buf) {
	ssize_t r;
	while ((r = receive(s, buf, BLOCK)) > 0)
		if (!send_all(s, buf, (size_t)r)) return false;
	return r == 0;
}

static void *serve_one(void *arg) {
	int s = (int)(intptr_t)arg;
	uint8_t o[ORDER];
	bool good = false;
	char *buf = malloc(BLOCK);
	no_delay(s);
	bound(s, 0);
	if (buf && receive_all(s, o, ORDER) && !memcmp(o, "SMGB\1", 5) && !memcmp(o + 16, session, SESSION)) {
		uint32_t ms = (uint32_t)o[12] << 24 | (uint32_t)o[13] << 16 | (uint32_t)o[14] << 8 | o[15];
		bound(s, ms);
		good = o[5] == UPLOAD ? serve_upload(s, buf) : o[5] == DOWNLOAD ? serve_download(s, ms) : o[5] == ECHO_BACK && serve_echo(s, buf);
	}
	if (!good) setsockopt(s, SOL_SOCKET, SO_LINGER, &(struct linger){.l_onoff = 1}, sizeof(struct linger));
	close(s);
	free(buf);
	conns--;
	return 0;
}

static int serve(void) {
	char line[2 * SESSION + 2];
	if (!fgets(line, sizeof line, stdin) || !parse_session(line)) die("no session");
	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct pollfd p[] = {{LISTENER, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
		if (poll(p, 2, -1) < 0 && errno != EINTR) die("poll: %s", strerror(errno));
		if (p[1].revents) return 0;
		int s = p[0].revents ? accept(LISTENER, 0, 0) : -1;
		if (s < 0) continue;
		pthread_t t;
		if (conns++ < MAX_CONNS && !pthread_create(&t, 0, serve_one, (void *)(intptr_t)s)) {
			pthread_detach(t);
			continue;
		}
		conns--;
		close(s);
	}
}

// A histogram of echo times with 128 buckets per power of two.
static uint64_t times[64][128];

static void note(uint64_t ns) {
	int e = ns < 128 ? 0 : 63 - __builtin_clzll(ns) - 6;
	times[e][e ? (ns >> (e - 1)) & 127 : ns]++;
}

static void tell_times(void) {
	for (int e = 0; e < 64; e++)
		for (int i = 0; i < 128; i++)
			if (times[e][i]) printf("latency %" PRIu64 " %" PRIu64 "\n", e ? (uint64_t)(128 + i) << (e - 1) : (uint64_t)i, times[e][i]);
}

// told reports whether stdin has a byte, or has ended.
static bool told(void) {
	struct pollfd p = {STDIN_FILENO, POLLIN, 0};
	return poll(&p, 1, 0) > 0;
}

static int dial(const char *address, int port, int low, int high, struct sockaddr_storage *own) {
	struct sockaddr_storage a = {0};
	struct sockaddr_in *v4 = (void *)&a;
	struct sockaddr_in6 *v6 = (void *)&a;
	if (inet_pton(AF_INET, address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
	} else if (inet_pton(AF_INET6, address, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
	} else {
		die("address %s", address);
	}
	int s = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	uint32_t range = (uint32_t)high << 16 | (uint32_t)low;
	if (s >= 0 && low) setsockopt(s, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof range);
	socklen_t n = a.ss_family == AF_INET ? sizeof *v4 : sizeof *v6;
	if (s < 0 || connect(s, (void *)&a, n) < 0) die("connect: %s", strerror(errno));
	no_delay(s);
	n = sizeof *own;
	if (getsockname(s, (void *)own, &n) < 0) die("getsockname: %s", strerror(errno));
	return s;
}

static void tell_own(const struct sockaddr_storage *a) {
	char text[INET6_ADDRSTRLEN];
	const struct sockaddr_in *v4 = (const void *)a;
	const struct sockaddr_in6 *v6 = (const void *)a;
	bool four = a->ss_family == AF_INET;
	inet_ntop(a->ss_family, four ? (const void *)&v4->sin_addr : (const void *)&v6->sin6_addr, text, sizeof text);
	printf("connected %s %u\n", text, ntohs(four ? v4->sin_port : v6->sin6_port));
	fflush(stdout);
}

// begins prints that the work begins, and returns the time.
static uint64_t begins(void) {
	printf("begins\n");
	fflush(stdout);
	return now();
}

// upload sends for a time, or until told to end, at least one block, and returns how many bytes the server has read.
static uint64_t upload(int s, uint64_t time, uint64_t *begin) {
	uint8_t count[8];
	uint64_t n = 0;
	if (!warm_up(s)) die("write: %s", strerror(errno));
	*begin = begins();
	do
		if (!send_all(s, block, BLOCK)) die("write: %s", strerror(errno));
	while (now() - *begin < time && !told());
	if (shutdown(s, SHUT_WR) < 0 || !receive_all(s, count, sizeof count)) die("answer to an upload: %s", strerror(errno));
	for (int i = 0; i < 8; i++) n = n << 8 | count[i];
	return n - WARM;
}

// download returns how many bytes were received.
static uint64_t download(int s, uint64_t *begin) {
	uint64_t n = 0;
	ssize_t r;
	if (!receive_all(s, block, WARM)) die("read: %s", strerror(errno));
	*begin = begins();
	while ((r = receive(s, block, BLOCK)) > 0) n += (uint64_t)r;
	if (r < 0) die("read: %s", strerror(errno));
	return n;
}

// ping returns how many round trips it made, at least one. The first tenth of the time is warm-up.
static uint64_t ping(int s, uint64_t time, uint64_t *begin) {
	char buf[PING] = {0};
	*begin = begins();
	for (uint64_t n = 0, noted = 0;; n++) {
		uint64_t sent = now();
		if (sent - *begin >= time && noted) return n;
		if (!send_all(s, buf, PING) || !receive_all(s, buf, PING)) die("echo: %s", strerror(errno));
		if (sent - *begin < time / 10) continue;
		note(now() - sent);
		noted++;
	}
}

int main(int n, char **v) {
	signal(SIGPIPE, SIG_IGN);
	if (n == 2 && !strcmp(v[1], "serve")) return serve();
	char line[256], address[64], of[2 * SESSION + 1];
	int port, low, high, work;
	uint32_t ms;
	setvbuf(stdin, 0, _IONBF, 0);
	if (!fgets(line, sizeof line, stdin) || sscanf(line, "%63s %d %d %d %d %" SCNu32 " %32s", address, &port, &low, &high, &work, &ms, of) != 7 || !parse_session(of))
		die("no order");
	alarm(ms / 1000 + 2 * GRACE);
	uint8_t o[ORDER] = {'S', 'M', 'G', 'B', 1, (uint8_t)work, 0, 0, 0, 0, 0, work == ECHO_BACK ? PING : 0,
	                    (uint8_t)(ms >> 24), (uint8_t)(ms >> 16), (uint8_t)(ms >> 8), (uint8_t)ms};
	memcpy(o + 16, session, SESSION);
	struct sockaddr_storage own;
	int s = dial(address, port, low, high, &own);
	bound(s, ms);
	if (!send_all(s, o, ORDER)) die("order: %s", strerror(errno));
	tell_own(&own);
	uint64_t begin, time = ms * UINT64_C(1000000), bytes = 0, count = 0;
	if (work == UPLOAD) bytes = upload(s, time, &begin);
	else if (work == DOWNLOAD) bytes = download(s, &begin);
	else count = ping(s, time, &begin);
	uint64_t took = now() - begin;
	tell_times();
	printf("done %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", bytes, took, count);
	fflush(stdout);
	while (read(STDIN_FILENO, line, sizeof line) > 0) {}
	close(s);
	return 0;
}
