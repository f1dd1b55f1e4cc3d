// foreign [raw]: moves bytes over a connection, both ends of which it holds, and prints whether every round was native. With raw, it first
// reads one byte by a system call of its own, which the library cannot see.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sys.h"
#include "pair.h"
#include "promoted.h"

int main(int argc, char **argv) {
	int a, b, native = 0;
	pair(&a, &b);
	char c[100];
	if (argc > 1 && !strcmp(argv[1], "raw")) {
		if (write(a, "r", 1) != 1 || SYS(read, b, c, 1) != 1 || c[0] != 'r') return 2;
	}
	for (int i = 0; i < 500; i++) {
		uint64_t had = received(b);
		char x[100];
		memset(x, i, sizeof x);
		if (write(a, x, sizeof x) != sizeof x || recv(b, c, sizeof c, MSG_WAITALL) != sizeof c || memcmp(x, c, sizeof c)) return printf("WRONG in round %d\n", i), 1;
		native += received(b) - had >= sizeof c;
		usleep(500);
	}
	printf("%s\n", native == 500 ? "native" : "promoted");
	return 0;
}
