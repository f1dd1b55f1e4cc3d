// Moving the bytes of a promoted connection. docs/protocol/in-process.md has the rules; the comments here use its terms.
#include "lib.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "real.h"
#include "stream.h"

#define PIECE (64u << 10)             // bytes published at a time: the consumer reads them while the rest is copied
#define FIRST_PIECE (16u << 10)
#define PATH_EVERY 500000000LL        // nanoseconds between checks of the path
#define PATH_BYTES (64ull << 20)
#define SPARED_FOR (1 << 10)           // units of 2^20 nanoseconds without need of a larger ring after which it shrinks
#define ROOM_ROUND 50000000L          // nanoseconds that a waiting writer sleeps before it looks at the kernel
#define SLEEPER_ROUND 10               // milliseconds between looks of a sleeper whose wake-up may not show in the kernel
#define KERNEL_LOWAT (16 << 10)       // TCP_NOTSENT_LOWAT during a short spill
#define KERNEL_WINDOW (128 << 10)
#define RING_AGAIN 20000000LL          // nanoseconds before a token is repeated for a set that is still asleep
#define TOKEN_BYTES 2048               // most bytes of the send buffer that a token takes
#define MOST_SNDBUF 212992             // on most hosts the largest SO_SNDBUF without SO_SNDBUFFORCE
#define LAST_WITHIN 2000000000LL       // nanoseconds without progress before a FIN gives up on bytes that were taken back

static void __attribute__((noinline)) copy_bytes(char *ring, uint64_t mask, uint64_t at, const struct iovec *v, int nv, size_t skip, size_t n, bool out) {
	for (int i = 0; i < nv && n; i++) {
		if (skip >= v[i].iov_len) {
			skip -= v[i].iov_len;
			continue;
		}
		char *p = (char *)v[i].iov_base + skip;
		size_t k = v[i].iov_len - skip, o = at & mask, f;
		skip = 0;
		if (k > n) k = n;
		f = mask + 1 - o < k ? mask + 1 - o : k;
		if (out) {
			memcpy(p, ring + o, f);
			if (k > f) memcpy(p + f, ring, k - f);
		} else {
			memcpy(ring + o, p, f);
			if (k > f) memcpy(ring, p + f, k - f);
		}
		at += k;
		n -= k;
	}
}

// smcgw_copy moves n bytes between the ring, at offset at, and v, after the first skip bytes of v. It returns false on a fault in v.
bool __attribute__((noinline)) smcgw_copy(char *ring, uint64_t mask, uint64_t at, const struct iovec *v, int nv, size_t skip, size_t n, bool out) {
	GUARDED(v, nv, copy_bytes(ring, mask, at, v, nv, skip, n, out));
	return true;
}

// smcgw_part sets d to the bytes [skip, skip+n) of v, and returns the number of parts.
int smcgw_part(struct iovec *d, const struct iovec *v, int nv, size_t skip, size_t n) {
	int m = 0;
	for (int i = 0; i < nv && n && m < PARTS; i++) {
		if (skip >= v[i].iov_len) {
			skip -= v[i].iov_len;
			continue;
		}
		size_t k = v[i].iov_len - skip;
		if (k > n) k = n;
		d[m++] = (struct iovec){(char *)v[i].iov_base + skip, k};
		skip = 0;
		n -= k;
	}
	return m;
}

// set_flag may be called with either lock, or with none.
static inline void set_flag(struct end *e, uint32_t f) { atomic_fetch_or(&e->own->flags, f); }
static inline uint32_t peer_flags(const struct end *e) { return get_acquire(&e->peer->flags); }

static void wake(struct end *e) {
	add(&e->own->room, 1);
	SYS(futex, &e->own->room, FUTEX_WAKE, INT_MAX);
}

// smcgw_violated ends the connection: the peer's memory is inconsistent.
void smcgw_violated(struct end *e) {
	if (get(&e->violated)) return;
	put(&e->report.why, SMCI_WHY_PROTOCOL_ERROR);
	put(&e->violated, true);
	e->rx_error = e->tx_error = ECONNRESET;
}

static int tcp_state(int fd) {
	struct tcp_info t;
	socklen_t l = sizeof t;
	return SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, &t, &l) < 0 ? 0 : t.tcpi_state;
}
bool smcgw_over(int fd) { return tcp_state(fd) == 7; } // TCP_CLOSE

// ---- attaching

// smcgw_measured reads how far the kernel's stream is in both directions, at one moment.
bool smcgw_measured(const struct end *e, int fd, struct tcp_info *a, uint64_t *kr, uint64_t *ks) {
	struct tcp_info b;
	int in = 0, out = 0;
	for (int i = 0; i < 100; i++) {
		socklen_t l = sizeof *a, m = sizeof b;
		if (SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, a, &l) < 0 || SYS(ioctl, fd, SIOCINQ, &in) < 0 ||
		    SYS(ioctl, fd, SIOCOUTQ, &out) < 0 || SYS(getsockopt, fd, IPPROTO_TCP, TCP_INFO, &b, &m) < 0)
			return false;
		if (l < offsetof(struct tcp_info, tcpi_segs_out)) return false; // a kernel that does not count bytes
		if (a->tcpi_bytes_received != b.tcpi_bytes_received || a->tcpi_bytes_acked != b.tcpi_bytes_acked) continue;
		*kr = a->tcpi_bytes_received - (unsigned)in;
		*ks = a->tcpi_bytes_acked + (unsigned)out - e->client; // a client's SYN counts as acknowledged
		return true;
	}
	return false;
}
static bool counts_equal(struct end *e, int fd, struct tcp_info *t) {
	uint64_t kr, ks;
	return smcgw_measured(e, fd, t, &kr, &ks) && t->tcpi_state == 1 /* TCP_ESTABLISHED */ && kr == get(&e->kr) && ks == get(&e->ks);
}

// tune makes the kernel connection a doorbell: tokens must not wait for a full segment. The window keeps room for two segments, since with
// less the sender would wait for its persist timer.
static void tune(struct end *e, int fd, const struct tcp_info *t) {
	int window = 2 * (int)t->tcpi_advmss > KERNEL_WINDOW ? 2 * (int)t->tcpi_advmss : KERNEL_WINDOW;
	e->nodelay = int_option(fd, IPPROTO_TCP, TCP_NODELAY);
	e->cork = int_option(fd, IPPROTO_TCP, TCP_CORK);
	e->lowat = int_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT);
	e->clamp = int_option(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP);
	if (e->remote) smcgw_remote_tune(e, fd);
	set_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, window);
	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	set_int(fd, IPPROTO_TCP, TCP_CORK, 0);
}

void smcgw_untune(struct end *e, int fd) {
	if (e->remote) smcgw_remote_untune(e, fd);
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, e->lowat);
	if (e->clamp > 0) set_int(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, e->clamp);
	if (e->nodelay == 0) set_int(fd, IPPROTO_TCP, TCP_NODELAY, 0);
	if (e->cork > 0) set_int(fd, IPPROTO_TCP, TCP_CORK, 1);
}

// smcgw_resets tells whether the program wants its last close() to reset. That close() may be the one of a process that just ends.
bool smcgw_resets(const struct end *e, int fd) {
	struct linger l = e->linger;
	socklen_t n = sizeof l;
	if (!get(&e->at_risk)) SYS(getsockopt, fd, SOL_SOCKET, SO_LINGER, &l, &n);
	return l.l_onoff && !l.l_linger;
}
int smcgw_lingers(struct end *e, int fd, const void *v, socklen_t n) {
	bool rl = smcgw_lock(e, &e->rl), wl = smcgw_lock_writer(e);
	int r;
	if (wl && get(&e->at_risk) && smcgw_still(e, fd) && n >= sizeof e->linger) r = smcgw_move(&e->linger, v, sizeof e->linger) ? 0 : (int)fault(); // applied later, by smcgw_no_risk
	else r = REAL(setsockopt)(fd, SOL_SOCKET, SO_LINGER, v, n);
	int err = errno;
	if (smcgw_still(e, fd) && e->own) {
		if (smcgw_resets(e, fd)) set_flag(e, SMCI_RESET);
		else if (!e->remote || !smcgw_remote_at_risk(e)) atomic_fetch_and(&e->own->flags, ~SMCI_RESET);
	}
	if (wl) smcgw_unlock(e, &e->wl);
	if (rl) smcgw_unlock(e, &e->rl);
	errno = err;
	return r;
}

// attach tells the peer that this end understands tokens. First it makes sure that no thread is in a call that moves bytes without the
// locks, and that the kernel's counts equal the library's: a program that reads or writes around the library is found here.
static void attach(struct end *e, int fd) {
	struct tcp_info t = {0};
	bool done = false;
	if (get(&e->raw_rx) || get(&e->raw_tx) || switched_off()) return; // try again later
	if (!smcgw_lock(e, &e->rl)) return; // in a signal handler
	if (!smcgw_lock(e, &e->wl)) {
		smcgw_unlock(e, &e->rl);
		return;
	}
	if (state_of(e) == SMCI_MAPPED && smcgw_has(e, fd)) {
		atomic_store(&e->report.state, SMCI_PROMOTED); // sequentially consistent, and before raw_rx and raw_tx are read: see smcgw_enter
		fence();
		bool shut = smcgw_polled(fd, POLLRDHUP) & POLLRDHUP; // by the program, if the state is the right one afterwards
		if (get(&e->raw_rx) || get(&e->raw_tx)) {
			put_release(&e->report.state, SMCI_MAPPED);
		} else if (!smcgw_alone(e) || (e->remote && !smcgw_remote_ours(e))) {
			smcgw_leave(e, SMCI_WHY_SHARED);
		} else if (!counts_equal(e, fd, &t)) {
			smcgw_leave(e, t.tcpi_state > 1 ? SMCI_WHY_ENDED : SMCI_WHY_COUNTS);
		} else {
			int fl = (int)SYS(fcntl, fd, F_GETFL);
			put(&e->nonblock, fl >= 0 && (fl & O_NONBLOCK));
			smcgw_timeout_set(e); // a program without the library may have had the socket
			if (unlikely(shut)) put(&e->read_ended, true);
			tune(e, fd, &t);
			e->kbase = 0;
			put(&e->own->ksent, get(&e->ks));
			put(&e->kernel_news, true);
			e->path_at = now_coarse();
			e->path_ks = get(&e->ks);
			e->attached = done = true;
			if (smcgw_resets(e, fd)) set_flag(e, SMCI_RESET);
			if (unlikely(e->remote != 0)) smcgw_rings(e, fd);
			set_flag(e, SMCI_ATTACHED);
			if (unlikely(e->remote != 0)) smcgw_remote_attached(e);
		}
	}
	smcgw_unlock(e, &e->wl);
	smcgw_unlock(e, &e->rl);
	if (done) smcgw_attached(e, fd);
}

// may_ask tells whether an end may ask with this call, of so many. It looks at the clock with every sixteenth only.
static bool may_ask(const struct end *e, uint32_t calls) {
	uint32_t at = get(&e->ask_at);
	if (!at || (smcgw.news && get(&smcgw.news->policy) != e->policy_seen)) return true; // a new policy may allow what was refused
	return !(calls & 15) && (int32_t)(ticks() - at) >= 0;
}

// awaits takes what the broker has sent, and finds out that it has ended without an answer.
static void awaits(struct end *e) {
	static _Atomic int64_t heeded_at;
	int64_t t = now_coarse();
	if (smcgw.news && get_acquire(&smcgw.news->grants) != e->grants_seen) smcgw_answers(e);
	if (t - get(&heeded_at) < RETRY_AFTER) return;
	put(&heeded_at, t);
	smcgw_heed();
}

enum path smcgw_enter(struct end *e, int fd, _Atomic int *raw) {
	uint32_t s = state_of(e);
	if (likely(s == SMCI_PROMOTED)) return LOCKED;
	if (s == SMCI_NEVER || s == SMCI_FREE) return PLAIN;
	int err = errno;
	if (s == SMCI_NATIVE) {
		uint32_t ops = get(&e->ops) + 1; // two threads may count as one call; it is only a threshold
		put(&e->ops, ops);
		uint32_t calls = smcgw.news ? get(&smcgw.news->calls) : FIRST_CALLS;
		uint64_t bytes = smcgw.news ? get(&smcgw.news->bytes) : 64 << 10;
		if (unlikely((ops >= calls || get(&e->kr) + get(&e->ks) >= bytes) && may_ask(e, ops))) smcgw_ask(e, fd);
	} else if (s == SMCI_ASKED) {
		awaits(e);
	} else {
		attach(e, fd);
	}
	errno = err;
	smcgw_count_in(raw); // before the state is read: see attach
	s = state_of(e);
	if (s != SMCI_PROMOTED) return COUNTED;
	smcgw_count_out(raw);
	return LOCKED;
}

// repair_rx runs after a process died that held rl, and restores from the kernel's own count what that may have left wrong. A surplus token
// does no harm.
static void repair_rx(struct end *e, int fd) {
	struct tcp_info t;
	uint64_t kr, ks;
	e->repair_rx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &ks)) return;
	if (e->stashed && kr == get(&e->kr) + 1) return;
	e->stashed = false;
	put(&e->kr, kr);
}
// repair_tx does so for wl. In a ring extent, what is counted and was not sent is tokens, which are owed. In a kernel extent, what was sent and
// is not counted is bytes that were taken back, if there are any, or else the dead process's.
static void repair_tx(struct end *e, int fd) {
	struct tcp_info t;
	uint64_t kr, has, ks = get(&e->ks), to;
	e->repair_tx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &has)) return;
	if ((get(&e->own->nx) & 1) && get(&e->own->ksent) > ks) ks = get(&e->own->ksent);
	e->owed = ks > has ? (uint32_t)(ks - has) : 0;
	to = ks > has ? ks : has;
	if (!(get(&e->own->nx) & 1)) e->back += e->back_end - e->back < to - ks ? e->back_end - e->back : to - ks;
	put(&e->ks, to);
	if (!e->urgent) put_release(&e->own->ksent, to + (e->back_end - e->back));
	if (e->back == e->back_end) smcgw_no_risk(e, fd);
	if (e->owed) put(&smcgw_owing, true);
	e->first = true;
}

// ---- consuming

// mapped_order returns the order of the largest ring that is mapped. It does not trust our own memory for that: root of another container
// can reopen the peer's memory and write to it, whatever its mode.
static inline uint32_t mapped_order(const struct end *e, const char *ring, const struct smci_end *of) {
	return ring == (const char *)of + SMCI_RING_AT ? SMCI_ORDER_MIN : (uint32_t)__builtin_ctz(e->whole - SMCI_RING_AT);
}

static inline uint32_t reach(const struct end *e) {
	uint32_t r = get(&e->own->reach), most = mapped_order(e, e->rx_ring, e->peer);
	return !r ? SMCI_ORDER_MIN : r < most ? r : most;
}

// available returns how many bytes of this ring extent can be read. head is loaded before nx: with no transition, all up to head belong to it.
static inline uint64_t available(struct end *e) {
	const struct smci_end *p = e->peer;
	uint64_t h = get_acquire(&p->head), tail = get(&e->own->tail);
	uint32_t nx = get_acquire(&p->nx), cx = get(&e->own->cx);
	uint64_t n = (nx != cx ? get(&p->x[cx % SMCI_TRANSITIONS].r) : h) - tail;
	if (!n) return 0;
	uint32_t order = get(&p->order); // while bytes are unread, base does not change and order only grows
	if (unlikely(order < SMCI_ORDER_MIN || order > reach(e) || n > 1ull << order)) {
		smcgw_violated(e);
		return 0;
	}
	return n;
}

// smcgw_hot tells whether the ring has bytes of the current extent. A ring read to its end with a transition to pass is not hot: what
// follows comes through the kernel, which reports it.
bool smcgw_hot(struct end *e) {
	uint32_t cx = get(&e->own->cx);
	uint64_t head = get_acquire(&e->peer->head);
	if (!(cx & 1)) return false; // also the case of a remote end, which is in no list
	if (get_acquire(&e->peer->nx) != cx) head = get(&e->peer->x[cx % SMCI_TRANSITIONS].r);
	return head != get(&e->own->tail);
}

// smcgw_says records what a read of the kernel's stream said about its end. The kernel reports an error only once.
void smcgw_says(struct end *e, long n) {
	if (n == 0) e->eof = true;
	else if (n < 0 && n != -EAGAIN && n != -EINTR && n != -EFAULT) e->rx_error = (int)-n;
}

// smcgw_heard tells whether a FIN or reset has arrived. Bytes before it may be unread, but all that the peer did before it is visible.
bool smcgw_heard(int fd) {
	int state = tcp_state(fd);
	return state > 0 && !strchr("\1\4\5", state); // TCP_ESTABLISHED, FIN_WAIT1 and FIN_WAIT2
}

// smcgw_peek asks the kernel whether it has a byte or the end, as recv() with MSG_PEEK does.
long smcgw_peek(int fd) {
	char c;
	return SYS(recvfrom, fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
}

// smcgw_polled returns what poll() says right now: of the events, errors, or 0.
short smcgw_polled(int fd, short events) {
	struct pollfd p = {fd, events, 0};
	struct timespec zero = {0, 0};
	return SYS(ppoll, &p, 1, &zero, 0, 8) == 1 ? p.revents : 0;
}

// peeked is smcgw_peek, and records the answer.
static long peeked(struct end *e, int fd) {
	long n = smcgw_peek(fd);
	if (n == -EAGAIN) put(&e->kernel_news, false);
	smcgw_says(e, n);
	return n;
}

// unannounced is called when the kernel has bytes that nothing accounts for. Each token is counted before it is sent, so a ring extent without a
// transition cannot have more bytes than ksent says: the peer lies. Another reader may have taken the bytes meanwhile, so it checks twice.
static bool nobodys(struct end *e) {
	uint32_t cx = get(&e->own->cx);
	uint64_t sent = get_acquire(&e->peer->ksent);
	return (cx & 1) && sent <= get(&e->kr) && get_acquire(&e->peer->nx) == cx;
}
static bool unannounced(struct end *e, int fd) {
	if (likely(!nobodys(e)) || smcgw_sleeps(e)) return false;
	if (peeked(e, fd) <= 0 || !nobodys(e)) return false;
	smcgw_violated(e);
	return true;
}

// smcgw_arm tells the producer whom to wake: this process by a token, or a slot of an epoll set. Each arming stores a new value.
void smcgw_arm(struct end *e, uint32_t whom) {
	uint32_t slot = at_slot(e) ? get(&e->own->arm) & 0xff : whom;
	uint32_t a;
	do a = atomic_fetch_add(&e->arms, 1) + 1; // not every caller has rl
	while (!(a & 0xffffff));
	put(&e->own->arm, a << 8 | whom);
	fence();
	if (unlikely(slot != whom)) smcgw_left_slot(slot);
}

// recalled checks whether the peer, as a consumer, asks this end to send through the kernel. The peer wakes this process by a token to have
// that done, so whoever takes a token checks: it may be that one.
static void heed_recall(struct end *e, int fd);
static inline void recalled(struct end *e, int fd) {
	if (unlikely(peer_flags(e) & SMCI_RECALL)) heed_recall(e, fd);
}

// eat takes tokens up to a position in the kernel's stream.
static void eat(struct end *e, int fd, uint64_t upto) {
	char t[256];
	uint64_t kr = get(&e->kr);
	if (e->stashed && kr < upto) {
		e->stashed = false;
		put(&e->kr, ++kr);
	}
	while (kr < upto && !smcgw_sleeps(e)) {
		uint64_t k = upto - kr;
		long n = SYS(recvfrom, fd, t, k < sizeof t ? k : sizeof t, MSG_DONTWAIT);
		if (n > 0) {
			put(&e->kr, kr += (uint64_t)n);
			add(&e->report.tokens_rx, (uint64_t)n);
			smcgw_token_taken(e);
			recalled(e, fd);
			continue;
		}
		smcgw_says(e, n);
		if (n != -EINTR) return;
	}
}

// eat_counted takes the tokens sent in this ring extent, unless the producer may still take back a count: see token.
static void eat_counted(struct end *e, int fd) {
	uint64_t sent = get_acquire(&e->peer->ksent);
	if (get_acquire(&e->peer->nx) == get(&e->own->cx) && likely(!(get(&e->own->flags) & SMCI_FROZEN))) eat(e, fd, sent);
}

// settle is called with the ring empty. True: something has come, and a token for it is in the kernel's queue or will be. False: it has
// armed, looked again, found nothing, and then taken the old tokens. It never takes the last token while the ring has bytes. A settle that
// finds something leaves one more token outstanding. So if two or more are due, it first takes all but the last; if those are still on
// their way, it does not arm for yet another.
static bool settle(struct end *e, int fd) {
	if (unlikely(get(&e->own->flags) & SMCI_FROZEN)) return false; // the producer may still take back a count: see token
	uint64_t old = get_acquire(&e->peer->ksent);
	if (unlikely(old > get(&e->kr) + 1) && get_acquire(&e->peer->nx) == get(&e->own->cx)) {
		eat(e, fd, old - 1);
		if (get(&e->kr) + 1 < old) return available(e) || get_acquire(&e->peer->nx) != get(&e->own->cx);
	}
	smcgw_arm(e, SMCI_ARM_SELF);
	if (available(e) || get_acquire(&e->peer->nx) != get(&e->own->cx)) {
		if (old > get(&e->kr)) put(&e->own->arm, 0); // a token is due already
		return true;
	}
	put(&e->ate, false);
	eat(e, fd, old);
	return false;
}

// pass passes a transition that the reader has reached.
static void pass(struct end *e) {
	uint32_t cx = get(&e->own->cx);
	e->kbase = get(&e->peer->x[cx % SMCI_TRANSITIONS].k);
	put_release(&e->own->cx, cx + 1);
}

// pass_read passes the transition at the end of a ring extent that has been read to that end.
static bool pass_read(struct end *e) {
	uint32_t cx = get(&e->own->cx);
	if (!(cx & 1) || get_acquire(&e->peer->nx) == cx || get(&e->peer->x[cx % SMCI_TRANSITIONS].r) != get(&e->own->tail)) return false;
	pass(e);
	return true;
}

// at_its_end tells whether all of the kernel extent cx has been read. Ring bytes may follow, which a native read would return in the same call.
static bool at_its_end(const struct end *e, uint32_t cx) {
	return get_acquire(&e->peer->nx) != cx && get(&e->kr) >= get(&e->peer->x[cx % SMCI_TRANSITIONS].k);
}

// catch_up passes the transitions that have been read up to, and takes the tokens before the extent that is then being read.
static void catch_up(struct end *e, int fd) {
	for (unsigned i = 0; i <= SMCI_TRANSITIONS; i++) {
		uint32_t cx = get(&e->own->cx);
		if (cx & 1) {
			if (!pass_read(e)) return;
			continue;
		}
		eat(e, fd, e->kbase);
		if (get(&e->kr) < e->kbase || !at_its_end(e, cx)) return;
		pass(e);
	}
}

// freed publishes tail, and wakes a producer that waits for room.
static inline void freed(struct end *e, uint64_t tail) {
	put_release(&e->own->tail, tail);
	fence();
	if (unlikely(get(&e->peer->wish) > reach(e) && reach(e) < e->order_max) && smcgw_map_ring(e, &e->rx_ring, e->peer))
		put_release(&e->own->reach, e->order_max);
	uint32_t want = get(&e->peer->want);
	if (likely(want == e->answered)) return;
	uint32_t order = get(&e->peer->order);
	if (order > SMCI_ORDER_MAX || get(&e->peer->head) - tail > 1ull << order >> 1) return;
	e->answered = want;
	wake(e);
}


struct sleep {
	struct end *of;
	int fd;
	uint32_t use;
};
static void untold(struct end *e, int fd);
// no_sleeper is called if the thread was cancelled, maybe just after it has taken a byte, which only the kernel's counts tell. Until sleeper is
// 0, nobody else takes any.
static void no_sleeper(void *p) {
	const struct sleep *s = p;
	struct end *e = s->of;
	struct tcp_info t;
	uint64_t kr, ks;
	if (!smcgw_lock(e, &e->rl)) return;
	if (get(&e->use) == s->use) {
		bool took = smcgw_still(e, s->fd) && smcgw_measured(e, s->fd, &t, &kr, &ks) && kr > get(&e->kr);
		if (took) {
			put(&e->kr, kr);
			put(&e->ate, true);
		}
		put_release(&e->sleeper, 0);
		if (took && (get(&e->own->cx) & 1) && available(e)) untold(e, s->fd);
	}
	smcgw_unlock(e, &e->rl);
}

// thaw is called when the producer takes nothing back any more. Anything it took back before has its transition.
static void thaw(struct end *e) { atomic_fetch_and(&e->own->flags, ~SMCI_FROZEN); }

// sleeps_alone tells whether a sleep may consume the byte that ends it, because no other thread waits for that byte.
static bool sleeps_alone(struct end *e) {
	if (get(&e->polled) || get(&e->raw_rx) || e->stashed || !smcgw_alone(e)) return false;
	put(&e->sleeper, (int32_t)SYS(gettid));
	fence();
	if (likely(!get(&e->polled))) return true;
	put(&e->sleeper, 0);
	return false;
}
#define DATA (-5)
// sleep_alone sleeps, and consumes the byte that ends the sleep: a token, or the first byte of a kernel extent. That saves a system call.
// DATA: the end was demoted meanwhile, and *b is the next byte.
static ssize_t sleep_alone(struct end *e, int fd, int flags, uint32_t use, char *b) {
	char c;
	ssize_t n;
	smcgw_unlock(e, &e->rl);
	struct sleep s = {e, fd, use};
	pthread_cleanup_push(no_sleeper, &s);
	n = REAL(recv)(fd, &c, 1, flags & MSG_DONTWAIT);
	pthread_cleanup_pop(0);
	int err = errno;
	smcgw_lock(e, &e->rl);
	bool same = likely(get(&e->use) == use);
	const bool took = n > 0 && same;
	if (unlikely(took && !e->attached)) {
		*b = c;
		if (state_of(e) == SMCI_NEVER) n = DATA;
	} else if (unlikely(took && !place_of(e)->memory.own)) { // this process has closed the end, another has it
		add(&e->kr, 1);
		put(&e->ate, true);
	} else if (took) { // its position tells token from data: a transition is published before the bytes after it move
		uint64_t kr = get(&e->kr), base = e->kbase;
		uint32_t i = get(&e->own->cx), end = get_acquire(&e->peer->nx);
		if (end - i > SMCI_TRANSITIONS) end = i; // see smcgw_rx
		for (; i != end && kr >= get(&e->peer->x[i % SMCI_TRANSITIONS].k); i++) base = get(&e->peer->x[i % SMCI_TRANSITIONS].k);
		if ((i & 1) || kr < base) {
			put(&e->kr, kr + 1);
			add(&e->report.tokens_rx, 1);
			put(&e->ate, true);
			recalled(e, fd);
		} else {
			e->stash = c;
			e->stashed = true;
		}
	}
	if (same) put_release(&e->sleeper, 0); // after ate: see beside_reader
	errno = err;
	return n;
}

// sleep_until is recv() with MSG_PEEK and a deadline. RETRY: something may have come another way. It sleeps in rounds while something is
// still to be sent, and while another thread is in sleep_alone, which may take the byte that would wake both and leave bytes in the ring.
// With bytes for the program it looks at the number now and then, which another thread may close, and leaves an error of an end that
// is demoted meanwhile to the program's next call.
static ssize_t sleep_until(const struct call *c, bool rounds) {
	struct pollfd p = {c->fd, POLLIN, 0};
	char b;
	int64_t left = (c->until - now()) / 1000000;
	if (left < 0) {
		errno = EAGAIN;
		return -1;
	}
	if (rounds && left > SLEEPER_ROUND) left = SLEEPER_ROUND;
	if (c->done && left > NUMBER_ROUND / 1000000) left = NUMBER_ROUND / 1000000;
	int k = REAL(poll)(&p, 1, left < INT_MAX ? (int)left + 1 : INT_MAX);
	if (k < 0 && errno == EINTR && smcgw_gives_in(c)) return -1;
	if (unlikely(k > 0 && c->done && (p.revents & POLLERR) && !c->e->attached)) return RETRY;
	ssize_t n = k > 0 ? REAL(recv)(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT) : RETRY;
	return n == -1 && errno == EAGAIN ? RETRY : n;
}

// smcgw_stops tells whether a read or write that has moved bytes returns them: at an urgent byte, and before an error, which the next call reports.
bool smcgw_stops(int fd, bool reads) {
	int q = 0, urgent = 0;
	if (reads) SYS(ioctl, fd, SIOCINQ, &q);
	if (q) return false;
	if (reads) SYS(ioctl, fd, SIOCATMARK, &urgent);
	return urgent || ((smcgw_polled(fd, 0) & POLLERR) && smcgw_over(fd));
}

// smcgw_go_on ends a read or write that has waited, or moved bytes, and then finds its end in the kernel. Natively a call keeps the file that
// it began with, but this one keeps only a number, which other threads may give to another file. So it moves bytes only under the lock that
// close() and dup2() take, never sleeps in a call that moves any, and looks for the end's number again after each round.
ssize_t smcgw_go_on(struct call *c) {
	struct end *e = c->e;
	const bool more = !c->reads || c->all;
	pthread_mutex_t *lock = c->reads ? &e->rl : &e->wl;
	const int flags = c->flags | MSG_DONTWAIT | (c->reads ? 0 : MSG_NOSIGNAL);
	int err = 0;
	bool told = false; // by poll, which also reports what is of no use here
	while (c->done < c->want) {
		struct iovec w[PARTS];
		struct msghdr h = {.msg_iov = w};
		h.msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, c->done, c->want - c->done);
		bool locked = c->reads ? smcgw_lock(e, lock) : !smcgw_writer(e); // another thread may sleep in the kernel's send
		bool same = smcgw_keeps(e, c->use, &c->fd), again = same && e->attached;
		bool over = same && c->done && !again && smcgw_stops(c->fd, c->reads);
		if (same && !c->until) c->until = smcgw_timeout_of(e, c->fd, c->reads ? SO_RCVTIMEO : SO_SNDTIMEO);
		ssize_t n = -EAGAIN;
		if (locked && same && !again && !over) {
			n = c->reads ? SYS(recvmsg, c->fd, &h, flags) : SYS(sendmsg, c->fd, &h, flags);
			if (n > 0 && !c->peek) atomic_fetch_add(c->reads ? &e->kr : &e->ks, (uint64_t)n); // see smcgw_left
		}
		if (locked) smcgw_unlock(e, lock);
		if (!same) err = EBADF;
		if (!same || over) break;
		if (again) { // promoted once more
			n = c->reads ? smcgw_rx(e, c->fd, w, (int)h.msg_iovlen, flags) : smcgw_tx(e, c->fd, w, (int)h.msg_iovlen, flags);
			if (n == RETRY) continue;
			if (n < 0) n = -errno;
		}
		if (n > 0) {
			c->done += (size_t)n;
			told = false;
			if (!more) break;
			continue;
		}
		if (n != -EAGAIN) {
			err = (int)-n;
			if (again && c->done) smcgw_unsaid(e, err);
			break;
		}
		int64_t left = c->nowait ? 0 : c->until - now();
		if (left <= 0) {
			err = EAGAIN;
			break;
		}
		struct pollfd p = {told ? -1 : c->fd, c->reads ? POLLIN : POLLOUT, 0};
		const int64_t most = told ? 1000000 : NUMBER_ROUND;
		struct timespec ts = {0, left < most ? left : most};
		int k = smcgw_ppoll(&p, 1, &ts, 0);
		if (k < 0 && (c->done || c->until != INT64_MAX || smcgw_interrupts())) {
			err = EINTR;
			break;
		}
		told = k > 0;
	}
	if (c->done || !err) return (ssize_t)c->done;
	if (err == EPIPE && !c->reads && !(c->flags & MSG_NOSIGNAL)) raise(SIGPIPE);
	errno = err;
	return -1;
}

#define FAULT (-3)
#define STOP (-4)

// from_kernel reads from the kernel extent. It returns bytes; 0: nothing yet; -1: the extent has ended, or failed; FAULT; STOP.
// As natively, a read that has bytes stops at an urgent byte, and one that has none yet passes it, whatever follows. SIOCINQ stops there, too.
static ssize_t from_kernel(struct call *c) {
	struct end *e = c->e;
	const int fd = c->fd;
	size_t done = c->done;
	struct iovec w[PARTS];
	uint64_t b, kr;
	if (get(&e->kr) < e->kbase) { // first take the tokens of the last ring extent
		eat(e, fd, e->kbase);
		if (get(&e->kr) < e->kbase) return e->eof || e->rx_error ? -1 : 0;
	}
	if (smcgw_sleeps(e)) return 0;
	kr = get(&e->kr);
	uint32_t nx = get_acquire(&e->peer->nx), cx = get(&e->own->cx);
	if (nx != cx) {
		uint64_t k = get(&e->peer->x[cx % SMCI_TRANSITIONS].k);
		if (kr >= k) {
			pass(e);
			return -1;
		}
		b = k - kr;
	} else {
		int q = 0, urgent = 0;
		SYS(ioctl, fd, SIOCINQ, &q);
		if (!q && !e->stashed) SYS(ioctl, fd, SIOCATMARK, &urgent);
		if (unlikely(urgent && done)) return STOP;
		if (unlikely(urgent)) q = INT_MAX; // its sender has left the rings for good
		fence();
		if (get_acquire(&e->peer->nx) != cx) return -1;
		b = (uint64_t)q + e->stashed; // still no transition, so all of these bytes are data
		put(&e->ate, false);          // and the kernel reports them
		if (!b) return e->eof || e->rx_error ? -1 : 0;
	}
	long had = 0, n = 0;
	if (e->stashed) { // return it with what came with it: a message sent at once is read at once
		if (!smcgw_copy(&e->stash, 0, 0, c->v, c->nv, done, 1, true)) return FAULT;
		had = 1;
		done++;
		b--;
		if (!c->peek) {
			e->stashed = false;
			put(&e->kr, ++kr);
			add(&e->report.rx_kernel, 1);
		}
		if (!b || done == c->want) return had;
	}
	struct msghdr h = {.msg_iov = w};
	h.msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, done, b < c->want - done ? b : c->want - done);
	n = SYS(recvmsg, fd, &h, (c->flags & ~MSG_WAITALL) | MSG_DONTWAIT);
	smcgw_says(e, n);
	if (had && n <= 0) return had;
	if (n == -EFAULT) return FAULT;
	if (n > 0) {
		if (c->peek) return had + n;
		put(&e->kr, kr + (uint64_t)n);
		add(&e->report.rx_kernel, (uint64_t)n);
		return had + n;
	}
	return n == 0 || e->rx_error ? -1 : 0;
}

// ring_after copies bytes of ring extent i, from position r on, without consuming them, after done bytes of the call.
static size_t ring_after(const struct call *c, uint32_t i, uint64_t r, size_t done) {
	struct end *e = c->e;
	const struct smci_end *p = e->peer;
	uint64_t to = get_acquire(&p->head), tail = get(&e->own->tail), n;
	if (get_acquire(&p->nx) != i) to = get(&p->x[i % SMCI_TRANSITIONS].r);
	uint32_t order = get(&p->order);
	if (order < SMCI_ORDER_MIN || order > reach(e) || r < tail || r >= to || to - tail > 1ull << order) return 0;
	n = to - r < c->want - done ? to - r : c->want - done;
	return smcgw_copy(e->rx_ring, (1ull << order) - 1, r - get(&p->base), c->v, c->nv, done, n, true) ? n : 0;
}

// kernel_after peeks at the kernel's bytes after ring extent i, which has been read or peeked at to its end, and at ring bytes after those.
// The tokens between are taken only if data in the kernel can wake a sleeper in their place.
static size_t kernel_after(const struct call *c, uint32_t i) {
	struct end *e = c->e;
	const int fd = c->fd;
	const struct smci_transition *x = &e->peer->x[i % SMCI_TRANSITIONS], *y = &e->peer->x[(i + 1) % SMCI_TRANSITIONS];
	uint64_t k = get(&x->k), r = get(&x->r), to;
	size_t had = c->done, done = had;
	int q = 0;
	SYS(ioctl, fd, SIOCINQ, &q);
	fence();
	bool last = get_acquire(&e->peer->nx) == i + 1;
	to = get(&e->kr) + e->stashed + (unsigned)q;
	if (!last && get(&y->k) < to) to = get(&y->k);
	if (to <= k) return 0;
	eat(e, fd, k);
	if (get(&e->kr) != k || smcgw_sleeps(e)) return 0;
	uint64_t n = to - k < c->want - done ? to - k : c->want - done;
	if (e->stashed) {
		if (!smcgw_copy(&e->stash, 0, 0, c->v, c->nv, done++, 1, true)) return 0;
		n--;
	}
	if (n) {
		struct iovec w[PARTS];
		struct msghdr h = {.msg_iov = w};
		h.msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, done, n);
		long got = SYS(recvmsg, fd, &h, MSG_PEEK | MSG_DONTWAIT);
		if (got > 0) done += (size_t)got;
	}
	if (!last && k + (done - had) == get(&y->k) && done < c->want) done += ring_after(c, i + 2, r, done);
	return done - had;
}

// died tells whether a FIN came that neither the peer's flags nor our own shutdown() explain.
static inline bool died(struct end *e) { return get(&e->eof) && !get(&e->read_ended) && !(peer_flags(e) & (SMCI_GONE | SMCI_SHUT | SMCI_RECALL)); }

// missing tells whether data that the peer sent through the kernel have not arrived. What it has counted is data, except tokens before the extent.
static bool missing(const struct end *e) {
	uint32_t cx = get(&e->own->cx);
	uint64_t sent = get_acquire(&e->peer->ksent), kr = get(&e->kr);
	if (get_acquire(&e->peer->nx) != cx) sent = get(&e->peer->x[cx % SMCI_TRANSITIONS].k);
	return !(cx & 1) && sent > (kr > e->kbase ? kr : e->kbase);
}

// resets_by tells whether an error is a reset, by the peer or by this host's administrator.
static bool resets_by(int err) { return err == ECONNRESET || err == ECONNABORTED; }
// smcgw_told takes a reset that the writer has met, or returns 0. The kernel reports a reset once, and may have reported it to a token or frame,
// or after part of a write; to the reader it then shows only an end. The program's next call must report the reset, even if it is a read. rl
// is held; the connection is over.
int smcgw_told(struct end *e) {
	if (!get(&e->tx_error) && smcgw_lock(e, &e->wl)) smcgw_unlock(e, &e->wl); // wait for a writer that has just been told
	int err = get(&e->tx_error);
	return resets_by(err) && atomic_compare_exchange_strong(&e->tx_error, &err, 0) ? err : 0;
}
// smcgw_reports returns the error that a read reports. One that ends the connection is reported once, and then the end. rl is held.
int smcgw_reports(struct end *e, int fd) {
	int err = e->rx_error;
	if (err == ECONNRESET || smcgw_over(fd)) {
		e->rx_error = 0;
		e->eof = e->died = true;
	}
	return err;
}
// told turns an end into the reset that caused it: the reader must not see an end before data that the reset has discarded.
static void told(struct end *e, int fd) {
	if (get(&e->violated) || e->died || !smcgw_over(fd)) return;
	// After shutdown() the end came from that, and the kernel keeps the error until a call reports it.
	int by_send = smcgw_told(e);
	bool shut = get(&e->read_ended);
	if (by_send || (shut ? !(peer_flags(e) & (SMCI_SHUT | SMCI_GONE)) && int_option(fd, SOL_SOCKET, SO_ERROR) == ECONNRESET : missing(e))) {
		e->rx_error = by_send ? by_send : ECONNRESET;
		e->eof = false;
	}
}

// nothing_but_tokens tells whether all that this end sent through the kernel since its last transition is tokens.
static bool nothing_but_tokens(const struct end *e) {
	uint32_t nx = get(&e->own->nx);
	return (nx & 1) || (nx && get(&e->own->x[(nx - 1) % SMCI_TRANSITIONS].k) == get(&e->ks));
}

// all_passed tells whether the peer has reached the current extent of this end's stream, with the ring read. A transition from the ring to
// the kernel that it has yet to pass takes nothing from it.
static bool all_passed(const struct end *e) {
	uint32_t nx = get(&e->own->nx), cx = get(&e->peer->cx);
	return cx == nx || (!(nx & 1) && cx + 1 == nx);
}

// ended tells whether the stream is at its end. FIN and RST come after all that was written before them, so it looks at the ring once more.
static bool ended(struct end *e, int fd) {
	if (likely(!e->eof && !e->rx_error)) return false;
	if (e->eof && !e->rx_error) told(e, fd);
	fence();
	uint32_t cx = get(&e->own->cx);
	if ((cx & 1) && available(e)) return false;
	if (get_acquire(&e->peer->nx) != cx) return !(cx & 1) && get(&e->kr) < get(&e->peer->x[cx % SMCI_TRANSITIONS].k);
	// The peer's process has died. As natively, bytes that it had not read turn the end into a reset.
	if (!e->died && died(e)) {
		e->died = true;
		if (get(&e->peer->tail) != get(&e->own->head)) {
			e->rx_error = ECONNRESET;
			atomic_store(&e->write_ended, true);
		}
		return true;
	}
	// A reset by a peer that has read everything came from a token left unread when its process ended. But a reset also discards what
	// the peer's kernel had not sent, so it counts as the end only if all of the peer's stream has arrived. A peer that has left the rings
	// for good gets no tokens, and does not count what it sends.
	uint32_t f = peer_flags(e);
	bool left = (f & (SMCI_RECALL | SMCI_SHUT | SMCI_GONE)) == SMCI_RECALL;
	if (e->rx_error == ECONNRESET && !get(&e->violated) && !(f & SMCI_RESET) && !left &&
	    get(&e->peer->tail) == get(&e->own->head) && all_passed(e) && !missing(e) && nothing_but_tokens(e)) {
		e->rx_error = 0;
		e->eof = true;
		atomic_store(&e->forgives, true);
	}
	return true;
}

// smcgw_spin polls for something before a sleep, for as long as the news say. If processors are busy, the other side cannot run meanwhile:
// each time polling was in vain, it is skipped for more sleeps, up to 64, until it succeeds again.
bool smcgw_spin(bool (*ready)(void *), void *of) {
	static _Atomic uint32_t skip, vain;
	uint32_t us = smcgw.news ? get(&smcgw.news->spin) : 0, n;
	if (likely(!us)) return false;
	if ((n = get(&skip)) > 0) {
		put(&skip, n - 1);
		return false;
	}
	int64_t end = now() + us * 1000LL;
	for (unsigned i = 1; !ready(of); i++) {
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#endif
		if ((i & 15) || now() < end) continue;
		n = get(&vain);
		put(&vain, n < 6 ? n + 1 : 6);
		put(&skip, n > 1 ? 1u << n : 0);
		return false;
	}
	put(&vain, 0);
	return true;
}

static bool hot(void *e) { return smcgw_hot(e); }

// at_stake tells whether the kernel may still have data to send. If the process ends without close() and leaves a token unread, the kernel
// discards that data; natively only unread bytes have this effect. So while data is unacknowledged the reader leaves no token, and a writer
// that begins to send through the kernel takes those that are left.
static bool at_stake(struct end *e, int fd) {
	uint64_t ks = get(&e->ks);
	int q = 0;
	if ((get(&e->own->nx) & 1) || likely(ks == e->acked)) return false; // in a ring extent the peer has read them
	if (SYS(ioctl, fd, SIOCOUTQ, &q) == 0 && !q) e->acked = ks;
	return q;
}

// drained is called by a reader that has emptied the ring. True: more has come. Otherwise the end is listed for the next wait of this
// process, or armed. The invariant: outside a call, a ring with bytes has a token in the kernel's queue, or its end is listed.
static bool drained(struct end *e, int fd) {
	if (!at_stake(e, fd) && smcgw_defer(e, fd)) return smcgw_hot(e);
	if (settle(e, fd)) return true;
	smcgw_forget(e);
	return false;
}

// untold lists an end whose bytes no token announces any more.
static void untold(struct end *e, int fd) {
	if (smcgw_defer(e, fd)) smcgw_token_taken(e);
	else smcgw_strand(e, fd);
}

// filled is called by a reader whose buffer is full, or that has only peeked.
static void filled(struct end *e, int fd) {
	if (!available(e)) {
		if (get_acquire(&e->peer->nx) == get(&e->own->cx) && drained(e, fd) && get(&e->ate)) untold(e, fd);
	} else if (get(&e->ate)) {
		untold(e, fd);
	} else if (get(&e->edge) && !listed(e)) { // the next bytes must make an edge of their own
		smcgw_arm(e, SMCI_ARM_SELF);
	}
}

// asks_kernel is for a non-blocking read of a listed end whose ring is empty: it tells whether the kernel has anything. True: read on.
static bool asks_kernel(struct end *e, int fd) {
	// A set reports what comes. If it has reported nothing since the last question, and the peer does not end: skip one, and let the next read ask.
	if (get(&place_of(e)->set) && !get(&e->kernel_news) && !e->skipped && !(peer_flags(e) & (SMCI_SHUT | SMCI_GONE))) {
		e->skipped = true;
		return false;
	}
	e->skipped = false;
	eat_counted(e, fd);
	if (smcgw_hot(e) || e->eof || e->rx_error) return true;
	if (peeked(e, fd) > 0) unannounced(e, fd);
	return smcgw_hot(e) || e->eof || e->rx_error || get(&e->violated);
}

// read_frozen waits while the socket is handed over.
static enum next read_frozen(struct call *c) {
	struct end *e = c->e;
	if (smcgw_heard(c->fd)) {
		thaw(e);
		return AGAIN;
	}
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_RCVTIMEO);
	if (c->done && !c->all) return smcgw_quits(c, 0);
	smcgw_unlock(e, &e->rl);
	if (c->nowait) SYS(nanosleep, &((struct timespec){0, 1000000}), 0); // waits report that there is something: lest the program spin
	const bool late = c->nowait || now() > c->until;
	const bool stop = late || (SYS(nanosleep, &((struct timespec){0, 200000}), 0) == -EINTR && smcgw_gives_in(c));
	if (!stop) pthread_testcancel();
	smcgw_lock(e, &e->rl);
	c->waited = true;
	return stop ? smcgw_quits(c, late ? EAGAIN : EINTR) : AGAIN;
}

// read_ring reads ring extent cx.
static enum next read_ring(struct call *c, uint32_t cx) {
	struct end *e = c->e;
	uint64_t have = available(e), tail = get(&e->own->tail);
	if (have) {
		if (have > c->want - c->done) have = c->want - c->done;
		uint64_t mask = (1ull << get(&e->peer->order)) - 1;
		mask &= (1ull << reach(e)) - 1; // loaded again, so bounded by the mapping again
		if (unlikely(!smcgw_copy(e->rx_ring, mask, tail - get(&e->peer->base), c->v, c->nv, c->done, have, true))) return smcgw_fails(c, EFAULT);
		c->done += have;
		if (c->peek) { // peek at all that is there at once, in whichever place
			if (c->done < c->want && get_acquire(&e->peer->nx) != cx && get(&e->peer->x[cx % SMCI_TRANSITIONS].r) == tail + have)
				c->done += kernel_after(c, cx);
			return OVER;
		}
		add(&e->report.rx_ring, have);
		freed(e, tail + have);
		c->last = false;
		return c->done == c->want ? OVER : AGAIN;
	}
	if (pass_read(e)) return AGAIN;
	if (get_acquire(&e->peer->nx) != cx && available(e)) return AGAIN;
	if (c->done && !c->all) return !e->eof && !e->rx_error && drained(e, c->fd) ? AGAIN : OVER;
	if (ended(e, c->fd)) return OVER;
	recalled(e, c->fd);
	if (listed(e) && c->nowait) return asks_kernel(e, c->fd) ? AGAIN : smcgw_quits(c, EAGAIN);
	if (!c->nowait && smcgw_spin(hot, e)) return AGAIN;
	if (settle(e, c->fd)) return AGAIN;
	smcgw_forget(e);
	return e->eof || e->rx_error ? AGAIN : WAIT;
}

// read_kernel reads kernel extent cx.
static enum next read_kernel(struct call *c, uint32_t cx) {
	struct end *e = c->e;
	const bool drains = c->nowait && get(&e->edge) && !c->peek; // a short read says that there is no more
	if (c->last && !c->all && !drains && !at_its_end(e, cx)) return OVER;
	smcgw_forget(e);
	ssize_t n = from_kernel(c);
	if (n > 0) {
		c->done += (size_t)n;
		c->last = c->nv <= PARTS; // or it has had room in a part of v only
		if (c->peek && c->done < c->want && get_acquire(&e->peer->nx) != cx && get(&e->kr) + (size_t)n == get(&e->peer->x[cx % SMCI_TRANSITIONS].k))
			c->done += ring_after(c, cx + 1, get(&e->own->tail), c->done);
		return c->peek || c->done == c->want ? OVER : AGAIN;
	}
	if (unlikely(n == FAULT)) return smcgw_fails(c, EFAULT);
	if (unlikely(n == STOP)) return OVER;
	if (n < 0) return ended(e, c->fd) ? OVER : AGAIN;
	recalled(e, c->fd);
	return WAIT;
}

// read_waits leaves time-outs, signals, the end and errors to the kernel.
static enum next read_waits(struct call *c) {
	struct end *e = c->e;
	const bool who = smcgw_sleeps(e), owing = unlikely(get(&smcgw_owing)) && smcgw_pay();
	bool timed = false;
	ssize_t n;
	int err;
	char b;
	if (!c->nowait && (who || owing || c->all)) {
		if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_RCVTIMEO);
		timed = who || owing || c->done || c->until != INT64_MAX; // one deadline for all sleeps of the call
	}
	if (!who && !c->peek && !timed && sleeps_alone(e)) { // a byte that is only peeked at stays in the kernel, which reports it to waits
		n = sleep_alone(e, c->fd, c->nowait ? MSG_DONTWAIT : 0, c->use, &b);
		err = errno;
		if (unlikely(n == DATA)) { // nothing is done yet: otherwise this would not be alone
			if (!smcgw_copy(&b, 0, 0, c->v, c->nv, 0, 1, true)) return smcgw_quits(c, EFAULT);
			c->done = 1;
			c->nowait = c->nowait || !c->all;
			c->goes_on = true;
			return smcgw_quits(c, 0);
		}
	} else {
		if (!c->nowait) smcgw_count_in(&e->raw_rx); // meanwhile nothing is deferred, and no thread sleeps alone
		smcgw_unlock(e, &e->rl);
		n = timed ? sleep_until(c, who || owing) : REAL(recv)(c->fd, &b, 1, MSG_PEEK | (c->nowait ? MSG_DONTWAIT : 0));
		err = errno;
		if (!c->nowait) smcgw_count_out(&e->raw_rx);
		if (n > 0 && who) sched_yield();
		smcgw_lock(e, &e->rl);
		if (n > 0 && smcgw_still(e, c->fd)) unannounced(e, c->fd);
		if (timed && (n == 0 || (n < 0 && err != EINTR)) && !smcgw_has(e, c->fd)) n = RETRY; // another file's answer
	}
	// Another thread may have closed the number meanwhile: it may be another file, and the entry another connection.
	const bool heard = n <= 0 && n != RETRY; // the kernel's answer
	c->waited = true;
	if (unlikely(get(&e->use) != c->use || (!smcgw_still(e, c->fd) && (heard || !smcgw_keeps(e, c->use, &c->fd)))))
		return smcgw_quits(c, !heard ? EBADF : n ? err : 0);
	if (n > 0 || n == RETRY) return AGAIN;
	if (n == 0) {
		if (e->eof) return OVER;
		e->eof = true;
		return AGAIN;
	}
	if (err == EAGAIN) {
		put(&e->kernel_news, false);
		e->skipped = false;
		if ((get(&e->own->cx) & 1) && available(e)) return AGAIN;
	} else if (err != EINTR) {
		if (e->rx_error) return OVER;
		e->rx_error = err;
		return AGAIN;
	}
	return smcgw_quits(c, err);
}

static enum next read_more(struct call *c) {
	struct end *e = c->e;
	if (unlikely(e->repair_rx)) repair_rx(e, c->fd);
	const uint32_t cx = get(&e->own->cx);
	if (unlikely(get_acquire(&e->peer->nx) - cx > SMCI_TRANSITIONS)) smcgw_violated(e);
	if (unlikely(e->eof || e->rx_error) && ++c->rounds > 10000) smcgw_violated(e); // the peer's words keep changing
	if (unlikely(get(&e->violated))) return OVER; // ECONNRESET once, then the end
	if (unlikely(get(&e->own->flags) & SMCI_FROZEN) && (cx & 1) && get_acquire(&e->peer->nx) == cx && !e->eof && !e->rx_error) return read_frozen(c);
	enum next next = cx & 1 ? read_ring(c, cx) : read_kernel(c, cx);
	if (next != WAIT) return next;
	return c->done && (!c->all || c->nowait) ? OVER : read_waits(c);
}

ssize_t smcgw_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	if (unlikely(e->remote != 0)) return smcgw_remote_rx(e, fd, v, nv, flags);
	struct call c = smcgw_reading(e, fd, v, nv, flags);
	if (!c.want) return 0;
	if (!smcgw_lock(e, &e->rl)) {
		errno = EAGAIN;
		return -1;
	}
	c.use = get(&e->use);
	for (;;) {
		if (unlikely(!smcgw_still(e, c.fd))) {
			if ((c.done || c.waited) && smcgw_keeps(e, c.use, &c.fd) && e->attached) continue;
			smcgw_unlock(e, &e->rl);
			if (c.done ? !c.all || c.nowait : !c.waited) return c.done ? (ssize_t)c.done : RETRY;
			return smcgw_go_on(&c);
		}
		if (read_more(&c) == OVER) break;
	}
	if (likely(!c.unlocked)) {
		if ((get(&e->own->cx) & 1) && (c.done == c.want || (get(&e->ate) && available(e)))) filled(e, c.fd);
		if (!c.done && !c.err && e->rx_error) c.err = smcgw_reports(e, c.fd);
		smcgw_unlock(e, &e->rl);
		smcgw_give_way(c.done);
	}
	if (unlikely(c.goes_on)) return smcgw_go_on(&c);
	if (c.done || !c.err) return (ssize_t)c.done;
	errno = c.err;
	return -1;
}

// smcgw_beside returns what poll() says in addition to the ring's bytes once either side has
// begun to end the connection; room asks for POLLOUT, too.
uint32_t smcgw_beside(const struct end *e, int fd, bool room) {
	if (likely(!room && !(peer_flags(e) & (SMCI_SHUT | SMCI_GONE)) && !get(&e->read_ended) && !get(&e->write_ended))) return 0;
	return (uint32_t)smcgw_polled(fd, room ? POLLOUT | POLLRDHUP : POLLRDHUP);
}

static bool settled(struct end *e, int fd) { // rl is held
	bool r = false;
	if (smcgw_still(e, fd)) {
		catch_up(e, fd);
		if (!(get(&e->own->cx) & 1)) smcgw_forget(e); // in a kernel extent there is nothing to settle
		else if (smcgw_hot(e)) {
			r = true;
			if ((get(&e->own->arm) & 0xff) != SMCI_ARM_SELF) smcgw_arm(e, SMCI_ARM_SELF); // what follows wakes by a token, not by a slot
		} else if (settle(e, fd)) r = true;
		else smcgw_forget(e);
	}
	smcgw_unlock(e, &e->rl);
	return r;
}
bool smcgw_settled(struct end *e, int fd) {
	if (unlikely(e->remote != 0)) return false;
	if (!smcgw_try(e, &e->rl)) { // a reader is inside: it settles when it leaves
		put(&place_of(e)->late, true);
		fence();
		if (!smcgw_try(e, &e->rl)) return false;
	}
	return settled(e, fd);
}
bool smcgw_settle(struct end *e, int fd) { return !e->remote && smcgw_lock(e, &e->rl) && settled(e, fd); }

// smcgw_genuine is asked when the kernel reports readable: some programs (wrk) treat EAGAIN after EPOLLIN as an error. told: all that is in
// the ring was reported already, and a token that comes late is no edge.
bool smcgw_genuine(struct end *e, int fd, bool told) {
	bool r = true;
	if (unlikely(e->remote != 0)) return smcgw_remote_genuine(e, fd);
	if (!smcgw_try(e, &e->rl)) return true; // a reader is inside
	if (!smcgw_still(e, fd) || e->stashed || e->eof || e->rx_error) goto out;
	recalled(e, fd);
	uint32_t cx = get(&e->own->cx);
	if (!(cx & 1) && at_its_end(e, cx)) {
		pass(e);
		cx++;
	}
	if (pass_read(e)) cx++;
	if (cx & 1) {
		if (place_of(e)->set && (get(&e->own->arm) & 0xff) != SMCI_ARM_SELF) {
			eat_counted(e, fd);
			r = !told && smcgw_hot(e);
		} else {
			r = smcgw_hot(e) || settle(e, fd);
		}
		if (!r && !e->eof && !e->rx_error) {
			long n = peeked(e, fd);
			r = n == 0 || (n > 0 && (smcgw_hot(e) || unannounced(e, fd))) || (n < 0 && n != -EAGAIN);
		} else {
			r = true;
		}
	} else if (get(&e->kr) < e->kbase) {
		eat(e, fd, e->kbase);
		long n = peeked(e, fd);
		r = e->eof || e->rx_error || n >= 0 || n != -EAGAIN;
	}
out:
	smcgw_unlock(e, &e->rl);
	return r;
}

// smcgw_unread counts what can be read at once, in all extents. It must leave nothing out, since the next edge is only for bytes that come later.
size_t smcgw_unread(struct end *e, int fd) {
	int q = 0;
	size_t n = 0;
	if (unlikely(e->remote != 0)) return smcgw_remote_unread(e, fd);
	smcgw_lock(e, &e->rl);
	if (smcgw_still(e, fd)) {
		recalled(e, fd); // a program that asks until there is an answer makes no other calls
		const struct smci_end *p = e->peer;
		uint64_t head = get_acquire(&p->head), r = get(&e->own->tail), kr = get(&e->kr), k = kr < e->kbase ? e->kbase : kr, end;
		uint32_t i = get(&e->own->cx), nx = get_acquire(&p->nx);
		bool alone = i & 1 && nx == i; // the kernel has only tokens
		if (unlikely(!alone)) SYS(ioctl, fd, SIOCINQ, &q);
		end = kr + e->stashed + (unsigned)q;
		if (nx - i > SMCI_TRANSITIONS) nx = i; // see smcgw_rx
		for (;; i++) {
			const struct smci_transition *x = &p->x[i % SMCI_TRANSITIONS];
			uint64_t to = i & 1 ? i == nx ? head : get(&x->r) : i == nx || get(&x->k) > end ? end : get(&x->k);
			uint64_t *at = i & 1 ? &r : &k;
			if (to > *at) {
				n += to - *at;
				*at = to;
			}
			if (i == nx) break;
			if (i & 1) k = get(&x->k); // after the tokens
			else if (get(&x->k) > end) break;
		}
		if (n > INT_MAX) n = INT_MAX;
	} else {
		SYS(ioctl, fd, SIOCINQ, &q);
		n = (size_t)q;
	}
	smcgw_unlock(e, &e->rl);
	return n;
}

void smcgw_later(struct end *e, int err) {
	if (err == EAGAIN || err == EINTR || err == EFAULT) return; // these pass
	smcgw_lock(e, &e->rl);
	if (e->attached && e->eof) {
		e->rx_error = err;
		e->eof = false;
	}
	smcgw_unlock(e, &e->rl);
}

// smcgw_unsaid keeps a reset that ended a write of several parts after the first.
void smcgw_unsaid(struct end *e, int err) {
	if (e->attached && resets_by(err)) put(&e->tx_error, err);
}

ssize_t smcgw_discard(struct end *e, int fd, size_t n, int flags) {
	char b[4096];
	size_t done = 0;
	const uint32_t use = get(&e->use);
	if (flags & MSG_PEEK) { // no more than is there
		ssize_t k = smcgw_rx(e, fd, &(struct iovec){b, 1}, 1, flags & ~MSG_TRUNC);
		if (k <= 0) return k;
		done = smcgw_unread(e, fd);
		return (ssize_t)(done > n ? n : done ? done : 1);
	}
	while (done < n) {
		size_t want = n - done < sizeof b ? n - done : sizeof b;
		ssize_t k = smcgw_rx(e, fd, &(struct iovec){b, want}, 1, (flags & ~MSG_TRUNC) | (done && !(flags & MSG_WAITALL) ? MSG_DONTWAIT : 0));
		if (k == RETRY && done && (flags & MSG_WAITALL)) {
			struct call c = smcgw_reading(e, fd, &(struct iovec){b, want}, 1, flags & ~MSG_TRUNC);
			c.use = use;
			k = smcgw_go_on(&c);
		} else if (k == -1 && done) {
			smcgw_later(e, errno);
		}
		if (k <= 0) return done ? (ssize_t)done : k;
		done += (size_t)k;
		if ((size_t)k < want) break; // the next call reports what ended this one
	}
	return (ssize_t)done;
}

// ---- producing

static inline uint64_t size_of(const struct end *e) {
	uint32_t order = get(&e->own->order), most = mapped_order(e, e->tx_ring, e->own);
	return 1ull << (order < most ? order : most);
}

static inline uint64_t room(struct end *e) {
	uint64_t used = get(&e->own->head) - get_acquire(&e->peer->tail), size = size_of(e);
	if (unlikely(used > size)) {
		smcgw_violated(e);
		return 0;
	}
	return room_of(size, used);
}

bool smcgw_room(struct end *e) { return unlikely(e->remote != 0) ? smcgw_remote_room(e) : (get(&e->own->nx) & 1) && room_of(size_of(e), get(&e->own->head) - get_acquire(&e->peer->tail)); }

// The reader's lock suffices to keep the memory mapped. A writer may sleep in the kernel with its own.
size_t smcgw_unsent(struct end *e, int fd) {
	size_t n = 0;
	if (unlikely(e->remote != 0)) smcgw_remote_round();
	smcgw_lock(e, &e->rl);
	if (unlikely(smcgw_still(e, fd) && e->remote)) {
		n = smcgw_remote_unsent(e);
	} else if (e->attached && place_of(e)->memory.own) {
		if (smcgw_has(e, fd)) recalled(e, fd); // see smcgw_unread
		uint64_t tail = get_acquire(&e->peer->tail), head = get_acquire(&e->own->head);
		n = head > tail ? (size_t)(head - tail) : 0;
	}
	smcgw_unlock(e, &e->rl);
	return n;
}

// sent counts what the kernel has taken, so that the peer knows whether a reset has discarded any of it. An urgent byte is not in the
// peer's counts, so ksent stops after one; such an end has left the ring for good.
static inline void sent(struct end *e, uint64_t n) {
	add(&e->ks, n);
	if (likely(!e->urgent)) put_release(&e->own->ksent, get(&e->ks) + (e->back_end - e->back));
}

// transition ends the current extent. It is published before any byte after it moves, so a byte's position tells data from a token.
static void transition(struct end *e) {
	uint32_t nx = get(&e->own->nx);
	struct smci_transition *x = &e->own->x[nx % SMCI_TRANSITIONS];
	put(&x->r, get(&e->own->head));
	put(&x->k, get(&e->ks));
	if (!(nx & 1)) {
		e->first = true; // the consumer reads from the kernel: the first ring bytes send a token
		put_release(&e->own->ksent, get(&e->ks));
		add(&e->report.returns, 1);
	} else {
		add(&e->report.spills, 1);
	}
	put_release(&e->own->nx, nx + 1);
}

// brief makes a spill of a non-blocking writer short, so that the stream is back in the ring soon, if the consumer has read since the ring
// was last empty, or the ring holds as much as the kernel's buffers would. A writer that may wait, or leaves the ring for another reason,
// gets as much room as natively: its reader may be the same thread, which reads only once all is written.
static void brief(struct end *e, int fd, bool on) {
	if (likely(e->brief == on)) return;
	e->brief = on;
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, on && e->lowat <= 0 ? KERNEL_LOWAT : e->lowat);
}
static void spill(struct end *e, int fd, bool nowait) {
	brief(e, fd, nowait && (get(&e->own->order) == SMCI_ORDER_MAX || get(&e->own->head) - get(&e->own->base) > size_of(e)));
	transition(e);
}

// smcgw_at_risk makes the connection end by a reset if this process is killed before the kernel has taken what was taken back: the program
// believes that those bytes were sent.
void smcgw_at_risk(struct end *e, int fd) {
	struct linger l = {1, 0};
	socklen_t n = sizeof e->linger;
	if (get(&e->at_risk) || SYS(getsockopt, fd, SOL_SOCKET, SO_LINGER, &e->linger, &n) < 0) return;
	SYS(setsockopt, fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	put(&e->at_risk, true);
}
void smcgw_no_risk(struct end *e, int fd) {
	if (!get(&e->at_risk)) return;
	SYS(setsockopt, fd, SOL_SOCKET, SO_LINGER, &e->linger, sizeof e->linger);
	put(&e->at_risk, false);
}

// pay sends what the kernel has refused so far: first counted tokens, then bytes that were taken back, then the FIN after them. It returns
// false while the kernel still refuses.
static bool pay(struct end *e, int fd) {
	if (unlikely(e->remote != 0)) return smcgw_remote_pay(e, fd);
	if (unlikely(e->repair_tx)) repair_tx(e, fd);
	while (e->owed || e->back != e->back_end) {
		uint64_t size = size_of(e), at = (e->back - get(&e->own->base)) & (size - 1), n = size - at;
		if (n > e->back_end - e->back) n = e->back_end - e->back;
		long k = e->owed ? SYS(sendto, fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) : SYS(sendto, fd, e->tx_ring + at, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (k == -EINTR) continue;
		if (k == -EAGAIN) {
			put(&smcgw_owing, true);
			return false;
		}
		if (k < 0) { // nothing can follow
			if (!e->tx_error) e->tx_error = (int)-k;
			e->owed = 0;
			e->back = e->back_end;
		} else if (e->owed) {
			e->owed--;
		} else {
			e->back += (uint64_t)k;
			sent(e, (uint64_t)k);
			if (e->back == e->back_end) smcgw_no_risk(e, fd);
		}
	}
	if (unlikely(e->fin == FIN_OWED)) {
		e->fin = FIN_SENT;
		SYS(shutdown, fd, SHUT_WR);
	}
	return true;
}

_Atomic bool smcgw_owing;
bool smcgw_pay(void) {
	bool owing = false;
	put(&smcgw_owing, false);
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || state_of(e) != SMCI_PROMOTED) continue;
		if (!smcgw_try(e, &e->wl)) { // its writer may just have become indebted and left; a writer asleep in the kernel owes nothing
			if (!atomic_load(&e->tx_blocked)) owing = true;
			continue;
		}
		if (smcgw_still(e, fd) && !pay(e, fd)) owing = true;
		smcgw_unlock(e, &e->wl);
	}
	if (owing) put(&smcgw_owing, true);
	return owing;
}

// fits tells whether the kernel is sure to take the tokens of one call. If it may refuse them, no byte may go into the ring. When the
// kernel says writable, a third of its send buffer is free.
static bool fits(struct end *e, int fd) {
	uint64_t ks = get(&e->ks);
	if (likely(ks + 1 < e->fits && !e->owed)) return true;
	if (!pay(e, fd) || !smcgw_polled(fd, POLLOUT)) return false;
	int n = int_option(fd, SOL_SOCKET, SO_SNDBUF) / 3 / TOKEN_BYTES;
	e->fits = ks + (n < 2 ? 2 : (uint64_t)n);
	return true;
}

// token counts before it sends. A consumer that has just frozen the ring may have missed that count: then none is sent, and it returns false.
static bool token(struct end *e, int fd) {
	uint64_t ks = get(&e->ks);
	put_release(&e->own->ksent, ks + 1);
	fence();
	if (unlikely(peer_flags(e) & SMCI_FROZEN)) {
		put_release(&e->own->ksent, ks);
		return false;
	}
	put(&e->ks, ks + 1);
	add(&e->report.tokens_tx, 1);
	e->owed++;
	pay(e, fd);
	return true;
}

static void take_back(struct end *e, int fd);

// doorbell is called after head was published. It sends a token if arm asks for one, or if a slot sleeps that was not rung for yet. If the
// consumer has frozen the ring, it takes the bytes back.
static inline void doorbell(struct end *e, int fd) {
	fence();
	if (unlikely(peer_flags(e) & SMCI_FROZEN)) { // the consumer may have looked before these bytes were published
		take_back(e, fd);
		return;
	}
	uint32_t a = get(&e->peer->arm), who = a & 0xff;
	bool rings = e->first;
	if (who == SMCI_ARM_SELF) {
		rings |= a != e->rung;
		if (rings) e->rung = a;
	} else if (a && !rings && who < SMCI_SLOTS && e->desk) {
		uint32_t s = get_acquire(&e->desk->desk->slot[who].sleeps), r = get(&e->desk->rung[who]);
		int64_t t = s ? now_coarse() : 0;
		if (s && (s != r || t - get(&e->desk->rung_at[who]) >= RING_AGAIN)) { // the last token may be delayed on its own kernel connection
			// An end that left the slot before this sleep must not use up the token of the ends still there.
			rings = get(&e->peer->arm) != a;
			if (!rings && atomic_compare_exchange_strong(&e->desk->rung[who], &r, s)) {
				put(&e->desk->rung_at[who], t);
				rings = true;
			}
		}
	}
	if (!rings) return;
	e->first = false;
	if (!token(e, fd)) take_back(e, fd);
}

static inline void publish(struct end *e, int fd, uint64_t n) {
	put_release(&e->own->head, get(&e->own->head) + n);
	add(&e->report.tx_ring, n);
	doorbell(e, fd);
}

// acked tells whether the kernel has had the last path check's token acknowledged.
static bool acked(struct end *e, int fd) {
	int q = 0;
	return SYS(ioctl, fd, SIOCOUTQ, &q) == 0 && get(&e->ks) - (unsigned)q >= e->path_ks;
}

// path_good checks the kernel's path twice a second: while the path does not acknowledge,
// ring bytes must not pass where a native connection's would not.
static bool path_good(struct end *e, int fd) {
	int64_t t = now_coarse();
	uint64_t head = get(&e->own->head);
	if (likely(t - e->path_at < PATH_EVERY && head - e->path_head < PATH_BYTES)) return true;
	if (t - e->path_at >= PATH_EVERY && !acked(e, fd)) {
		e->path_bad = true;
		put(&e->report.why, SMCI_WHY_PATH);
		return false;
	}
	if (t - e->path_at < PATH_EVERY && !acked(e, fd)) { // 64 MiB in less: the last token still has time
		e->path_head = head;
		return true;
	}
	smcgw_heed();
	token(e, fd);
	e->path_ks = get(&e->ks);
	e->path_at = t;
	e->path_head = head;
	return true;
}

// must_leave tells whether the direction must go back to the kernel before the next ring byte.
static inline bool must_leave(struct end *e, int fd) {
	return (peer_flags(e) & (SMCI_GONE | SMCI_RECALL)) || died(e) || sent_back(e) || get(&e->passed) || e->tx_error || !path_good(e, fd);
}

// may_ring tells whether the direction may be promoted now.
static bool may_ring(struct end *e, int fd) {
	if (e->tx_error || get(&e->passed)) return false;
	if (unlikely(sent_back(e))) { // the broker that said so may be gone
		int64_t t = now_coarse();
		if (t - e->heeded_at >= PATH_EVERY) {
			e->heeded_at = t;
			smcgw_heed();
		}
		return false;
	}
	if ((peer_flags(e) & (SMCI_ATTACHED | SMCI_GONE | SMCI_RECALL)) != SMCI_ATTACHED) return false;
	if (get_acquire(&e->peer->cx) != get(&e->own->nx) || !fits(e, fd)) return false; // the consumer reads from the kernel, and the ring is empty
	if (e->path_bad) {
		if (!acked(e, fd)) return false;
		e->path_bad = false;
		put(&e->report.why, SMCI_WHY_NONE);
		e->path_at = now_coarse();
		e->path_head = get(&e->own->head);
	}
	return smcgw_polled(fd, POLLOUT) == POLLOUT; // checked every time: the peer's thread may be this one
}

// try_recalled takes wl. A writer that is inside may have checked for the recall already, so it checks again when it leaves.
static bool try_recalled(struct end *e) {
	if (smcgw_try(e, &e->wl)) return true;
	put(&e->recalled, true);
	fence();
	return smcgw_try(e, &e->wl);
}
static void go_back(struct end *e, int fd) {
	if (!smcgw_still(e, fd) || !(get(&e->own->nx) & 1)) return;
	if (peer_flags(e) & SMCI_FROZEN) take_back(e, fd);
	else spill(e, fd, false);
}
static void heed_recall(struct end *e, int fd) {
	if (!try_recalled(e)) return;
	go_back(e, fd);
	smcgw_unlock(e, &e->wl);
}
void smcgw_recalled(struct end *e) {
	int err = errno, fd;
	if (e->remote || !atomic_exchange(&e->recalled, false) || !try_recalled(e)) return;
	if ((fd = smcgw_number(e, -1)) >= 0 && smcgw_still(e, fd) && (peer_flags(e) & SMCI_RECALL)) go_back(e, fd);
	smcgw_unlock(e, &e->wl);
	errno = err;
}

// take_back sends through the kernel what a frozen consumer has left in the ring. What the kernel has no room for is owed.
static void take_back(struct end *e, int fd) {
	uint64_t head = get(&e->own->head), tail = get_acquire(&e->peer->tail);
	if (unlikely(e->fin == FIN_SENT)) return; // the peer sees the FIN, and reads on from the ring
	if (head - tail > size_of(e)) {
		smcgw_violated(e);
		return;
	}
	if (tail != head) smcgw_at_risk(e, fd);
	put(&e->own->head, tail);
	transition(e);
	e->back = tail;
	e->back_end = head;
	sent(e, 0);
	brief(e, fd, false);
	pay(e, fd);
}

// full notes that the ring had no room: it starts larger next time. The consumer maps the whole ring when it sees the wish.
static void full(struct end *e) {
	e->grow = true;
	put(&e->own->wish, e->order_max);
}

// mapped_whole tells whether both ends have mapped the whole ring.
static bool mapped_whole(struct end *e) { return get_acquire(&e->peer->reach) >= e->order_max && smcgw_map_ring(e, &e->tx_ring, e->own); }

static void grown(struct end *e) {
	e->touched = true;
	e->needed_at = ticks();
}
// extend enlarges a full ring with its bytes in place, which works while none has wrapped. The consumer is not reading then: both ends may
// write megabytes before they read, where natively the kernel's buffers would have grown.
static bool extend(struct end *e, uint32_t order) {
	if (order > e->order_max || order <= get(&e->own->order) || get(&e->own->head) - get(&e->own->base) > size_of(e) || !mapped_whole(e)) return false;
	grown(e);
	put(&e->own->order, order); // before head
	return true;
}
// shrink frees the memory of a ring that has grown and is empty. wl is held.
static void shrink(struct end *e) {
	size_t page = (size_t)sysconf(_SC_PAGESIZE), keep = (e->mapped + page - 1) & ~(page - 1);
	put(&e->own->base, get(&e->own->head));
	put(&e->own->order, SMCI_ORDER_MIN);
	e->usual = SMCI_ORDER_MIN;
	e->touched = e->grow = false;
	if (e->tx_ring != (char *)e->own + SMCI_RING_AT) {
		SYS(madvise, e->tx_ring - SMCI_RING_AT + keep, e->whole - keep, MADV_REMOVE);
		smcgw_unmap_tx(e);
	}
}

static void __attribute__((noinline)) resize(struct end *e, size_t want) {
	uint32_t order = e->usual + (uint32_t)e->grow;
	if (order > e->order_max) order = e->order_max;
	while (order < e->order_max && want > room_of(1ull << order, 0)) order++;
	put(&e->own->wish, e->order_max);
	if (order > SMCI_ORDER_MIN && !mapped_whole(e)) order = SMCI_ORDER_MIN;
	if (order > SMCI_ORDER_MIN) grown(e);
	e->grow = false;
	e->usual = (uint8_t)order;
	put(&e->own->order, order);
}

// spared tells whether the smallest ring has sufficed for a while. filled: what the ring held since it was last empty.
static bool spared(struct end *e, uint64_t filled, size_t want) {
	uint32_t t = ticks();
	if (filled > room_of(1ull << SMCI_ORDER_MIN, 0) || want > room_of(1ull << SMCI_ORDER_MIN, 0)) e->needed_at = t;
	return t - e->needed_at > SPARED_FOR && e->back == e->back_end;
}
// restart is called with the ring empty: the ring starts again at its first byte, larger if the stream has filled it.
static inline void restart(struct end *e, size_t want) {
	uint32_t order = get(&e->own->order);
	uint64_t filled = get(&e->own->head) - get(&e->own->base);
	put(&e->own->base, get(&e->own->head));
	if (unlikely(order != SMCI_ORDER_MIN) && !e->grow && spared(e, filled, want)) shrink(e);
	else if (unlikely(e->grow || (want > room_of(1ull << order, 0) && order != e->order_max))) resize(e, want);
}

// smcgw_timeout_set is called once the kernel has a new timeout: a thread that has just asked it must not record what it was told.
void smcgw_timeout_set(struct end *e) {
	atomic_fetch_add(&e->options, 1);
	put_release(&e->no_rcvtimeo, 0);
	put_release(&e->no_sndtimeo, 0);
}
// smcgw_timeout_of returns when a call that sleeps ends. That there is no timeout holds until the program sets an option.
int64_t smcgw_timeout_of(struct end *e, int fd, int option) {
	struct timeval t = {0};
	socklen_t l = sizeof t;
	_Atomic uint8_t *none = option == SO_RCVTIMEO ? &e->no_rcvtimeo : &e->no_sndtimeo;
	uint8_t n = (uint8_t)(get_acquire(&e->options) + 1);
	if (likely(n && get(none) == n)) return INT64_MAX;
	if (SYS(getsockopt, fd, SOL_SOCKET, option, &t, &l) < 0) return INT64_MAX;
	if (!t.tv_sec && !t.tv_usec) {
		put(none, n);
		return INT64_MAX;
	}
	return now() + ns_of(&(struct timespec){t.tv_sec, t.tv_usec * 1000});
}

// smcgw_interrupts tells whether any installed handler ends system calls: a call that a signal has interrupted does not say which handler ran.
bool smcgw_interrupts(void) {
	for (int s = 1; s < 65; s++) {
		struct { void *handler; unsigned long flags; void *restorer; unsigned long mask[2]; } a;
		memset(&a, 0, sizeof a);
		if (SYS(rt_sigaction, s, 0, &a, 8) == 0 && a.handler != (void *)SIG_DFL && a.handler != (void *)SIG_IGN && !(a.flags & SA_RESTART)) return true;
	}
	return false;
}

// writes_again takes wl back after a wait, interruptibly if another writer sleeps in the kernel meanwhile. OVER: it has not, and the call ends;
// stop: a signal has ended the wait.
static enum next writes_again(struct call *c, bool stop) {
	const int64_t until = c->until ? c->until : INT64_MAX;
	for (int k = 0; smcgw_writer(c->e);) {
		struct pollfd p = {k > 0 || look(c->fd) != c->e ? -1 : c->fd, POLLOUT, 0};
		int64_t left = (until - now()) / 1000000, most = k > 0 ? 1 : 100; // room, and the other one still has the lock
		if (!stop && left >= 0) k = REAL(poll)(&p, 1, (int)(left < most ? left + 1 : most));
		stop = stop || (k < 0 && (c->done || until != INT64_MAX || smcgw_interrupts()));
		if (!stop && left >= 0) continue;
		c->err = stop ? EINTR : EAGAIN;
		c->unlocked = true;
		return OVER;
	}
	if (!stop) return AGAIN;
	return smcgw_fails(c, EINTR);
}

// no_more tells whether a file has no more bytes to send.
static bool no_more(const struct call *c) {
	off_t from = 0;
	char b;
	if (c->at && !smcgw_move(&from, c->at, sizeof from)) return true;
	if (!c->at) from = SYS(lseek, c->file, 0, SEEK_CUR);
	return SYS(pread64, c->file, &b, 1, from) <= 0;
}

// wait_room waits for the consumer, without wl. Natively any signal handler ends a call that has moved some bytes.
static enum next wait_room(struct call *c) {
	struct end *e = c->e;
	uint32_t r = get_acquire(&e->peer->room);
	put(&e->own->want, get(&e->own->want) + 1);
	fence();
	if (room(e)) return AGAIN;
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_SNDTIMEO);
	int64_t left = c->until == INT64_MAX ? ROOM_ROUND : c->until - now();
	if (left <= 0) return smcgw_fails(c, EAGAIN);
	struct timespec ts = {0, left < ROOM_ROUND ? left : ROOM_ROUND};
	full(e);
	smcgw_unlock(e, &e->wl);
	long n = SYS(futex, &e->peer->room, FUTEX_WAIT, r, &ts);
	const bool stop = n == -EINTR && smcgw_gives_in(c);
	pthread_testcancel();
	if (writes_again(c, stop) == OVER) return OVER;
	// A whole round without room. Go on in a larger ring, or through the kernel: it has room of its own, as it has natively when both
	// ends write before they read, and it knows whether the peer lives.
	if (n == -ETIMEDOUT && smcgw_still(e, c->fd) && !room(e) && (get(&e->own->nx) & 1) && !extend(e, e->order_max)) spill(e, c->fd, false);
	return AGAIN;
}

// not_blocked is called if the thread was cancelled. The kernel may have taken a part of what it was given, and only its own counts tell how much.
static void not_blocked(void *p) {
	struct end *e = p;
	struct tcp_info t;
	uint64_t kr, ks;
	int fd = smcgw_number(e, -1);
	if (fd < 0 || !smcgw_measured(e, fd, &t, &kr, &ks)) e->repair_tx = true;
	else if (ks > get(&e->ks)) sent(e, ks - get(&e->ks));
	put(&e->tx_blocked, 0);
	smcgw_unlock(e, &e->wl);
}

// wait_kernel waits, without wl, until the kernel reports POLLOUT. The kernel may have a little room sooner, which natively wakes no
// writer, either.
static enum next wait_kernel(struct call *c) {
	struct end *e = c->e;
	struct pollfd p = {c->fd, POLLOUT, 0};
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_SNDTIMEO);
	int64_t left;
	while (!c->nowait && (left = (c->until - now()) / 1000000) >= 0) {
		smcgw_unlock(e, &e->wl);
		int round = unlikely(get(&smcgw_owing)) && smcgw_pay() ? SLEEPER_ROUND : 100;
		int n = REAL(poll)(&p, 1, left < round ? (int)left + 1 : round);
		if (writes_again(c, n < 0 && smcgw_gives_in(c)) == OVER) return OVER;
		if (n || !smcgw_still(e, c->fd) || get(&e->violated)) return AGAIN;
	}
	return smcgw_fails(c, EAGAIN);
}

static size_t size_of_all(const struct iovec *v, size_t n) {
	size_t all = 0;
	for (size_t i = 0; i < n; i++) all += v[i].iov_len;
	return all;
}

// by_kernel sends one part through the kernel. A writer that may wait, and has sent nothing yet, does so in the kernel's call, which handles
// signals and time-outs. stop: one of these, or the end of the file, has ended that.
static ssize_t by_kernel(struct call *c, bool *stop) {
	struct end *e = c->e;
	struct iovec w[PARTS];
	ssize_t n;
	size_t left = c->want - c->done < PIECE || c->nowait ? c->want - c->done : PIECE;
	uint32_t cx = get(&e->own->cx);
	if ((cx & 1) || get_acquire(&e->peer->nx) != cx) smcgw_settled(e, c->fd); // see at_stake
	if (!c->v) {
		atomic_store(&e->tx_blocked, c->nowait ? 0 : (int32_t)SYS(gettid));
		pthread_cleanup_push(not_blocked, e);
		n = REAL(sendfile)(c->fd, c->file, c->at, left);
		pthread_cleanup_pop(0);
		put(&e->tx_blocked, 0);
		*stop = !c->nowait && n >= 0 && (size_t)n < left;
	} else {
		struct msghdr h = {.msg_iov = w, .msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, c->done, left)};
		n = result(SYS(sendmsg, c->fd, &h, (c->flags & ~MSG_MORE) | MSG_DONTWAIT | MSG_NOSIGNAL));
		if (n < 0 && errno == EAGAIN && !c->nowait && !c->until) c->until = smcgw_timeout_of(e, c->fd, SO_SNDTIMEO);
		if (n < 0 && errno == EAGAIN && !c->nowait && !c->done && c->until == INT64_MAX && likely(!get(&smcgw_owing))) {
			atomic_store(&e->tx_blocked, (int32_t)SYS(gettid));
			pthread_cleanup_push(not_blocked, e);
			n = REAL(sendmsg)(c->fd, &h, (c->flags & ~(MSG_MORE | MSG_DONTWAIT)) | MSG_NOSIGNAL);
			pthread_cleanup_pop(0);
			put(&e->tx_blocked, 0);
			*stop = n >= 0 && (size_t)n < size_of_all(w, (size_t)h.msg_iovlen);
		}
	}
	if (n > 0) {
		if (unlikely(c->flags & MSG_OOB)) e->urgent = true;
		sent(e, (uint64_t)n);
		add(&e->report.tx_kernel, (uint64_t)n);
	}
	return n;
}

// from_file reads n bytes of the file into the ring. It returns bytes; 0 at the end of the file; -1.
static ssize_t from_file(const struct call *c, size_t n) {
	struct end *e = c->e;
	uint64_t mask = size_of(e) - 1, o = (get(&e->own->head) - get(&e->own->base)) & mask;
	if (n > mask + 1 - o) n = mask + 1 - o;
	char *p = e->tx_ring + o;
	off_t from = 0;
	if (c->at && !smcgw_move(&from, c->at, sizeof from)) return fault();
	long k = c->at ? SYS(pread64, c->file, p, n, from) : SYS(read, c->file, p, n);
	from += k;
	if (k > 0 && c->at) smcgw_move(c->at, &from, sizeof from);
	return result(k);
}

// beside is a write by the very thread that sleeps in the kernel's send: in a signal handler, or after leaving one by longjmp, which cannot
// be told apart. While that call holds the lock, the stream is the kernel's.
static ssize_t beside(struct call *c) {
	size_t asked;
	ssize_t n;
	do {
		struct iovec w[PARTS];
		struct msghdr h = {.msg_iov = w};
		h.msg_iovlen = c->v ? (size_t)smcgw_part(w, c->v, c->nv, c->done, c->want - c->done) : 0;
		n = c->v ? REAL(sendmsg)(c->fd, &h, c->flags) : REAL(sendfile)(c->fd, c->file, c->at, c->want);
		if (n <= 0) break;
		sent(c->e, (uint64_t)n);
		add(&c->e->report.tx_kernel, (uint64_t)n);
		c->done += (size_t)n;
		asked = size_of_all(w, (size_t)h.msg_iovlen);
	} while (c->done < c->want && (size_t)n == asked && !c->nowait);
	return c->done ? (ssize_t)c->done : n;
}

// takes_reset: a reader that had bytes to return took the reset from the kernel, which says EPIPE since. The program is told of the reset once.
static bool takes_reset(struct end *e, int fd) {
	if (!smcgw_try(e, &e->rl)) return false; // the reader is about to report it
	bool r = e->rx_error == ECONNRESET && ended(e, fd) && e->rx_error && !get(&e->violated) && !missing(e);
	if (r) {
		e->rx_error = 0;
		e->eof = e->died = true;
	}
	smcgw_unlock(e, &e->rl);
	return r;
}

// write_part puts bytes into a ring that has room for have.
static enum next write_part(struct call *c, uint64_t head, uint64_t have) {
	struct end *e = c->e;
	uint64_t n = c->want - c->done < have ? c->want - c->done : have;
	const uint64_t most = c->done ? PIECE : FIRST_PIECE;
	if (n > most + most / 2) n = most;
	if (c->v) {
		if (unlikely(!smcgw_copy(e->tx_ring, size_of(e) - 1, head - get(&e->own->base), c->v, c->nv, c->done, n, false))) return smcgw_fails(c, EFAULT);
	} else {
		ssize_t k = from_file(c, n);
		if (k <= 0) return smcgw_fails(c, k < 0 ? errno : 0);
		n = (uint64_t)k;
	}
	publish(e, c->fd, n);
	c->done += n;
	if (c->want > WAY_CALL) smcgw_give_way(n);
	return AGAIN;
}

// write_ring goes on in a ring extent.
static enum next write_ring(struct call *c) {
	struct end *e = c->e;
	if (unlikely(must_leave(e, c->fd))) {
		if (peer_flags(e) & SMCI_FROZEN) take_back(e, c->fd);
		else spill(e, c->fd, false);
		return AGAIN;
	}
	if (unlikely(!fits(e, c->fd))) {
		transition(e); // the kernel then says whether it has room
		return AGAIN;
	}
	uint64_t head = get(&e->own->head);
	if (head == get_acquire(&e->peer->tail)) restart(e, c->want - c->done);
	uint64_t have = room(e);
	if (have) return write_part(c, head, have);
	if (e->tx_error) return AGAIN;
	if (!c->nowait) return wait_room(c);
	if (c->done && !get(&e->edge)) return OVER; // an edge requires that the kernel's buffer be full
	full(e);
	if (!extend(e, get(&e->own->order) + 1)) spill(e, c->fd, true);
	return AGAIN;
}

// write_kernel goes on in a kernel extent.
static enum next write_kernel(struct call *c) {
	struct end *e = c->e;
	bool stop = false;
	if (e->tx_error) {
		if (c->done) return OVER; // the next call reports it
		c->err = e->tx_error;
		e->tx_error = 0; // once; later errors are the kernel's
		return OVER;
	}
	if (may_ring(e, c->fd)) {
		transition(e);
		fence();
		// The peer may have looked before this was published: then go back before any token moves.
		if (peer_flags(e) & SMCI_RECALL) transition(e);
		return AGAIN;
	}
	if (unlikely(!pay(e, c->fd))) return wait_kernel(c);
	if (e->tx_error) return AGAIN;
	if (c->done && unlikely(smcgw_stops(c->fd, false))) return OVER;
	if (c->done && !c->v && !(smcgw_polled(c->fd, POLLOUT) & POLLOUT)) // sendfile() would sleep, and start anew after a signal
		return no_more(c) ? OVER : wait_kernel(c);
	ssize_t n = by_kernel(c, &stop);
	if (n > 0) {
		c->done += (size_t)n;
		if (!c->v) c->until = 0; // natively each part has the whole time-out
		return stop ? OVER : AGAIN;
	}
	const int err = n < 0 ? errno : 0;
	// Wait here if there is a time-out, or some bytes have moved: the kernel looks only at this part. Also if something is owed.
	if (err != EAGAIN || c->nowait || !c->v) c->err = err;
	else if (wait_kernel(c) == AGAIN) return AGAIN;
	if (c->done) smcgw_unsaid(e, c->err);
	return OVER;
}

static enum next write_more(struct call *c) {
	struct end *e = c->e;
	if (unlikely(e->repair_tx)) repair_tx(e, c->fd);
	if (unlikely(get(&e->violated))) {
		c->err = e->tx_error ? e->tx_error : EPIPE;
		e->tx_error = 0;
		return OVER;
	}
	if (unlikely(atomic_load(&e->write_ended))) { // the kernel says so, too, and so reports its error
		long k = SYS(sendto, c->fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		return smcgw_fails(c, k < 0 ? (int)-k : EPIPE);
	}
	if (unlikely(get(&e->forgives))) { // no process is left to read it
		put(&e->forgives, false);
		if (!c->v) return AGAIN;
		c->done = c->want;
		return OVER;
	}
	return get(&e->own->nx) & 1 ? write_ring(c) : write_kernel(c);
}

static ssize_t send_any(struct call *c) {
	struct end *e = c->e;
	const int asked = c->fd;
	// A write of no bytes moves nothing, but reports an error.
	if (!c->want) return c->v ? result(SYS(sendto, c->fd, "", 0, (c->flags & MSG_NOSIGNAL) | MSG_DONTWAIT, 0, 0)) : 0;
	if (!smcgw_try(e, &e->wl)) {
		int32_t who = atomic_load(&e->tx_blocked);
		if (unlikely(who && who == (int32_t)SYS(gettid))) return beside(c);
		// If a writer sleeps in the kernel, wait as it does, interruptibly. The kernel's buffer is full, and POLLOUT tells when it is not.
		int r = smcgw_writer(e);
		c->waited = r == EAGAIN && !c->nowait;
		if (r && !c->waited) c->err = EAGAIN;
		if (r && (!c->waited || writes_again(c, false) == OVER)) {
			errno = c->err;
			return -1;
		}
	}
	if (!c->waited) c->use = get(&e->use);
	while (c->done < c->want) {
		if (unlikely(!smcgw_still(e, c->fd) || get(&e->use) != c->use)) {
			c->waited = c->waited || c->until;
			const bool has = smcgw_keeps(e, c->use, &c->fd);
			if ((c->done || c->waited) && has && e->attached) continue;
			smcgw_unlock(e, &e->wl);
			if (c->done ? c->nowait || !c->v : !c->waited || (!c->v && has && c->fd == asked)) return c->done ? (ssize_t)c->done : RETRY;
			if (c->v) return smcgw_go_on(c);
			errno = EBADF; // a file cannot go on by another number
			return -1;
		}
		if (write_more(c) == OVER) break;
	}
	if (likely(!c->unlocked)) smcgw_unlock(e, &e->wl);
	smcgw_give_way(c->done);
	if (c->done || !c->err) return (ssize_t)c->done;
	if (c->err == EPIPE && takes_reset(e, c->fd)) c->err = ECONNRESET;
	if (c->err == EPIPE && !(c->flags & MSG_NOSIGNAL)) raise(SIGPIPE);
	errno = c->err;
	return -1;
}

ssize_t smcgw_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	if (unlikely(e->remote != 0)) return smcgw_remote_tx(e, fd, v, nv, flags);
	struct call c = smcgw_writing(e, fd, v, nv, flags);
	return send_any(&c);
}
ssize_t smcgw_tx_file(struct end *e, int fd, int from, off_t *at, size_t n) {
	if (!at && SYS(lseek, from, 0, SEEK_CUR) == -ESPIPE) { // reading it might block; programs fall back to read() and write()
		errno = EINVAL;
		return -1;
	}
	if (unlikely(e->remote != 0)) return smcgw_remote_tx_file(e, fd, from, at, n);
	struct call c = smcgw_writing(e, fd, 0, 0, 0);
	c.file = from;
	c.at = at;
	c.want = n;
	return send_any(&c);
}

// smcgw_give_back shrinks a ring that has grown and is empty. It is called when the process waits.
void smcgw_give_back(struct end *e) {
	if (e->remote || !smcgw_try(e, &e->wl)) return;
	if (e->attached && e->touched && e->back == e->back_end && get(&e->own->head) == get_acquire(&e->peer->tail)) shrink(e);
	smcgw_unlock(e, &e->wl);
}

// ---- ends

// smcgw_parts is called before connect() to AF_UNSPEC, which resets the connection and frees the socket for another.
void smcgw_parts(struct end *e, int fd) {
	bool rl = smcgw_lock(e, &e->rl), wl = smcgw_lock_writer(e);
	if (smcgw_still(e, fd) && e->attached) {
		set_flag(e, SMCI_GONE | SMCI_RESET);
		wake(e);
		smcgw_untune(e, fd);
	}
	if (wl) smcgw_unlock(e, &e->wl);
	if (rl) smcgw_unlock(e, &e->rl);
}

// smcgw_widen enlarges the send buffer to n bytes, as far as it may, for what natively the kernel would have had all along. The program
// sends no more.
void smcgw_widen(int fd, int n) {
	int had = int_option(fd, SOL_SOCKET, SO_SNDBUF) / 2; // the kernel doubles the value it is given
	if (n <= had || SYS(setsockopt, fd, SOL_SOCKET, SO_SNDBUFFORCE, &n, sizeof n) == 0) return;
	if (had < MOST_SNDBUF) set_int(fd, SOL_SOCKET, SO_SNDBUF, n);
}

// last is called before a FIN, and before another program may send. It sends what the kernel has refused, as long as the peer takes any.
// Owed tokens need not precede a FIN, which says as much; but bytes of another program would be mistaken for them.
static bool last(struct end *e, int fd, bool fin) {
	int64_t until = now() + LAST_WITHIN;
	uint64_t had = 0;
	if ((get(&e->own->nx) & 1) && (peer_flags(e) & SMCI_FROZEN)) take_back(e, fd);
	if (fin && e->back != e->back_end) smcgw_widen(fd, (int)(e->back_end - e->back)); // what was taken back
	while (!pay(e, fd)) {
		struct pollfd p = {fd, POLLOUT, 0};
		struct timespec ts = {0, 10000000};
		int q = 0;
		if (fin && e->back == e->back_end) return true;
		SYS(ioctl, fd, SIOCOUTQ, &q);
		if (get(&e->ks) - (unsigned)q != had) until = now() + LAST_WITHIN; // the peer's kernel has taken more
		had = get(&e->ks) - (unsigned)q;
		if (now() > until) return false;
		SYS(ppoll, &p, 1, &ts, 0, 8);
	}
	return true;
}

void smcgw_reset_at_close(int fd) {
	struct linger l = {1, 0};
	SYS(setsockopt, fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

bool smcgw_ended(struct end *e, int fd, int how) {
	if (unlikely(e->remote != 0)) return smcgw_remote_ended(e, fd, how);
	if (how != SHUT_WR) {
		put(&e->read_ended, true);
		put(&e->kernel_news, true); // the next read finds the end
	}
	bool both = get(&e->read_ended) && (how != SHUT_RD || atomic_load(&e->write_ended));
	if ((how == SHUT_RD && !both) || !smcgw_still(e, fd)) return true;
	if (how != SHUT_RD) atomic_store(&e->write_ended, true);
	// Wait for a writer inside, or the end would overtake what it publishes. The shutdown itself ends one that sleeps in the kernel's send.
	bool writes = smcgw_lock_writer(e);
	if (!smcgw_still(e, fd)) { // closed or demoted meanwhile
		if (writes) smcgw_unlock(e, &e->wl);
		return true;
	}
	if (both) { // natively the kernel answers what comes now with a reset: let it
		set_flag(e, SMCI_RECALL);
		wake(e);
	}
	if (how != SHUT_RD) set_flag(e, SMCI_SHUT); // before checking whether there is something to take back
	if (how == SHUT_RD || !writes) {
		if (writes) smcgw_unlock(e, &e->wl);
		return true;
	}
	fence();
	bool done = last(e, fd, true);
	// Natively the kernel would have those bytes, and the FIN after them: waits of this process send both.
	e->fin = done ? FIN_SENT : FIN_OWED;
	smcgw_unlock(e, &e->wl);
	return done;
}

// smcgw_finish does the work of the last close(). It waits for tokens on their way, which the kernel would answer with a reset. It causes a
// reset for unread bytes, as the kernel does.
void smcgw_finish(struct end *e, int fd, bool writes) {
	if (!e->attached) return;
	if (unlikely(e->remote != 0)) {
		smcgw_remote_finish(e, fd, writes);
		return;
	}
	bool reset = smcgw_resets(e, fd);
	if (writes) {
		set_flag(e, SMCI_SHUT);
		fence();
		if (!reset && !last(e, fd, true)) {
			smcgw_reset_at_close(fd);
			reset = true;
		}
	}
	int rounds = get(&e->nonblock) ? 5 : 500; // on one host they arrive at once, unless the peer lies or has just been stopped
	for (int i = 0; !reset && i < rounds && !e->eof && !e->rx_error; i++) {
		catch_up(e, fd);
		if (get(&e->own->cx) & 1) {
			if (settle(e, fd) || get_acquire(&e->peer->ksent) <= get(&e->kr)) break;
		} else if (get(&e->kr) >= e->kbase) {
			break;
		}
		struct pollfd p = {fd, POLLIN, 0};
		struct timespec ts = {0, 1000000};
		SYS(ppoll, &p, 1, &ts, 0, 8);
	}
	uint32_t cx = get(&e->own->cx);
	if (!reset && (((cx & 1) && available(e)) || get_acquire(&e->peer->nx) - cx > 1)) {
		smcgw_reset_at_close(fd);
		reset = true;
	}
	set_flag(e, reset ? SMCI_GONE | SMCI_RESET : SMCI_GONE);
	wake(e);
}

// heed_twin does for the connection's other end, if this process has it, what its next call would do: that call may be due on this thread.
static void heed_twin(const struct end *e) {
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *t = look(fd);
		if (!t || t == e || !t->attached || get(&t->report.id) != get(&e->report.id)) continue;
		heed_recall(t, fd);
		return;
	}
}

// empty is asked after freezing, with the ring read to its end: will only data come through the kernel from now on? What the producer
// published or counted before it saw FROZEN is visible here; later it sees FROZEN, and takes back.
static bool empty(struct end *e, int fd) {
	uint32_t cx = get(&e->own->cx);
	int q = 0;
	fence();
	SYS(ioctl, fd, SIOCINQ, &q);
	fence();
	if (get_acquire(&e->peer->nx) != cx) return false;
	eat(e, fd, get(&e->kr) + (unsigned)q); // take what is there; what is only counted may be taken back
	return get(&e->kr) == get_acquire(&e->peer->ksent) && get_acquire(&e->peer->nx) == cx;
}

// kernel_now reads on until only data can come through the kernel, and returns true once that is so. rl is held, and RECALL is set. A
// consumer in a ring extent freezes, so that the producer takes back what is unread. If that takes long, and nobody here can read the ring any
// more (gives), it is left to the producer's next call: nothing comes before then, and what is unread is lost if it is killed first. It fails if kernel data lie unread before the ring, or ring bytes before kernel data: then the unread
// stream is in two places. writes: wl is held; a writer that has meanwhile gone to sleep in the kernel's send keeps it. The producer gets a
// token even if no time is left, because it may sleep, and nothing else would wake it.
static bool kernel_now(struct end *e, int fd, int64_t until, bool gives, bool *writes) {
	bool woken = false, rung = false, asked = false;
	for (;;) {
		uint32_t cx = get(&e->own->cx), nx = get_acquire(&e->peer->nx);
		if (pass_read(e)) continue;
		if (!(cx & 1)) {
			if (get(&e->kr) < e->kbase) eat(e, fd, e->kbase);
			if (get(&e->kr) >= e->kbase) {
				if (nx == cx) return !e->stashed;
				if (get(&e->kr) < get(&e->peer->x[cx % SMCI_TRANSITIONS].k)) return false;
				pass(e);
				continue;
			}
		} else if (nx != cx) {
			return false;
		} else {
			set_flag(e, SMCI_FROZEN);
			fence();
			if (smcgw_heard(fd)) {
				if (get_acquire(&e->peer->nx) != cx) continue;
				thaw(e);
				eat_counted(e, fd);
				if (available(e)) return false;
				if (get(&e->kr) >= get_acquire(&e->peer->ksent)) return true; // the program sees no token
			}
			// A peer that is ending takes nothing back.
			bool late = gives && asked && now() > until && !get(&e->violated) && !e->eof && !(peer_flags(e) & (SMCI_SHUT | SMCI_GONE));
			if ((!available(e) || late) && empty(e, fd) && (late || !available(e))) return true;
		}
		if (e->eof || e->rx_error) return !(cx & 1) || !available(e);
		if (!woken && *writes) {
			woken = true;
			wake(e);
		}
		// The token wakes the peer's process, which then sees the flags.
		if (!rung && *writes && !get(&e->write_ended) && fits(e, fd) && smcgw_polled(fd, POLLOUT) == POLLOUT) {
			// A peer that has set RECALL is awake, or has left the ring for good and may be a program without the library by
			// now. A peer that has not reached where this end left the ring passes both transitions at once if nothing was sent
			// through the kernel since.
			uint32_t left = get(&e->own->nx), at = get_acquire(&e->peer->cx);
			bool nothing = left && at + 1 == left && get(&e->own->x[(left - 1) % SMCI_TRANSITIONS].k) == get(&e->ks);
			if (!(left & 1) && !e->urgent && !get(&e->around) && (peer_flags(e) & (SMCI_ATTACHED | SMCI_RECALL)) == SMCI_ATTACHED && (at == left || nothing)) {
				transition(e);
				fence();
				if (peer_flags(e) & SMCI_RECALL) transition(e); // as in send_any
			}
			if (get(&e->own->nx) & 1) rung = token(e, fd);
		}
		heed_twin(e);
		if (asked && now() > until + 100000000) return false;
		asked = true;
		struct timespec ts = {0, 200000};
		if (*writes) smcgw_unlock(e, &e->wl); // for a process that closes it
		smcgw_unlock(e, &e->rl);
		SYS(nanosleep, &ts, 0);
		smcgw_lock(e, &e->rl);
		if (*writes) *writes = smcgw_lock_writer(e);
		if (!smcgw_still(e, fd)) return true;
	}
}

// smcgw_demote moves both directions to the kernel, for a call that the rings cannot serve, or, if gives, for a program that lacks the library
// or our memory.
bool smcgw_demote(struct end *e, int fd, bool gives, int64_t until) {
	bool done = true, writes;
	if (unlikely(e->remote != 0)) return smcgw_remote_demote(e, fd, until);
	put(&e->passed, true);
	if (!smcgw_lock_until(e, &e->rl, until)) return false;
	while (!(writes = smcgw_try(e, &e->wl)) && !atomic_load(&e->tx_blocked)) { // a writer asleep in the kernel has left the ring
		struct timespec ts = {0, 200000};
		SYS(nanosleep, &ts, 0);
		if (now() < until) continue;
		smcgw_unlock(e, &e->rl);
		return false;
	}
	if (smcgw_still(e, fd)) {
		set_flag(e, SMCI_RECALL);
		fence();
		done = kernel_now(e, fd, until, gives, &writes);
	}
	if (smcgw_still(e, fd)) {
		if (writes && (get(&e->own->nx) & 1)) {
			if (peer_flags(e) & SMCI_FROZEN) take_back(e, fd);
			else transition(e);
		}
		smcgw_untune(e, fd);
		if (writes && !last(e, fd, false)) done = false;
		if (done && !e->eof && !e->rx_error && !e->tx_error) { // from now on it is an ordinary connection, also to a thread asleep in sleep_alone
			smcgw_forget(e);
			smcgw_closed(e);
			e->attached = false;
			put_release(&e->report.state, SMCI_NEVER);
		} else if (e->eof || e->rx_error || !(get(&e->own->cx) & 1) || get_acquire(&e->peer->nx) != get(&e->own->cx)) {
			thaw(e); // the producer has taken back, or never will
		}
	}
	if (writes) smcgw_unlock(e, &e->wl);
	smcgw_unlock(e, &e->rl);
	return done;
}
