// close() of a connection right after the library has asked the broker about it: the peer must see the end as soon as close() returns, as
// natively. With an argument, the broker then goes away but keeps the socket that it was asked about: an epoll set that the connection was
// in must not report it any more.
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pair.h"

enum { ROUNDS = 20, CALLS = 60 };

static void ask(int fd) {
	for (int k = 0; k < CALLS; k++)
		if (send(fd, "x", 1, 0) != 1) err(1, "send");
}

static void gone(void) {
	struct epoll_event v = {.events = EPOLLIN};
	int ep = epoll_create1(0), c, s, other[2];
	pair(&c, &s);
	pair(&other[0], &other[1]);
	if (epoll_ctl(ep, EPOLL_CTL_ADD, c, &v)) err(1, "epoll_ctl");
	ask(c);
	sleep(1);
	ask(other[0]); // the broker is gone by now
	if (close(c)) err(1, "close");
	send(s, "x", 1, MSG_NOSIGNAL);
	puts(epoll_wait(ep, &v, 1, 200) ? "reported" : "nothing");
}

int main(int argc, char **argv) {
	int at_once = 0;
	alarm(60);
	(void)argv;
	if (argc > 1) {
		gone();
		return 0;
	}
	for (int i = 0; i < ROUNDS; i++) {
		int c, s;
		char b[CALLS];
		pair(&c, &s);
		ask(c);
		if (close(c)) err(1, "close");
		if (recv(s, b, sizeof b, MSG_WAITALL) != CALLS) err(1, "bytes");
		ssize_t end = recv(s, b, sizeof b, MSG_DONTWAIT);
		if (end > 0 || (end < 0 && errno != EAGAIN)) err(1, "end");
		at_once += end == 0;
		close(s);
	}
	puts(at_once >= ROUNDS / 2 ? "at once" : "late"); // the kernel may be late, too, on a busy machine
}
