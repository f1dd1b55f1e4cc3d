// A child that is made between the question and the answer has the end, and none of what the answer brings: what it writes
// arrives all the same, and so does what the program that takes its place writes.
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

int main(int argc, char **argv) {
	int c, s, ready[2], status;
	char b[3] = "";
	alarm(30);
	if (argc != 2) errx(2, "write or exec");
	pair(&c, &s);
	for (int i = 0; i < 200; i++) through(c, s); // the process has met the broker
	pair(&c, &s);
	for (int i = 0; i < 40; i++) through(c, s); // both ends ask; the answers wait
	if (pipe(ready)) err(1, "pipe");
	pid_t child = fork();
	if (child < 0) err(1, "fork");
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
