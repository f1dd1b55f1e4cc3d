// The interposed libc functions (calls.h lists them). Each looks up the descriptor in the table; if it is not there, libc gets the call unchanged.
#include "lib.h"

#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/close_range.h>
#include <linux/nsfs.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "real.h"
#include "stream.h"
#include <linux/tcp.h>

// Where musl's headers differ from glibc's.
#ifdef __GLIBC__
typedef int mmsg_flags;
typedef unsigned long ioctl_request;
#define CONTROL_BLOCKS struct aiocb *const list[restrict]
#else
typedef unsigned mmsg_flags;
typedef int ioctl_request;
#define CONTROL_BLOCKS struct aiocb *restrict const list[restrict]
#endif

#define DEFINE(name) void *_Atomic smcgw_next_##name;
CALLS(DEFINE)
#undef DEFINE

#define PUBLIC __attribute__((visibility("default")))
#define DEMOTE_WITHIN 2000000000LL

// THROUGH makes a call through the rings. Like one of libc, it is a cancellation point even if it need not wait, and leaves errno alone unless it
// fails: OpenSSL takes an end of the stream with EINTR or EAGAIN in errno for no end.
#define THROUGH(call)                                                          \
	({                                                                     \
		pthread_testcancel();                                          \
		int was = errno;                                               \
		ssize_t moved_ = call;                                         \
		if (likely(moved_ >= 0 || moved_ == RETRY)) errno = was;       \
		moved_;                                                        \
	})
// RX and TX make one call on a descriptor: raw is the call to libc, locked the one through the rings.
#define MOVE(counter, stream, raw, locked)                                     \
	do {                                                                   \
		for (;;) {                                                     \
			struct end *e = look(fd);                              \
			if (likely(!e)) return raw;                            \
			enum path path = smcgw_enter(e, fd, &e->counter);      \
			if (path == PLAIN) return raw;                         \
			if (path == COUNTED) return smcgw_left(&e->counter, &e->stream, raw); \
			ssize_t moved = THROUGH(locked);                       \
			if (likely(moved != RETRY)) return moved;              \
		}                                                              \
	} while (0)
#define RX(raw, locked) MOVE(raw_rx, kr, raw, locked)
#define TX(raw, locked) MOVE(raw_tx, ks, raw, locked)
#define ONE(b, n) (&(struct iovec){(void *)(uintptr_t)(b), (n)})

// allowed tells whether a program may have n bytes at p, as the kernel asks before a call moves any.
static inline bool allowed(const void *p, size_t n) {
#ifdef __x86_64__
	if (unlikely((intptr_t)p < 0 || (intptr_t)((uintptr_t)p + n) < 0)) return false;
#else
	(void)p;
#endif
	return likely((ssize_t)n >= 0);
}
// imported replaces a program's vector by one that can be read: itself, or, if it has one element, a copy. It returns false, with errno set,
// for what the kernel refuses.
static bool imported(const struct iovec **v, int nv, struct iovec *one) {
	bool bad = nv > 1 && !smcgw_touch(*v, (size_t)nv * sizeof **v);
	if (nv == 1) {
		bad = !smcgw_move(one, *v, sizeof *one);
		*v = one;
	}
	for (int i = 0; i < nv && !bad; i++) {
		if (unlikely((ssize_t)(*v)[i].iov_len < 0)) {
			errno = EINVAL;
			return false;
		}
	}
	for (int i = 0; i < nv && !bad; i++) bad = !allowed((*v)[i].iov_base, (*v)[i].iov_len);
	if (unlikely(bad)) fault();
	return !bad;
}
static ssize_t rx_one(struct end *e, int fd, void *b, size_t n) { return likely(allowed(b, n)) ? smcgw_rx(e, fd, ONE(b, n), 1, 0) : fault(); }
static ssize_t tx_one(struct end *e, int fd, const void *b, size_t n, int flags) {
	return likely(allowed(b, n)) ? smcgw_tx(e, fd, ONE(b, n), 1, flags) : fault();
}
static ssize_t rx_all(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	struct iovec one;
	return imported(&v, nv, &one) ? smcgw_rx(e, fd, v, nv, flags) : -1;
}
static ssize_t tx_all(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	struct iovec one;
	return imported(&v, nv, &one) ? smcgw_tx(e, fd, v, nv, flags) : -1;
}
// capped is for the calls that the kernel makes shorter before it looks at the buffer.
static inline size_t capped(size_t n) { return n < MOST ? n : MOST; }

static bool tracked(int fd) { return look(fd) != 0; }

// to_kernel_by makes an end native for good, before a call that its rings cannot serve. It returns false if the end could not leave its rings.
static bool to_kernel_by(int fd, uint32_t why, int64_t until) {
	struct end *e = look(fd);
	if (!e || (!smcgw_ours() && !smcgw_is(e, fd))) return true; // the child of a vfork() may have another file there
	uint32_t asked = SMCI_ASKED;
	smcgw_never(e, why);
	if (atomic_compare_exchange_strong(&e->report.state, &asked, SMCI_NEVER)) put(&e->report.why, why);
	for (;;) {
		if (state_of(e) == SMCI_MAPPED) {
			smcgw_lock(e, &e->rl);
			smcgw_lock(e, &e->wl);
			if (state_of(e) == SMCI_MAPPED && smcgw_has(e, fd)) smcgw_leave(e, why);
			smcgw_unlock(e, &e->wl);
			smcgw_unlock(e, &e->rl);
		}
		if (state_of(e) != SMCI_PROMOTED) return true;
		put(&e->report.why, why);
		bool done = smcgw_demote(e, fd, why != SMCI_WHY_OPTION, until ? until : now() + DEMOTE_WITHIN);
		if (state_of(e) != SMCI_MAPPED || !smcgw_has(e, fd)) return done; // otherwise it was not attached after all
	}
}
static bool to_kernel(int fd, uint32_t why) { return to_kernel_by(fd, why, 0); }
// to_kernel_anyway is for a call that is made even if the end could not leave its rings.
static void to_kernel_anyway(int fd, uint32_t why) {
	struct end *e = look(fd);
	if (!to_kernel(fd, why) && e && state_of(e) == SMCI_PROMOTED) put(&e->around, true);
}

// kernel_shows moves an end to the kernel, for what will ask the kernel alone. It returns false if that would miss something: bytes, if the end
// could not leave its rings, or an error that the kernel has told the library, and the program does not know yet: the kernel would show an end.
static bool kernel_shows(int fd, uint32_t why, int64_t until) {
	if (!to_kernel_by(fd, why, until)) return false;
	struct end *e = look(fd);
	if (!e || !e->attached || !smcgw_lock(e, &e->rl)) return true; // an end that was never attached may have no locks yet
	bool withheld = smcgw_still(e, fd) && (e->rx_error || get(&e->tx_error));
	smcgw_unlock(e, &e->rl);
	return !withheld;
}
// refuses sets err and returns true for a call that the rings cannot serve, if the kernel cannot either.
static bool refuses(int fd, int err) {
	if (!tracked(fd) || kernel_shows(fd, SMCI_WHY_OPTION, 0)) return false;
	errno = err;
	return true;
}

// all_to_kernel makes every connection native for good. It returns false if one could not leave its rings.
static bool all_to_kernel(uint32_t why) {
	int64_t until = now() + DEMOTE_WITHIN; // one deadline for all
	bool all = true;
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		if (e && (!to_kernel_by(fd, why, until) || state_of(e) == SMCI_PROMOTED)) all = false;
	}
	return all;
}
// by_kernel_alone makes every connection native for good; from then on the library makes no system calls of its own.
static void by_kernel_alone(uint32_t why) {
	if (smcgw.slab && !smcgw_ours()) return; // the child of a vfork()
	smcgw.disabled = true;
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		if (e && state_of(e) == SMCI_ASKED) smcgw_released(e); // close() will not wait for that
	}
	all_to_kernel(why);
	smcgw_apart();
}

// splits is called before this thread gets a table of descriptors of its own, or its children other numbers for processes. Ends are known by
// both. A table that no other thread has stays.
static void splits(uint64_t flags) {
	struct stat s;
	bool alone = !(flags & CLONE_FILES) || (!SYS(newfstatat, AT_FDCWD, "/proc/self/task", &s, 0) && s.st_nlink == 3);
	if (!alone || ((flags & CLONE_NEWPID) && smcgw.slab)) by_kernel_alone(SMCI_WHY_SHARED);
}

// ---- reading

PUBLIC ssize_t read(int fd, void *b, size_t n) { RX(REAL(read)(fd, b, n), rx_one(e, fd, b, n)); }
PUBLIC ssize_t readv(int fd, const struct iovec *v, int nv) {
	if (nv < 0 || nv > IOV_MAX) return REAL(readv)(fd, v, nv);
	RX(REAL(readv)(fd, v, nv), rx_all(e, fd, v, nv, 0));
}
static ssize_t any_preadv2(int fd, const struct iovec *v, int nv, off_t at, int flags) {
	return HAS(preadv2) ? REAL(preadv2)(fd, v, nv, at, flags) : (ssize_t)result(SYS(preadv2, fd, v, nv, at, 0, flags));
}
PUBLIC ssize_t preadv2(int fd, const struct iovec *v, int nv, off_t at, int flags) {
	if (at != -1 || nv < 0 || nv > IOV_MAX) return any_preadv2(fd, v, nv, at, flags);
	RX(any_preadv2(fd, v, nv, at, flags), rx_all(e, fd, v, nv, flags & RWF_NOWAIT ? MSG_DONTWAIT : 0));
}

// left_rx counts what a call read. Bytes that were only peeked at do not count.
static ssize_t left_rx(struct end *e, ssize_t n, int flags) {
	smcgw_left(&e->raw_rx, &e->kr, flags & (MSG_PEEK | MSG_ERRQUEUE | MSG_OOB) ? 0 : n);
	return n;
}
// peeks_all moves a MSG_PEEK|MSG_WAITALL to the kernel: bytes in two places cannot be peeked at together.
static bool peeks_all(int fd, int flags) {
	return (flags & (MSG_PEEK | MSG_WAITALL)) == (MSG_PEEK | MSG_WAITALL) && !get(&look(fd)->passed) && to_kernel(fd, SMCI_WHY_OPTION);
}
// received is for the calls that wait for a byte even if they ask for none, and that may ask for bytes to be discarded.
static ssize_t received(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	size_t n = total(v, nv);
	char c;
	if (likely(n && !(flags & MSG_TRUNC))) return smcgw_rx(e, fd, v, nv, flags);
	if (n) return smcgw_discard(e, fd, n, flags);
	ssize_t r = smcgw_rx(e, fd, ONE(&c, 1), 1, (flags & ~MSG_TRUNC) | MSG_PEEK);
	bool late = r == -1 && errno == EAGAIN && !(flags & MSG_DONTWAIT) && !get(&e->nonblock); // they end as if they had got what they asked for
	return r > 0 || late ? 0 : r;
}
PUBLIC ssize_t recvfrom(int fd, void *b, size_t n, int flags, struct sockaddr *a, socklen_t *l) {
	for (;;) {
		struct end *e = look(fd);
		if (likely(!e) || (flags & (MSG_OOB | MSG_ERRQUEUE))) return REAL(recvfrom)(fd, b, n, flags, a, l);
		enum path path = smcgw_enter(e, fd, &e->raw_rx);
		if (path == PLAIN) return REAL(recvfrom)(fd, b, n, flags, a, l);
		if (path == COUNTED) return left_rx(e, REAL(recvfrom)(fd, b, n, flags, a, l), flags);
		if (unlikely(peeks_all(fd, flags))) continue;
		n = capped(n);
		ssize_t r = THROUGH(likely(allowed(b, n)) ? received(e, fd, ONE(b, n), 1, flags) : fault());
		if (r >= 0 && a && l) smcgw_move(l, &(socklen_t){0}, sizeof *l);
		if (r != RETRY) return r;
	}
}
PUBLIC ssize_t recv(int fd, void *b, size_t n, int flags) {
	if (likely(!tracked(fd))) return REAL(recv)(fd, b, n, flags);
	return recvfrom(fd, b, n, flags, 0, 0);
}
PUBLIC ssize_t recvmsg(int fd, struct msghdr *h, int flags) {
	for (;;) {
		struct end *e = look(fd);
		if (likely(!e) || (flags & (MSG_OOB | MSG_ERRQUEUE))) return REAL(recvmsg)(fd, h, flags);
		struct msghdr m;
		if (unlikely(!smcgw_move(&m, h, sizeof m) || m.msg_iovlen > IOV_MAX)) return REAL(recvmsg)(fd, h, flags);
		enum path path = smcgw_enter(e, fd, &e->raw_rx);
		if (path == PLAIN) return REAL(recvmsg)(fd, h, flags);
		if (path == COUNTED) return left_rx(e, REAL(recvmsg)(fd, h, flags), flags);
		if (unlikely(peeks_all(fd, flags))) continue;
		const struct iovec *v = m.msg_iov;
		struct iovec one;
		ssize_t r = THROUGH(imported(&v, (int)m.msg_iovlen, &one) ? received(e, fd, v, (int)m.msg_iovlen, flags) : -1);
		if (r == RETRY) continue;
		if (r >= 0) {
			m.msg_namelen = 0;
			m.msg_controllen = 0;
			m.msg_flags = flags & MSG_CMSG_CLOEXEC;
			if (unlikely(!smcgw_move(h, &m, sizeof m))) return fault();
		}
		return r;
	}
}
// moved_by returns how many bytes the first n messages of a call moved.
static ssize_t moved_by(const struct mmsghdr *h, int n) {
	ssize_t sum = 0;
	for (int i = 0; i < n; i++) sum += h[i].msg_len;
	return sum;
}
static int receives(int fd, struct mmsghdr *h, unsigned n, int flags, int64_t until) {
	for (unsigned i = 0; i < n; i++) {
		if (i && smcgw_stops(fd, false)) return (int)i; // the connection may be native by now: the next call reports the error
		ssize_t r = recvmsg(fd, &h[i].msg_hdr, (flags & ~MSG_WAITFORONE) | (i && (flags & MSG_WAITFORONE) ? MSG_DONTWAIT : 0));
		if (r < 0) {
			struct end *e = i ? look(fd) : 0;
			if (e) smcgw_later(e, errno);
			return i ? (int)i : -1;
		}
		if (unlikely(!smcgw_move(&h[i].msg_len, &(unsigned){(unsigned)r}, sizeof(unsigned)))) return i ? (int)i : (int)fault();
		if (now() >= until) return (int)i + 1;
	}
	return (int)n;
}
PUBLIC int recvmmsg(int fd, struct mmsghdr *h, unsigned n, mmsg_flags flags, struct timespec *timeout) {
	struct end *e = look(fd);
	if (likely(!e)) return REAL(recvmmsg)(fd, h, n, flags, timeout);
	enum path path = smcgw_enter(e, fd, &e->raw_rx);
	if (path == PLAIN) return REAL(recvmmsg)(fd, h, n, flags, timeout);
	if (path == COUNTED) {
		int r = REAL(recvmmsg)(fd, h, n, flags, timeout);
		left_rx(e, moved_by(h, r), (int)flags);
		return r;
	}
	struct timespec t = {0, 0};
	if (timeout && !smcgw_move(&t, timeout, sizeof t)) return (int)fault();
	if (timeout && unlikely(!is_time(&t))) return REAL(recvmmsg)(fd, h, n, flags, timeout); // moves nothing
	int64_t until = timeout ? now() + ns_of(&t) : INT64_MAX;
	int r = receives(fd, h, n, (int)flags, until);
	if (!timeout || r <= 0) return r;
	t = left_until(until);
	return smcgw_move(timeout, &t, sizeof t) ? r : (int)fault();
}

// ---- writing

PUBLIC ssize_t write(int fd, const void *b, size_t n) { TX(REAL(write)(fd, b, n), tx_one(e, fd, b, n, 0)); }
PUBLIC ssize_t writev(int fd, const struct iovec *v, int nv) {
	if (nv < 0 || nv > IOV_MAX) return REAL(writev)(fd, v, nv);
	TX(REAL(writev)(fd, v, nv), tx_all(e, fd, v, nv, 0));
}
static ssize_t any_pwritev2(int fd, const struct iovec *v, int nv, off_t at, int flags) {
	return HAS(pwritev2) ? REAL(pwritev2)(fd, v, nv, at, flags) : (ssize_t)result(SYS(pwritev2, fd, v, nv, at, 0, flags));
}
PUBLIC ssize_t pwritev2(int fd, const struct iovec *v, int nv, off_t at, int flags) {
	if (at != -1 || nv < 0 || nv > IOV_MAX) return any_pwritev2(fd, v, nv, at, flags);
	TX(any_pwritev2(fd, v, nv, at, flags), tx_all(e, fd, v, nv, flags & RWF_NOWAIT ? MSG_DONTWAIT : 0));
}
#define SPECIAL (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)
PUBLIC ssize_t sendto(int fd, const void *b, size_t n, int flags, const struct sockaddr *a, socklen_t l) {
	if (unlikely(flags & SPECIAL) && tracked(fd)) to_kernel(fd, SMCI_WHY_OPTION);
	TX(REAL(sendto)(fd, b, n, flags, a, l), tx_one(e, fd, b, capped(n), flags));
}
PUBLIC ssize_t send(int fd, const void *b, size_t n, int flags) {
	if (likely(!tracked(fd))) return REAL(send)(fd, b, n, flags);
	return sendto(fd, b, n, flags, 0, 0);
}

// passes is called for descriptors in a message: a process without our memory is about to get them. It returns false if one of them would
// read wrong bytes there, because what was sent is in two places.
static bool passes(const struct msghdr *h) {
	bool ok = true;
	if (!smcgw_touch(h->msg_control, h->msg_controllen)) return true; // the kernel reports it
	for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR((struct msghdr *)(uintptr_t)h, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (tracked(fd) && !kernel_shows(fd, SMCI_WHY_PASSED, 0)) ok = false;
		}
	}
	if (!ok) errno = EIO;
	return ok;
}
PUBLIC ssize_t sendmsg(int fd, const struct msghdr *h, int flags) {
	struct msghdr m;
	if (!smcgw.slab || !smcgw_move(&m, h, sizeof m)) return REAL(sendmsg)(fd, h, flags);
	if (unlikely(m.msg_control && m.msg_controllen) && !passes(&m)) return -1;
	if (unlikely(flags & SPECIAL) && tracked(fd)) to_kernel(fd, SMCI_WHY_OPTION);
	if (unlikely(m.msg_iovlen > IOV_MAX)) return REAL(sendmsg)(fd, h, flags);
	TX(REAL(sendmsg)(fd, h, flags), tx_all(e, fd, m.msg_iov, (int)m.msg_iovlen, flags));
}
PUBLIC int sendmmsg(int fd, struct mmsghdr *h, unsigned n, mmsg_flags flags) {
	struct end *e = look(fd);
	if (likely(!e || state_of(e) != SMCI_PROMOTED)) {
		struct msghdr m;
		for (unsigned i = 0; smcgw.slab && i < n && smcgw_move(&m, &h[i].msg_hdr, sizeof m); i++) {
			if (!m.msg_control || !m.msg_controllen || passes(&m)) continue;
			if (!i) return -1;
			n = i;
		}
	}
	if (unlikely(flags & SPECIAL) && e) to_kernel(fd, SMCI_WHY_OPTION);
	enum path path = e ? smcgw_enter(e, fd, &e->raw_tx) : PLAIN;
	if (likely(path != LOCKED)) {
		int r = REAL(sendmmsg)(fd, h, n, flags);
		if (path == COUNTED) smcgw_left(&e->raw_tx, &e->ks, moved_by(h, r));
		return r;
	}
	for (unsigned i = 0; i < n && i < IOV_MAX; i++) {
		if (i && smcgw_stops(fd, false)) return (int)i;
		ssize_t r = sendmsg(fd, &h[i].msg_hdr, flags);
		if (r < 0) {
			if (i && (e = look(fd))) smcgw_unsaid(e, errno); // a message of no bytes meets the kernel's error, the next one may go by the ring
			return i ? (int)i : -1;
		}
		if (unlikely(!smcgw_move(&h[i].msg_len, &(unsigned){(unsigned)r}, sizeof(unsigned)))) return i ? (int)i : (int)fault();
		struct msghdr m;
		if (!smcgw_move(&m, &h[i].msg_hdr, sizeof m)) return (int)i + 1;
		const struct iovec *v = m.msg_iov;
		struct iovec one;
		if (!imported(&v, (int)m.msg_iovlen, &one) || (size_t)r < total(v, (int)m.msg_iovlen)) return (int)i + 1; // nothing may follow a partial message
	}
	return (int)(n < IOV_MAX ? n : IOV_MAX);
}
PUBLIC ssize_t sendfile(int fd, int from, off_t *at, size_t n) {
	if (unlikely(refuses(from, EINVAL))) return -1; // into a pipe, the kernel does it as by splice()
	if (unlikely((ssize_t)n < 0)) return REAL(sendfile)(fd, from, at, n); // moves nothing
	TX(REAL(sendfile)(fd, from, at, n), smcgw_tx_file(e, fd, from, at, capped(n)));
}
PUBLIC ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t n, unsigned flags) {
	if (refuses(from, EINVAL) || refuses(to, EINVAL)) return -1; // programs fall back to read() and write()
	return REAL(splice)(from, from_at, to, to_at, n, flags);
}

// ---- life

PUBLIC int connect(int fd, const struct sockaddr *a, socklen_t l) {
	struct end *e = look(fd);
	sa_family_t family = AF_INET;
	bool parts = unlikely(e != 0) && l >= sizeof family && smcgw_move(&family, &a->sa_family, sizeof family) && family == AF_UNSPEC;
	if (parts && state_of(e) == SMCI_PROMOTED) smcgw_parts(e, fd);
	int r = REAL(connect)(fd, a, l);
	if (parts && r == 0) { // it is no connection any more, under any of its numbers
		for (int i = 0, top = smcgw_top(); i <= top; i++)
			if (look(i) == e) smcgw_stale(i);
		return 0;
	}
	if (unlikely(tracked(fd)) && smcgw_other(look(fd), fd)) smcgw_stale(fd);
	if ((r == 0 || errno == EINPROGRESS) && a && (a->sa_family == AF_INET || a->sa_family == AF_INET6) && !tracked(fd)) {
		int err = errno;
		smcgw_track(fd, true, r ? 1 : -1);
		errno = err;
	}
	return r;
}
PUBLIC int accept4(int fd, struct sockaddr *a, socklen_t *l, int flags) {
	int r = REAL(accept4)(fd, a, l, flags);
	if (r >= 0) smcgw_track(r, false, !!(flags & SOCK_NONBLOCK));
	return r;
}
PUBLIC int accept(int fd, struct sockaddr *a, socklen_t *l) {
	int r = REAL(accept)(fd, a, l);
	if (r >= 0) smcgw_track(r, false, 0);
	return r;
}
PUBLIC int close(int fd) {
	if (unlikely(smcgw_hidden(fd)) && smcgw_ours()) { // the program does not know of this descriptor
		errno = EBADF;
		return -1;
	}
	struct drop d = smcgw_drop(fd);
	if (likely(!d.of)) return REAL(close)(fd);
	int r;
	pthread_cleanup_push(smcgw_dropped, &d);
	r = REAL(close)(fd);
	pthread_cleanup_pop(1);
	return r;
}
PUBLIC int shutdown(int fd, int how) {
	struct end *e = look(fd);
	if (!e || state_of(e) != SMCI_PROMOTED || (unsigned)how > SHUT_RDWR) return REAL(shutdown)(fd, how);
	if (!smcgw_ended(e, fd, how)) how = how == SHUT_WR ? -1 : SHUT_RD;
	int r = how < 0 ? 0 : REAL(shutdown)(fd, how);
	if (unlikely(e->remote != 0)) smcgw_remote_told(e, fd);
	return r;
}
// dropped is smcgw_drop for one of several numbers that are closed in one call.
static void dropped(int fd) {
	struct drop d = smcgw_drop(fd);
	smcgw_dropped(&d);
}
static long close_some(unsigned from, unsigned to, int flags) {
	bool held = smcgw_ours() && smcgw_numbers();
	long r = SYS(close_range, from, to, flags);
	smcgw_numbers_go(held);
	return r;
}
PUBLIC int close_range(unsigned from, unsigned to, int flags) {
	if (from > to || (flags & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC))) return (int)result(SYS(close_range, from, to, flags)); // closes nothing
	if (flags & CLOSE_RANGE_UNSHARE) splits(CLONE_FILES);
	const int some[] = {smcgw_top(), smcgw.socket, smcgw.slab_fd, smcgw.nudge, smcgw_top_bell()};
	unsigned last = 0; // highest number that matters here; there may be a million more
	for (unsigned i = 0; i < sizeof some / sizeof *some; i++)
		if (some[i] > (int)last) last = (unsigned)some[i];
	bool own = smcgw_ours();
	for (unsigned i = from; own && i <= to && i <= last && !(flags & CLOSE_RANGE_CLOEXEC); i++) {
		if (smcgw_hidden((int)i)) { // close around ours
			if (i > from) close_some(from, i - 1, flags);
			from = i + 1;
		} else {
			dropped((int)i);
		}
	}
	if (from > to) return 0;
	return (int)result(close_some(from, to, flags));
}
PUBLIC void closefrom(int from) {
	if (close_range((unsigned)(from < 0 ? 0 : from), ~0u, 0) == 0) return;
	for (int fd = from < 0 ? 0 : from, top = (int)sysconf(_SC_OPEN_MAX); fd < top; fd++) close(fd);
}
// handed: the child of a vfork() duplicates a descriptor to a number that its next program knows.
static void handed(int old) {
	if (tracked(old) && !smcgw_ours()) to_kernel_anyway(old, SMCI_WHY_PASSED);
}
// same records a duplicate. A connection that becomes stdin, stdout or stderr goes back to the kernel, since libc itself reads and writes these;
// so does one whose number the table has no room for.
static void same(int old, int new) {
	smcgw_same(old, new);
	if (unlikely(new <= STDERR_FILENO || new >= MAX_FD) && tracked(old)) to_kernel_anyway(old, SMCI_WHY_OPTION);
}
PUBLIC int dup(int old) {
	handed(old);
	int r = REAL(dup)(old);
	if (r >= 0 && smcgw_ours()) same(old, r);
	return r;
}
// renumber is dup3(), or dup2() if flags is -1, of two different numbers: the new one may be a connection.
static int renumber(int old, int new, int flags) {
	struct drop d = {0};
	handed(old);
	if ((flags < 0 || !(flags & ~O_CLOEXEC)) && smcgw_ours() && SYS(fcntl, old, F_GETFD) >= 0) {
		smcgw_hide_from(new);
		d = smcgw_drop(new);
	}
	bool held = smcgw_ours() && smcgw_numbers();
	int r = flags < 0 ? REAL(dup2)(old, new) : REAL(dup3)(old, new, flags);
	smcgw_numbers_go(held);
	smcgw_dropped(&d);
	if (r >= 0 && smcgw_ours()) same(old, r);
	return r;
}
PUBLIC int dup3(int old, int new, int flags) {
	return old == new || flags < 0 ? REAL(dup3)(old, new, flags) : renumber(old, new, flags); // EINVAL
}
PUBLIC int dup2(int old, int new) { return old == new ? REAL(dup2)(old, new) : renumber(old, new, -1); }
PUBLIC int fcntl(int fd, int cmd, ...) {
	va_list a;
	va_start(a, cmd);
	long x = va_arg(a, long);
	va_end(a);
	struct end *e = look_open(fd);
	if (unlikely(e && (cmd == F_SETOWN || cmd == F_SETSIG || (cmd == F_SETFL && (x & O_ASYNC))))) to_kernel(fd, SMCI_WHY_OPTION);
	if (unlikely(e && (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC))) handed(fd);
	int r = REAL(fcntl)(fd, cmd, x);
	if (r >= 0 && e && cmd == F_SETFL) put(&e->nonblock, !!(x & O_NONBLOCK));
	if (r >= 0 && (cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC) && smcgw_ours()) same(fd, r);
	return r;
}
PUBLIC int ioctl(int fd, ioctl_request request, ...) {
	va_list a;
	va_start(a, request);
	void *p = va_arg(a, void *);
	va_end(a);
	struct end *e = look_open(fd);
	if (likely(!e)) return REAL(ioctl)(fd, request, p);
	bool promoted = state_of(e) == SMCI_PROMOTED;
	switch (request) {
	case FIONREAD:
		if (!promoted) break;
		return smcgw_move(p, &(int){(int)smcgw_unread(e, fd)}, sizeof(int)) ? 0 : (int)fault();
	case SIOCOUTQ: { // what the peer has not read counts as unacknowledged
		int r = REAL(ioctl)(fd, request, p);
		if (promoted && r == 0) *(int *)p += (int)smcgw_unsent(e, fd);
		return r;
	}
	case FIOASYNC:
		to_kernel(fd, SMCI_WHY_OPTION);
		break;
	case FIONBIO: {
		int r = REAL(ioctl)(fd, request, p);
		if (r == 0) put(&e->nonblock, !!*(int *)p);
		return r;
	}
	default:;
	}
	return REAL(ioctl)(fd, request, p);
}
PUBLIC FILE *fdopen(int fd, const char *mode) { // stdio reads and writes within libc
	if (refuses(fd, EIO)) return 0;
	return REAL(fdopen)(fd, mode);
}
PUBLIC int fclose(FILE *f) { // it closes within libc
	int fd = fileno_unlocked(f);
	if (fd >= 0 && tracked(fd)) dropped(fd);
	return REAL(fclose)(f);
}
PUBLIC FILE *freopen(const char *restrict path, const char *restrict mode, FILE *restrict f) {
	int fd = fileno_unlocked(f);
	if (fd >= 0 && tracked(fd)) dropped(fd);
	return REAL(freopen)(path, mode, f);
}
PUBLIC int vdprintf(int fd, const char *format, va_list a) {
	if (!tracked(fd)) return REAL(vdprintf)(fd, format, a);
	char *text;
	int n = vasprintf(&text, format, a);
	if (n < 0) return n;
	for (int done = 0; done < n;) {
		ssize_t k = write(fd, text + done, (size_t)(n - done));
		if (k < 0) n = -1;
		else done += (int)k;
	}
	int err = errno;
	free(text);
	errno = err;
	return n;
}
PUBLIC int dprintf(int fd, const char *format, ...) {
	va_list a;
	va_start(a, format);
	int r = vdprintf(fd, format, a);
	va_end(a);
	return r;
}
PUBLIC int aio_read(struct aiocb *c) {
	return refuses(c->aio_fildes, EAGAIN) ? -1 : REAL(aio_read)(c);
}
PUBLIC int aio_write(struct aiocb *c) {
	return refuses(c->aio_fildes, EAGAIN) ? -1 : REAL(aio_write)(c);
}
PUBLIC int lio_listio(int mode, CONTROL_BLOCKS, int n, struct sigevent *restrict sig) {
	for (int i = 0; i < n; i++)
		if (list[i] && refuses(list[i]->aio_fildes, EAGAIN)) return -1;
	return REAL(lio_listio)(mode, list, n, sig);
}

// ---- options

// unfit tells whether the rings cannot serve an option.
static bool unfit(int level, int option, const void *v, socklen_t n) {
	int x = 0;
	if (v && n >= sizeof x && !smcgw_move(&x, v, sizeof x)) return false;
	if (level == SOL_SOCKET) {
		switch (option) {
		case SO_RCVLOWAT: return x > 1;
		case SO_ZEROCOPY: case SO_OOBINLINE: case SO_TIMESTAMP: case SO_TIMESTAMPNS: case SO_TIMESTAMPING: return x != 0;
		case SO_TIMESTAMP_NEW: case SO_TIMESTAMPNS_NEW: case SO_TIMESTAMPING_NEW: return x != 0;
		case SO_ATTACH_FILTER: case SO_ATTACH_BPF: case SO_PEEK_OFF: return true;
		case SO_MAX_PACING_RATE: return x != -1;
		default: return false;
		}
	}
	if ((level == IPPROTO_IP && option == IP_RECVERR) || (level == IPPROTO_IPV6 && option == IPV6_RECVERR)) return x != 0; // errors that pass
	return level == IPPROTO_TCP && (option == TCP_ULP || option == TCP_REPAIR || option == TCP_INQ || option == TCP_FASTOPEN_CONNECT || option == TCP_MD5SIG);
}
// kept returns where the program's value of an option is stored, if promotion itself has set that option.
static int *kept(struct end *e, int level, int option) {
	if (level != IPPROTO_TCP || state_of(e) != SMCI_PROMOTED || get(&e->passed)) return 0;
	switch (option) {
	case TCP_NODELAY: return &e->nodelay;
	case TCP_CORK: return &e->cork;
	case TCP_WINDOW_CLAMP: return &e->clamp;
	case TCP_NOTSENT_LOWAT: return &e->lowat;
	default: return 0;
	}
}
PUBLIC int setsockopt(int fd, int level, int option, const void *v, socklen_t n) {
	struct end *e = look_open(fd);
	if (unlikely(e != 0)) {
		int *at = kept(e, level, option);
		int x;
		if (at && v && n >= sizeof x) {
			if (!smcgw_move(&x, v, sizeof x)) return (int)fault();
			if (option != TCP_WINDOW_CLAMP || x) {
				*at = option == TCP_NODELAY || option == TCP_CORK ? x != 0 : x;
				return 0;
			}
		}
		// Do not set SO_RCVLOWAT, or a token would wake no waiter; without it a waiter only wakes early.
		if (unfit(level, option, v, n) && !to_kernel(fd, SMCI_WHY_OPTION) && level == SOL_SOCKET && option == SO_RCVLOWAT)
			return 0;
	}
	if (unlikely(e && level == SOL_SOCKET && option == SO_LINGER) && state_of(e) == SMCI_PROMOTED) return smcgw_lingers(e, fd, v, n);
	struct end *of = level == SOL_SOCKET ? look(fd) : 0; // also one that is being closed: others may sleep in its calls
	if (unlikely(of != 0)) smcgw_timeout_set(of); // before, too: the process may be killed in between
	int r = REAL(setsockopt)(fd, level, option, v, n);
	if (unlikely(of != 0)) smcgw_timeout_set(of);
	return r;
}
PUBLIC int getsockopt(int fd, int level, int option, void *restrict v, socklen_t *restrict n) {
	struct end *e = look_open(fd);
	int *at = unlikely(e != 0) ? kept(e, level, option) : 0, one = 1;
	if (unlikely(e && level == SOL_SOCKET && option == SO_RCVLOWAT) && state_of(e) == SMCI_PROMOTED && e->remote) at = &one; // the kernel's is the gateway's
	if (unlikely(e && level == IPPROTO_TCP && option == TCP_ZEROCOPY_RECEIVE) && refuses(fd, EINVAL)) return -1; // this option reads
	socklen_t l = sizeof(int), had;
	if (at && smcgw_move(&had, n, sizeof had) && had >= l)
		return smcgw_move(v, at, l) && smcgw_move(n, &l, sizeof l) ? 0 : (int)fault();
	int r = REAL(getsockopt)(fd, level, option, v, n), x;
	if (unlikely(e && r == 0 && level == SOL_SOCKET && option == SO_ERROR) && state_of(e) == SMCI_PROMOTED && e->remote && smcgw_move(&x, v, sizeof x)) {
		x = smcgw_remote_error(e, x);
		smcgw_move(v, &x, sizeof x);
	}
	return r;
}

// ---- signals

PUBLIC int sigaction(int s, const struct sigaction *restrict a, struct sigaction *restrict old) { return smcgw_sigaction(s, a, old); }
PUBLIC void (*signal(int s, void (*f)(int)))(int) {
	struct sigaction a = {.sa_handler = f, .sa_flags = SA_RESTART}, old;
	if (likely(s != SIGSEGV && s != SIGBUS)) return REAL(signal)(s, f);
	return smcgw_sigaction(s, &a, &old) ? SIG_ERR : old.sa_handler;
}

// ---- processes

PUBLIC pid_t fork(void) {
	int err = errno;
	pid_t r = REAL(fork)();
	if (r < 0) err = errno;
	smcgw_forked(r);
	errno = err;
	return r;
}

PUBLIC int daemon(int keeps_directory, int keeps_files) { // libc forks within itself
	pid_t p = fork();
	if (p > 0) _exit(0);
	if (p < 0 || setsid() < 0) return -1;
	if (!keeps_directory && chdir("/")) {} // as in libc
	if (keeps_files) return 0;
	int fd = open("/dev/null", O_RDWR);
	for (int i = 0; i < 3; i++)
		if (fd < 0 || dup2(fd, i) < 0) return -1;
	if (fd > 2) close(fd);
	return 0;
}

// kept lists descriptors that the next program must not get.
struct kept {
	int n, fd[16];
};
// leaving prepares for a program that lacks our memory: the connections that it inherits go back to the kernel. counted: it replaces a
// process that is counted as the owner of its ends, so ends that are still native are not promoted while it lives.
static void leaving(bool counted, struct kept *k) {
	int64_t until = now() + DEMOTE_WITHIN; // for all together
	k->n = 0;
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || (counted && state_of(e) == SMCI_NATIVE) || state_of(e) == SMCI_NEVER || (SYS(fcntl, fd, F_GETFD) & FD_CLOEXEC)) continue;
		if (SYS(fcntl, fd, F_GETFD) < 0 || kernel_shows(fd, SMCI_WHY_PASSED, until)) continue;
		if (fd > 2) { // usually left open by accident; that program would read wrong bytes
			SYS(fcntl, fd, F_SETFD, FD_CLOEXEC);
			if (k->n < 16) k->fd[k->n++] = fd;
		} else {
			SYS(shutdown, fd, SHUT_RDWR);
		}
	}
}
// stays is called if this program goes on.
static void stays(const struct kept *k) {
	int err = errno;
	for (int i = 0; i < k->n; i++) SYS(fcntl, k->fd[i], F_SETFD, 0);
	errno = err;
}
// RUN makes an exec, which returns only if it fails. SPAWN makes a call that starts another program.
#define RUN(call)                                                                  \
	do {                                                                       \
		struct kept kept;                                                  \
		leaving(smcgw_ours(), &kept);                                      \
		smcgw_leaves();                                                    \
		int r = call, err = errno;                                         \
		smcgw_returned();                                                  \
		stays(&kept);                                                      \
		errno = err;                                                       \
		return r;                                                          \
	} while (0)
#define SPAWN(T, call)                                                             \
	do {                                                                       \
		struct kept kept;                                                  \
		leaving(false, &kept);                                             \
		T r = call;                                                        \
		stays(&kept);                                                      \
		return r;                                                          \
	} while (0)
PUBLIC int execve(const char *path, char *const argv[], char *const envp[]) { RUN(REAL(execve)(path, argv, envp)); }
PUBLIC int execv(const char *path, char *const argv[]) { RUN(REAL(execv)(path, argv)); }
PUBLIC int execvp(const char *file, char *const argv[]) { RUN(REAL(execvp)(file, argv)); }
PUBLIC int execvpe(const char *file, char *const argv[], char *const envp[]) { RUN(REAL(execvpe)(file, argv, envp)); }
PUBLIC int fexecve(int fd, char *const argv[], char *const envp[]) { RUN(REAL(fexecve)(fd, argv, envp)); }
PUBLIC int execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags) {
	RUN((int)result(SYS(execveat, dir, path, argv, envp, flags)));
}
#define LIST(first, argv)                                                          \
	va_list a, b;                                                              \
	int n = 1;                                                                 \
	va_start(a, first);                                                        \
	va_copy(b, a);                                                             \
	while (va_arg(b, char *)) n++;                                             \
	va_end(b);                                                                 \
	char *argv[n + 1];                                                         \
	argv[0] = (char *)(uintptr_t)first;                                        \
	for (int i = 1; i <= n; i++) argv[i] = va_arg(a, char *)
PUBLIC int execl(const char *path, const char *arg, ...) {
	LIST(arg, argv);
	va_end(a);
	return execv(path, argv);
}
PUBLIC int execlp(const char *file, const char *arg, ...) {
	LIST(arg, argv);
	va_end(a);
	return execvp(file, argv);
}
PUBLIC int execle(const char *path, const char *arg, ...) {
	LIST(arg, argv);
	char *const *envp = va_arg(a, char *const *);
	va_end(a);
	return execve(path, argv, envp);
}
PUBLIC int posix_spawn_file_actions_adddup2(posix_spawn_file_actions_t *f, int fd, int new) {
	if (tracked(fd)) to_kernel_anyway(fd, SMCI_WHY_PASSED);
	return REAL(posix_spawn_file_actions_adddup2)(f, fd, new);
}
PUBLIC int posix_spawn(pid_t *restrict pid, const char *restrict path, const posix_spawn_file_actions_t *f, const posix_spawnattr_t *restrict attr,
                       char *const argv[restrict], char *const envp[restrict]) {
	SPAWN(int, REAL(posix_spawn)(pid, path, f, attr, argv, envp));
}
PUBLIC int posix_spawnp(pid_t *restrict pid, const char *restrict file, const posix_spawn_file_actions_t *f, const posix_spawnattr_t *restrict attr,
                        char *const argv[restrict], char *const envp[restrict]) {
	SPAWN(int, REAL(posix_spawnp)(pid, file, f, attr, argv, envp));
}
PUBLIC int system(const char *command) { // libc spawns within itself
	if (!command) return REAL(system)(command);
	SPAWN(int, REAL(system)(command));
}
PUBLIC FILE *popen(const char *command, const char *mode) {
	SPAWN(FILE *, REAL(popen)(command, mode));
}

// ---- waiting

static const sigset_t without; // stands for the mask that epoll_wait() lacks: a program may have denied itself epoll_pwait()
static _Atomic bool precise;   // the program waits by epoll_pwait2() itself, and the kernel has it
int smcgw_kernel_epoll(int ep, struct epoll_event *v, int max, const struct timespec *t, const sigset_t *mask) {
	if (t && get(&precise)) return REAL(epoll_pwait2)(ep, v, max, t, mask == &without ? 0 : mask);
	if (t && t->tv_nsec % 1000000 && !get(&smcgw.apart)) {
		static _Atomic bool missing;
		if (!t->tv_sec && t->tv_nsec < 1000000 && !get(&missing)) {
			long r = SYS(epoll_pwait2, ep, v, max, t, mask == &without ? 0 : mask, 8);
			if (r != -ENOSYS) return (int)result(r);
			put(&missing, true);
		}
	}
	int ms = -1;
	if (t) {
		int64_t x = ns_of(t) / 1000000 + (t->tv_nsec % 1000000 != 0);
		ms = x > INT_MAX ? INT_MAX : (int)x;
	}
	return mask == &without ? REAL(epoll_wait)(ep, v, max, ms) : REAL(epoll_pwait)(ep, v, max, ms, mask);
}
int smcgw_kernel_poll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask) { return REAL(ppoll)(p, n, t, mask); }
int smcgw_kernel_select(int n, fd_set *r, fd_set *w, fd_set *x, const struct timespec *t, const sigset_t *mask) {
	return REAL(pselect)(n, r, w, x, t, mask);
}

PUBLIC int epoll_create1(int flags) { return smcgw_epoll_create(REAL(epoll_create1)(flags)); }
PUBLIC int epoll_create(int size) { return smcgw_epoll_create(REAL(epoll_create)(size)); }
PUBLIC int epoll_ctl(int ep, int op, int fd, struct epoll_event *ev) {
	if (unlikely(tracked(fd) && op != EPOLL_CTL_DEL && !smcgw_knows_set(ep))) to_kernel(fd, SMCI_WHY_OPTION); // another process has made the set
	return smcgw_epoll_ctl(ep, op, fd, ev);
}
PUBLIC int epoll_pwait(int ep, struct epoll_event *v, int max, int ms, const sigset_t *mask) {
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	return smcgw_epoll_wait(ep, v, max, ms < 0 ? 0 : &t, mask);
}
PUBLIC int epoll_wait(int ep, struct epoll_event *v, int max, int ms) { return epoll_pwait(ep, v, max, ms, &without); }
PUBLIC int epoll_pwait2(int ep, struct epoll_event *v, int max, const struct timespec *t, const sigset_t *mask) {
	if (unlikely(!get(&precise)) && HAS(epoll_pwait2) && REAL(epoll_pwait2)(-1, v, max, t, mask) < 0 && errno == EBADF) put(&precise, true);
	if (unlikely(t && !is_time(t))) return (int)result(SYS(epoll_pwait2, ep, v, max, t, mask, 8));
	return smcgw_epoll_wait(ep, v, max, t, mask);
}
PUBLIC int ppoll(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask) {
	return likely(!t || is_time(t)) ? smcgw_ppoll(p, n, t, mask) : REAL(ppoll)(p, n, t, mask);
}
PUBLIC int poll(struct pollfd *p, nfds_t n, int ms) {
	if (!get(&smcgw.met)) return REAL(poll)(p, n, ms);
	struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
	return smcgw_ppoll(p, n, ms < 0 ? 0 : &t, 0);
}
PUBLIC int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict x, const struct timespec *restrict t, const sigset_t *restrict mask) {
	if (!get(&smcgw.met) || unlikely(t && !is_time(t))) return REAL(pselect)(n, r, w, x, t, mask);
	struct timespec c = t ? *t : (struct timespec){0, 0};
	return smcgw_pselect(n, r, w, x, t ? &c : 0, mask);
}
PUBLIC int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict x, struct timeval *restrict t) {
	if (!get(&smcgw.met) || (t && (t->tv_sec < 0 || t->tv_usec < 0))) return REAL(select)(n, r, w, x, t);
	struct timespec c = t ? (struct timespec){t->tv_sec + t->tv_usec / 1000000, t->tv_usec % 1000000 * 1000} : (struct timespec){0, 0};
	int64_t began = t ? now() : 0, had = ns_of(&c);
	int k = smcgw_pselect(n, r, w, x, t ? &c : 0, 0), err = errno;
	if (t) {
		struct timespec left = left_until(began + had);
		*t = (struct timeval){left.tv_sec, left.tv_nsec / 1000};
	}
	errno = err;
	return k;
}

PUBLIC int unshare(int flags) {
	splits((unsigned)flags);
	return REAL(unshare)(flags);
}
PUBLIC int setns(int fd, int kind) {
	long k = kind ? kind : SYS(ioctl, fd, NS_GET_NSTYPE);
	if (k > 0) splits((uint64_t)k & CLONE_NEWPID);
	return REAL(setns)(fd, kind);
}

PUBLIC int prctl(int what, ...) {
	va_list l;
	va_start(l, what);
	unsigned long a = va_arg(l, unsigned long), b = va_arg(l, unsigned long), c = va_arg(l, unsigned long), d = va_arg(l, unsigned long);
	va_end(l);
	// A filter kills for calls that it does not know. A null one only asks whether filters are supported.
	if (what == PR_SET_SECCOMP && (a != SECCOMP_MODE_FILTER || b)) by_kernel_alone(SMCI_WHY_SANDBOX);
	return REAL(prctl)(what, a, b, c, d);
}

#ifdef RTLD_DEEPBIND
// The calls of an object that is loaded with this flag, as PHP and Valkey load theirs, go to libc itself. It is a tail call: dlopen() looks at
// its caller for where to search.
PUBLIC void *dlopen(const char *file, int mode) {
	if (mode & RTLD_DEEPBIND) by_kernel_alone(SMCI_WHY_RAW_CALLS);
#ifdef SMCI_VERSION_OF // an older glibc whose libdl only a plug-in has
	if (!HAS(dlopen) && !dlsym) put(&smcgw_next_dlopen, __libc_dlsym(__libc_dlopen_mode("libdl.so.2", (int)(RTLD_LAZY | 0x80000000)), "dlopen"));
#endif
	return REAL(dlopen)(file, mode);
}
#endif

// A child with memory and descriptors of its own is like that of a fork, but is not counted: once there is a slab, it does without the library.
static bool forks(uint64_t flags) { return !(flags & (CLONE_VM | CLONE_FILES)); }
// clones is called before a child is made. It returns false if a connection could not leave its rings.
static bool clones(uint64_t flags) { return (flags & CLONE_VM) || all_to_kernel(SMCI_WHY_PASSED); }
struct child {
	int (*f)(void *);
	void *arg;
	bool native;
};
static int begins(void *p) {
	struct child c = *(struct child *)p;
	smcgw_cloned(c.native);
	return c.f(c.arg);
}
PUBLIC int clone(int (*f)(void *), void *stack, int flags, void *arg, ...) {
	va_list l;
	va_start(l, arg);
	pid_t *parent = va_arg(l, pid_t *);
	void *tls = va_arg(l, void *);
	pid_t *child = va_arg(l, pid_t *);
	va_end(l);
	struct child c = {f, arg, clones((unsigned)flags)};
	if (f && forks((unsigned)flags)) return REAL(clone)(begins, stack, flags, &c, parent, tls, child); // the child has a copy of c
	return REAL(clone)(f, stack, flags, arg, parent, tls, child);
}

// ---- syscall(): the same calls by number

// The system calls themselves report the remaining time.
static void left_of(struct timespec *t, int64_t had, int64_t began) {
	struct timespec left = left_until(began + had);
	int err = errno;
	smcgw_move(t, &left, sizeof *t);
	errno = err;
}
static long raw_ppoll(struct pollfd *p, nfds_t n, struct timespec *t, const sigset_t *mask) {
	struct timespec c;
	if (!get(&smcgw.met) || (t && !smcgw_move(&c, t, sizeof c))) return REAL(syscall)(SYS_ppoll, p, n, t, mask, 8);
	int64_t began = t ? now() : 0;
	int r = ppoll(p, n, t ? &c : 0, mask);
	if (t) left_of(t, ns_of(&c), began);
	return r;
}
static long raw_pselect(int n, fd_set *r, fd_set *w, fd_set *x, struct timespec *t, void *mask) {
	struct timespec c;
	struct { const sigset_t *set; size_t n; } m = {0, 0};
	if (!get(&smcgw.met) || (t && !smcgw_move(&c, t, sizeof c)) || (mask && !smcgw_move(&m, mask, sizeof m))) return REAL(syscall)(SYS_pselect6, n, r, w, x, t, mask);
	int64_t began = t ? now() : 0;
	int k = pselect(n, r, w, x, t ? &c : 0, m.set);
	if (t) left_of(t, ns_of(&c), began);
	return k;
}

// submits returns how many of n requests to the kernel's own AIO, which reads, writes and polls by itself, may be submitted.
static long submits(long n, struct iocb *const *list) {
	struct iocb *at, c;
	for (long i = 0; smcgw.slab && i < n; i++) {
		if (!smcgw_move(&at, list + i, sizeof at) || !smcgw_move(&c, at, sizeof c)) break; // the kernel reports it
		if (tracked((int)c.aio_fildes) && !to_kernel((int)c.aio_fildes, SMCI_WHY_OPTION)) return i;
	}
	return n;
}

PUBLIC long syscall(long n, ...) {
	va_list l;
	va_start(l, n);
	long a = va_arg(l, long), b = va_arg(l, long), c = va_arg(l, long), d = va_arg(l, long), e = va_arg(l, long), f = va_arg(l, long);
	va_end(l);
#define P(T, x) ((T)(uintptr_t)(x))
	switch (n) {
	case SYS_read: return read((int)a, P(void *, b), (size_t)c);
	case SYS_readv: return readv((int)a, P(struct iovec *, b), (int)c);
	case SYS_write: return write((int)a, P(void *, b), (size_t)c);
	case SYS_writev: return writev((int)a, P(struct iovec *, b), (int)c);
	case SYS_recvfrom: return recvfrom((int)a, P(void *, b), (size_t)c, (int)d, P(struct sockaddr *, e), P(socklen_t *, f));
	case SYS_recvmsg: return recvmsg((int)a, P(struct msghdr *, b), (int)c);
	case SYS_recvmmsg: return recvmmsg((int)a, P(struct mmsghdr *, b), (unsigned)c, (int)d, P(struct timespec *, e));
	case SYS_sendto: return sendto((int)a, P(void *, b), (size_t)c, (int)d, P(struct sockaddr *, e), (socklen_t)f);
	case SYS_sendmsg: return sendmsg((int)a, P(struct msghdr *, b), (int)c);
	case SYS_sendmmsg: return sendmmsg((int)a, P(struct mmsghdr *, b), (unsigned)c, (int)d);
	case SYS_sendfile: return sendfile((int)a, (int)b, P(off_t *, c), (size_t)d);
	case SYS_splice: return splice((int)a, P(off64_t *, b), (int)c, P(off64_t *, d), (size_t)e, (unsigned)f);
	case SYS_preadv2: return preadv2((int)a, P(struct iovec *, b), (int)c, d, (int)f);
	case SYS_pwritev2: return pwritev2((int)a, P(struct iovec *, b), (int)c, d, (int)f);
	case SYS_close: return close((int)a);
	case SYS_close_range: return close_range((unsigned)a, (unsigned)b, (int)c);
	case SYS_shutdown: return shutdown((int)a, (int)b);
	case SYS_dup: return dup((int)a);
	case SYS_dup3: return dup3((int)a, (int)b, (int)c);
	case SYS_fcntl: return fcntl((int)a, (int)b, c);
	case SYS_ioctl: return ioctl((int)a, (unsigned long)b, c);
	case SYS_connect: return connect((int)a, P(struct sockaddr *, b), (socklen_t)c);
	case SYS_accept: return accept((int)a, P(struct sockaddr *, b), P(socklen_t *, c));
	case SYS_accept4: return accept4((int)a, P(struct sockaddr *, b), P(socklen_t *, c), (int)d);
	case SYS_setsockopt: return setsockopt((int)a, (int)b, (int)c, P(void *, d), (socklen_t)e);
	case SYS_getsockopt: return getsockopt((int)a, (int)b, (int)c, P(void *, d), P(socklen_t *, e));
	case SYS_epoll_create1: return epoll_create1((int)a);
	case SYS_epoll_ctl: return epoll_ctl((int)a, (int)b, (int)c, P(struct epoll_event *, d));
	case SYS_epoll_pwait: return epoll_pwait((int)a, P(struct epoll_event *, b), (int)c, (int)d, P(sigset_t *, e));
	case SYS_epoll_pwait2: return epoll_pwait2((int)a, P(struct epoll_event *, b), (int)c, P(struct timespec *, d), P(sigset_t *, e));
	case SYS_ppoll: return raw_ppoll(P(struct pollfd *, a), (nfds_t)b, P(struct timespec *, c), P(sigset_t *, d));
	case SYS_pselect6: return raw_pselect((int)a, P(fd_set *, b), P(fd_set *, c), P(fd_set *, d), P(struct timespec *, e), P(void *, f));
	case SYS_execve: return execve(P(char *, a), P(char **, b), P(char **, c));
	case SYS_execveat: return execveat((int)a, P(char *, b), P(char **, c), P(char **, d), (int)e);
#ifdef SYS_dup2
	case SYS_dup2: return dup2((int)a, (int)b);
#endif
#ifdef SYS_poll
	case SYS_poll: return poll(P(struct pollfd *, a), (nfds_t)b, (int)c);
#endif
#ifdef SYS_epoll_wait
	case SYS_epoll_wait: return epoll_wait((int)a, P(struct epoll_event *, b), (int)c, (int)d);
	case SYS_epoll_create: return epoll_create((int)a);
#endif
#ifdef SYS_fork
	case SYS_fork: return fork();
#endif
#ifdef SYS_select
	case SYS_select: return select((int)a, P(fd_set *, b), P(fd_set *, c), P(fd_set *, d), P(struct timeval *, e));
#endif
	case SYS_clone: case SYS_clone3: {
		uint64_t flags = (uint64_t)a;
		if (n == SYS_clone3 && !smcgw_move(&flags, P(uint64_t *, a), sizeof flags)) break;
		bool native = clones(flags);
		long r = REAL(syscall)(n, a, b, c, d, e, f);
		if (r == 0 && forks(flags)) smcgw_cloned(native);
		return r;
	}
	case SYS_io_submit: { // libaio comes here, too
		long most = submits(b, P(struct iocb **, c));
		if (most < b && !most) {
			errno = EAGAIN;
			return -1;
		}
		return REAL(syscall)(n, a, most, c);
	}
	case SYS_io_uring_setup: // its reads and writes are not made by calls
		by_kernel_alone(SMCI_WHY_RAW_CALLS);
		break;
	case SYS_unshare: return unshare((int)a);
	case SYS_setns: return setns((int)a, (int)b);
	case SYS_prctl: return prctl((int)a, b, c, d, e);
	case SYS_seccomp:
		if (a == SECCOMP_SET_MODE_STRICT || (a == SECCOMP_SET_MODE_FILTER && c)) by_kernel_alone(SMCI_WHY_SANDBOX);
		break;
	default:;
	}
	return REAL(syscall)(n, a, b, c, d, e, f);
}

// AddressSanitizer refuses to start a program that has a library before it. Its calls then come to this one first, and from here to it.
PUBLIC const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "verify_asan_link_order=0"; }

// ---- other names

PUBLIC ssize_t __read_chk(int fd, void *b, size_t n, size_t room) {
	if (n > room) abort();
	return read(fd, b, n);
}
PUBLIC ssize_t __recv_chk(int fd, void *b, size_t n, size_t room, int flags) {
	if (n > room) abort();
	return recv(fd, b, n, flags);
}
PUBLIC ssize_t __recvfrom_chk(int fd, void *b, size_t n, size_t room, int flags, struct sockaddr *a, socklen_t *l) {
	if (n > room) abort();
	return recvfrom(fd, b, n, flags, a, l);
}
PUBLIC int __poll_chk(struct pollfd *p, nfds_t n, int ms, size_t room) {
	if (n > room / sizeof *p) abort();
	return poll(p, n, ms);
}
PUBLIC int __ppoll_chk(struct pollfd *p, nfds_t n, const struct timespec *t, const sigset_t *mask, size_t room) {
	if (n > room / sizeof *p) abort();
	return ppoll(p, n, t, mask);
}
PUBLIC int __vdprintf_chk(int fd, int flag, const char *format, va_list a) {
	(void)flag;
	return vdprintf(fd, format, a);
}
PUBLIC int __dprintf_chk(int fd, int flag, const char *format, ...) {
	(void)flag;
	va_list a;
	va_start(a, format);
	int r = vdprintf(fd, format, a);
	va_end(a);
	return r;
}
#define SAME(T, name, of) PUBLIC T name __attribute__((alias(#of), copy(of)))
#ifdef __GLIBC__ // in musl these are macros
SAME(FILE *, freopen64(const char *restrict, const char *restrict, FILE *restrict), freopen);
SAME(ssize_t, sendfile64(int, int, off64_t *, size_t), sendfile);
SAME(int, fcntl64(int, int, ...), fcntl);
SAME(ssize_t, preadv64v2(int, const struct iovec *, int, off64_t, int), preadv2);
SAME(ssize_t, pwritev64v2(int, const struct iovec *, int, off64_t, int), pwritev2);
SAME(int, aio_read64(struct aiocb64 *), aio_read);
SAME(int, aio_write64(struct aiocb64 *), aio_write);
SAME(int, lio_listio64(int, struct aiocb64 *const[restrict], int, struct sigevent *restrict), lio_listio);
#endif
SAME(pid_t, _Fork(void), fork);
SAME(pid_t, __fork(void), fork);
SAME(ssize_t, __read(int, void *, size_t), read);
SAME(ssize_t, __write(int, const void *, size_t), write);
SAME(int, __close(int), close);
SAME(ssize_t, __send(int, const void *, size_t, int), send);
SAME(int, __connect(int, const struct sockaddr *, socklen_t), connect);
SAME(int, __poll(struct pollfd *, nfds_t, int), poll);
SAME(int, __select(int, fd_set *restrict, fd_set *restrict, fd_set *restrict, struct timeval *restrict), select);
SAME(int, __dup2(int, int), dup2);
SAME(int, __fcntl(int, int, ...), fcntl);
