// A program whose seccomp filter has the kernel kill it for any system call but the few that it makes itself. Its connections must go on.
#include <err.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pair.h"

static void talk(int a, int b, int times) {
	for (int i = 0; i < times; i++) {
		char c = (char)i, d = (char)(i + 1);
		if (write(a, &c, 1) != 1 || read(b, &d, 1) != 1 || c != d) _exit(3);
		if (write(b, &c, 1) != 1 || read(a, &d, 1) != 1 || c != d) _exit(4);
	}
}

// waits returns once fd is readable, by both kinds of waits.
static void waits(int ep, int fd) {
	struct epoll_event v;
	if (epoll_wait(ep, &v, 1, 5000) != 1 || v.data.fd != fd || poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000) != 1) _exit(8);
}

#ifdef SYS_epoll_wait
#define WAITS ALLOW(epoll_wait), ALLOW(poll)
#else // where libc makes others of them
#define WAITS ALLOW(epoll_pwait), ALLOW(ppoll)
#endif
#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

int main(int argc, char **argv) {
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(exit_group), WAITS,
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog p = {sizeof f / sizeof *f, f};
	int old[2], fresh[2];
	alarm(30);
	if (argc != 2) errx(2, "prctl or seccomp");
	pair(&old[0], &old[1]);
	for (int i = 0; i < 200; i++) { // long enough for the broker to answer
		talk(old[0], old[1], 1);
		if (i >= 20) usleep(1000);
	}
	if (write(old[1], "left", 4) != 4) err(1, "write"); // unread
	pair(&fresh[0], &fresh[1]);
	char b[5] = "";
	int ep = epoll_create1(0);
	for (int i = 0; i < 2; i++) {
		int fd = i ? fresh[0] : old[0];
		if (epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.fd = fd}})) err(1, "epoll_ctl");
	}
	alarm(0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) err(1, "prctl");
	if (!strcmp(argv[1], "prctl")) {
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p)) err(1, "prctl");
	} else if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p)) {
		err(1, "seccomp");
	}
	waits(ep, old[0]);
	if (read(old[0], b, 4) != 4 || memcmp(b, "left", 4)) _exit(5);
	talk(old[0], old[1], 200);
	talk(fresh[0], fresh[1], 200);
	if (epoll_wait(ep, &(struct epoll_event){0}, 1, 1) != 0 || write(fresh[1], "new", 3) != 3) _exit(9);
	waits(ep, fresh[0]);
	close(old[0]);
	if (read(old[1], b, 1) != 0) _exit(6);
	close(ep);
	if (write(1, "ok\n", 3) != 3) _exit(7);
	exit(0);
}
