// A connection between hosts as its consumer reads it: OPEN, ring bytes, frames, RAW, and the doorbell.
#include "remote.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/mman.h>

#define LOOKED_AHEAD (64 << 10)        // most bytes of a look for OPEN while a program reads, or gets more
#define WIDE (512 << 10)               // bytes of frames for which the kernel has room, unless its buffer is fixed: less than the copy holds
#define NOPS 65536                     // those of nine hours
#define UNSURE_WITHIN 2000000000LL
#define SHUT_WITHIN 2000000000LL        // nanoseconds to wait, after the kernel's end of the stream, for news of the peer's process
#define DUE_WITHIN 2000000000LL         // nanoseconds in which a carrier brings more than REPEATED

static uint64_t number(const unsigned char *p, int n) {
	uint64_t v = 0;
	for (int i = 0; i < n; i++) v = v << 8 | p[i];
	return v;
}

// frameless tells whether the kernel has nothing of another frame.
static bool frameless(const struct end *e, int fd) { return (unsigned)queued(fd) + e->remote->rx.in_n <= (unsigned)e->remote->rx.rest; }

// rx_unread tells whether the kernel has a byte. SIOCINQ counts nothing beyond an urgent byte. The kernel reports a reset only once, maybe here.
bool rx_unread(struct end *e, int fd) {
	long n = smcgw_peek(fd);
	smcgw_says(e, n);
	return n > 0;
}

static bool ring_left(struct end *e, uint64_t *head) {
	*head = get_acquire(&e->peer->head);
	uint64_t n = *head - get(&e->own->tail);
	if (unlikely(n > e->remote->size)) smcgw_violated(e);
	return n && !get(&e->violated);
}

// freed publishes tail and tells of room. A peer that ends its direction waits until all is read, so it must hear of an empty ring, too.
static void freed(struct end *e, uint64_t tail) {
	struct remote *m = e->remote;
	put_release(&e->own->tail, tail);
	fence();
	if (tail - m->rx.freed < m->size / 8 && (get(&e->peer->arm) & 0xff) != SMCI_ARM_READ && tail != get_acquire(&e->peer->head)) return;
	m->rx.freed = tail;
	remote_bell(e);
}

// has_read counts bytes read since OPEN, and publishes how many they are.
static void has_read(struct end *e, uint64_t n) {
	e->remote->rx.got += n;
	put_release(&e->own->got, e->remote->rx.got + 1);
}

// rx_readable makes the kernel report readable to waits, since something is left.
void rx_readable(struct end *e, int fd) {
	int one = 1;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
	e->remote->rx.lowat = 1;
	e->remote->rx.lowat_head = UINT64_MAX; // so that armed sets it again
}

// data_of returns how many of n bytes of the kernel's stream precede the nonce, or what may be its beginning.
static long data_of(const struct end *e, const char *b, long n) {
	const unsigned char *x = nonce(e, 0);
	for (const char *p = b; (p = memchr(p, x[0], (size_t)(b + n - p))); p++)
		if (!memcmp(p, x, (size_t)(b + n - p < NONCE ? b + n - p : NONCE))) return p - b;
	return n;
}

// take_open consumes what is there of OPEN.
static void take_open(struct end *e, int fd) {
	struct remote *m = e->remote;
	const unsigned char *f = m->rx.in + NONCE;
	const int wide = WIDE;
	if (likely(m->rx.in_n < NONCE + FRAME)) {
		long n = SYS(recvfrom, fd, m->rx.in + m->rx.in_n, NONCE + FRAME - m->rx.in_n, MSG_DONTWAIT);
		smcgw_says(e, n);
		if (n <= 0) return;
		add(&e->kr, (uint64_t)n);
		m->rx.in_n += (uint32_t)n;
		if (m->rx.in_n < NONCE + FRAME) return;
	}
	m->rx.in_n = 0;
	if (memcmp(m->rx.in, nonce(e, 0), NONCE) || f[0] != OPEN || number(f + 4, 4) || number(f + 8, 8)) {
		smcgw_violated(e);
		return;
	}
	m->rx.state = FRAMED;
	m->rx.rest = true;
	has_read(e, 0);
	m->rx.unsure_until = 0;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &wide, sizeof wide); // enlarges the kernel's buffer, so that a rest hardly ever fills it: see squeezed
	rx_readable(e, fd);
}

// blocks tells whether n bytes, all that are there, keep the kernel from receiving more: it reports readable although fewer are there than it
// was told to wait for.
static bool blocks(struct end *e, int fd, int n) {
	int lowat = n + 1, one = 1;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
	bool r = smcgw_polled(fd, POLLIN | POLLRDHUP) == POLLIN && queued(fd) == n;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
	e->remote->rx.lowat = 1;
	return r;
}

// take_back ends a question if it is answered.
static void take_back(struct end *e) {
	if ((get_acquire(&e->peer->flags) & SMCI_ASKS) && (atomic_fetch_and(&e->own->flags, ~SMCI_ASKS) & SMCI_ASKS)) remote_bell(e);
}

// unasked tells whether there is neither a question nor an answer.
static bool unasked(struct end *e) { return !((get_acquire(&e->peer->flags) | get(&e->own->flags)) & SMCI_ASKS); }

// was_unopened tells whether the question is answered, and the peer had not opened its direction.
static bool was_unopened(struct end *e) { return (get_acquire(&e->peer->flags) & SMCI_ASKS) && !get_acquire(&e->peer->nx); } // flags before nx

// inquire asks the gateway where the peer's library is. It returns false if it cannot yet: an earlier question must have been answered and
// taken back, and the gateway must have taken its answer back, or that could pass for the answer to this one. An answer is final only if the
// peer had seen RECALL: see rx_left_unopened.
static bool inquire(struct end *e) {
	if (!unasked(e)) {
		take_back(e);
		return false;
	}
	e->remote->rx.asked = get(&e->own->flags) & SMCI_RECALL;
	remote_say(e, SMCI_ASKS);
	return true;
}

// rx_sure ends a doubt. The answer to its question, if that is still to come, means nothing.
void rx_sure(struct end *e) {
	if (!e->remote->rx.unsure_until) return;
	e->remote->rx.unsure_until = 0;
	e->remote->rx.unsure_at = 0;
	e->remote->rx.asked = false;
	take_back(e);
}

// may_ask tells whether a doubt waits to be asked about, and no longer for an earlier question.
static bool may_ask(struct end *e) {
	const struct remote *m = e->remote;
	return m->rx.unsure_until && !m->rx.unsure_at && !m->rx.asked && unasked(e);
}

// settled tells whether the peer had not opened its direction when it was asked about what begins at kr.
static bool settled(struct end *e, uint64_t kr) { return e->remote->rx.unsure_at > kr && was_unopened(e); }

// rx_left_unopened tells whether the peer will never open its direction; rx_never_opens then ends the look for OPEN.
// It may until it has seen RECALL, so an answer to a question from before that is not final.
bool rx_left_unopened(struct end *e) {
	uint32_t final = e->remote->rx.asked ? SMCI_LEFT | SMCI_ASKS : SMCI_LEFT;
	return unlikely(get_acquire(&e->peer->flags) & final) && !get_acquire(&e->peer->nx); // flags before nx
}

bool rx_never_opens(struct end *e) {
	if (likely(e->remote->rx.state != LOOK || !rx_left_unopened(e))) return false;
	rx_sure(e);
	e->remote->rx.state = BACK;
	return true;
}

// known_data returns how many bytes of the kernel's stream precede OPEN for sure: the gateway has told where that is, or before_open has looked.
static uint64_t known_data(const struct end *e) {
	uint64_t k = get_acquire(&e->peer->nx) ? get(&e->peer->x[0].k) : e->remote->rx.looked, kr = get(&e->kr);
	return k > kr ? k - kr : 0;
}

// look_for_open peeks at the kernel's stream for the nonce. It returns how many bytes of b are data, or -1 for none yet, and consumes OPEN.
static long look_for_open(struct end *e, int fd, char *b, size_t want) {
	struct remote *m = e->remote;
	size_t ask = want > LOOKED - 64 ? LOOKED : want + 64;
	bool heard = false; // the end of the stream had come before the peek, which thus saw everything
	long n, i;
	if (m->rx.in_n) {
		take_open(e, fd);
		return -1;
	}
	for (;;) {
		n = SYS(recvfrom, fd, b, ask, MSG_PEEK | MSG_DONTWAIT);
		smcgw_says(e, n);
		if (n <= 0) return -1;
		i = data_of(e, b, n);
		if (i) return i;
		if (n >= NONCE + FRAME || heard || !smcgw_heard(fd)) break;
		heard = true;
	}
	if (n >= NONCE + FRAME) {
		take_open(e, fd);
		return -1;
	}
	// What is there is too short for OPEN, but may be the beginning of it.
	uint64_t kr = get(&e->kr);
	bool opens = n >= NONCE;
	if (get_acquire(&e->peer->nx)) {
		uint64_t k = known_data(e); // told since step looked
		if (k) return k < (uint64_t)n ? (long)k : n;
		opens = true;
	}
	if (opens) {
		rx_sure(e);
		if (heard) { // the peer's process died while it opened: what follows is the end, or an error
			take_open(e, fd);
			take_open(e, fd);
		} else if (blocks(e, fd, (int)n)) take_open(e, fd);
		return -1;
	}
	if (kr + (uint64_t)n <= get_acquire(&e->peer->ksent) || heard) return n;
	if (settled(e, kr)) {
		i = (long)(m->rx.unsure_at - kr);
		return i < n ? i : n;
	}
	if (!m->rx.unsure_until) m->rx.unsure_until = now() + UNSURE_WITHIN;
	else if (now() > m->rx.unsure_until) return n;
	if (!m->rx.unsure_at && !m->rx.asked && inquire(e)) m->rx.unsure_at = kr + (uint64_t)n;
	return -1;
}

// header consumes the next frame's header once all of it is there. It returns false if none of it is.
static bool header(struct end *e, int fd) {
	struct remote *m = e->remote;
	unsigned nops = 0;
again:;
	unsigned char *b = m->rx.in, *f = b + m->rx.rest;
	long had = m->rx.in_n, need = FRAME + m->rx.rest - had, n = likely(need) ? SYS(recvfrom, fd, b + had, need, MSG_PEEK | MSG_DONTWAIT) : 0;
	if (likely(need)) smcgw_says(e, n);
	if (had + (n > 0 ? n : 0) <= m->rx.rest) return false;
	if (n < need) return true;
	if (need && SYS(recvfrom, fd, b + had, need, MSG_DONTWAIT) != need) {
		smcgw_violated(e);
		return true;
	}
	add(&e->kr, (uint64_t)need);
	m->rx.rest = false;
	m->rx.in_n = 0;
	uint64_t r = number(f + 8, 8), tail = get(&e->own->tail);
	uint32_t n4 = (uint32_t)number(f + 4, 4);
	if (!f[1] && !f[2] && !f[3]) switch (f[0]) {
	case RAW:
		if (r > m->rx.got || n4 > 1) break;
		m->rx.last = n4;
		m->rx.drop = m->rx.got - r;
		m->rx.state = BACK;
		m->rx.voided = false;
		m->rx.type = NO_FRAME;
		return true;
	case DATA:
	case END:
		if ((!m->rx.voided && r < tail) || n4 > SMCI_SPILL || (f[0] == END) != !n4) break;
		m->rx.type = f[0];
		m->rx.left = n4;
		m->rx.r = r;
		return true;
	case NOP:
		if (n4 || r || ++nops > NOPS) break;
		m->rx.rest = true;
		goto again;
	}
	smcgw_violated(e);
	return true;
}

static void done_data(struct end *e, uint64_t n) {
	struct remote *m = e->remote;
	add(&e->kr, n);
	add(&e->report.rx_kernel, n);
	if (m->rx.state != FRAMED) return;
	has_read(e, n);
	m->rx.left -= (uint32_t)n;
	if (m->rx.left) return;
	m->rx.type = NO_FRAME;
	m->rx.rest = true;
	m->rx.clear = get(&e->own->tail);
}

// repair_rx runs after a process died that held rl: a signal takes effect when a call has changed the kernel's stream and nothing has recorded
// that. What the process has taken for the program is gone with it, as natively.
static void repair_rx(struct end *e, int fd) {
	struct remote *m = e->remote;
	struct tcp_info t;
	uint64_t kr, ks, n;
	e->repair_rx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &ks) || kr < get(&e->kr)) return remote_lacks(e);
	if (likely(!(n = kr - get(&e->kr)))) return;
	const bool opens = m->rx.state == LOOK && (m->rx.in_n || !memcmp(m->rx.in, nonce(e, 0), n < NONCE ? n : NONCE)); // see take_open
	if (m->rx.state == FRAMED && m->rx.type == DATA && !m->rx.voided) return n > m->rx.left ? remote_lacks(e) : done_data(e, n);
	if (opens || (m->rx.state == FRAMED && m->rx.type == NO_FRAME)) { // all reads of these go to in
		const unsigned whole = opens ? NONCE + FRAME : FRAME + (unsigned)m->rx.rest;
		if (m->rx.in_n + n > whole) return remote_lacks(e);
		m->rx.in_n += (uint32_t)n;
		if (!opens && m->rx.in_n < whole) remote_say(e, SMCI_RECALL); // see squeezed
	} else if (m->rx.state == FRAMED && m->rx.type == DATA) {
		if (n > m->rx.left) return remote_lacks(e);
		m->rx.left -= (uint32_t)n;
	} else if (m->rx.state == BACK) {
		m->rx.drop -= n < m->rx.drop ? n : m->rx.drop;
	}
	put(&e->kr, kr);
}

// rx_step advances to the next bytes that can be read. It returns where they are, and in n how many at most.
enum step rx_step(struct end *e, int fd, char *b, size_t want, size_t *n) {
	struct remote *m = e->remote;
	if (unlikely(e->repair_rx)) repair_rx(e, fd);
	for (;;) {
		// While frames are read, the ring may have bytes after the kernel's end.
		if (get(&e->violated) || ((e->eof || e->rx_error) && (m->rx.state != FRAMED || m->rx.type == END || e->died))) return AT_END;
		if (m->rx.state == BACK) {
			while (m->rx.drop) {
				long k = SYS(recvfrom, fd, 0, m->rx.drop < INT_MAX ? m->rx.drop : INT_MAX, MSG_TRUNC | MSG_DONTWAIT);
				smcgw_says(e, k);
				if (k <= 0) return e->eof || e->rx_error ? AT_END : NOTHING;
				add(&e->kr, (uint64_t)k);
				m->rx.drop -= (uint64_t)k;
			}
			*n = want;
			return FROM_KERNEL;
		}
		if (rx_never_opens(e)) continue;
		if (m->rx.state == LOOK) {
			uint64_t known = known_data(e);
			if (known) {
				rx_sure(e);
				*n = known < want ? known : want;
				return FROM_KERNEL;
			}
			long k = look_for_open(e, fd, b, want);
			if (k > 0) {
				*n = (size_t)k < want ? (size_t)k : want;
				return FROM_LOOK;
			}
			if (m->rx.state == LOOK && !e->eof && !e->rx_error && !get(&e->violated)) return NOTHING;
			continue;
		}
		uint64_t head, tail = get(&e->own->tail), to;
		bool over = carrier_gone(e);
		ring_left(e, &head); // after carrier_gone
		if (get(&e->violated)) continue;
		if (m->rx.type == NO_FRAME && tail == m->rx.clear) {
			// Look at the kernel after head was loaded: the frames that precede those ring bytes are there by now.
			m->rx.reported = false;
			bool ends = e->eof || e->rx_error, part = !frameless(e, fd) && header(e, fd);
			if (m->rx.type != NO_FRAME || m->rx.state != FRAMED || get(&e->violated) || (!ends && (e->rx_error || e->eof))) continue;
			if (!part && !m->rx.voided) m->rx.clear = head;
		}
		to = m->rx.type == NO_FRAME ? m->rx.clear : m->rx.voided ? tail : m->rx.r < head ? m->rx.r : head;
		if (tail < to) {
			*n = to - tail < want ? to - tail : want;
			return FROM_RING;
		}
		if (m->rx.type == NO_FRAME) return NOTHING;
		if (m->rx.voided || (over && head < m->rx.r)) {
			m->rx.voided = true;
			while (m->rx.left) {
				long k = SYS(recvfrom, fd, 0, m->rx.left, MSG_TRUNC | MSG_DONTWAIT);
				smcgw_says(e, k);
				if (k <= 0) return e->eof || e->rx_error ? AT_END : NOTHING;
				add(&e->kr, (uint64_t)k);
				m->rx.left -= (uint32_t)k;
			}
			m->rx.type = NO_FRAME;
			m->rx.rest = true;
			m->rx.clear = tail; // read nothing more before RAW
			continue;
		}
		if (m->rx.r != tail) return NOTHING; // ring bytes are on their way
		// Take its rest, too: close() with an unread byte resets, which discards what our kernel has not sent yet.
		if (m->rx.type == END) {
			long k = SYS(recvfrom, fd, b, 1, MSG_DONTWAIT);
			if (k == -EAGAIN || k == -EINTR) return NOTHING;
			e->eof = true;
			return AT_END;
		}
		*n = m->rx.left < want ? m->rx.left : want;
		return FROM_KERNEL;
	}
}

// told_how tells whether it is known how the peer's process ended. Its kernel reports a reset in any case, since the rest of a frame was
// unread. Behind a frame that is not due because the carrier is slow, there is RAW, or the gateways will tell the fate of the process.
static bool told_how(struct end *e, int fd) {
	struct remote *m = e->remote;
	int64_t t = now();
	bool behind = m->rx.state == FRAMED && m->rx.type == DATA && !m->rx.voided && queued(fd) > (int)m->rx.left + 1;
	// A peer that resets on purpose has left the ring.
	if (carrier_gone(e) || get_acquire(&e->peer->flags) & SMCI_SHUT || (!behind && t - m->rx.ended_at >= SHUT_WITHIN)) return true;
	remote_hurry(t + SHUT_WITHIN);
	return false;
}

// kernel_due tells whether the kernel has bytes to read now. A FIN shows before the bytes that precede it are read.
static bool kernel_due(struct end *e, int fd) {
	const struct remote *m = e->remote;
	if (m->rx.state != FRAMED) return rx_unread(e, fd);
	unsigned q = (unsigned)queued(fd);
	if (m->rx.type == NO_FRAME) return q + m->rx.in_n >= FRAME + (unsigned)m->rx.rest;
	return q && (m->rx.r == get(&e->own->tail) || carrier_gone(e)); // without a carrier, a frame that is not due is void
}

// died is called when the kernel has reported the end of the stream, but the peer has not:
// its process has ended. It returns true once it is known how.
static bool died(struct end *e, int fd) {
	struct remote *m = e->remote;
	int err = e->rx_error;
	bool fin = e->eof || smcgw_heard(fd), hard = err && err != ECONNRESET;
	if (m->rx.type == END || (!fin && !err)) return e->eof;
	if (e->died || hard || get(&e->violated)) return true;
	if (m->rx.state == BACK || (m->rx.state == LOOK && (e->eof || m->tx.state == NATIVE))) return err || e->eof || !kernel_due(e, fd);
	uint64_t head = get_acquire(&e->peer->head);
	if (!m->rx.ended_at || head != m->rx.ended_head) { // what the process has written still comes
		m->rx.ended_at = now();
		m->rx.ended_head = head;
	}
	bool told = told_how(e, fd); // first: once the carrier has gone, what the kernel has is due
	if ((!err && kernel_due(e, fd)) || !told) return false;
	err = e->rx_error; // kernel_due may have been told
	bool shut = get_acquire(&e->peer->flags) & SMCI_SHUT, left = ring_left(e, &head);
	if (m->rx.state == FRAMED && shut && left && m->rx.type == NO_FRAME && !m->rx.voided) {
		m->rx.clear = head;
		return false;
	}
	bool more = m->rx.state == LOOK ? get(&e->peer->nx) || get(&e->kr) != get(&e->peer->ksent) : left || m->rx.type != NO_FRAME || m->rx.voided;
	e->died = true;
	tx_kept_up(e);
	// Once the direction is native, tail stands still, and the kernel would have a reset if the peer had left bytes unread.
	if (shut && !more && (tx_had_all(e) || (m->tx.state == RETURNED && !err && !e->tx_error && !(smcgw_polled(fd, 0) & POLLERR)))) {
		int reset = ECONNRESET, had;
		e->rx_error = 0;
		e->eof = true;
		put(&e->forgives, (smcgw_polled(fd, 0) & POLLHUP) && !get(&m->reset)); // the kernel has the reset, and the program was told of none
		if (get(&e->forgives)) SYS(getsockopt, fd, SOL_SOCKET, SO_ERROR, &had, &(socklen_t){sizeof had}); // later writes meet EPIPE
		atomic_compare_exchange_strong(&e->tx_error, &reset, 0);
	} else {
		// If the peer's end is not known to be the cause, the kernel may have another error, which a rest in its queue keeps from reads.
		const int own = get(&e->peer->flags) & (SMCI_LEFT | SMCI_SHUT) ? 0 : int_option(fd, SOL_SOCKET, SO_ERROR);
		e->rx_error = own > 0 && own != EPIPE ? own : ECONNRESET;
		e->eof = false;
		atomic_store(&e->write_ended, true);
	}
	return true;
}

// arms asks the gateway for a doorbell. It returns false if the mirror is no longer as it was: the caller must look again. It sets SO_RCVLOWAT
// before arm: a doorbell for the new value comes later and takes effect, while one for an earlier value, for something that is not due, is
// undone.
static bool arms(struct end *e, int fd, int lowat, uint64_t head, uint32_t flags) {
	struct remote *m = e->remote;
	if (m->rx.lowat != lowat || m->rx.lowat_head != head || m->rx.lowat_flags != flags) {
		m->rx.lowat = lowat;
		m->rx.lowat_head = UINT64_MAX; // if the process is killed here, another one sets it again
		SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
		m->rx.lowat_head = head;
		m->rx.lowat_flags = flags;
	}
	smcgw_arm(e, SMCI_ARM_SELF);
	return get_acquire(&e->peer->head) == head && get_acquire(&e->peer->flags) == flags;
}

// rested asks for a doorbell if the ring is read to its end, and does not look at the kernel: that reports more than the rest at once. It
// returns false if there is something to look at.
static bool rested(struct end *e, int fd) {
	const struct remote *m = e->remote;
	const uint32_t flags = get_acquire(&e->peer->flags);
	const uint64_t head = get_acquire(&e->peer->head);
	if (head != get(&e->own->tail) || m->rx.state != FRAMED || m->rx.type != NO_FRAME || m->rx.voided || m->rx.reported) return false;
	if (!m->rx.rest || m->rx.has_rest != get(&e->kr) || e->eof || e->rx_error || get(&e->violated) || get(&e->read_ended)) return false;
	return arms(e, fd, 2, head, flags);
}

// armed asks for a doorbell. It returns false once it has, has looked again, and found nothing.
static bool armed(struct end *e, int fd) {
	struct remote *m = e->remote;
	for (;;) {
		uint32_t flags = get_acquire(&e->peer->flags);
		int q = queued(fd), lowat = m->rx.state == BACK || !q ? 1 : q + 1, of = q + (int)m->rx.in_n;
		if (m->rx.state == LOOK && (settled(e, get(&e->kr)) || may_ask(e))) return true;
		if (m->rx.state == LOOK && !m->rx.unsure_until && q < (int)(NONCE + FRAME)) lowat = q ? q + 1 : 1;
		uint64_t upto = get_acquire(&e->peer->head);
		if (q) m->rx.has_rest = get(&e->kr);
		if (m->rx.state == FRAMED) {
			uint64_t tail = get(&e->own->tail);
			bool due = !m->rx.voided && upto != tail;
			// If part of a frame is there, wait for all of it.
			if (m->rx.type == NO_FRAME) due = of >= FRAME + m->rx.rest || (due && of <= m->rx.rest);
			else due = (due && tail < m->rx.r) || (q && (m->rx.voided || tail == m->rx.r)) || (!m->rx.voided && upto < m->rx.r && carrier_gone(e));
			if (due) return true;
		}
		if (arms(e, fd, lowat, upto, flags)) return false;
	}
}

// was_reported is called when the kernel has reported readable, or may have: SO_RCVLOWAT must be set again, once a thread has looked.
static void was_reported(struct remote *m) {
	m->rx.lowat_head = UINT64_MAX;
	m->rx.reported = true;
}

// reports is what poll() returns right now: 0 if the kernel reports nothing, less if it cannot be asked (RLIMIT_NOFILE).
static long reports(int fd, short events) {
	struct pollfd p = {fd, events, 0};
	return SYS(ppoll, &p, 1, &(struct timespec){0}, 0, 8);
}

// squeezed: the kernel reports readable although too few bytes are there, because its buffer is full: the few bytes hold on to the whole buffers
// in which they came. So they are taken. Without the rest byte the gateway can ring no more, so the peer is asked to send through the kernel, and
// the caller of a squeezed that returns true looks once more.
static bool squeezed(struct end *e, int fd) {
	struct remote *m = e->remote;
	int lowat = 0, q = queued(fd);
	socklen_t l = sizeof lowat;
	if (m->rx.state != FRAMED || m->rx.type != NO_FRAME || !q || q + m->rx.in_n >= FRAME + (unsigned)m->rx.rest) return false;
	if (smcgw_polled(fd, POLLIN | POLLRDHUP) != POLLIN || queued(fd) != q) return false;
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, &l) < 0 || lowat <= q) return false; // the gateway has rung
	long n = SYS(recvfrom, fd, m->rx.in + m->rx.in_n, q, MSG_DONTWAIT);
	smcgw_says(e, n);
	if (n <= 0) return false;
	add(&e->kr, (uint64_t)n);
	m->rx.in_n += (uint32_t)n;
	rx_readable(e, fd);
	remote_say(e, SMCI_RECALL);
	return true;
}

// ended_now tells whether the stream has ended, by either side. If only shutdown() ended reading, the program gets what is there, then the end.
static bool ended_now(struct end *e, int fd, bool told) {
	if (get(&e->violated)) return true;
	if (get(&e->read_ended) && !e->rx_error && !e->died && !smcgw_heard(fd)) return e->eof = true;
	return (told || e->eof || e->rx_error) && died(e, fd);
}

static bool says_end(int fd) {
	long k = reports(fd, POLLRDHUP);
	return k < 0 ? smcgw_heard(fd) : k > 0;
}

// rx_left_as is called before the lock is released: waits must find what is left, and be woken by what comes. It takes RAW if that is next.
void rx_left_as(struct end *e, int fd) {
	size_t n;
	char b[LOOKED];
	struct remote *m = e->remote;
	if (!smcgw_still(e, fd)) return;
	for (;;) {
		switch (rx_step(e, fd, b, 1, &n)) {
		case NOTHING:
			if (m->rx.state == FRAMED && !armed(e, fd)) return;
			if (m->rx.state == LOOK) {
				if (m->rx.unsure_until) armed(e, fd);
				else if (m->rx.lowat != 1) rx_readable(e, fd);
				return;
			}
			if (m->rx.state == BACK) {
				if (m->rx.lowat != 1) rx_readable(e, fd);
				return;
			}
			continue;
		case FROM_RING:
		case FROM_KERNEL:
		case FROM_LOOK:
		case AT_END:
			if (m->rx.lowat != 1) rx_readable(e, fd);
			if (m->rx.state == FRAMED && get(&e->edge)) smcgw_arm(e, SMCI_ARM_SELF); // the next bytes must make an edge of their own
			return;
		}
	}
}

// before_open returns how many of the kernel's bytes precede OPEN, if a look has found that at least found do. It may return less to a program
// that reads or gets more meanwhile: it would otherwise look at all of them at each call.
static size_t before_open(const struct end *e, int fd, size_t found) {
	struct remote *m = e->remote;
	size_t q = (size_t)queued(fd), n = q;
	uint64_t kr = get(&e->kr), come = kr + q;
	size_t known = m->rx.looked > kr + found ? m->rx.looked - kr : found;
	bool moves = m->rx.come && (kr != m->rx.asked_at || come != m->rx.come); // the first answer may follow a peek from before the promotion
	m->rx.asked_at = kr;
	m->rx.come = come;
	if (moves && n > LOOKED_AHEAD) n = LOOKED_AHEAD;
	if (known >= q || get_acquire(&e->peer->nx) || m->rx.looked_to == come || (moves && known >= n / 2)) return known;
	char *b = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED) return known;
	long k = SYS(recvfrom, fd, b, n, MSG_PEEK | MSG_DONTWAIT);
	if (k > 0) k = data_of(e, b, k);
	munmap(b, n);
	if (k > (long)known) known = (size_t)k;
	m->rx.looked = kr + known;
	if (n == q) m->rx.looked_to = come;
	return known;
}

// beyond_open lets a peek that has seen all before OPEN see the ring bytes after it that no frame precedes: a program may peek until it sees a
// whole message. It returns how many those are, at most want; v: 0 to count them only. What it has shown it shows again.
static size_t beyond_open(struct end *e, int fd, const struct iovec *v, int nv, size_t done, size_t want) {
	struct remote *m = e->remote;
	const size_t n = done + NONCE + FRAME + 1;
	uint64_t head, tail = get(&e->own->tail);
	if (m->rx.state != LOOK) return 0;
	if (ring_left(e, &head) && head != m->rx.clear && (size_t)queued(fd) == n) { // head before the kernel
		char *b = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (b == MAP_FAILED) return 0;
		if (SYS(recvfrom, fd, b, n, MSG_PEEK | MSG_DONTWAIT) == (long)n && data_of(e, b, (long)n) == (long)done) {
			m->rx.clear = head;
			m->rx.looked = get(&e->kr) + done;
		}
		munmap(b, n);
	}
	if (m->rx.clear == tail || get(&e->kr) + done != m->rx.looked) return 0;
	if (want > m->rx.clear - tail) want = m->rx.clear - tail;
	return !v || smcgw_copy(e->rx_ring, m->size - 1, tail, v, nv, done, want, true) ? want : 0;
}

// peeked ends a peek that has seen bytes of the kernel's stream.
static enum next peeked(struct call *c) {
	if (c->done < c->want) c->done += beyond_open(c->e, c->fd, c->v, c->nv, c->done, c->want - c->done);
	return OVER;
}

// looks_on clears what has come to the ring since step looked: what a peek has seen is still unread, so step would not look again.
static void looks_on(struct end *e, int fd) {
	struct remote *m = e->remote;
	uint64_t head;
	if (m->rx.state != FRAMED || m->rx.type != NO_FRAME || m->rx.voided || !ring_left(e, &head)) return;
	if (frameless(e, fd)) m->rx.clear = head; // no frame precedes its bytes
}

static enum next read_ring(struct call *c, size_t n) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	uint64_t tail = get(&e->own->tail);
	if (!smcgw_copy(e->rx_ring, m->size - 1, tail, c->v, c->nv, c->done, n, true)) return smcgw_fails(c, EFAULT);
	c->done += n;
	c->woken = m->rx.vain = 0;
	if (c->peek) return OVER;
	has_read(e, n);
	add(&e->report.rx_ring, n);
	freed(e, tail + n);
	return AGAIN;
}

// read_looked takes n bytes that a look for OPEN has found, of the kernel's stream, to be data.
static enum next read_looked(struct call *c, char *b, size_t n) {
	struct end *e = c->e;
	if (c->peek && n < c->want && before_open(e, c->fd, n) > n) return AGAIN; // step knows it now
	if (!smcgw_copy(b, LOOK_MASK, 0, c->v, c->nv, c->done, n, true)) return smcgw_fails(c, EFAULT);
	c->done += n;
	if (c->peek) return peeked(c);
	rx_sure(e);
	long k = SYS(recvfrom, c->fd, 0, n, MSG_TRUNC | MSG_DONTWAIT);
	if (k != (long)n) smcgw_violated(e);
	add(&e->kr, n);
	add(&e->report.rx_kernel, n);
	return AGAIN;
}

static enum next read_kernel(struct call *c, size_t n) {
	struct iovec w[PARTS];
	if (c->done && c->e->remote->rx.state == BACK && unlikely(smcgw_stops(c->fd, true))) return OVER;
	struct msghdr h = {.msg_iov = w, .msg_iovlen = (size_t)smcgw_part(w, c->v, c->nv, c->done, n)};
	long k = SYS(recvmsg, c->fd, &h, (c->flags & ~MSG_WAITALL) | MSG_DONTWAIT);
	if (k == -EFAULT) return smcgw_fails(c, EFAULT);
	smcgw_says(c->e, k);
	if (k <= 0) return WAIT;
	c->woken = c->e->remote->rx.vain = 0;
	c->done += (size_t)k;
	if (c->peek) return peeked(c);
	done_data(c->e, (uint64_t)k);
	return AGAIN;
}

// read_nothing decides what a call does that has met nothing more. rests: it has asked for a doorbell, without a look at the kernel.
static enum next read_nothing(struct call *c, bool rests) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	const int fd = c->fd;
	if (c->done && (!c->all || c->nowait)) return OVER;
	c->told = c->told || (!rests && says_end(fd)); // poll() will say it
	if (!rests && ended_now(e, fd, c->told)) return OVER;
	tx_heed(e, fd);
	const bool ending = c->told || e->eof || e->rx_error;
	if (m->rx.state == FRAMED && !rests) {
		if (c->nowait) m->rx.lowat_head = UINT64_MAX; // the kernel may report to waits that the library does not see, as by an inherited set
		if (armed(e, fd)) return AGAIN;
		if (c->nowait && !ending && ++m->rx.vain > 3 && squeezed(e, fd)) return AGAIN;
	}
	if (m->rx.state == LOOK && m->rx.unsure_until) {
		if (armed(e, fd)) return AGAIN;
	} else if (m->rx.state != FRAMED && m->rx.lowat != 1) {
		rx_readable(e, fd);
	}
	if (!c->nowait) return WAIT;
	return smcgw_fails(c, EAGAIN);
}

// read_waits sleeps until there may be more.
static enum next read_waits(struct call *c) {
	struct end *e = c->e;
	struct remote *m = e->remote;
	const bool ending = c->told || e->eof || e->rx_error; // the kernel has no more to report
	if (!c->until) c->until = smcgw_timeout_of(e, c->fd, SO_RCVTIMEO);
	int64_t left = c->until == INT64_MAX ? ROUND : (c->until - now()) / 1000000;
	if (left < 0) return smcgw_fails(c, EAGAIN);
	if (left > ROUND) left = ROUND;
	if (ending || m->rx.unsure_until) left = 1;
	struct pollfd p = {ending ? -1 : c->fd, POLLIN | POLLRDHUP, 0};
	struct sleep sleep = {e, m, &e->rl, c->use};
	remote_try_native(e, c->fd);
	remote_falls_asleep(&sleep);
	if (get(&smcgw_owing)) {
		smcgw_pay();
		if (left > 10) left = 10;
	}
	int k = remote_sleeps_in_poll(&sleep, &p, (int)left + (left != ROUND));
	const bool interrupted = k < 0 && errno == EINTR, told_nothing = k == 0 || interrupted; // poll() may fail: RLIMIT_NOFILE
	const bool stop = interrupted && smcgw_gives_in(c);
	smcgw_remote_round();
	if (!told_nothing) smcgw_remote_calm(++c->woken);
	remote_awakes(&sleep);
	if ((p.revents & (POLLRDHUP | POLLHUP | POLLERR)) && smcgw_has(e, c->fd)) c->told = true;
	if (!smcgw_keeps(e, c->use, &c->fd)) return smcgw_quits(c, c->told ? 0 : EBADF); // another thread has closed the number
	if (!told_nothing && smcgw_still(e, c->fd) && e->remote == m) {
		was_reported(m);
		if (!c->told && c->woken > 3) squeezed(e, c->fd);
	}
	if (!stop) return AGAIN;
	return smcgw_fails(c, EINTR);
}

static enum next read_more(struct call *c) {
	struct end *e = c->e;
	char b[LOOKED];
	size_t n;
	enum next next = WAIT;
	// If the other direction has to go back, find out first whether the stream has ended: that would be its end, too.
	const bool rests = !c->told && !tx_must_leave(e) && rested(e, c->fd) && (c->done || !c->nowait || !reports(c->fd, POLLIN | POLLRDHUP));
	if (unlikely(c->peek)) looks_on(e, c->fd);
	if (!rests) switch (rx_step(e, c->fd, b, c->want - c->done, &n)) {
	case FROM_RING: next = read_ring(c, n); break;
	case FROM_LOOK: next = read_looked(c, b, n); break;
	case FROM_KERNEL: next = read_kernel(c, n); break;
	case NOTHING:
	case AT_END: break;
	}
	if (next == WAIT) next = read_nothing(c, rests);
	return next == WAIT ? read_waits(c) : next;
}

// read_fails returns the error, if any, that a call reports which has read nothing.
static int read_fails(struct end *e, int fd, struct remote *m) {
	int err = 0;
	if (e->eof && !e->rx_error && m->rx.type != END && !get(&m->reset) && smcgw_over(fd)) e->rx_error = smcgw_told(e);
	if (get(&e->violated)) {
		err = e->rx_error;
		e->rx_error = 0;
	} else if (e->rx_error) {
		err = smcgw_reports(e, fd);
		if (!remote_reports(m, err)) err = 0;
	}
	return err;
}

ssize_t smcgw_remote_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	struct call c = smcgw_reading(e, fd, v, nv, flags);
	if (!c.want) return 0;
	if (!smcgw_lock(e, &e->rl)) {
		errno = EAGAIN;
		return -1;
	}
	struct remote *m = e->remote;
	c.use = get(&e->use);
	while (c.done < c.want) {
		if (unlikely(!smcgw_still(e, c.fd))) {
			if ((c.done || c.until) && smcgw_keeps(e, c.use, &c.fd) && e->attached) continue;
			smcgw_unlock(e, &e->rl);
			if (c.done ? !c.all || c.nowait : !c.until) return c.done ? (ssize_t)c.done : RETRY;
			return smcgw_go_on(&c);
		}
		m = e->remote; // promoted once more, it has another
		if (read_more(&c) == OVER) break;
	}
	if (likely(!c.unlocked)) {
		if (!c.done && !c.err) c.err = read_fails(e, c.fd, m);
		if ((c.err != EAGAIN || c.done) && !(smcgw_still(e, c.fd) && rested(e, c.fd))) rx_left_as(e, c.fd);
		if (smcgw_still(e, c.fd)) remote_try_native(e, c.fd);
		smcgw_unlock(e, &e->rl);
		if (c.err == EAGAIN) {
			smcgw_remote_round();
			if (unlikely(get(&smcgw_owing))) smcgw_pay(); // the program may never wait
		}
		smcgw_give_way(c.done);
	}
	if (c.done || !c.err) return (ssize_t)c.done;
	errno = c.err;
	return -1;
}

static bool ring_due(const struct end *e) { return e->remote->rx.state == FRAMED && e->remote->rx.type == NO_FRAME && e->remote->rx.clear != get(&e->own->tail); }

// rx_any tells whether something can be read. rl is held.
bool rx_any(struct end *e, int fd) {
	char b[LOOKED];
	size_t n;
	switch (rx_step(e, fd, b, 1, &n)) {
	case FROM_RING: case FROM_LOOK: return true;
	case FROM_KERNEL:
		if (rx_unread(e, fd)) return true;
		break;
	case AT_END:
	case NOTHING: break;
	}
	return get(&e->violated) || get(&e->read_ended) || ((e->eof || e->rx_error || says_end(fd)) && (died(e, fd) || ring_due(e)));
}

bool smcgw_remote_genuine(struct end *e, int fd) {
	bool r = true;
	if (!smcgw_try(e, &e->rl)) return true; // a reader is inside
	if (smcgw_still(e, fd)) {
		const struct remote *m = e->remote;
		tx_heed(e, fd);
		was_reported(e->remote);
		while (!(r = rx_any(e, fd)) && (m->rx.state == FRAMED || m->rx.unsure_until)) {
			if (!armed(e, fd) && !squeezed(e, fd)) break;
		}
		if (m->rx.state != FRAMED && !m->rx.unsure_until && m->rx.lowat != 1) rx_readable(e, fd); // any may have taken RAW
	}
	smcgw_unlock(e, &e->rl);
	return r;
}

bool smcgw_remote_errs(struct end *e) {
	if (!e->remote || !smcgw_try(e, &e->rl)) return false;
	bool r = e->remote && e->rx_error && !get(&e->remote->reset);
	smcgw_unlock(e, &e->rl);
	return r;
}

// smcgw_remote_unread may leave out what follows OPEN or a frame. It then makes an edge for that, because nginx, for one, reads no more
// than this says before the next edge.
size_t smcgw_remote_unread(struct end *e, int fd) {
	char b[LOOKED];
	size_t n, r = 0;
	smcgw_remote_round();
	smcgw_lock(e, &e->rl);
	if (smcgw_still(e, fd)) {
		struct remote *m = e->remote;
		uint64_t head, tail = get(&e->own->tail);
		bool all = true;
		switch (rx_step(e, fd, b, INT_MAX, &n)) {
		case FROM_RING:
			r = n;
			head = get_acquire(&e->peer->head); // loaded before looking at the kernel
			all = m->rx.type == NO_FRAME && frameless(e, fd);
			if (all) r = head - tail;
			if (m->rx.type == NO_FRAME) break;
			if (head >= m->rx.r && tail + n == m->rx.r) r += (unsigned)queued(fd) < m->rx.left ? (unsigned)queued(fd) : m->rx.left;
			break;
		case FROM_LOOK:
			r = before_open(e, fd, n);
			all = false;
			break;
		case FROM_KERNEL:
			r = (unsigned)queued(fd);
			all = m->rx.state == BACK;
			if (!all && r > n) r = m->rx.state == LOOK ? before_open(e, fd, n) : n;
			break;
		default:;
		}
		if (r && m->rx.state == LOOK) r += beyond_open(e, fd, 0, 0, r, INT_MAX - r);
		if ((!all && get(&e->edge)) || (m->rx.state == BACK && m->rx.lowat != 1)) rx_readable(e, fd);
	} else { // native by now
		r = (size_t)queued(fd);
	}
	smcgw_unlock(e, &e->rl);
	return r;
}

// rx_behind_data tells whether OPEN follows bytes that the program has not read: only when it has can this end leave the ring.
bool rx_behind_data(const struct end *e) {
	return e->remote->rx.state == LOOK && get_acquire(&e->peer->nx) && get(&e->kr) < get(&e->peer->x[0].k);
}

// rx_nears_raw goes on towards the RAW of a peer that has been asked for it. What it passes is repeated after RAW. It returns what it met.
enum step rx_nears_raw(struct end *e, int fd) {
	struct remote *m = e->remote;
	char b[LOOKED];
	size_t n;
	if (!rx_never_opens(e) && m->rx.state == LOOK && !m->rx.asked) inquire(e); // without a gateway there is no way to know
	enum step s = rx_step(e, fd, b, 1, &n);
	if (m->rx.state == FRAMED && m->rx.type == NO_FRAME && s == FROM_RING && queued(fd) > m->rx.rest) header(e, fd); // it may be there
	if (m->rx.state == FRAMED && m->rx.type != NO_FRAME && m->rx.r > get(&e->own->tail)) m->rx.voided = true;
	return s;
}

// rx_unread_at_close tells whether there are bytes for the program.
bool rx_unread_at_close(struct end *e, int fd) {
	char b[LOOKED];
	size_t n;
	if (e->rx_error) return false;
	enum step s = rx_step(e, fd, b, 1, &n);
	return s == FROM_RING || s == FROM_LOOK || (s == FROM_KERNEL && rx_unread(e, fd));
}

// rx_take_rest leaves the kernel without a byte, if the program has read all: otherwise close() would be a reset.
void rx_take_rest(struct end *e, int fd) {
	const struct remote *m = e->remote;
	char b;
	if (m->rx.state != FRAMED || m->rx.type != NO_FRAME) return;
	if (queued(fd) > m->rx.rest) header(e, fd); // a NOP may have come
	if (m->rx.state == FRAMED && m->rx.type == NO_FRAME && m->rx.rest && queued(fd) == 1) SYS(recvfrom, fd, &b, 1, MSG_DONTWAIT);
}

// raw_follows tells whether RAW has come after a DATA frame that has been met.
static bool raw_follows(struct end *e, int fd) {
	const struct remote *m = e->remote;
	const size_t most = SMCI_SPILL + (FRAMES + 1) * (FRAME + 1); // all frames that the peer keeps
	unsigned char *b = mmap(0, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *f;
	if (b == MAP_FAILED) return false;
	long n = SYS(recvfrom, fd, b, most, MSG_PEEK | MSG_DONTWAIT), at = m->rx.left + 1;
	smcgw_says(e, n);
	bool raw = false;
	for (; !raw && n - at >= FRAME; at += FRAME + (long)number(f + 4, 4) + 1) {
		f = b + at;
		raw = f[0] == RAW;
	}
	munmap(b, most);
	return raw;
}

// rx_late looks at a frame before which hardly any ring bytes come: the carrier fails without an end, or the own gateway stands still. It asks the
// peer for RAW, and gives the frame up if RAW is there, or the frame keeps the kernel from receiving it. rl is held.
void rx_late(struct end *e, int fd) {
	struct remote *m = e->remote;
	const int64_t t = now_coarse();
	const uint64_t head = get_acquire(&e->peer->head);
	if (m->rx.state != FRAMED || m->rx.type != DATA || m->rx.voided || m->rx.r <= head || get(&e->own->tail) != head) {
		m->rx.due.at = 0;
	} else if (!m->rx.due.at || m->rx.due.r != m->rx.r || head - m->rx.due.head > REPEATED) {
		m->rx.due.at = t;
		m->rx.due.r = m->rx.r;
		m->rx.due.head = head;
	} else if (t - m->rx.due.at >= DUE_WITHIN) {
		remote_blame(e, SMCI_WHY_SLOW_CARRIER);
		remote_say(e, SMCI_RECALL);
		m->rx.voided = raw_follows(e, fd) || blocks(e, fd, queued(fd));
	}
}
