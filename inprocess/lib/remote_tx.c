// A connection between hosts as its producer writes it: ring bytes, frames and their copy, RAW.
#include "remote.h"

#include <linux/futex.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>

#define PIECE ((64u << 10) - SMCI_SLACK)     // not whole pages: see room_of
#define SPILL_PIECE ((16u << 10) - SMCI_SLACK) // most payload of a frame; what the kernel does not take at once is owed
#define RELEASED (256 << 10)           // bytes of an empty copy whose memory is released
#define KERNEL_LOWAT (16 << 10)        // TCP_NOTSENT_LOWAT of an open direction,
#define BRIEF_SPILL (1u << 20)         // and bytes of the copy that are used,
#define BRIEF_FOR 500000000LL          // until the peer has read nothing for some nanoseconds;
#define STANDS_LOWAT (3 << 20)         // then, and once the direction has gone back: less than the copy holds
#define MOMENT 1000000L
#define ROOM_ROUND 50000000L
#define ACKED_ROUND 1000000L
#define KEPT_WITHIN 10000000L          // nanoseconds to wait for the peer when the copy is full
#define READS_WITHIN 1000000000L       // and to read anything, before the kernel gets what is kept
#define SHOWN_EACH 500000000LL          // nanoseconds between frames that show the kernel's connection, while bytes go by the ring,
#define SEEN_WITHIN 1000000000LL        // and in which the peer's kernel acknowledges one

// tx_has_all tells whether the peer has read everything; see tx_kept_up.
bool tx_has_all(struct end *e) { return get_acquire(&e->peer->tail) == get(&e->own->head) && e->remote->tx.spilled == e->remote->tx.kept; }

// tx_had_all tells whether the peer's process, which has ended, had read everything. tail does not count what it read from frames.
bool tx_had_all(struct end *e) {
	const struct remote *m = e->remote;
	const uint64_t got = get(&e->peer->got);
	return tx_has_all(e) && (m->tx.state != OPENED || !got || got - 1 == get(&e->own->head) + m->tx.spilled);
}

static void put_number(unsigned char *p, uint64_t v, int n) {
	for (int i = n - 1; i >= 0; i--, v >>= 8) p[i] = (unsigned char)v;
}

static void frame(unsigned char *f, enum type t, uint64_t n, uint64_t r) {
	memset(f, 0, FRAME);
	f[0] = (unsigned char)t;
	put_number(f + 4, n, 4);
	put_number(f + 8, r, 8);
}

static uint64_t room(struct end *e) {
	uint64_t used = get(&e->own->head) - get_acquire(&e->peer->tail);
	if (unlikely(used > e->remote->size)) {
		smcgw_violated(e);
		return 0;
	}
	return room_of(e->remote->size, used);
}

// space is room for a thread without wl: meanwhile there may be more. head is loaded last, lest it be less than tail.
static uint64_t space(const struct end *e, uint64_t *tail) {
	*tail = get_acquire(&e->peer->tail);
	return room_of(e->remote->size, get(&e->own->head) - *tail);
}

bool smcgw_remote_room(struct end *e) {
	uint64_t tail;
	return e->remote->tx.state == OPENED && space(e, &tail);
}

// told_to_leave tells whether the gateway or the peer has ended the use of the ring.
static bool told_to_leave(struct end *e) {
	return (get_acquire(&e->peer->flags) & (SMCI_GONE | SMCI_RECALL | SMCI_SHUT)) || get(&e->remote->unfit);
}

// acked_to returns the position in the kernel's stream before which the peer's kernel has acknowledged everything; 0 if that is unknown.
static uint64_t acked_to(const struct end *e, int fd) {
	int q = 0;
	return SYS(ioctl, fd, SIOCOUTQ, &q) < 0 ? 0 : get(&e->ks) - (unsigned)q;
}

// unacked tells whether the peer's kernel has not acknowledged the last frame yet.
static bool unacked(const struct end *e, int fd) {
	uint64_t to = atomic_load(&e->remote->tx.frame_end);
	return unlikely(to) && acked_to(e, fd) < to;
}

bool smcgw_remote_full(struct end *e, int fd, uint64_t *tail) {
	const struct remote *m = e->remote;
	bool full = space(e, tail) < m->size / 4;
	return m->tx.state == OPENED && (full || unacked(e, fd)) && !told_to_leave(e) && !get(&e->violated) && !get(&e->passed) && !atomic_load(&e->write_ended);
}

bool tx_must_leave(struct end *e) {
	return told_to_leave(e) || remote_lost(e) || sent_back(e) || get(&e->passed) || !ours(e->remote);
}

// leaves_now is tx_must_leave for when the program does not write. A peer that may have closed, and has everything, is sent nothing until
// there is more: its kernel would answer with a reset, which the program would meet without having written.
static bool leaves_now(struct end *e, int fd) {
	if (!tx_must_leave(e)) return false;
	return e->remote->tx.state != OPENED || !tx_has_all(e) || get_acquire(&e->peer->flags) & SMCI_RECALL || get(&e->passed) || !smcgw_heard(fd);
}

static bool may_open(struct end *e) {
	return (get_acquire(&e->peer->flags) & (SMCI_ATTACHED | SMCI_RECALL | SMCI_GONE)) == SMCI_ATTACHED && !tx_must_leave(e) &&
	       !get(&e->write_ended) && e->fin == FIN_NONE;
}

// keep drops from the copy the frames that the peer has passed (its tail says so) and that the kernel has taken.
static void keep(struct end *e) {
	struct remote *m = e->remote;
	uint64_t tail = get_acquire(&e->peer->tail);
	while (m->tx.frame_first != m->tx.frame_last) {
		struct frame *f = &m->tx.frame[m->tx.frame_first % FRAMES];
		if (f->r > tail || m->tx.kept + f->n > m->tx.paid) return;
		m->tx.kept += f->n;
		m->tx.frame_first++;
	}
	if (likely(m->tx.kept - m->tx.released < RELEASED)) return;
	m->tx.released = m->tx.kept;
	SYS(madvise, m->tx.spill, sizeof m->tx.spill, MADV_REMOVE);
}

// tx_low limits the unsent bytes that the kernel takes.
void tx_low(struct end *e, int fd) {
	const int most = e->brief ? KERNEL_LOWAT : STANDS_LOWAT;
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, e->lowat > 0 && e->lowat < most ? e->lowat : most);
}

// brief lets the kernel have few unsent bytes, so that the stream is back in the ring soon. If the peer reads nothing, it gets about as many as
// natively, and this end's window is as wide: both ends may write before they read.
static void brief(struct end *e, int fd, bool on) {
	if (likely(e->brief == on)) return;
	e->brief = on;
	tx_low(e, fd);
	if (!on && e->clamp > 0) SYS(setsockopt, fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &e->clamp, sizeof e->clamp);
}

// owe has a frame sent. The payload of DATA is the last n bytes of the copy.
static void owe(struct remote *m, enum type t, uint64_t n, uint64_t r) {
	frame(m->tx.out, t, n, r);
	m->tx.out_at = 0;
	m->tx.out_n = FRAME;
	m->tx.payload = t == DATA ? (uint32_t)n : 0;
	m->tx.out_rest = t != RAW;
}

static bool owes(const struct remote *m) { return m->tx.out_at < m->tx.out_n || m->tx.payload || m->tx.out_rest || m->tx.state == RETURNS; }

static bool open_it(struct end *e, int fd) {
	struct remote *m = e->remote;
	put(&e->own->x[0].k, get(&e->ks));
	put_release(&e->own->nx, 1);
	fence();
	if (!may_open(e)) { // recalled meanwhile: nothing is sent
		put_release(&e->own->nx, 0);
		return false;
	}
	memcpy(m->tx.out, nonce(e, 1), NONCE);
	frame(m->tx.out + NONCE, OPEN, 0, 0);
	m->tx.out_at = 0;
	m->tx.out_n = NONCE + FRAME;
	m->tx.payload = 0;
	m->tx.out_rest = true;
	m->tx.state = OPENED;
	e->brief = false;
	brief(e, fd, true);
	remote_bell(e);
	return true;
}

// tx_leave makes the direction go back by RAW: all that the peer may lack is sent once more. If last, FIN will follow. It returns false if the
// direction has left already, or still owes a frame.
bool tx_leave(struct end *e, int fd, bool last) {
	struct remote *m = e->remote;
	if (m->tx.state != OPENED) return false;
	if (m->tx.out_at < m->tx.out_n || m->tx.payload || m->tx.out_rest) return false; // what is owed of a frame goes first
	keep(e);
	uint64_t tail = get_acquire(&e->peer->tail);
	if (get(&e->own->head) - tail > m->size) {
		smcgw_violated(e);
		return false;
	}
	if (get(&m->unfit) || (sent_back(e) && !switched_off())) remote_say(e, SMCI_RECALL); // nothing else tells the peer, and one direction cannot ask again
	owe(m, RAW, last, tail + m->tx.kept);
	m->tx.back_r = tail;
	m->tx.back_s = m->tx.kept;
	m->tx.back_frame = m->tx.frame_first;
	m->tx.state = RETURNS;
	atomic_fetch_or(&e->own->flags, SMCI_RESET); // stays set: a peer that has not read RAW cannot know what follows it
	atomic_fetch_and(&e->own->flags, ~SMCI_WHOLE);
	smcgw_at_risk(e, fd);
	add(&e->report.returns, 1);
	int lowat = e->lowat < 0 ? 0 : e->lowat;
	SYS(setsockopt, fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof lowat);
	e->brief = false;
	return true;
}

// ends frames END if the peer has passed all that it was sent, and otherwise RAW: after a FIN nothing can be repeated.
static void ends(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (tx_must_leave(e) || get(&e->own->head) != get_acquire(&e->peer->tail)) tx_leave(e, fd, true);
	if (m->tx.state != OPENED) return;
	owe(m, END, 0, get(&e->own->head));
	m->tx.ends = true;
}

// repair_tx does for wl what repair_rx does for rl. It returns how many bytes of what advance owes the kernel has got already.
static uint64_t repair_tx(struct end *e, int fd) {
	const struct remote *m = e->remote;
	struct tcp_info t;
	uint64_t kr, ks;
	e->repair_tx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &ks) || ks < get(&e->ks)) {
		remote_lacks(e);
		return 0;
	}
	if ((m->tx.state == OPENED || m->tx.state == RETURNS) && e->fin != FIN_SENT) return ks - get(&e->ks);
	put(&e->ks, ks);
	if (m->tx.state == NATIVE) put_release(&e->own->ksent, ks);
	return 0;
}

// advance gives the kernel what is owed. It returns false while the kernel refuses.
static bool advance(struct end *e, int fd) {
	struct remote *m = e->remote;
	uint64_t had = unlikely(e->repair_tx) ? repair_tx(e, fd) : 0;
	for (;;) {
		struct iovec w[5];
		struct msghdr h = {.msg_iov = w};
		bool frames = m->tx.out_at < m->tx.out_n || m->tx.payload || m->tx.out_rest;
		if (frames) {
			if (m->tx.out_at < m->tx.out_n) w[h.msg_iovlen++] = (struct iovec){m->tx.out + m->tx.out_at, m->tx.out_n - m->tx.out_at};
			if (m->tx.payload) {
				size_t at = m->tx.paid % SMCI_SPILL, k = SMCI_SPILL - at < m->tx.payload ? SMCI_SPILL - at : m->tx.payload;
				w[h.msg_iovlen++] = (struct iovec){m->tx.spill + at, k};
				if (k < m->tx.payload) w[h.msg_iovlen++] = (struct iovec){m->tx.spill, m->tx.payload - k};
			}
			if (m->tx.out_rest) w[h.msg_iovlen++] = (struct iovec){"", 1};
		} else if (m->tx.state == RETURNS) {
			struct frame *f = m->tx.back_frame != m->tx.frame_last ? &m->tx.frame[m->tx.back_frame % FRAMES] : 0;
			uint64_t to = f ? f->r : get(&e->own->head);
			if (m->tx.back_r < to) {
				size_t at = m->tx.back_r & (m->size - 1), k = to - m->tx.back_r;
				if (k > m->size - at) k = m->size - at;
				w[h.msg_iovlen++] = (struct iovec){e->tx_ring + at, k};
			} else if (f) {
				uint64_t end = m->tx.kept;
				for (uint64_t i = m->tx.frame_first; i <= m->tx.back_frame; i++) end += m->tx.frame[i % FRAMES].n;
				if (m->tx.back_s == end) {
					m->tx.back_frame++;
					continue;
				}
				size_t at = m->tx.back_s % SMCI_SPILL, k = end - m->tx.back_s;
				if (k > SMCI_SPILL - at) k = SMCI_SPILL - at;
				w[h.msg_iovlen++] = (struct iovec){m->tx.spill + at, k};
			} else {
				m->tx.state = RETURNED;
				m->tx.raw_last = true;
				smcgw_no_risk(e, fd);
				tx_low(e, fd);
			}
		}
		if (unlikely(had > total(w, (int)h.msg_iovlen))) {
			remote_lacks(e);
			return true;
		}
		if (!h.msg_iovlen) {
			if (e->fin == FIN_OWED && m->tx.state == OPENED && !m->tx.ends) { // tx_end did not get so far
				ends(e, fd);
				if (owes(m)) continue;
			}
			if (e->fin == FIN_OWED) {
				e->fin = FIN_SENT;
				SYS(shutdown, fd, SHUT_WR);
			}
			if (unlikely(m->tx.frame_end) && m->tx.state == OPENED && !(get(&e->own->flags) & SMCI_WHOLE)) atomic_fetch_or(&e->own->flags, SMCI_WHOLE);
			if (m->tx.ends) m->tx.state = RETURNED; // there is nothing to go back with
			return true;
		}
		long k = likely(!had) ? SYS(sendmsg, fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL) : (long)had;
		had = 0;
		if (k == -EINTR) continue;
		if (k == -EAGAIN) {
			put(&smcgw_owing, true);
			return false;
		}
		if (k < 0) {
			if (!e->tx_error) e->tx_error = (int)-k;
			m->tx.out_at = m->tx.out_n;
			m->tx.payload = 0;
			m->tx.out_rest = false;
			if (m->tx.state == RETURNS) m->tx.state = RETURNED;
			return true;
		}
		add(&e->ks, (uint64_t)k);
		if (!frames) {
			if (w[0].iov_base >= (void *)m->tx.spill && w[0].iov_base < (void *)(m->tx.spill + SMCI_SPILL)) m->tx.back_s += (uint64_t)k;
			else m->tx.back_r += (uint64_t)k;
			continue;
		}
		uint64_t n = (uint64_t)k, p = m->tx.out_n - m->tx.out_at < n ? m->tx.out_n - m->tx.out_at : n;
		m->tx.out_at += (uint32_t)p;
		n -= p;
		p = m->tx.payload < n ? m->tx.payload : n;
		m->tx.payload -= (uint32_t)p;
		m->tx.paid += p;
		n -= p;
		if (n) {
			m->tx.out_rest = false;
			if (m->tx.frame_end == UINT64_MAX) m->tx.frame_end = get(&e->ks); // of DATA
		}
	}
}

bool smcgw_remote_pay(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (m->tx.state == OPENED && leaves_now(e, fd)) {
		if (!advance(e, fd)) return false;
		tx_leave(e, fd, false);
	}
	return advance(e, fd);
}

// tx_pay_all makes the kernel take what is owed, in a larger send buffer if it may have one. TCP_NOTSENT_LOWAT would keep it from using that.
bool tx_pay_all(struct end *e, int fd) {
	if (likely(advance(e, fd))) return true;
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, INT_MAX);
	smcgw_widen(fd, (int)(e->remote->size + SMCI_SPILL));
	return advance(e, fd);
}

// smcgw_remote_at_risk tells whether a frame is unacknowledged. If the process is killed before the kernel has all of it, the peer can get no
// more than a part: RESET tells it that such an end is a reset. After that, WHOLE tells the gateway to keep the socket until the peer's kernel
// has it, too. The kernel would discard it with the socket, since the rest of a frame is unread.
bool smcgw_remote_at_risk(const struct end *e) { return e->remote->tx.spilled && e->remote->tx.frame_end; }

// acked tells whether the ring may go on: the peer's kernel has acknowledged the last frame.
static bool acked(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (likely(!m->tx.frame_end)) return true;
	if (unacked(e, fd)) return false;
	m->tx.frame_end = 0;
	brief(e, fd, true);
	atomic_fetch_and(&e->own->flags, smcgw_resets(e, fd) ? ~SMCI_WHOLE : ~(SMCI_WHOLE | SMCI_RESET));
	return true;
}

// tx_kept_up brings the copy of frames up to date: what a reader decides depends on whether the peer has passed all.
void tx_kept_up(struct end *e) {
	struct remote *m = e->remote;
	if (likely(m->tx.spilled == m->tx.kept) || m->tx.state != OPENED || !smcgw_try(e, &e->wl)) return;
	if (m->tx.state == OPENED) keep(e);
	smcgw_unlock(e, &e->wl);
}

// tx_heed makes the sending direction go back if it has to. The reader does it, since it may be the program's only thread.
void tx_heed(struct end *e, int fd) {
	struct remote *m = e->remote;
	tx_kept_up(e);
	const bool leaves = m->tx.state != RETURNED && m->tx.state != NATIVE && leaves_now(e, fd), risks = m->tx.state == OPENED && smcgw_remote_at_risk(e);
	if (likely(!leaves && !risks) || !smcgw_try(e, &e->wl)) return;
	if (risks && smcgw_still(e, fd)) acked(e, fd);
	if (leaves && smcgw_still(e, fd)) {
		tx_leave(e, fd, false);
		advance(e, fd);
	}
	smcgw_unlock(e, &e->wl);
}

// fits tells whether the copy of frames has room for n bytes more.
static bool fits(struct end *e, size_t n) {
	const struct remote *m = e->remote;
	keep(e);
	return m->tx.spilled - m->tx.kept + n <= (e->brief ? BRIEF_SPILL : SMCI_SPILL) && m->tx.frame_last - m->tx.frame_first < FRAMES;
}

// spill sends bytes through the kernel in a frame. It returns how many; 0 if no more can be kept; -1 for a fault.
static long spill(struct end *e, int fd, const struct iovec *v, int nv, size_t done, size_t n) {
	struct remote *m = e->remote;
	if (!fits(e, n)) return 0;
	if (!smcgw_copy(m->tx.spill, SMCI_SPILL - 1, m->tx.spilled, v, nv, done, n, false)) return -1;
	uint64_t head = get(&e->own->head);
	m->tx.frame[m->tx.frame_last++ % FRAMES] = (struct frame){head, (uint32_t)n};
	m->tx.spilled += n;
	owe(m, DATA, n, head);
	m->tx.frame_end = UINT64_MAX;
	atomic_fetch_or(&e->own->flags, SMCI_RESET); // see at_risk
	atomic_fetch_and(&e->own->flags, ~SMCI_WHOLE);
	add(&e->report.tx_kernel, n);
	add(&e->report.spills, 1);
	if (advance(e, fd)) return (long)n;
	// The kernel has enough, and takes the rest: after this call the program may end.
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, INT_MAX);
	m->tx.full = advance(e, fd);
	tx_low(e, fd);
	return (long)n;
}

// write_waits sleeps until the kernel takes more, or for some milliseconds.
static enum next write_waits(struct call *c, long most) {
	struct end *e = c->e;
	struct pollfd p = {c->fd, POLLOUT, 0};
	struct sleep sleep = {e, e->remote, &e->wl, get(&e->use)};
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_SNDTIMEO);
	int64_t left = c->until == INT64_MAX ? most : (c->until - now()) / 1000000;
	if (left < 0) return smcgw_fails(c, EAGAIN);
	if (left > most) left = most;
	remote_falls_asleep(&sleep);
	int k = remote_sleeps_in_poll(&sleep, &p, (int)left + 1);
	const bool stop = k < 0 && errno == EINTR && smcgw_gives_in(c);
	smcgw_remote_round();
	remote_awakes(&sleep);
	if (!stop) return AGAIN;
	return smcgw_fails(c, EINTR);
}

// wants asks the gateway to wake a writer that waits for room. The gateway checks when tail moves, so the caller looks at tail afterwards.
static void wants(struct end *e) {
	put(&e->own->want, get(&e->own->want) + 1);
	fence();
}

// write_waits_room sleeps until the ring has room and may go on, or for a moment.
static enum next write_waits_room(struct call *c) {
	struct end *e = c->e;
	uint32_t r = get_acquire(&e->peer->room);
	struct sleep sleep = {e, e->remote, &e->wl, get(&e->use)};
	c->full = false;
	wants(e);
	const bool some = room(e);
	if (some && acked(e, c->fd)) return AGAIN;
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_SNDTIMEO);
	// Nothing announces an acknowledgement, so look often for one.
	int64_t left = c->until == INT64_MAX ? ROOM_ROUND : c->until - now(), most = some ? ACKED_ROUND : ROOM_ROUND;
	if (left <= 0) return smcgw_fails(c, EAGAIN);
	struct timespec ts = {0, left < most ? left : most};
	remote_falls_asleep(&sleep);
	long n = SYS(futex, &e->peer->room, FUTEX_WAIT, r, &ts);
	const bool stop = n == -EINTR && smcgw_gives_in(c);
	remote_sleep_ends(&sleep);
	smcgw_remote_round();
	remote_awakes(&sleep);
	if (stop) return smcgw_fails(c, EINTR);
	c->full = n == -ETIMEDOUT && !some;
	return AGAIN;
}

// moves tells whether the peer has taken anything within some nanoseconds: has read it from the ring or, if the ring is empty, acknowledged it.
// A carrier may be slower than the kernel, which reports room.
static bool moves(struct end *e, int fd, int64_t within) {
	struct remote *m = e->remote;
	uint64_t taken = get_acquire(&e->peer->tail);
	if (taken == get(&e->own->head)) taken += acked_to(e, fd);
	int64_t t = now();
	if (taken != m->tx.moved || !m->tx.moved_at) {
		m->tx.moved = taken;
		m->tx.moved_at = t;
	}
	return t - m->tx.moved_at < within;
}

// reader_told tells whether the kernel has reported an error to the reader.
static bool reader_told(struct end *e) {
	if (!smcgw_try(e, &e->rl)) return true;
	bool r = e->rx_error;
	smcgw_unlock(e, &e->rl);
	return r;
}

// publish shows the peer n bytes more of a ring that had room for have.
static void publish(struct end *e, uint64_t have, uint64_t n) {
	struct remote *m = e->remote;
	if (have == room_of(m->size, 0)) m->tx.moved_at = 0; // the peer had nothing to take
	put_release(&e->own->head, get(&e->own->head) + n);
	add(&e->report.tx_ring, n);
	remote_bell(e);
}

static enum next write_ring(struct call *c, uint64_t have) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	uint64_t head = get(&e->own->head), n = c->want - c->done < have ? c->want - c->done : have;
	if (n > PIECE) n = PIECE;
	if (unlikely(!smcgw_copy(e->tx_ring, m->size - 1, head, c->v, c->nv, c->done, n, false))) return smcgw_fails(c, EFAULT);
	publish(e, have, n);
	c->done += n;
	c->full = false;
	return AGAIN;
}

// write_frame sends bytes through the kernel in a frame, and goes back to the kernel if the peer neither reads nor lets the copy hold more.
static enum next write_frame(struct call *c) {
	struct end *e = c->e;
	const int fd = c->fd;
	const bool edge = get(&e->edge);
	const size_t part = c->want - c->done < SPILL_PIECE ? c->want - c->done : SPILL_PIECE;
	long n = spill(e, fd, c->v, c->nv, c->done, part);
	if (n < 0) return smcgw_fails(c, EFAULT);
	if (likely(!e->tx_error)) c->done += (size_t)n; // otherwise the call reports that, as natively
	c->full = false;
	if (n) {
		c->waited = false;
		return AGAIN;
	}
	if (c->nowait && moves(e, fd, READS_WITHIN) && smcgw_full(e, fd)) return smcgw_fails(c, EAGAIN);
	if (c->waited && !moves(e, fd, c->nowait && edge ? KEPT_WITHIN : READS_WITHIN)) {
		put(&e->report.why, SMCI_WHY_SLOW_CARRIER);
		if (tx_leave(e, fd, false) && smcgw_alone(e)) remote_say(e, SMCI_RECALL); // one direction cannot ask again
		return AGAIN;
	}
	c->waited = true;
	if (!c->nowait) return write_waits_room(c); // a handler may end the call, or jump out of it
	// The copy is full. The peer has read its ring bytes, or the kernel would be full by now: the gateway is about to report that.
	struct timespec ts = {0, edge ? KEPT_WITHIN : MOMENT};
	uint32_t count = get_acquire(&e->peer->room);
	wants(e);
	if (get(&e->own->head) != get_acquire(&e->peer->tail)) SYS(futex, &e->peer->room, FUTEX_WAIT, count, &ts);
	if (edge || !moves(e, fd, READS_WITHIN) || room(e) || fits(e, part)) return AGAIN;
	return smcgw_fails(c, EAGAIN); // a program that waits for the kernel calls again at once
}

// write_open sends while the direction is open: by the ring if that has room and may go on. paid: the kernel has all of the last frame.
static enum next write_open(struct call *c, bool paid) {
	struct end *e = c->e;
	const int fd = c->fd;
	uint64_t have = paid && acked(e, fd) ? room(e) : 0;
	if (have) return write_ring(c, have);
	if (get(&e->violated)) return AGAIN;
	const bool reads = moves(e, fd, STANDS);
	if (c->nowait && paid && reads && smcgw_full(e, fd)) return smcgw_fails(c, EAGAIN);
	if (!reads && !moves(e, fd, BRIEF_FOR)) brief(e, fd, false);
	if (c->nowait && (c->done || c->some) && !get(&e->edge)) return OVER;
	if (paid && (c->nowait || c->full || (!reads && !room(e)))) return write_frame(c);
	if (!c->nowait) return paid ? write_waits_room(c) : write_waits(c, 100);
	return smcgw_fails(c, EAGAIN);
}

static enum next write_kernel(struct call *c) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	struct iovec w[PARTS];
	struct msghdr h = {.msg_iov = w, .msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, c->done, c->want - c->done)};
	if (c->done && unlikely(smcgw_stops(c->fd, false))) return OVER;
	long n = SYS(sendmsg, c->fd, &h, (c->flags & ~MSG_MORE) | MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n == -EAGAIN && !c->nowait && write_waits(c, ROUND) == AGAIN) return AGAIN;
	// The reset came after a FIN. Other resets are news for both directions, also if the reader was told.
	const bool answered = n == -EPIPE && m->tx.raw_last && !get(&m->reset) && !reader_told(e);
	if (n != -EAGAIN) m->tx.raw_last = false;
	if (answered) {
		put(&e->forgives, true);
		return AGAIN;
	}
	if (n < 0) {
		if (!c->err) c->err = (int)-n;
		if (c->done) smcgw_unsaid(e, c->err);
		return OVER;
	}
	c->done += (size_t)n;
	add(&e->ks, (uint64_t)n);
	if (m->tx.state == NATIVE) put_release(&e->own->ksent, get(&e->ks));
	add(&e->report.tx_kernel, (uint64_t)n);
	return AGAIN;
}

static enum next write_more(struct call *c) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	const int fd = c->fd;
	if (unlikely(e->repair_tx)) advance(e, fd);
	if (unlikely(get(&e->violated))) {
		c->err = e->tx_error ? e->tx_error : EPIPE;
		e->tx_error = 0;
		return OVER;
	}
	if (unlikely(atomic_load(&e->write_ended))) {
		long k = SYS(sendto, fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		return smcgw_fails(c, k < 0 ? (int)-k : EPIPE);
	}
	if (unlikely(get(&e->forgives))) { // no process is left to read it
		put(&e->forgives, false);
		m->tx.raw_last = false; // once
		c->done = c->want;
		return OVER;
	}
	if (unlikely(e->tx_error)) {
		if (c->done) return OVER; // the next call reports it
		c->err = e->tx_error;
		e->tx_error = 0;
		return OVER;
	}
	bool paid = !owes(m) || advance(e, fd);
	if (paid && unlikely(m->tx.full)) paid = !(m->tx.full = !smcgw_polled(fd, POLLOUT));
	if (e->tx_error) return AGAIN;
	if (m->tx.state == OPENED && paid && unlikely(tx_must_leave(e))) {
		tx_leave(e, fd, false);
		return AGAIN;
	}
	if (m->tx.state == NATIVE && may_open(e) && open_it(e, fd)) return AGAIN;
	if (m->tx.state == OPENED) return write_open(c, paid);
	if (paid) return write_kernel(c);
	if (!c->nowait) return write_waits(c, 100);
	return smcgw_fails(c, EAGAIN);
}

// send_any sends v; some: the call has already moved other bytes.
static ssize_t send_any(struct end *e, int fd, const struct iovec *v, int nv, int flags, bool some) {
	struct call c = smcgw_writing(e, fd, v, nv, flags);
	c.some = some;
	if (!c.want) return result(SYS(sendto, fd, "", 0, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT, 0, 0));
	if (!smcgw_lock(e, &e->wl)) {
		errno = EAGAIN;
		return -1;
	}
	c.use = get(&e->use);
	while (c.done < c.want) {
		if (unlikely(!smcgw_still(e, c.fd) || get(&e->use) != c.use)) {
			if ((c.done || c.until) && smcgw_keeps(e, c.use, &c.fd) && e->attached) continue;
			smcgw_unlock(e, &e->wl);
			if (c.done ? c.nowait : !c.until) return c.done ? (ssize_t)c.done : RETRY;
			return smcgw_go_on(&c);
		}
		if (write_more(&c) == OVER) break;
	}
	if (c.err && !c.done && smcgw_still(e, c.fd) && !remote_reports(e->remote, c.err)) c.err = EPIPE;
	if (smcgw_still(e, c.fd)) remote_all_back(e, c.fd);
	smcgw_unlock(e, &e->wl);
	if (c.done || c.err == EAGAIN) smcgw_remote_round(); // a program that only writes never waits
	smcgw_give_way(c.done);
	if (c.done || !c.err) return (ssize_t)c.done;
	if (c.err == EPIPE && !(flags & MSG_NOSIGNAL)) raise(SIGPIPE);
	errno = c.err;
	return -1;
}

ssize_t smcgw_remote_tx(struct end *e, int fd, const struct iovec *v, int nv, int flags) { return send_any(e, fd, v, nv, flags, false); }

// ring_file reads up to n bytes of a file into the ring, as far as the kernel has them: wl is held. It returns how many; 0 if there is more to
// do than that, or there are none.
static size_t ring_file(struct end *e, int fd, uint32_t use, int file, off_t at, size_t n) {
	size_t done = 0;
	if (!smcgw_try(e, &e->wl)) return 0;
	while (done < n && smcgw_still(e, fd) && get(&e->use) == use && e->remote) {
		struct remote *m = e->remote;
		if (m->tx.state != OPENED || tx_must_leave(e) || owes(m) || !acked(e, fd)) break;
		if (e->repair_tx || get(&e->violated) || atomic_load(&e->write_ended) || get(&e->forgives) || e->tx_error) break;
		uint64_t have = room(e), o = get(&e->own->head) & (m->size - 1), k = n - done;
		if (k > have) k = have;
		if (k > PIECE) k = PIECE;
		if (k > m->size - o) k = m->size - o;
		struct iovec to = {e->tx_ring + o, k};
		long r = k ? SYS(preadv2, file, &to, 1, at + (off_t)done, 0, RWF_NOWAIT) : 0;
		if (r <= 0) break;
		publish(e, have, (uint64_t)r);
		done += (size_t)r;
	}
	smcgw_unlock(e, &e->wl);
	if (done) smcgw_remote_round();
	smcgw_give_way(done);
	return done;
}

ssize_t smcgw_remote_tx_file(struct end *e, int fd, int from, off_t *at, size_t n) {
	const uint32_t use = get(&e->use);
	char b[LOOKED];
	size_t done = 0;
	off_t pos = 0;
	if (at && !smcgw_move(&pos, at, sizeof pos)) return fault();
	if (!at && (pos = SYS(lseek, from, 0, SEEK_CUR)) < 0) return result(pos);
	for (int64_t until = 0; done < n;) { // a reader that has stopped makes room for small parts only: then the time-out is for all of them
		size_t ringed = ring_file(e, fd, use, from, pos, n - done);
		pos += (off_t)ringed;
		done += ringed;
		if (ringed || !until) until = smcgw_timeout_of(e, fd, SO_SNDTIMEO);
		if (done == n || (done && now() > until)) break;
		long k = SYS(pread64, from, b, n - done < sizeof b ? n - done : sizeof b, pos);
		ssize_t r = k > 0 ? send_any(e, fd, &(struct iovec){b, (size_t)k}, 1, 0, done) : result(k);
		if (r < 0 && !done) return r;
		if (r == -1) smcgw_unsaid(e, errno);
		if (r <= 0) break;
		pos += r;
		done += (size_t)r;
		if (r < k) break;
	}
	if (at) smcgw_move(at, &pos, sizeof pos);
	else SYS(lseek, from, pos, SEEK_SET);
	return (ssize_t)done;
}

// smcgw_remote_unsent counts what the peer has not read, except what the kernel has got.
size_t smcgw_remote_unsent(const struct end *e) {
	const struct remote *m = e->remote;
	uint64_t tail = get_acquire(&e->peer->tail), head = get_acquire(&e->own->head);
	if (m->tx.state == RETURNS && m->tx.back_r > tail) tail = m->tx.back_r;
	return (m->tx.state == OPENED || m->tx.state == RETURNS) && head > tail ? (size_t)(head - tail) : 0;
}

// tx_last gives the kernel what is owed, before a FIN or before another program may send. It goes on for as long as the peer takes any within
// some nanoseconds.
bool tx_last(struct end *e, int fd, int64_t within) {
	int64_t until = now() + within;
	uint64_t had = 0;
	if (tx_pay_all(e, fd)) return !e->tx_error;
	while (!advance(e, fd)) {
		struct pollfd p = {fd, POLLOUT, 0};
		struct timespec ts = {0, 10000000};
		uint64_t has = acked_to(e, fd);
		if (has != had) until = now() + within;
		had = has;
		if (now() > until) return false;
		SYS(ppoll, &p, 1, &ts, 0, 8);
	}
	return !e->tx_error;
}

bool tx_end(struct end *e, int fd, int64_t within) {
	struct remote *m = e->remote;
	if (!tx_last(e, fd, within)) return false;
	// After a FIN nothing can be repeated, so END requires that the peer has everything, and has said so. A program that never waits does not
	// wait for that, either: what is unread goes through the kernel.
	for (int64_t until = now() + (get(&e->nonblock) ? 0 : KEPT_WITHIN); m->tx.state == OPENED && !tx_must_leave(e) && get(&e->own->head) - get_acquire(&e->peer->tail) > REPEATED;) {
		uint32_t room = get_acquire(&e->peer->room);
		struct timespec ts = left_until(until);
		if (!ts.tv_sec && !ts.tv_nsec) break;
		wants(e);
		if (get(&e->own->head) - get_acquire(&e->peer->tail) > REPEATED) SYS(futex, &e->peer->room, FUTEX_WAIT, room, &ts);
	}
	if (m->tx.state == OPENED) ends(e, fd);
	return tx_last(e, fd, within);
}

// tx_shown lets the kernel's connection decide: ring bytes must not pass where a native connection's would not. While they go, a frame that
// says nothing passes through the kernel twice a second, and the ring is left if it is not acknowledged. Nor do firewalls forget the
// connection then. rl is held.
void tx_shown(struct end *e, int fd) {
	struct remote *m = e->remote;
	const uint64_t head = get(&e->own->head), ks = get(&e->ks);
	const int64_t t = now_coarse();
	if (m->tx.state != OPENED) return;
	if (m->path.ks != ks) {
		m->path.ks = ks;
		m->path.head = head;
		m->path.at = t;
		m->path.unseen = false;
	}
	const bool due = head != m->path.head && t - m->path.at >= SHOWN_EACH;
	if (!due && !m->path.unseen) return;
	if (acked_to(e, fd) < ks) {
		if (!m->path.unseen || t - m->path.at < SEEN_WITHIN) return;
		remote_spoils(e, SMCI_WHY_PATH);
		tx_heed(e, fd);
		return;
	}
	m->path.unseen = false;
	if (!due || !smcgw_try(e, &e->wl)) return;
	// A peer that may have closed, and has everything, would answer with a reset.
	if (smcgw_still(e, fd) && m->tx.state == OPENED && !owes(m) && !tx_must_leave(e) && !(tx_has_all(e) && smcgw_heard(fd))) {
		owe(m, NOP, 0, 0);
		advance(e, fd);
		m->path.ks = get(&e->ks);
		m->path.head = head;
		m->path.at = t;
		m->path.unseen = true;
	}
	smcgw_unlock(e, &e->wl);
}

// tx_fills lets the kernel have more if the peer reads nothing: the program may be waiting for the kernel, which has refused bytes. rl is held.
void tx_fills(struct end *e, int fd) {
	const struct remote *m = e->remote;
	if (likely(m->tx.spilled == m->tx.kept) || m->tx.state != OPENED || !smcgw_try(e, &e->wl)) return;
	if (smcgw_still(e, fd) && m->tx.state == OPENED && !moves(e, fd, BRIEF_FOR)) {
		brief(e, fd, false);
		advance(e, fd);
	}
	smcgw_unlock(e, &e->wl);
}
