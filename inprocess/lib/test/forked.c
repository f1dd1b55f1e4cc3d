// A child forked between the library's question to the broker and its answer inherits the connection's end without the memory that the
// answer brings. What the child writes must arrive all the same, as must what the program it executes writes. "many": more processes hold
// an end than are counted by name; some die without close(), some live at the same time. "inherit": a program inherits connections whose
// peer is slow and then sleeps. "server": each of many connections has a child that ends without close(); what the library keeps of them does
// not grow.
#include <err.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pair.h"

static void through(int from, int to) {
	char c = 'a';
	if (send(from, &c, 1, 0) != 1 || recv(to, &c, 1, 0) != 1) err(1, "through");
}

// moves sends a byte each way by a duplicate of the descriptor that the process has, which it closes.
static void moves(int from, int to) {
	int d = dup(from);
	close(from);
	through(d, to);
	through(to, d);
}

static void ended(pid_t child) {
	int status;
	if (waitpid(child, &status, 0) != child || status) errx(1, "the child ended with status %x", status);
}

static pid_t forks(void) {
	pid_t child = fork();
	if (child < 0) err(1, "fork");
	return child;
}

static void die(int from, int to) {
	pid_t child = forks();
	if (child == 0) {
		if ((child = forks()) == 0) moves(from, to);
		else ended(child);
		_exit(0);
	}
	ended(child);
}

static void live(int from, int to) {
	enum { N = 20 };
	pid_t child[N];
	int said[2], go[2];
	char c;
	if (pipe(said) || pipe(go)) err(1, "pipe");
	for (int i = 0; i < N; i++) {
		if ((child[i] = forks())) {
			if (read(said[0], &c, 1) != 1) err(1, "a child says nothing");
			continue;
		}
		close(go[1]);
		moves(from, to);
		if (write(said[1], "", 1) != 1 || read(go[0], &c, 1)) err(1, "the others");
		if (i & 1) close(to);
		_exit(0);
	}
	through(from, to);
	close(go[1]);
	for (int i = 0; i < N; i++) ended(child[i]);
	through(to, from);
}

static void pause_for(long ms) {
	struct timespec t = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&t, 0);
}

// inherit has a program inherit N connections with unread bytes. Their peer stands still for longer than that program's start waits for it,
// and tells the library nothing more.
static void inherit(void) {
	enum { N = 3 };
	int mine[N], theirs[N], told[2];
	char b[100] = "";
	for (int i = 0; i < N; i++) pair(&mine[i], &theirs[i]);
	if (pipe(told)) err(1, "pipe");
	pid_t peer = forks();
	for (int i = 0; i < N; i++) close(peer ? theirs[i] : mine[i]);
	if (!peer) {
		struct pollfd p[N];
		for (int i = 0; i < N; i++)
			for (int k = 0; k < 100; k++)
				if (recv(theirs[i], b, 1, 0) != 1 || send(theirs[i], b, 1, 0) != 1) err(1, "the peer");
		for (int i = 0; i < N; i++) {
			if (send(theirs[i], b, sizeof b, 0) != sizeof b) err(1, "the peer");
			p[i] = (struct pollfd){theirs[i], POLLIN, 0};
		}
		if (write(told[1], "", 1) != 1) err(1, "pipe");
		pause_for(3000);
		for (int i = 0; i < N; i++)
			while (poll(p, N, -1) > 0 && !(p[i].revents & POLLIN)) {}
		_exit(0);
	}
	for (int i = 0; i < N; i++)
		for (int k = 0; k < 100; k++)
			if (send(mine[i], b, 1, 0) != 1 || recv(mine[i], b, 1, 0) != 1) err(1, "through");
	if (read(told[0], b, 1) != 1) err(1, "pipe");
	pid_t child = forks();
	if (!child) {
		execlp("true", "true", (char *)0);
		_exit(127);
	}
	ended(child);
	for (int i = 0; i < N; i++)
		if (recv(mine[i], b, sizeof b, MSG_WAITALL) != sizeof b) err(1, "connection %d", i);
	for (int i = 0; i < N; i++)
		if (send(mine[i], b, 1, 0) != 1) err(1, "send");
	ended(peer);
}

// given has children take over connections that are promoted, and end with and without a close, or before their parent closes. Then it waits
// for the broker, and promotes as many again.
static void given(void) {
	for (int i = 0; i < 12; i++) {
		if (i == 6) pause_for(3000);
		int c, s;
		char x = 'x';
		pair(&c, &s);
		for (int k = 0; k < 200; k++) through(c, s);
		pid_t child = forks();
		if (!child) {
			close(c);
			if (i % 3 < 2 && (recv(s, &x, 1, 0) != 1 || send(s, &x, 1, 0) != 1)) _exit(1);
			if (i % 3 == 1) close(s);
			_exit(0);
		}
		if (i % 3 == 2) {
			siginfo_t info;
			waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
		}
		close(s);
		if (i % 3 < 2 && (send(c, &x, 1, 0) != 1 || recv(c, &x, 1, 0) != 1)) err(1, "the child");
		if (recv(c, &x, 1, 0)) err(1, "no end");
		close(c);
		ended(child);
	}
}

// slab returns how much memory the library's list of connections takes; 0 without the library.
static long slab(void) {
	char path[64], to[64];
	for (int fd = 0; fd < 2048; fd++) {
		struct stat st;
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t n = readlink(path, to, sizeof to - 1);
		to[n > 0 ? n : 0] = 0;
		if (!strcmp(to, "/memfd:smcgw (deleted)") && !stat(path, &st)) return st.st_blocks * 512;
	}
	return 0;
}
static void server(void) {
	int told[2];
	if (pipe(told)) err(1, "pipe");
	for (int i = 0; i < 400; i++) {
		int c, s;
		char x;
		pair(&c, &s);
		pid_t child = forks();
		if (!child) {
			close(c);
			_exit(write(told[1], "", 1) != 1 || recv(s, &x, 1, 0));
		}
		if (read(told[0], &x, 1) != 1) err(1, "the child");
		close(s);
		close(c);
		ended(child);
	}
	if (slab() > 64 << 10) errx(1, "the slab has %ld bytes", slab());
}

int main(int argc, char **argv) {
	int c, s, ready[2], status;
	char b[3] = "";
	alarm(30);
	if (argc != 2) errx(2, "write, exec, inherit, server, given or many");
	pair(&c, &s);
	for (int i = 0; i < 200; i++) through(c, s); // by then the process has met the broker
	if (!strcmp(argv[1], "inherit")) {
		inherit();
		puts("0 ok");
		return 0;
	}
	if (!strcmp(argv[1], "server")) {
		server();
		puts("0 ok");
		return 0;
	}
	if (!strcmp(argv[1], "given")) {
		given();
		puts("0 ok");
		return 0;
	}
	if (!strcmp(argv[1], "many")) {
		for (int i = 0; i < 100; i++) die(s, c);
		live(c, s);
		shutdown(c, SHUT_WR);
		if (recv(s, b, 1, 0)) err(1, "no end");
		puts("0 ok");
		return 0;
	}
	pair(&c, &s);
	for (int i = 0; i < 40; i++) through(c, s); // both ends ask; no call takes the answers yet
	if (pipe(ready)) err(1, "pipe");
	pid_t child = forks();
	if (child == 0) {
		if (read(ready[0], b, 1) != 1) err(1, "read");
		if (!strcmp(argv[1], "write")) _exit(write(s, "ok", 2) != 2);
		dup2(s, 1);
		execlp("printf", "printf", "ok", (char *)0);
		_exit(127);
	}
	for (int i = 0; i < 100; i++) { // these calls take the answers
		if (recv(s, b, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN || recv(c, b, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN) errx(1, "bytes of nobody");
		pause_for(5);
	}
	if (write(ready[1], "x", 1) != 1 || waitpid(child, &status, 0) != child) err(1, "child");
	if (!WIFEXITED(status)) errx(1, "the child was ended by signal %d", WTERMSIG(status));
	close(s);
	size_t n = 0;
	for (ssize_t k; n < 2 && (k = recv(c, b + n, 2 - n, 0)) > 0; n += (size_t)k) {}
	printf("%d %s\n", WEXITSTATUS(status), b);
}
