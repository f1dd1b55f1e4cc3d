// A child that is made between the question and the answer has the end, and none of what the answer brings: what it writes
// arrives all the same, and so does what the program that takes its place writes. And more processes than are counted by name: some die
// without close, some live together.
#include <err.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pair.h"

static void through(int from, int to) {
	char c = 'a';
	if (send(from, &c, 1, 0) != 1 || recv(to, &c, 1, 0) != 1) err(1, "through");
}

// moves sends a byte by a duplicate that is made of what the process has.
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

int main(int argc, char **argv) {
	int c, s, ready[2], status;
	char b[3] = "";
	alarm(30);
	if (argc != 2) errx(2, "write, exec or many");
	pair(&c, &s);
	for (int i = 0; i < 200; i++) through(c, s); // the process has met the broker
	if (!strcmp(argv[1], "many")) {
		for (int i = 0; i < 100; i++) die(s, c);
		live(c, s);
		shutdown(c, SHUT_WR);
		if (recv(s, b, 1, 0)) err(1, "no end");
		puts("0 ok");
		return 0;
	}
	pair(&c, &s);
	for (int i = 0; i < 40; i++) through(c, s); // both ends ask; the answers wait
	if (pipe(ready)) err(1, "pipe");
	pid_t child = forks();
	if (child == 0) {
		if (read(ready[0], b, 1) != 1) err(1, "read");
		if (!strcmp(argv[1], "write")) _exit(write(s, "ok", 2) != 2);
		dup2(s, 1);
		execlp("printf", "printf", "ok", (char *)0);
		_exit(127);
	}
	for (int i = 0; i < 100; i++) { // the answers are taken here
		struct timespec t = {0, 5000000};
		if (recv(s, b, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN || recv(c, b, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN) errx(1, "bytes of nobody");
		nanosleep(&t, 0);
	}
	if (write(ready[1], "x", 1) != 1 || waitpid(child, &status, 0) != child) err(1, "child");
	if (!WIFEXITED(status)) errx(1, "the child was ended by signal %d", WTERMSIG(status));
	close(s);
	size_t n = 0;
	for (ssize_t k; n < 2 && (k = recv(c, b + n, 2 - n, 0)) > 0; n += (size_t)k) {}
	printf("%d %s\n", WEXITSTATUS(status), b);
}
