// closes FILE: closes many promoted connections at once, after children that inherited them have exited without close(). The program then
// runs on until FILE exists.
#include <err.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pair.h"

int main(int argc, char **argv) {
	enum { MANY = 300, CALLS = 8, CHILDREN = 10 };
	int c[MANY], s[MANY], go[2];
	char b;
	if (argc != 2) errx(2, "file");
	alarm(60);
	for (int i = 0; i < MANY; i++) {
		pair(&c[i], &s[i]);
		for (int k = 0; k < (i ? CALLS : 50); k++) { // the first one gives the process time to meet the broker
			if (write(c[i], "x", 1) != 1 || read(s[i], &b, 1) != 1) err(1, "there");
			if (write(s[i], "y", 1) != 1 || read(c[i], &b, 1) != 1) err(1, "back");
			if (k > 1) usleep(500);
		}
	}
	if (pipe(go)) err(1, "pipe");
	for (int i = 0; i < CHILDREN; i++) {
		if (fork()) continue;
		close(go[1]);
		_exit(read(go[0], &b, 1) != 0);
	}
	close(go[1]);
	for (int i = 0; i < CHILDREN; i++) wait(0);
	for (int i = 0; i < MANY; i++) {
		close(c[i]);
		close(s[i]);
	}
	puts("closed");
	while (access(argv[1], F_OK)) usleep(10000);
}
