// stress MODES FAMILY SECONDS SEED [WINDOW [HOW ROUNDS [WITHIN]]]: one connection after the other, both directions at once, every byte checked.
//
// MODES has one letter for each end: b threads that block, q the same with poll() before each call, l e o epoll (level, edge, one shot),
// p poll, s select. In upper case both ends are threads of one process. FAMILY is 4, 6 or m (IPv4 mapped into IPv6).
// WINDOW is SO_SNDBUF and SO_RCVBUF; 0 leaves the system's. WITHIN is a time in seconds after which no round begins.
//
// HOW is what happens to one end at some moment: - nothing, k killed, i killed at or near an instruction of the library, s stopped for a
// while, c closes early, r closes early by a reset, x exits; n: both ends are reset from outside; a: any of these but n. With a + after it,
// both ends also do what programs do with descriptors: duplicate, fork, hand over, exec, set options (see act()). A ? in MODES, FAMILY or
// WINDOW is drawn anew in each round. The plan of a round follows from its seed alone, which is SEED + its number. What the other end has
// read must be a prefix of what was sent, and all of it unless there was a reset; and it must come to its end in time.
//
// stress resume DESCRIPTOR SIDE goes on after exec. Set STRESS_RECALLS if connections are recalled from outside.
//
// With STRESS_HOSTS the ends are on two hosts, each in a program of its own. Its value has NAMESPACE and SOCKET (the broker's) for each side,
// then the IPv4 address, the IPv6 address and the port at which the second side listens.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "groups.h"
#include "rounds.h"

#define PERIOD 1048573 // a prime, so that a shift by the size of any buffer shows
#define LARGEST 300000
#define STALL 20.0 // seconds without a byte
#define END_WITHIN 5.0 // after the other end was killed, and without a byte; natively it ends at once
#define ENDLESS 200.0 // seconds after which a connection must have ended, even if some bytes come
#define BUSY 10 // factor to these times on a busy machine, where a thread of the connection is not asleep

#define ACTS 4
#define STEPS 20000 // the most instructions on the way to the library

// What an end does once it has made so many calls that moved bytes, or tried to.
struct act {
	uint64_t at;
	char what; // see act()
	uint64_t r;
};
static unsigned char stream[2][PERIOD + LARGEST]; // what each end sends, repeatedly
struct end {
	int side, fd;
	char mode;
	uint64_t reads, writes; // states of random generators
	int kind;               // which sizes are drawn for now
	short want, set;        // want: directions that have not ended; set: what the epoll set waits for
	int ep, old;            // old: a set that the connection was in before
	uint64_t calls, leave;  // leave: the end leaves after so many calls; 0: never
	struct act act[ACTS];
	int acts;               // how many are done
	bool signals, urgent;   // urgent: the other end sends an urgent byte
	bool lowat;             // a peek that waits for that many bytes may fill the window and wait for ever
	bool part;              // this process only reads or only writes; the process reader does the other
	int pipe_reads, pipe_writes, number; // number: of the thread or process, which may have descriptors of its own
	pid_t reader;
};
static struct shared {
	_Atomic uint64_t urgent[2]; // position of each end's urgent byte, counted from 1; 0: none
	_Atomic bool urgent_seen[2];
	_Atomic bool recalls[2]; // bytes go from the ring back to the kernel, which may not yet have room for bytes that were peeked
	_Atomic uint64_t begun[2], sent[2], got[2], spurious[2], again[2], peeks[2];
	_Atomic uint64_t refused; // descriptors that the library did not let pass, see act()
	uint64_t inside; // kills at an instruction of the library, or soon after
	_Atomic bool begins[2], done[2], reset[2], left[2], failed;
	_Atomic bool unsaid[2]; // the last write had several parts; a reset after its first part may not have been reported
	bool one;  // both ends are in one process
	char fate; // HOW of this round
	int victim;
	double until;
	pid_t main, pid[2];
	struct end end[2]; // as a round begins, and across exec
	int listener, window;
	struct sockaddr_storage at; // where the second end listens
	char plan[512];
} *shared;
#define FILES 400 // descriptors of the two streams and of shared
static int file[2];
static uint64_t moved[4]; // in all rounds: bytes, kills, kills at instructions, descriptors that were refused
#if defined(__x86_64__)
#define PC(regs) (regs).rip
#else
#define PC(regs) (regs).pc
#endif
extern char **environ;

static void fail(const char *what, int side, uint64_t at, long n) {
	int err = errno;
	printf("FAIL %s: side %d at %lu: %ld (%s)\nin %s\n", what, side, at, n, strerror(err), shared->plan);
	fflush(stdout);
	shared->failed = true;
	if (getenv("STRESS_STOP")) pause();
	if (getpid() == shared->main && !shared->one) end_round(shared->pid);
	_exit(1);
}
// check compares n bytes with the stream and returns how many belong to it. The other end's urgent byte does not; now and then the kernel
// leaves it inline.
static size_t check(struct end *e, const unsigned char *b, size_t n, const char *what, bool taken) {
	uint64_t at = shared->got[e->side], urgent = shared->urgent[!e->side];
	const unsigned char *want = stream[!e->side] + at % PERIOD;
	if (!memcmp(b, want, n)) return n;
	if (urgent > at && urgent <= at + n && !shared->urgent_seen[e->side]) {
		size_t i = urgent - 1 - at;
		if (!memcmp(b, want, i) && b[i] == '!' && !memcmp(b + i + 1, want + i, n - i - 1)) {
			shared->urgent_seen[e->side] = taken;
			return n - 1;
		}
	}
	size_t i = 0;
	while (b[i] == want[i]) i++;
	printf("WRONG BYTE %02x, not %02x, %zu of %zu", b[i], want[i], i, n);
	const unsigned char *of = n - i < 8 ? 0 : memmem(stream[!e->side], sizeof stream[0], b + i, n - i < 32 ? n - i : 32);
	if (of) printf("; these are from %ld", of - stream[!e->side]);
	printf("\n");
	fail(what, e->side, at, (long)n);
	return 0;
}
static void taken(struct end *e, const unsigned char *b, ssize_t n, const char *what) {
	if (n > 0) shared->got[e->side] += check(e, b, (size_t)n, what, true);
}
// again tells whether a call did nothing and may be repeated. SIGSTOP and ptrace interrupt a call that has a timeout.
static bool again(const struct end *e) { return errno == EAGAIN || (errno == EINTR && (e->signals || shared->fate == 's' || shared->fate == 'i')); }

// size draws mostly small or mostly large sizes for a while: a ring that is always full hides what happens when it becomes empty.
static size_t size(struct end *e, uint64_t *x) {
	uint64_t r = draw(x);
	if (!(r >> 16 & 511)) e->kind = (int)(r >> 32 & 3);
	switch (e->kind) {
	case 0: return 1 + r % 64;
	case 1: return 1 + r % 4096;
	case 2: return r >> 40 & 3 ? 1 + r % 65536 : 1 + r % LARGEST;
	default: return r >> 40 & 1 ? 1 + r % 100 : 1 + r % 20000;
	}
}
static void rest(uint64_t *x) {
	uint64_t r = draw(x);
	if (!(r & 1023)) usleep((unsigned)(r >> 32 & 2047));
	else if (!(r & 63)) sched_yield();
}

// by_pipe reads or writes by splice(), or by read() or write() where splice() is refused.
static ssize_t by_pipe(struct end *e, unsigned char *in, const unsigned char *out, size_t n) {
	int p[2];
	if (n > 16384) n = 16384;
	if (pipe(p) < 0) fail("pipe", e->side, 0, -1);
	if (out && write(p[1], out, n) != (ssize_t)n) fail("pipe", e->side, 0, -1);
	ssize_t k = out ? splice(p[0], 0, e->fd, 0, n, 0) : splice(e->fd, 0, p[1], 0, n, 0);
	int err = errno;
	if (in && k > 0 && read(p[0], in, (size_t)k) != k) fail("pipe", e->side, 0, k);
	close(p[0]);
	close(p[1]);
	errno = err;
	if (k >= 0 || err != EINVAL) return k;
	return out ? write(e->fd, out, n) : read(e->fd, in, n);
}

static ssize_t take(struct end *e, bool nonblock) {
	static __thread unsigned char b[LARGEST];
	uint64_t r = draw(&e->reads);
	size_t n = size(e, &e->reads);
	ssize_t k;
	int q;
	e->calls++;
	rest(&e->reads);
	switch (r >> 8 & 15) {
	case 0:
		k = recv(e->fd, b, n, MSG_PEEK | (r >> 20 & 1 || e->lowat ? MSG_DONTWAIT : 0));
		if (k < 0 && (errno == ECONNRESET || errno == ECONNABORTED)) shared->reset[e->side] = true; // the kernel reports it only once
		if (k > 0) {
			check(e, b, (size_t)k, "peek", false);
			shared->peeks[e->side]++;
			int had = (int)k;
			if (ioctl(e->fd, FIONREAD, &q) < 0 || (q < had && !e->urgent && !shared->recalls[e->side])) fail("FIONREAD after a peek", e->side, shared->got[e->side], q - had);
		}
		break;
	case 1:
		if (ioctl(e->fd, FIONREAD, &q) < 0 || q < 0) fail("FIONREAD", e->side, shared->got[e->side], q);
		break;
	}
	struct iovec v[3] = {{b, 1}, {b + 1, n / 2}, {b + 1 + n / 2, n - 1 - n / 2}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
	if (e->pipe_reads && !e->urgent) { // at an urgent byte the kernel's splice() reports the end
		e->pipe_reads--;
		k = by_pipe(e, b, 0, n);
		taken(e, b, k, "splice");
		return k;
	}
	switch (r & 31) {
	case 0: k = recv(e->fd, b, n, n < 5000 ? MSG_WAITALL : 0); break;
	case 1: k = readv(e->fd, v, 3); break;
	case 2: k = recvmsg(e->fd, &h, 0); break;
	case 3: case 4: k = recvfrom(e->fd, b, n, nonblock ? MSG_DONTWAIT : 0, 0, 0); break;
	case 5: k = preadv2(e->fd, v, 3, -1, 0); break;
	case 6: k = syscall(SYS_read, e->fd, b, n); break;
	case 7: k = recv(e->fd, b, n, MSG_DONTWAIT); break;
	case 8: // discarded by the kernel
		if (e->urgent) {
			k = read(e->fd, b, n);
			break;
		}
		k = recv(e->fd, b, n, MSG_TRUNC);
		if (k > 0) shared->got[e->side] += (uint64_t)k;
		return k;
	case 9: {
		struct mmsghdr m[2] = {{{.msg_iov = v, .msg_iovlen = 2}, 0}, {{.msg_iov = v + 2, .msg_iovlen = 1}, 0}};
		k = recvmmsg(e->fd, m, 2, MSG_WAITFORONE, 0);
		if (k <= 0) return k;
		taken(e, b, m[0].msg_len, "recvmmsg, the first");
		if (k > 1) taken(e, b + 1 + n / 2, m[1].msg_len, "recvmmsg, the second");
		return m[0].msg_len + (k > 1 ? m[1].msg_len : 0);
	}
	default: k = read(e->fd, b, n);
	}
	taken(e, b, k, "read");
	return k;
}
static ssize_t give(struct end *e) {
	uint64_t r = draw(&e->writes);
	size_t n = size(e, &e->writes);
	unsigned char *p = stream[e->side] + shared->sent[e->side] % PERIOD;
	struct iovec v[3] = {{p, 1}, {p + 1, n / 2}, {p + 1 + n / 2, n - 1 - n / 2}};
	struct msghdr h = {.msg_iov = v, .msg_iovlen = 3};
	off_t at = (off_t)(shared->sent[e->side] % PERIOD);
	ssize_t k;
	e->calls++;
	rest(&e->writes);
	shared->begun[e->side] = shared->sent[e->side] + n;
	shared->unsaid[e->side] = false;
	if (e->pipe_writes) {
		e->pipe_writes--;
		k = by_pipe(e, 0, p, n);
		shared->unsaid[e->side] = k > 0 && (size_t)k < n;
		if (k > 0) shared->sent[e->side] += (uint64_t)k;
		return k;
	}
	switch (r & 31) {
	case 0: k = writev(e->fd, v, 3); break;
	case 1: k = sendmsg(e->fd, &h, MSG_NOSIGNAL); break;
	case 2: k = send(e->fd, p, n, MSG_NOSIGNAL | MSG_MORE); break;
	case 3:
		k = sendfile(e->fd, file[e->side], &at, n);
		shared->unsaid[e->side] = k > 0 && (size_t)k < n;
		break;
	case 4: k = pwritev2(e->fd, v, 3, -1, 0); break;
	case 5: k = syscall(SYS_write, e->fd, p, n); break;
	case 6: k = send(e->fd, p, n, MSG_DONTWAIT); break;
	case 7: {
		struct mmsghdr m[2] = {{{.msg_iov = v, .msg_iovlen = 2}, 0}, {{.msg_iov = v + 2, .msg_iovlen = 1}, 0}};
		k = sendmmsg(e->fd, m, 2, MSG_NOSIGNAL);
		if (k > 1 && m[0].msg_len != 1 + n / 2) fail("sendmmsg, a message after a part", e->side, shared->sent[e->side], m[0].msg_len);
		shared->unsaid[e->side] = k == 1;
		if (k > 0) k = m[0].msg_len + (k > 1 ? m[1].msg_len : 0);
		break;
	}
	default: k = write(e->fd, p, n);
	}
	if (k > 0) shared->sent[e->side] += (uint64_t)k;
	return k;
}

// ---- what programs do with descriptors on the way

static void nothing(int s) { (void)s; }
static void signals(const struct end *e, bool on) { // interrupts calls now and then
	if (!e->signals) return;
	struct itimerval t = {{0, on ? 3000 : 0}, {0, on ? 3000 : 0}};
	sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing}, 0);
	setitimer(ITIMER_REAL, &t, 0);
}
static void dies_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }
static bool epolls(const struct end *e) { return e->mode == 'e' || e->mode == 'o' || e->mode == 'l'; }
static void open_set(struct end *e) {
	struct epoll_event v = {(e->want & POLLIN ? EPOLLIN : 0) | (e->want & POLLOUT ? EPOLLOUT : 0) | (e->mode == 'e' ? EPOLLET : 0) | (e->mode == 'o' ? EPOLLONESHOT : 0), {.fd = e->fd}};
	e->set = e->want;
	e->ep = epolls(e) ? epoll_create1(0) : -1;
	if (epolls(e) && epoll_ctl(e->ep, EPOLL_CTL_ADD, e->fd, &v) < 0) fail("epoll_ctl", e->side, 0, e->ep);
}
static void close_set(struct end *e) {
	if (e->ep >= 0) close(e->ep);
	e->ep = -1;
}
// replace goes on by another descriptor of the connection, and closes the old one.
static void replace(struct end *e, int fd) {
	bool events = e->mode != 'b' && e->mode != 'q';
	if (fd < 0) fail("descriptor", e->side, 0, fd);
	if (events) close_set(e);
	close(e->fd);
	e->fd = fd;
	if (events) open_set(e);
}
// await_other waits for the process that goes on with the connection, and exits with its status.
static void await_other(struct end *e, pid_t p) {
	int status;
	signals(e, false);
	if (p < 0) fail("fork", e->side, 0, p);
	while (waitpid(p, &status, 0) < 0)
		if (errno != EINTR) fail("wait", e->side, 0, p);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}
static void child(struct end *e) {
	dies_with_parent();
	signals(e, true);
}
static bool hand(int to, int fd) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c = {.h = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
	struct iovec v = {"", 1};
	memcpy(CMSG_DATA(&c.h), &fd, sizeof fd);
	while (sendmsg(to, &(struct msghdr){.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.b}, 0) < 0)
		if (errno != EINTR) return false;
	return true;
}
static int handed(int from) {
	union { char b[CMSG_SPACE(sizeof(int))]; struct cmsghdr h; } c;
	char b;
	int fd = -1;
	struct iovec v = {&b, 1};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.b};
	ssize_t n;
	while ((n = recvmsg(from, &h, 0)) < 0 && errno == EINTR) {}
	if (n != 1 || !h.msg_controllen) fail("passed", 0, 0, n);
	memcpy(&fd, CMSG_DATA(&c.h), sizeof fd);
	return fd;
}

// gone tells whether errno is what a call returns after the other end was killed or has left, or after both were reset from outside.
static bool gone(struct end *e) {
	bool both = shared->fate == 'n';
	if (!both && !shared->left[!e->side]) return false;
	if (errno != ECONNRESET && errno != EPIPE && !(both && errno == ECONNABORTED)) return false;
	shared->reset[e->side] = true;
	return true;
}

// act does what a letter stands for.
static void act(struct end *e, char what, uint64_t r) {
	bool events = e->mode != 'b' && e->mode != 'q';
	struct timeval t = {0, 1000 + (long)(r % 20000)};
	int n = 2 + (int)(r % 500), sv[2];
	char fd[12], side[2] = {(char)('0' + e->side), 0}, *resume[] = {"stress", "resume", fd, side, 0};
	pid_t p;
	if (strchr("ouewgpP", what)) {
		shared->recalls[e->side] = true;
		if (shared->one) shared->recalls[!e->side] = true;
	}
	switch (what) {
	case 'd': // duplicate
		if (events) close_set(e);
		n = 200 + 32 * e->number + (int)(r >> 8 & 31);
		if (n + (r & 1) * 300u == (unsigned)e->fd) n ^= 1;
		switch (r & 3) {
		case 0: n = dup(e->fd); break;
		case 1: n = fcntl(e->fd, F_DUPFD, 100 + (int)(r >> 8 & 63)); break;
		case 2: n = dup2(e->fd, n); break;
		default: n = dup3(e->fd, n + 300, O_CLOEXEC); fcntl(n, F_SETFD, 0);
		}
		replace(e, n);
		break;
	case 'l':
		setsockopt(e->fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
		e->lowat = true;
		break;
	case 't':
		setsockopt(e->fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
		setsockopt(e->fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
		break;
	case 'o': // an urgent byte, which is not part of the stream
		if (!(e->want & POLLOUT) || shared->urgent[e->side]) break;
		shared->urgent[e->side] = shared->sent[e->side] + 1;
		if (send(e->fd, "!", 1, MSG_OOB | MSG_NOSIGNAL) < 0) {
			shared->urgent[e->side] = 0;
			gone(e);
		}
		break;
	case 'm': // wait in another way, or in another set
		if (!events) break;
		if (e->ep >= 0 && (r & 1)) epoll_ctl(e->ep, EPOLL_CTL_DEL, e->fd, 0);
		if (e->old >= 0) close(e->old);
		e->old = e->ep;
		e->mode = "leops"[(r >> 8) % 5];
		open_set(e);
		if (!(r & 6) && e->old >= 0) {
			close(e->old);
			e->old = -1;
		}
		break;
	case 'p': e->pipe_reads = (int)(r % 20); break;
	case 'P': e->pipe_writes = (int)(r % 20); break;
	case 'u': // run another program, which inherits the descriptor and ignores it
		if ((p = fork()) == 0) {
			execl("/bin/true", "true", (char *)0);
			_exit(127);
		}
		while (waitpid(p, 0, 0) < 0 && errno == EINTR) {}
		break;
	case 'f': // a child goes on
		if ((p = fork())) {
			if (!(r & 1)) close_set(e);
			close(e->fd);
			await_other(e, p);
		}
		child(e);
		if (r & 1) break; // by the set that it inherited
		close_set(e);
		open_set(e);
		break;
	case 'h': // one process reads, the other writes
		if (e->want != (POLLIN | POLLOUT)) break;
		close_set(e);
		e->leave = 0;
		e->part = true;
		if ((p = fork()) == 0) {
			child(e);
			e->want = POLLIN;
		} else {
			e->reader = p;
			e->want = POLLOUT;
		}
		open_set(e);
		break;
	case 'e': // another program goes on
	case 'w':
		snprintf(fd, sizeof fd, "%d", e->fd);
		close_set(e);
		shared->end[e->side] = *e;
		shared->left[e->side] = true; // if received bytes are in two places, the library withholds the descriptor from the new program
		signals(e, false);
		fcntl(e->fd, F_SETFD, 0);
		if (what == 'e') {
			execv("/proc/self/exe", resume);
			fail("exec", e->side, 0, -1);
		}
		if (posix_spawn(&p, "/proc/self/exe", 0, 0, resume, environ)) fail("spawn", e->side, 0, -1);
		close(e->fd);
		await_other(e, p);
		break;
	case 'g': // hand the descriptor over in a message
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, sv) < 0) fail("socketpair", e->side, 0, -1);
		if (!hand(sv[0], e->fd)) { // refused: received bytes are in two places
			shared->refused++;
		} else if (r & 1) {
			replace(e, handed(sv[1]));
		} else if ((p = fork())) {
			close_set(e);
			close(e->fd);
			await_other(e, p);
		} else {
			child(e);
			replace(e, handed(sv[1]));
		}
		close(sv[0]);
		close(sv[1]);
		break;
	}
}
#define ANY "dltopPufhewgm"
#define READER "dltpu"
#define WRITER "dtoPu"
#define HALF "dltu"
// acts does the acts that are due and that this thread may do, which are the letters in can.
static void acts(struct end *e, const char *can) {
	while (e->acts < ACTS && e->act[e->acts].what && e->act[e->acts].at <= e->calls) {
		struct act *a = &e->act[e->acts++];
		if (strchr(e->part ? HALF : can, a->what)) act(e, a->what, a->r);
	}
	if (!e->leave || e->calls < e->leave) return;
	shared->left[e->side] = true;
	if (shared->fate == 'x') exit(0);
	if (shared->fate == 'r') setsockopt(e->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(e->fd);
	_exit(0);
}

// ---- ends

static void await(struct end *e, short what) {
	struct pollfd p = {e->fd, what, 0};
	int n;
	if (e->mode != 'q') return;
	while ((n = poll(&p, 1, -1)) < 0 && errno == EINTR) {}
	if (n != 1) fail("poll", e->side, 0, p.revents);
}
static void *reader(void *a) {
	struct end *e = a;
	for (;;) {
		acts(e, READER);
		await(e, POLLIN);
		ssize_t k = take(e, false);
		if (k == 0 || (k < 0 && gone(e))) return 0;
		if (k < 0 && !again(e)) fail("read", e->side, shared->got[e->side], k);
	}
}
static void *writer(void *a) {
	struct end *e = a;
	while (now() < shared->until) {
		acts(e, WRITER);
		await(e, POLLOUT);
		if (give(e) >= 0 || again(e)) continue;
		if (gone(e)) break;
		fail("write", e->side, shared->sent[e->side], -1);
	}
	shutdown(e->fd, SHUT_WR);
	close(e->fd);
	return 0;
}

// ready waits for one of the wanted events.
static short ready(struct end *e, short want) {
	uint64_t r = draw(&e->reads);
	int ms = r & 15 ? -1 : (int)(r >> 8 & 3), n;
	for (;;) {
		if (e->mode == 'p') {
			struct pollfd p = {e->fd, want, 0};
			n = poll(&p, 1, ms);
			if (n == 1) return (short)(p.revents | (p.revents & (POLLHUP | POLLERR) ? POLLIN | POLLOUT : 0));
		} else if (e->mode == 's') {
			fd_set in, out;
			struct timeval t = {0, ms * 1000};
			FD_ZERO(&in);
			FD_ZERO(&out);
			if (want & POLLIN) FD_SET(e->fd, &in);
			if (want & POLLOUT) FD_SET(e->fd, &out);
			n = select(e->fd + 1, &in, &out, 0, ms < 0 ? 0 : &t);
			if (n > 0) return (short)((FD_ISSET(e->fd, &in) ? POLLIN : 0) | (FD_ISSET(e->fd, &out) ? POLLOUT : 0));
		} else {
			struct epoll_event v;
			n = epoll_wait(e->ep, &v, 1, ms);
			if (n == 1 && v.data.fd != e->fd) fail("the descriptor of an event", e->side, 0, v.data.fd);
			if (n == 1) return (short)((v.events & (EPOLLIN | EPOLLHUP | EPOLLERR) ? POLLIN : 0) | (v.events & (EPOLLOUT | EPOLLHUP | EPOLLERR) ? POLLOUT : 0));
		}
		if (n < 0 && errno != EINTR) fail("wait for events", e->side, 0, n);
		ms = -1;
	}
}
static void events(struct end *e) {
	fcntl(e->fd, F_SETFL, O_NONBLOCK);
	open_set(e);
	while (e->want) {
		acts(e, ANY);
		bool edge = e->mode == 'e', once = e->mode == 'o';
		short got = ready(e, e->want);
		for (bool first = true; (got & e->want & POLLIN); first = false) {
			ssize_t k = take(e, true);
			if (k == 0 || (k < 0 && gone(e))) e->want &= (short)~POLLIN;
			else if (k < 0 && !again(e)) fail("read", e->side, shared->got[e->side], k);
			if (k < 0 && errno == EAGAIN) shared->again[e->side]++;
			if (k < 0 && errno == EAGAIN && first && !edge) shared->spurious[e->side]++;
			if (k < 0 && errno == EINTR) continue;
			if (k <= 0 || (!edge && draw(&e->reads) & 1)) break;
		}
		while (got & e->want & POLLOUT) {
			if (now() > shared->until) {
				shutdown(e->fd, SHUT_WR);
				e->want &= (short)~POLLOUT;
				break;
			}
			ssize_t k = give(e);
			if (k < 0 && gone(e)) e->want &= (short)~POLLOUT;
			else if (k < 0 && !again(e)) fail("write", e->side, shared->sent[e->side], k);
			if (k < 0 && errno == EINTR) continue;
			if (k < 0 || (!edge && draw(&e->writes) & 1)) break;
		}
		if (!epolls(e) || edge || (!once && e->set == e->want)) continue;
		struct epoll_event v = {(e->want & POLLIN ? EPOLLIN : 0) | (e->want & POLLOUT ? EPOLLOUT : 0) | (once ? EPOLLONESHOT : 0), {.fd = e->fd}};
		e->set = e->want;
		if (epoll_ctl(e->ep, EPOLL_CTL_MOD, e->fd, &v) < 0) fail("epoll_ctl", e->side, 0, e->ep);
	}
	close_set(e);
	if (e->old >= 0) close(e->old);
}

static void *run(void *a) {
	struct end *e = a;
	shared->begins[e->side] = true;
	if (!shared->one) signals(e, true);
	if (e->mode == 'b' || e->mode == 'q') {
		struct end w = *e;
		pthread_t t;
		w.fd = dup(e->fd); // each thread replaces its own
		w.number = e->side + 2;
		pthread_create(&t, 0, writer, &w);
		reader(e);
		pthread_join(t, 0);
	} else {
		events(e);
	}
	close(e->fd);
	if (e->reader) { // the process that reads reports the other half
		int status = 0;
		while (waitpid(e->reader, &status, 0) < 0 && errno == EINTR) {}
		if (status) shared->failed = true;
	}
	if (!e->part || e->reader) shared->done[e->side] = true;
	return 0;
}

// ---- rounds

// What STRESS_HOSTS says.
static struct { bool apart; char namespace[2][128], socket[2][128], four[INET_ADDRSTRLEN], six[INET6_ADDRSTRLEN]; int port; } hosts = {.four = "127.0.0.1", .six = "::1"};
static bool find_hosts(void) {
	const char *text = getenv("STRESS_HOSTS");
	hosts.apart = text != 0;
	return !text || sscanf(text, "%127s %127s %127s %127s %15s %45s %d", hosts.namespace[0], hosts.socket[0], hosts.namespace[1], hosts.socket[1], hosts.four, hosts.six, &hosts.port) == 7;
}
// enter moves this thread into a side's network namespace, so that its new sockets belong to that host.
static void enter(int side) {
	int fd = open(hosts.namespace[side], O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET) < 0) fail("enter the namespace", side, 0, fd);
	close(fd);
}
static int family(char c) { return c == '4' ? AF_INET : AF_INET6; }
static void address(char c, struct sockaddr_storage *s, int port) {
	memset(s, 0, sizeof *s);
	if (c == '4') {
		struct sockaddr_in *a = (struct sockaddr_in *)s;
		*a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((in_port_t)port)};
		inet_pton(AF_INET, hosts.four, &a->sin_addr);
	} else {
		char mapped[8 + INET_ADDRSTRLEN];
		struct sockaddr_in6 *a = (struct sockaddr_in6 *)s;
		a->sin6_family = AF_INET6;
		a->sin6_port = htons((in_port_t)port);
		snprintf(mapped, sizeof mapped, "::ffff:%s", hosts.four);
		inet_pton(AF_INET6, c == '6' ? hosts.six : mapped, &a->sin6_addr);
	}
}
static void buffers(int fd, int n) {
	if (!n) return;
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &n, sizeof n);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &n, sizeof n);
}

// judge checks what the other end has read after the end dead has left early.
static void judge(int dead) {
	int side = !dead;
	uint64_t got = shared->got[side];
	errno = 0;
	if (got > shared->begun[dead]) fail("more than was sent", side, got, (long)shared->begun[dead]);
	if (!shared->reset[side] && !shared->unsaid[side] && got < shared->sent[dead]) fail("an end before the end", side, got, (long)(shared->sent[dead] - got));
}

// text finds the library's code in a process; without the library, at covers all addresses.
static void text(pid_t pid, uint64_t at[2]) {
	char name[32], line[512];
	snprintf(name, sizeof name, "/proc/%d/maps", pid);
	FILE *f = fopen(name, "re");
	at[0] = 0;
	at[1] = UINT64_MAX;
	while (f && fgets(line, sizeof line, f)) {
		uint64_t from, to;
		char mode[5];
		if (strstr(line, "libsmcgw") && sscanf(line, "%lx-%lx %4s", &from, &to, mode) == 3 && mode[2] == 'x') at[0] = from, at[1] = to;
	}
	if (f) fclose(f);
}
static pid_t thread_of(pid_t pid, bool second) {
	char name[32];
	snprintf(name, sizeof name, "/proc/%d/task", pid);
	DIR *d = opendir(name);
	pid_t found = pid;
	for (struct dirent *t; d && (t = readdir(d));)
		if (second && atoi(t->d_name) > 0 && atoi(t->d_name) != pid) found = atoi(t->d_name);
	if (d) closedir(d);
	return found;
}
// stopped waits for a thread to stop. It gives up soon, as a thread asleep in the kernel may not stop, but waits longer for a runnable one.
static bool stopped(pid_t pid, pid_t tid, int *status) {
	double began = now();
	do {
		pid_t p = waitpid(tid, status, WNOHANG | __WALL);
		if (p == tid) return WIFSTOPPED(*status);
		if (p < 0) return false;
		sched_yield();
	} while (now() - began < 0.05 || (now() - began < 0.05 * 10 * BUSY && state_of(pid, tid) == 'R'));
	return waitpid(tid, status, WNOHANG | __WALL) == tid && WIFSTOPPED(*status);
}
// kill_at_instruction steps a thread to an instruction of the library, then some more, and kills the process there. It returns false if the
// process has ended by itself meanwhile; it has then been reaped.
static bool kill_at_instruction(pid_t pid, uint64_t r) {
	uint64_t at[2];
	pid_t tid = thread_of(pid, r >> 60 & 1);
	int status = -1, more = (int)(r % (1u << (r >> 32 & 7) << 2)), signal = 0;
	text(pid, at);
	if (ptrace(PTRACE_SEIZE, tid, 0, 0) == 0 && ptrace(PTRACE_INTERRUPT, tid, 0, 0) == 0 && stopped(pid, tid, &status)) {
		bool inside = false;
		for (int i = 0; i < STEPS && (!inside || more--); i++) {
			struct user_regs_struct regs;
			struct iovec v = {&regs, sizeof regs};
			if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &v) < 0) break;
			if (PC(regs) >= at[0] && PC(regs) < at[1]) inside = true;
			if (ptrace(PTRACE_SINGLESTEP, tid, 0, signal) < 0 || !stopped(pid, tid, &status)) break;
			signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
		}
		if (inside && WIFSTOPPED(status)) shared->inside++;
	}
	if (status >= 0 && !WIFSTOPPED(status) && tid == pid) return false;
	shared->left[shared->victim] = true;
	kill(pid, SIGKILL);
	while (tid != pid && waitpid(tid, &status, __WALL) == tid && WIFSTOPPED(status)) {} // the process does not end until its traced thread is reaped
	return true;
}

// A plan is what a round's seed determines.
struct plan {
	char modes[3], family, fate;
	double seconds;
	int window;
	uint64_t seed;
};
static void drawn(struct plan *p, char *argv[], uint64_t seed, bool wild) {
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull;
	draw(&x);
	*p = (struct plan){{argv[1][0], argv[1][1], 0}, argv[2][0], '-', atof(argv[3]), 0, seed};
	uint64_t r = draw(&x);
	if (p->family == '?') p->family = "4446m"[r % 5];
	for (int i = 0; i < 2; i++)
		if (p->modes[i] == '?') p->modes[i] = "bqleops"[draw(&x) % 7];
	if (argv[5]) p->window = argv[5][0] == '?' ? (int[]){0, 0, 4096, 65536}[draw(&x) & 3] : atoi(argv[5]);
	if (argv[5] && argv[6]) p->fate = argv[6][0] == 'a' ? "---kkiiissscrx"[draw(&x) % 14] : argv[6][0];
	if (wild && !(draw(&x) & 7) && p->fate == '-' && !hosts.apart)
		for (int i = 0; i < 2; i++) p->modes[i] = (char)toupper(p->modes[i]);
	bool one = isupper(p->modes[0]);
	memset(shared, 0, sizeof *shared);
	shared->one = one;
	shared->main = getpid();
	shared->fate = p->fate;
	shared->victim = (int)(draw(&x) & 1);
	int n = snprintf(shared->plan, sizeof shared->plan, "seed %lu: %s %c %.2f %lu %d %c, victim %d", seed, p->modes, p->family, p->seconds, seed, p->window, p->fate, shared->victim);
	for (int i = 0; i < 2; i++) {
		struct end *e = &shared->end[i];
		*e = (struct end){.side = i, .urgent = e->urgent, .number = i, .fd = -1, .mode = (char)tolower(p->modes[i]), .kind = 3, .want = POLLIN | POLLOUT, .ep = -1, .old = -1};
		shared->recalls[i] = getenv("STRESS_RECALLS") != 0;
		e->reads = draw(&x) | 1;
		e->writes = draw(&x) | 1;
		if (strchr("crx", p->fate) && i == shared->victim) e->leave = 1 + draw(&x) % (1u << (draw(&x) % 13));
		if (!wild) continue;
		e->signals = !one && !(draw(&x) & 7);
		int acts = (int)(draw(&x) % (ACTS + 1));
		uint64_t at = 0;
		const char *from = one || (p->fate == 'i' && i == shared->victim) ? "ddlttoupPmm" : ANY "dtffhgm";
		n += snprintf(shared->plan + n, sizeof shared->plan - (size_t)n, ", %d:%s", i, e->signals ? " signals" : "");
		for (int k = 0; k < acts; k++) {
			at += draw(&x) % (1u << (draw(&x) % 12));
			char what = from[draw(&x) % strlen(from)];
			e->act[k] = (struct act){at, what, draw(&x)};
			if (what == 'o') shared->end[!i].urgent = true;
			n += snprintf(shared->plan + n, sizeof shared->plan - (size_t)n, " %c%lu", what, at);
		}
	}
}

static bool left(int side) { return shared->left[side] && !shared->done[side]; }
// gone_both tells whether both ends have left and neither comes back by exec.
static bool gone_both(const pid_t pid[2]) {
	if (!left(0) || !left(1)) return false;
	for (int i = 0; i < 2; i++) {
		siginfo_t s = {0};
		if (pid[i] && (waitid(P_PID, (id_t)pid[i], &s, WEXITED | WNOHANG | WNOWAIT) < 0 || !s.si_pid)) return false;
	}
	return left(0) && left(1);
}
static bool too_long(double since, double limit, const pid_t pid[2]) {
	double d = now() - since;
	pid_t own[2] = {getpgid(0), getpgid(0)};
	return d > BUSY * limit || (d > limit && !busy(shared->one ? own : pid));
}

// show prints what the processes of a stalled connection wait for, and their sockets.
static void show(const pid_t pid[2]) {
	const struct sockaddr_in *at = (struct sockaddr_in *)&shared->at; // the port has the same place in both families
	int port = ntohs(at->sin_port);
	for (int i = 0; i < 2; i++) {
		char command[512];
		snprintf(command, sizeof command, "unset LD_PRELOAD; for p in $(pgrep -g %d); do echo process $p: $(cat /proc/$p/wchan) $(cat /proc/$p/syscall); done; %s%s ss -Htnmie sport = :%d or dport = :%d", pid[i],
		         hosts.apart ? "nsenter --net=" : "", hosts.namespace[i], port, port);
		fflush(stdout);
		if (system(command)) printf("no more is known of side %d\n", i);
	}
}

// exited is waitpid() for a process that is about to exit.
static pid_t exited(const pid_t pid[2], int i, int *status) {
	pid_t p;
	for (double since = now(); !(p = waitpid(pid[i], status, WNOHANG)) && now() - since < ENDLESS;) usleep(200);
	errno = 0;
	if (!p) {
		show(pid);
		fail("a process does not exit", i, 0, pid[i]);
	}
	return p;
}

// start connects or accepts an end.
static void start(struct end *e) {
	struct sockaddr *at = (struct sockaddr *)&shared->at;
	e->fd = e->side ? accept(shared->listener, 0, 0) : socket(at->sa_family, SOCK_STREAM, 0);
	buffers(e->fd, shared->window);
	if (!e->side && connect(e->fd, at, sizeof shared->at) < 0) fail("connect", 0, 0, 0);
}
// program runs an end in a process of its own.
static void program(struct end *e) {
	signal(SIGPIPE, SIG_IGN);
	dies_with_parent();
	start(e);
	close(shared->listener);
	run(e);
	fflush(stdout);
	exit(0);
}
// abroad runs an end as a program on its host, by exec: the library learns where its broker is when a program starts.
static void abroad(int side) {
	char number[2] = {(char)('0' + side), 0}, *begin[] = {"stress", "begin", number, 0};
	enter(side);
	setenv("SMCGW_SOCKET", hosts.socket[side], 1);
	execv("/proc/self/exe", begin);
	fail("exec", side, 0, -1);
}

static void connection(const struct plan *plan) {
	struct end end[2] = {shared->end[0], shared->end[1]};
	pthread_t thread[2];
	pid_t pid[2] = {0, 0};
	const bool one = shared->one;
	const char how = plan->fate;
	uint64_t x = (plan->seed + 3) * 0x9e3779b97f4a7c15ull;
	if (hosts.apart) enter(1);
	int l = shared->listener = socket(family(plan->family), SOCK_STREAM, 0);
	struct sockaddr *s = (struct sockaddr *)&shared->at;
	address(plan->family, &shared->at, hosts.port);
	socklen_t n = sizeof shared->at;
	buffers(l, shared->window = plan->window);
	if (hosts.apart) setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
	if (bind(l, s, n) < 0 || listen(l, 1) < 0 || getsockname(l, s, &n) < 0) fail("listen", 0, 0, l);
	shared->until = now() + plan->seconds;
	for (int i = 0; i < 2; i++) {
		if (!one && (pid[i] = fork()) > 0) {
			setpgid(pid[i], pid[i]);
			shared->pid[i] = pid[i];
			continue;
		}
		if (!one) {
			setpgid(0, 0);
			if (hosts.apart) abroad(i);
			program(&end[i]);
		}
		signal(SIGPIPE, SIG_IGN);
		start(&end[i]);
		pthread_create(&thread[i], 0, run, &end[i]);
	}
	close(l);
	while (!(shared->begins[0] && shared->begins[1]) && !shared->failed && now() < shared->until + STALL) usleep(100);
	if (hosts.apart) printf("begun\n");
	uint64_t last = 0;
	int victim = shared->victim, stops = 1 + (int)(draw(&x) & 3);
	double began = now(), at = began, gap = 0, stopped_at = 0, when = (double)(draw(&x) % 1000000) / 1e6, gone_at = 0;
	when = began + when * when * when * plan->seconds; // rather early than late
	while (!(shared->done[0] && shared->done[1]) && !shared->failed) {
		bool due = strchr("kis", how) && when != 0;
		double ahead = due ? when - now() : 0.002;
		usleep(ahead <= 0 ? 1 : ahead < 0.002 ? (unsigned)(ahead * 1e6) + 1 : 2000);
		if (due && now() >= when) {
			when = 0;
			if (how == 'i') {
				if (!kill_at_instruction(pid[victim], draw(&x))) pid[victim] = 0;
				at = now(); // the steps may have taken long
			} else if (how == 'k') {
				shared->left[victim] = true;
				kill(-pid[victim], SIGKILL);
			} else {
				kill(-pid[victim], SIGSTOP);
				usleep((unsigned)(draw(&x) % 50000));
				kill(-pid[victim], SIGCONT);
				stopped_at = now();
				if (--stops) when = now() + (double)(draw(&x) % 1000000) / 1e7;
			}
		}
		if (stopped_at && now() - stopped_at > 0.1) { // a process that was just being forked may have missed the first SIGCONT
			kill(-pid[victim], SIGCONT);
			stopped_at = now();
		}
		uint64_t sum = shared->got[0] + shared->got[1] + shared->sent[0] + shared->sent[1];
		if (sum != last) {
			last = sum;
			at = now();
		}
		int left_by = left(0) ? 0 : left(1) ? 1 : -1;
		if (left_by < 0) gone_at = 0;
		if (left_by >= 0) {
			if (shared->done[!left_by] || gone_both(pid)) break;
			if (!gone_at) gone_at = now();
			errno = 0;
			if (too_long(at > gone_at ? at : gone_at, END_WITHIN, pid)) fail("no end after the other's", !left_by, shared->got[!left_by], pid[!left_by]);
		}
		if (now() - at > gap) gap = now() - at;
		bool endless = now() > began + plan->seconds + ENDLESS;
		if (!too_long(at, STALL, pid) && !endless) continue;
		errno = 0;
		for (int i = 0; i < 3; i++) { // some bytes may come
			printf("sent %lu %lu got %lu %lu pids %d %d\n", shared->sent[0], shared->sent[1], shared->got[0], shared->got[1], one ? getpid() : pid[0], one ? 0 : pid[1]);
			if (!one) show(pid); // otherwise fork() would change what it shows
			usleep(1000000);
		}
		fail(endless ? "no end" : "stall", 0, last, 0);
	}
	int by = left(0) ? 0 : left(1) ? 1 : -1;
	bool both = left(0) && left(1);
	if (shared->failed) fail("an end has failed", 0, 0, 0);
	for (int i = 0; i < 2; i++) {
		int status = 0;
		if (one) pthread_join(thread[i], 0);
		else if (pid[i] && (exited(pid, i, &status) != pid[i] || (status && !(i == victim && shared->left[i] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))))
			fail("the status of a process", i, (uint64_t)by, status);
	}
	errno = 0;
	if (shared->failed) fail("an end has failed", 0, 0, 0);
	if (by >= 0 && !both) judge(by);
	else if (how == 'n') judge(0), judge(1);
	else if (by < 0 && (shared->got[0] != shared->sent[1] || shared->got[1] != shared->sent[0])) fail("bytes are missing", 0, shared->sent[1] - shared->got[0], (long)(shared->sent[0] - shared->got[1]));
	moved[0] += shared->got[0] + shared->got[1];
	moved[1] += (both || by == victim) && strchr("ki", how);
	moved[2] += shared->inside;
	moved[3] += shared->refused;
	if (!one) end_round(pid);
	if (getenv("STRESS_SHOW")) printf("ok: sent %lu %lu, peeks %lu %lu, spurious %lu %lu of %lu %lu, longest gap %.3f s\n", shared->sent[0], shared->sent[1], shared->peeks[0], shared->peeks[1],
	       shared->spurious[0], shared->spurious[1], shared->again[0], shared->again[1], gap);
}

static void streams(void) {
	for (int i = 0; i < 2; i++) {
		uint64_t y = 88172645463325252ull + (unsigned)i;
		for (int j = 0; j < PERIOD; j++) stream[i][j] = (unsigned char)(draw(&y) >> 20);
		memcpy(stream[i] + PERIOD, stream[i], LARGEST);
	}
}
static int memory(const char *name, int number, size_t n) {
	int fd = memfd_create(name, 0);
	if (fd < 0 || ftruncate(fd, (off_t)n) < 0 || dup2(fd, number) < 0) exit(2);
	close(fd);
	return number;
}

int main(int argc, char **argv) {
	setvbuf(stdout, 0, _IOLBF, 0);
	bool resumes = argc == 4 && !strcmp(argv[1], "resume"), begins = argc == 3 && !strcmp(argv[1], "begin"), first = !resumes && !begins;
	if ((first && (argc < 5 || strlen(argv[1]) != 2)) || !find_hosts()) return 2;
	streams();
	if (first)
		for (int i = 0; i < 3; i++) memory("stress", FILES + i, i < 2 ? sizeof stream[i] : sizeof *shared);
	for (int i = 0; i < 2; i++) file[i] = FILES + i;
	shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, FILES + 2, 0);
	if (shared == MAP_FAILED) return 2;
	if (begins) {
		struct end e = shared->end[atoi(argv[2])];
		program(&e);
	}
	if (resumes) {
		struct end e = shared->end[atoi(argv[3])];
		signal(SIGPIPE, SIG_IGN);
		dies_with_parent();
		e.fd = atoi(argv[2]);
		if (fcntl(e.fd, F_GETFD) < 0) {
			shared->refused++;
			return 0;
		}
		shared->left[e.side] = false;
		run(&e);
		return 0;
	}
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < 2; i++)
		if (pwrite(file[i], stream[i], sizeof stream[i], 0) != sizeof stream[i]) return 2;
	uint64_t seed = strtoull(argv[4], 0, 10), rounds = argc > 7 ? strtoull(argv[7], 0, 10) : 1;
	bool wild = argc > 6 && argv[6][0] && argv[6][1] == '+';
	double end = argc > 8 ? now() + atof(argv[8]) : 0;
	uint64_t r = 0;
	for (; r < rounds && (!end || now() < end); r++) {
		struct plan p;
		drawn(&p, argv, seed + r, wild);
		if (getenv("STRESS_SHOW")) printf("%s\n", shared->plan);
		connection(&p);
	}
	printf("ok: rounds %lu bytes %lu kills %lu at instructions %lu refused %lu\n", r, moved[0], moved[1], moved[2], moved[3]);
	return 0;
}
