// closes FILE: many promoted connections are closed at once. The program goes on until there is the file.
#include <err.h>
#include <stdio.h>
#include <unistd.h>

#include "pair.h"

int main(int argc, char **argv) {
	enum { MANY = 300, CALLS = 8 };
	int c[MANY], s[MANY];
	char b;
	if (argc != 2) errx(2, "file");
	alarm(60);
	for (int i = 0; i < MANY; i++) {
		pair(&c[i], &s[i]);
		for (int k = 0; k < (i ? CALLS : 50); k++) { // the first one meets the broker
			if (write(c[i], "x", 1) != 1 || read(s[i], &b, 1) != 1) err(1, "there");
			if (write(s[i], "y", 1) != 1 || read(c[i], &b, 1) != 1) err(1, "back");
			if (k > 1) usleep(500);
		}
	}
	for (int i = 0; i < MANY; i++) {
		close(c[i]);
		close(s[i]);
	}
	puts("closed");
	while (access(argv[1], F_OK)) usleep(10000);
}
