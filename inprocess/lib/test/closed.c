// close() of a connection right after its question: the end has arrived when it returns, as natively.
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "pair.h"

int main(void) {
	enum { ROUNDS = 20, CALLS = 60 };
	int at_once = 0;
	alarm(60);
	for (int i = 0; i < ROUNDS; i++) {
		int c, s;
		char b[CALLS];
		pair(&c, &s);
		for (int k = 0; k < CALLS; k++)
			if (send(c, "x", 1, 0) != 1) err(1, "send");
		if (close(c)) err(1, "close");
		if (recv(s, b, sizeof b, MSG_WAITALL) != CALLS) err(1, "bytes");
		ssize_t end = recv(s, b, sizeof b, MSG_DONTWAIT);
		if (end > 0 || (end < 0 && errno != EAGAIN)) err(1, "end");
		at_once += end == 0;
		close(s);
	}
	puts(at_once >= ROUNDS / 2 ? "at once" : "late"); // the kernel may be late, too, on a busy machine
}
