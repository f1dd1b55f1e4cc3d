// A promoted connection whose other end is on another host; docs/protocol/between-hosts.md has the rules. The host's gateway writes the
// mirror, e->peer, and reads what this end writes. Between OPEN and RAW the kernel's stream consists of frames.
#include "lib.h"

#include <linux/futex.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "real.h"
#include "stream.h"

#define PARTS 64
#define FRAMES 4096                    // most frames in the copy
#define PIECE ((64u << 10) - SMCI_SLACK)     // not whole pages: see room_of
#define SPILL_PIECE ((16u << 10) - SMCI_SLACK) // most payload of a frame; what the kernel does not take at once is owed
#define LOOK_MASK 4095
#define LOOKED (LOOK_MASK + 1 - SMCI_SLACK)
#define LOOKED_AHEAD (64 << 10)        // most bytes of a look for OPEN while a program reads, or gets more
#define NONCE SMCI_NONCE_SIZE
#define FRAME 16
#define ROUND 500                      // milliseconds between looks at the gateway
#define ROOM_ROUND 50000000L
#define ACKED_ROUND 1000000L
#define KEPT_WITHIN 10000000L          // nanoseconds to wait for the peer when the copy is full
#define READS_WITHIN 1000000000L       // and to read anything, before the kernel gets what is kept
#define KERNEL_LOWAT (16 << 10)        // TCP_NOTSENT_LOWAT of an open direction,
#define BRIEF_SPILL (1u << 20)         // and bytes of the copy that are used,
#define BRIEF_FOR 500000000LL          // until the peer has read nothing for some nanoseconds;
#define STANDS_LOWAT (3 << 20)         // then, and once the direction has gone back: less than the copy holds
#define WIDE (512 << 10)               // bytes of frames for which the kernel has room, unless its buffer is fixed: less than the copy holds
#define MOMENT 1000000L
#define UNSURE_WITHIN 2000000000LL
#define SHUT_WITHIN 2000000000LL        // nanoseconds to wait, after the kernel's end of the stream, for news of the peer's process
#define HURRY (10 * 1000000LL)         // nanoseconds between looks meanwhile
#define DUE_WITHIN 2000000000LL         // nanoseconds in which a carrier brings more than REPEATED
#define WAKES_WITHIN 2000000000LL       // nanoseconds in which a gateway that runs changes arm: it needs milliseconds
#define LAST_WITHIN 2000000000LL
#define READ_WITHIN (20 * 1000000LL)    // nanoseconds in which another thread of the program may read what is before OPEN
#define TOLD_WITHIN 1000000000LL        // nanoseconds in which a thread that sleeps in a call hears of shutdown()
#define ANSWERED_WITHIN 300000000LL    // nanoseconds that a close() by one of several processes waits for the peer
#define REPEATED (64 << 10)            // bytes that are rather sent once more than waited for
#define CLOSE_WITHIN 60000000000LL      // nanoseconds without any progress after which close() gives up what is left
#define SHOWN_EACH 500000000LL          // nanoseconds between frames that show the kernel's connection, while bytes go by the ring,
#define SEEN_WITHIN 1000000000LL        // and in which the peer's kernel acknowledges one
#define NOPS 65536                     // those of nine hours
#define RELEASED (256 << 10)           // bytes of an empty copy whose memory is released

enum type { NO_FRAME, OPEN, DATA, END, RAW, NOP };

enum look { LOOK, FRAMED, BACK };

enum way { NATIVE, OPENED, RETURNS, RETURNED };

struct frame {
	uint64_t r;
	uint32_t n;
};

// State of an end between hosts beyond struct end, in memory that fork() shares.
struct remote {
	uint32_t talk;          // the conversation with the gateway that granted the end
	int32_t pid;            // and the process that had it, which alone can say CLOSED,
	uint32_t tag;           // of this end
	uint64_t id;
	bool told;              // and has done so
	_Atomic bool gone;      // the gateway is gone
	_Atomic int asleep;     // sleeping threads that will come back to this memory
	uint64_t size;          // of the ring
	// As the consumer: rl.
	_Atomic int rx;         // enum look; the writer also looks at it
	uint64_t got;           // bytes read since OPEN, from ring and DATA
	uint64_t clear;         // ring position up to which bytes may be read without looking at the kernel
	bool rest;              // the last frame's rest byte is still in the kernel's queue, or first in in
	unsigned char in[NONCE + FRAME]; // beginning of OPEN or a frame, taken since it blocked the kernel's buffer: see squeezed
	uint32_t in_n;
	bool voided;            // a frame can no longer come due: RAW repeats it and all after it
	enum type type;         // of the frame being processed
	uint32_t left;
	uint64_t r, drop;
	uint64_t due_r, due_head; // of a frame that is not due: what late has seen of it and of the mirror, and when
	int64_t due_at;
	int lowat;              // the value that this end last gave SO_RCVLOWAT; the gateway may have changed it since
	uint64_t lowat_head;    // the mirror's head and flags at that time
	uint32_t lowat_flags;
	uint64_t has_rest;      // the position in the kernel's stream at which a byte was seen: the rest, if that is next
	// Positions in the kernel's stream, of before_open:
	uint64_t looked, looked_to; // before this there is no OPEN; what had come when it looked at all
	uint64_t asked_at, come;    // kr at the last question, and what had come
	bool reported;          // the kernel has reported readable, and nobody has looked since
	unsigned vain;          // reads in a row that must not wait and that found nothing when the kernel had to be asked
	int64_t unsure_until;
	int64_t ended_at;       // when the kernel had reported the end, but the peer had not, or head last moved since
	uint64_t ended_head;
	uint64_t unsure_at;     // bytes of the kernel's stream that had come when the gateway was asked what they are; 0: not asked
	_Atomic bool asked;     // the gateway was asked after RECALL: see left_unopened; the writer also looks at it
	bool last;              // FIN follows RAW: the end is not native, it ends
	_Atomic bool reset;     // a call has reported a reset to the program. The kernel's and the library's news of one both come here; it hears of one
	uint64_t freed;         // tail when the bell was last rung for it
	uint32_t stands_arm;    // arm, what else the gateway writes, and what it looks at, when stands last looked; and for how long the first two were the same
	uint64_t stands_by, stands_by_us;
	int64_t stands_at, stands_for;
	_Atomic bool unfit;     // the ring is: the gateway stands still and the peer lacks bytes, or the kernel's path does not acknowledge
	// As the producer: wl. The reader also looks at the atomic words.
	_Atomic int tx;         // enum way
	unsigned char out[NONCE + FRAME + 1]; // the frame being sent: these bytes, then payload bytes of the copy, then the rest
	uint32_t out_at, out_n, payload;
	bool out_rest;
	bool full;              // the last frame was more than the kernel would have taken: nothing follows until it takes more
	_Atomic uint64_t spilled, kept; // payload bytes of all frames: put into the copy so far; before this, no longer kept
	uint64_t paid;          // given to the kernel so far
	uint64_t frame_first, frame_last;
	_Atomic uint64_t frame_end; // where the last frame ends in the kernel's stream: the ring goes on once that is acknowledged
	uint64_t back_r, back_s, back_frame;
	bool ends;              // END is on its way, or sent: nothing follows but a FIN
	bool raw_last;          // the last bytes sent are RAW or what it repeats: if the peer is gone, these cause its reset, not the program's
	_Atomic uint32_t belled;
	uint64_t moved;         // what the peer had taken when moves() last looked, and since when
	int64_t moved_at;
	uint64_t shown, shown_head; // ks and head when shown() last saw the kernel's stream move, and when
	int64_t shown_at;
	bool unseen;                // what moved it was a NOP that the peer's kernel has not acknowledged
	struct frame frame[FRAMES];
	int sndbuf, locks;          // SO_SNDBUF and SO_BUF_LOCK before the gateway widened the send buffer; -1: unknown
	uint64_t released;          // spilled when the copy's memory was last released
	_Alignas(4096) char spill[SMCI_SPILL];
};

_Atomic int smcgw_remotes;
static _Atomic int64_t hurry_until; // until then, ends of this process wait for news of how their peer's process ended

static uint64_t number(const unsigned char *p, int n) {
	uint64_t v = 0;
	for (int i = 0; i < n; i++) v = v << 8 | p[i];
	return v;
}
static void put_number(unsigned char *p, uint64_t v, int n) {
	for (int i = n - 1; i >= 0; i--, v >>= 8) p[i] = (unsigned char)v;
}

static const unsigned char *nonce(const struct end *e, int which) { return (const unsigned char *)e->peer + SMCI_NONCES_AT + which * NONCE; }

static void ring(struct end *e, uint32_t a) {
	uint64_t one = 1;
	put(&e->remote->belled, a); // written under either lock: at worst the bell rings twice
	SYS(write, place_of(e)->memory.bell, &one, sizeof one);
}
// bell wakes the gateway if it sleeps. It announces that in arm, by a new value each time.
static void bell(struct end *e) {
	fence();
	uint32_t a = get(&e->peer->arm);
	if (unlikely(a && a != e->remote->belled)) ring(e, a);
}
static void say(struct end *e, uint32_t f) {
	atomic_fetch_or(&e->own->flags, f);
	bell(e);
}

static bool lost(struct end *e) {
	struct remote *m = e->remote;
	if (get(&m->gone)) return true;
	if (m->pid == smcgw.pid && m->talk != get(&smcgw_talk)) put(&m->gone, true);
	return get(&m->gone);
}
// carrier_gone tells whether the carrier has ended: the mirror's head and tail no longer change.
static bool carrier_gone(struct end *e) { return lost(e) || (get_acquire(&e->peer->flags) & SMCI_GONE); }

bool smcgw_remote_grant(struct end *e, int bell_fd) {
	struct remote *m = mmap(0, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED) return false;
	if (!smcgw_bell_is(e, bell_fd)) {
		munmap(m, sizeof *m);
		return false;
	}
	m->talk = get(&smcgw_talk);
	m->pid = smcgw.pid;
	m->tag = e->tag;
	m->id = get(&e->report.id);
	m->size = 1ull << e->order_max;
	m->lowat = 1;
	m->has_rest = UINT64_MAX;
	e->remote = m;
	place_of(e)->memory.remote = m;
	return true;
}
static bool ours(const struct remote *m) { return m->pid == smcgw.pid; }
bool smcgw_remote_ours(const struct end *e) { return ours(e->remote); }
static void uncount(const struct end *e) {
	if (atomic_exchange(&place_of(e)->counted, false)) atomic_fetch_sub(&smcgw_remotes, 1);
}
void smcgw_remote_unmap(const struct end *e) {
	struct memory *m = &place_of(e)->memory;
	uncount(e);
	munmap(m->remote, sizeof(struct remote));
	m->remote = 0;
	smcgw_bell_goes(m->bell);
}
// reports_error tells whether an error is for the program: a reset is reported once, by whichever call.
static bool reports_error(struct remote *m, int err) { return (err != ECONNRESET && err != ECONNABORTED) || !atomic_exchange(&m->reset, true); }
// smcgw_remote_error returns the error that SO_ERROR shows: err, which the kernel reports, or one that it has already reported to the library.
int smcgw_remote_error(struct end *e, int err) {
	if (!smcgw_lock(e, &e->rl)) return err;
	if (e->attached && place_of(e)->memory.remote) {
		if (!err && (e->died || e->remote->rx == BACK) && (err = e->rx_error)) {
			e->rx_error = 0;
			e->eof = true;
		}
		if (err && !reports_error(e->remote, err)) err = 0;
	}
	smcgw_unlock(e, &e->rl);
	return err;
}
static void low(struct end *e, int fd);
// smcgw_remote_tune notes what the gateway changes: the size of the send buffer, and whether the kernel may do so, too.
void smcgw_remote_tune(struct end *e, int fd) {
	e->remote->sndbuf = int_option(fd, SOL_SOCKET, SO_SNDBUF);
	e->remote->locks = int_option(fd, SOL_SOCKET, SO_BUF_LOCK);
	low(e, fd); // the direction may not open for long
}
// smcgw_remote_untune undoes it: natively the kernel takes less for a reader that stands still. Kernels before 5.14 cannot.
void smcgw_remote_untune(struct end *e, int fd) {
	const struct remote *m = e->remote;
	set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
	if (m->locks < 0 || int_option(fd, SOL_SOCKET, SO_SNDBUF) != 2 * (int)(m->size + SMCI_SPILL)) return; // the program's own
	set_int(fd, SOL_SOCKET, SO_SNDBUF, m->sndbuf / 2); // the kernel doubles it
	set_int(fd, SOL_SOCKET, SO_BUF_LOCK, m->locks);
}
void smcgw_remote_attached(struct end *e) { // both locks are held
	atomic_fetch_add(&smcgw_remotes, 1);
	atomic_store(&place_of(e)->counted, true);
	bell(e);
}

// ---- consuming

enum step { NOTHING, FROM_RING, FROM_KERNEL, FROM_LOOK, AT_END };

static int queued(int fd) {
	int q = 0;
	SYS(ioctl, fd, SIOCINQ, &q);
	return q;
}

// frameless tells whether the kernel has nothing of another frame.
static bool frameless(const struct end *e, int fd) { return (unsigned)queued(fd) + e->remote->in_n <= (unsigned)e->remote->rest; }

// unread tells whether the kernel has a byte. SIOCINQ counts nothing beyond an urgent byte. The kernel reports a reset only once, maybe here.
static bool unread(struct end *e, int fd) {
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
	if (tail - m->freed < m->size / 8 && (get(&e->peer->arm) & 0xff) != SMCI_ARM_READ && tail != get_acquire(&e->peer->head)) return;
	m->freed = tail;
	bell(e);
}

// has_read counts bytes read since OPEN, and publishes how many they are.
static void has_read(struct end *e, uint64_t n) {
	e->remote->got += n;
	put_release(&e->own->got, e->remote->got + 1);
}

static void keep(struct end *e);
static bool leave(struct end *e, int fd, bool last);
static bool leaves_now(struct end *e, int fd);
static bool advance(struct end *e, int fd);
static bool acked(struct end *e, int fd);
static bool must_leave(struct end *e);
static void readable(struct end *e, int fd);

// has_all tells whether the peer has read everything; see kept_up.
static bool has_all(struct end *e) { return get_acquire(&e->peer->tail) == get(&e->own->head) && e->remote->spilled == e->remote->kept; }
// had_all tells whether the peer's process, which has ended, had read everything. tail does not count what it read from frames.
static bool had_all(struct end *e) {
	const struct remote *m = e->remote;
	const uint64_t got = get(&e->peer->got);
	return has_all(e) && (m->tx != OPENED || !got || got - 1 == get(&e->own->head) + m->spilled);
}
// kept_up brings the copy of frames up to date: what a reader decides depends on whether the peer has passed all.
static void kept_up(struct end *e) {
	struct remote *m = e->remote;
	if (likely(m->spilled == m->kept) || m->tx != OPENED || !smcgw_try(e, &e->wl)) return;
	if (m->tx == OPENED) keep(e);
	smcgw_unlock(e, &e->wl);
}

// heed makes the sending direction go back if it has to. The reader does it, since it may be the program's only thread.
static void heed(struct end *e, int fd) {
	struct remote *m = e->remote;
	kept_up(e);
	const bool leaves = m->tx != RETURNED && m->tx != NATIVE && leaves_now(e, fd), risks = m->tx == OPENED && smcgw_remote_at_risk(e);
	if (likely(!leaves && !risks) || !smcgw_try(e, &e->wl)) return;
	if (risks && smcgw_still(e, fd)) acked(e, fd);
	if (leaves && smcgw_still(e, fd)) {
		leave(e, fd, false);
		advance(e, fd);
	}
	smcgw_unlock(e, &e->wl);
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
	const unsigned char *f = m->in + NONCE;
	const int wide = WIDE;
	long n = SYS(recvfrom, fd, m->in + m->in_n, NONCE + FRAME - m->in_n, MSG_DONTWAIT);
	smcgw_says(e, n);
	if (n <= 0) return;
	add(&e->kr, (uint64_t)n);
	m->in_n += (uint32_t)n;
	if (m->in_n < NONCE + FRAME) return;
	m->in_n = 0;
	if (memcmp(m->in, nonce(e, 0), NONCE) || f[0] != OPEN || number(f + 4, 4) || number(f + 8, 8)) {
		smcgw_violated(e);
		return;
	}
	m->rx = FRAMED;
	m->rest = true;
	has_read(e, 0);
	m->unsure_until = 0;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &wide, sizeof wide); // enlarges the kernel's buffer, so that a rest hardly ever fills it: see squeezed
	readable(e, fd);
}
// blocks tells whether n bytes, all that are there, keep the kernel from receiving more: it reports readable although fewer are there than it
// was told to wait for.
static bool blocks(struct end *e, int fd, int n) {
	int lowat = n + 1, one = 1;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
	bool r = smcgw_polled(fd, POLLIN | POLLRDHUP) == POLLIN && queued(fd) == n;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
	e->remote->lowat = 1;
	return r;
}

// take_back ends a question if it is answered.
static void take_back(struct end *e) {
	if ((get_acquire(&e->peer->flags) & SMCI_ASKS) && (atomic_fetch_and(&e->own->flags, ~SMCI_ASKS) & SMCI_ASKS)) bell(e);
}
// unasked tells whether there is neither a question nor an answer.
static bool unasked(struct end *e) { return !((get_acquire(&e->peer->flags) | get(&e->own->flags)) & SMCI_ASKS); }
// was_unopened tells whether the question is answered, and the peer had not opened its direction.
static bool was_unopened(struct end *e) { return (get_acquire(&e->peer->flags) & SMCI_ASKS) && !get_acquire(&e->peer->nx); } // flags before nx
// inquire asks the gateway where the peer's library is. It returns false if it cannot yet: an earlier question must have been answered and
// taken back, and the gateway must have taken its answer back, or that could pass for the answer to this one. An answer is final only if the
// peer had seen RECALL: see left_unopened.
static bool inquire(struct end *e) {
	if (!unasked(e)) {
		take_back(e);
		return false;
	}
	e->remote->asked = get(&e->own->flags) & SMCI_RECALL;
	say(e, SMCI_ASKS);
	return true;
}
// sure ends a doubt. The answer to its question, if that is still to come, means nothing.
static void sure(struct end *e) {
	if (!e->remote->unsure_until) return;
	e->remote->unsure_until = 0;
	e->remote->unsure_at = 0;
	e->remote->asked = false;
	take_back(e);
}
// may_ask tells whether a doubt waits to be asked about, and no longer for an earlier question.
static bool may_ask(struct end *e) {
	const struct remote *m = e->remote;
	return m->unsure_until && !m->unsure_at && !m->asked && unasked(e);
}
// settled tells whether the peer had not opened its direction when it was asked about what begins at kr.
static bool settled(struct end *e, uint64_t kr) { return e->remote->unsure_at > kr && was_unopened(e); }
// left_unopened tells whether the peer will never open its direction; never_opens then ends the look for OPEN.
// It may until it has seen RECALL, so an answer to a question from before that is not final.
static bool left_unopened(struct end *e) {
	uint32_t final = e->remote->asked ? SMCI_LEFT | SMCI_ASKS : SMCI_LEFT;
	return unlikely(get_acquire(&e->peer->flags) & final) && !get_acquire(&e->peer->nx); // flags before nx
}
static bool never_opens(struct end *e) {
	if (likely(e->remote->rx != LOOK || !left_unopened(e))) return false;
	sure(e);
	e->remote->rx = BACK;
	return true;
}

// known_data returns how many bytes of the kernel's stream precede OPEN for sure: the gateway has told where that is, or before_open has looked.
static uint64_t known_data(const struct end *e) {
	uint64_t k = get_acquire(&e->peer->nx) ? get(&e->peer->x[0].k) : e->remote->looked, kr = get(&e->kr);
	return k > kr ? k - kr : 0;
}
// look_for_open peeks at the kernel's stream for the nonce. It returns how many bytes of b are data, or -1 for none yet, and consumes OPEN.
static long look_for_open(struct end *e, int fd, char *b, size_t want) {
	struct remote *m = e->remote;
	size_t ask = want > LOOKED - 64 ? LOOKED : want + 64;
	bool heard = false; // the end of the stream had come before the peek, which thus saw everything
	long n, i;
	if (m->in_n) {
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
		sure(e);
		if (heard) { // the peer's process died while it opened: what follows is the end, or an error
			take_open(e, fd);
			take_open(e, fd);
		} else if (blocks(e, fd, (int)n)) take_open(e, fd);
		return -1;
	}
	if (kr + (uint64_t)n <= get_acquire(&e->peer->ksent) || heard) return n;
	if (settled(e, kr)) {
		i = (long)(m->unsure_at - kr);
		return i < n ? i : n;
	}
	if (!m->unsure_until) m->unsure_until = now() + UNSURE_WITHIN;
	else if (now() > m->unsure_until) return n;
	if (!m->unsure_at && !m->asked && inquire(e)) m->unsure_at = kr + (uint64_t)n;
	return -1;
}

// header consumes the next frame's header once all of it is there. It returns false if none of it is.
static bool header(struct end *e, int fd) {
	struct remote *m = e->remote;
	unsigned nops = 0;
again:;
	unsigned char *b = m->in, *f = b + m->rest;
	long had = m->in_n, need = FRAME + m->rest - had, n = SYS(recvfrom, fd, b + had, need, MSG_PEEK | MSG_DONTWAIT);
	smcgw_says(e, n);
	if (had + (n > 0 ? n : 0) <= m->rest) return false;
	if (n < need) return true;
	if (SYS(recvfrom, fd, b + had, need, MSG_DONTWAIT) != need) {
		smcgw_violated(e);
		return true;
	}
	add(&e->kr, (uint64_t)need);
	m->rest = false;
	m->in_n = 0;
	uint64_t r = number(f + 8, 8), tail = get(&e->own->tail);
	uint32_t n4 = (uint32_t)number(f + 4, 4);
	if (!f[1] && !f[2] && !f[3]) switch (f[0]) {
	case RAW:
		if (r > m->got || n4 > 1) break;
		m->last = n4;
		m->drop = m->got - r;
		m->rx = BACK;
		m->voided = false;
		m->type = NO_FRAME;
		return true;
	case DATA:
	case END:
		if ((!m->voided && r < tail) || n4 > SMCI_SPILL || (f[0] == END) != !n4) break;
		m->type = f[0];
		m->left = n4;
		m->r = r;
		return true;
	case NOP:
		if (n4 || r || ++nops > NOPS) break;
		m->rest = true;
		goto again;
	}
	smcgw_violated(e);
	return true;
}

// lacks is called when it is not known any more where the kernel's stream is.
static void lacks(struct end *e) {
	smcgw_violated(e);
	put(&e->report.why, SMCI_WHY_SHARED);
}
// repair_rx and repair_tx run after a process died that held rl, or wl. If it died between changing the kernel's stream and recording the
// change, the connection cannot go on.
static void repair_rx(struct end *e, int fd) {
	struct tcp_info t;
	uint64_t kr, ks;
	e->repair_rx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &ks) || kr != get(&e->kr)) lacks(e);
}
static void repair_tx(struct end *e, int fd) {
	struct tcp_info t;
	uint64_t kr, ks;
	e->repair_tx = false;
	if (!smcgw_measured(e, fd, &t, &kr, &ks) || ks != get(&e->ks)) lacks(e);
}

// step advances to the next bytes that can be read. It returns where they are, and in n how many at most.
static enum step step(struct end *e, int fd, char *b, size_t want, size_t *n) {
	struct remote *m = e->remote;
	for (;;) {
		// While frames are read, the ring may have bytes after the kernel's end.
		if (get(&e->violated) || ((e->eof || e->rx_error) && (m->rx != FRAMED || m->type == END || e->died))) return AT_END;
		if (m->rx == BACK) {
			while (m->drop) {
				long k = SYS(recvfrom, fd, 0, m->drop < INT_MAX ? m->drop : INT_MAX, MSG_TRUNC | MSG_DONTWAIT);
				smcgw_says(e, k);
				if (k <= 0) return e->eof || e->rx_error ? AT_END : NOTHING;
				add(&e->kr, (uint64_t)k);
				m->drop -= (uint64_t)k;
			}
			*n = want;
			return FROM_KERNEL;
		}
		if (never_opens(e)) continue;
		if (m->rx == LOOK) {
			uint64_t known = known_data(e);
			if (known) {
				sure(e);
				*n = known < want ? known : want;
				return FROM_KERNEL;
			}
			long k = look_for_open(e, fd, b, want);
			if (k > 0) {
				*n = (size_t)k < want ? (size_t)k : want;
				return FROM_LOOK;
			}
			if (m->rx == LOOK && !e->eof && !e->rx_error && !get(&e->violated)) return NOTHING;
			continue;
		}
		uint64_t head, tail = get(&e->own->tail), to;
		bool over = carrier_gone(e);
		ring_left(e, &head); // after carrier_gone
		if (get(&e->violated)) continue;
		if (m->type == NO_FRAME && tail == m->clear) {
			// Look at the kernel after head was loaded: the frames that precede those ring bytes are there by now.
			m->reported = false;
			bool ends = e->eof || e->rx_error, part = !frameless(e, fd) && header(e, fd);
			if (m->type != NO_FRAME || m->rx != FRAMED || get(&e->violated) || (!ends && (e->rx_error || e->eof))) continue;
			if (!part && !m->voided) m->clear = head;
		}
		to = m->type == NO_FRAME ? m->clear : m->voided ? tail : m->r < head ? m->r : head;
		if (tail < to) {
			*n = to - tail < want ? to - tail : want;
			return FROM_RING;
		}
		if (m->type == NO_FRAME) return NOTHING;
		if (m->voided || (over && head < m->r)) {
			m->voided = true;
			while (m->left) {
				long k = SYS(recvfrom, fd, 0, m->left, MSG_TRUNC | MSG_DONTWAIT);
				smcgw_says(e, k);
				if (k <= 0) return e->eof || e->rx_error ? AT_END : NOTHING;
				add(&e->kr, (uint64_t)k);
				m->left -= (uint32_t)k;
			}
			m->type = NO_FRAME;
			m->rest = true;
			m->clear = tail; // read nothing more before RAW
			continue;
		}
		if (m->r != tail) return NOTHING; // ring bytes are on their way
		// Take its rest, too: close() with an unread byte resets, which discards what our kernel has not sent yet.
		if (m->type == END) {
			long k = SYS(recvfrom, fd, b, 1, MSG_DONTWAIT);
			if (k == -EAGAIN || k == -EINTR) return NOTHING;
			e->eof = true;
			return AT_END;
		}
		*n = m->left < want ? m->left : want;
		return FROM_KERNEL;
	}
}

static void done_data(struct end *e, uint64_t n) {
	struct remote *m = e->remote;
	add(&e->kr, n);
	add(&e->report.rx_kernel, n);
	if (m->rx != FRAMED) return;
	has_read(e, n);
	m->left -= (uint32_t)n;
	if (m->left) return;
	m->type = NO_FRAME;
	m->rest = true;
	m->clear = get(&e->own->tail);
}

// told_how tells whether it is known how the peer's process ended. Its kernel reports a reset in any case, since the rest of a frame was
// unread. Behind a frame that is not due because the carrier is slow, there is RAW, or the gateways will tell the fate of the process.
static bool told_how(struct end *e, int fd) {
	struct remote *m = e->remote;
	int64_t t = now();
	bool behind = m->rx == FRAMED && m->type == DATA && !m->voided && queued(fd) > (int)m->left + 1;
	// A peer that resets on purpose has left the ring.
	if (carrier_gone(e) || get_acquire(&e->peer->flags) & SMCI_SHUT || (!behind && t - m->ended_at >= SHUT_WITHIN)) return true;
	put(&hurry_until, t + SHUT_WITHIN);
	return false;
}

// kernel_due tells whether the kernel has bytes to read now. A FIN shows before the bytes that precede it are read.
static bool kernel_due(struct end *e, int fd) {
	const struct remote *m = e->remote;
	if (m->rx != FRAMED) return unread(e, fd);
	unsigned q = (unsigned)queued(fd);
	if (m->type == NO_FRAME) return q + m->in_n >= FRAME + (unsigned)m->rest;
	return q && (m->r == get(&e->own->tail) || carrier_gone(e)); // without a carrier, a frame that is not due is void
}

// died is called when the kernel has reported the end of the stream, but the peer has not:
// its process has ended. It returns true once it is known how.
static bool died(struct end *e, int fd) {
	struct remote *m = e->remote;
	int err = e->rx_error;
	bool fin = e->eof || smcgw_heard(fd), hard = err && err != ECONNRESET;
	if (m->type == END || (!fin && !err)) return e->eof;
	if (e->died || hard || get(&e->violated)) return true;
	if (m->rx == BACK || (m->rx == LOOK && (e->eof || m->tx == NATIVE))) return err || e->eof || !kernel_due(e, fd);
	uint64_t head = get_acquire(&e->peer->head);
	if (!m->ended_at || head != m->ended_head) { // what the process has written still comes
		m->ended_at = now();
		m->ended_head = head;
	}
	bool told = told_how(e, fd); // first: once the carrier has gone, what the kernel has is due
	if ((!err && kernel_due(e, fd)) || !told) return false;
	err = e->rx_error; // kernel_due may have been told
	bool shut = get_acquire(&e->peer->flags) & SMCI_SHUT, left = ring_left(e, &head);
	if (m->rx == FRAMED && shut && left && m->type == NO_FRAME && !m->voided) {
		m->clear = head;
		return false;
	}
	bool more = m->rx == LOOK ? get(&e->peer->nx) || get(&e->kr) != get(&e->peer->ksent) : left || m->type != NO_FRAME || m->voided;
	e->died = true;
	kept_up(e);
	// Once the direction is native, tail stands still, and the kernel would have a reset if the peer had left bytes unread.
	if (shut && !more && (had_all(e) || (m->tx == RETURNED && !err && !e->tx_error && !(smcgw_polled(fd, 0) & POLLERR)))) {
		int reset = ECONNRESET, had;
		e->rx_error = 0;
		e->eof = true;
		put(&e->forgives, (smcgw_polled(fd, 0) & POLLHUP) && !get(&m->reset)); // the kernel has the reset, and the program was told of none
		if (get(&e->forgives)) SYS(getsockopt, fd, SOL_SOCKET, SO_ERROR, &had, &(socklen_t){sizeof had}); // later writes meet EPIPE
		atomic_compare_exchange_strong(&e->tx_error, &reset, 0);
	} else {
		e->rx_error = ECONNRESET;
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
	if (m->lowat != lowat || m->lowat_head != head || m->lowat_flags != flags) {
		m->lowat = lowat;
		m->lowat_head = UINT64_MAX; // if the process is killed here, another one sets it again
		SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, sizeof lowat);
		m->lowat_head = head;
		m->lowat_flags = flags;
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
	if (head != get(&e->own->tail) || m->rx != FRAMED || m->type != NO_FRAME || m->voided || m->reported) return false;
	if (!m->rest || m->has_rest != get(&e->kr) || e->eof || e->rx_error || get(&e->violated) || get(&e->read_ended)) return false;
	return arms(e, fd, 2, head, flags);
}

// armed asks for a doorbell. It returns false once it has, has looked again, and found nothing.
static bool armed(struct end *e, int fd) {
	struct remote *m = e->remote;
	for (;;) {
		uint32_t flags = get_acquire(&e->peer->flags);
		int q = queued(fd), lowat = m->rx == BACK || !q ? 1 : q + 1, of = q + (int)m->in_n;
		if (m->rx == LOOK && (settled(e, get(&e->kr)) || may_ask(e))) return true;
		if (m->rx == LOOK && !m->unsure_until && q < (int)(NONCE + FRAME)) lowat = q ? q + 1 : 1;
		uint64_t upto = get_acquire(&e->peer->head);
		if (q) m->has_rest = get(&e->kr);
		if (m->rx == FRAMED) {
			uint64_t tail = get(&e->own->tail);
			bool due = !m->voided && upto != tail;
			// If part of a frame is there, wait for all of it.
			if (m->type == NO_FRAME) due = of >= FRAME + m->rest || (due && of <= m->rest);
			else due = (due && tail < m->r) || (q && (m->voided || tail == m->r)) || (!m->voided && upto < m->r && carrier_gone(e));
			if (due) return true;
		}
		if (arms(e, fd, lowat, upto, flags)) return false;
	}
}

// readable makes the kernel report readable to waits, since something is left.
static void readable(struct end *e, int fd) {
	int one = 1;
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
	e->remote->lowat = 1;
	e->remote->lowat_head = UINT64_MAX; // so that armed sets it again
}

// was_reported is called when the kernel has reported readable, or may have: SO_RCVLOWAT must be set again, once somebody has looked.
static void was_reported(struct remote *m) {
	m->lowat_head = UINT64_MAX;
	m->reported = true;
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
	if (m->rx != FRAMED || m->type != NO_FRAME || !q || q + m->in_n >= FRAME + (unsigned)m->rest) return false;
	if (smcgw_polled(fd, POLLIN | POLLRDHUP) != POLLIN || queued(fd) != q) return false;
	if (SYS(getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &lowat, &l) < 0 || lowat <= q) return false; // the gateway has rung
	long n = SYS(recvfrom, fd, m->in + m->in_n, q, MSG_DONTWAIT);
	smcgw_says(e, n);
	if (n <= 0) return false;
	add(&e->kr, (uint64_t)n);
	m->in_n += (uint32_t)n;
	readable(e, fd);
	say(e, SMCI_RECALL);
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

// left_as is called before the lock is released: waits must find what is left, and be woken by what comes. It takes RAW if that is next.
static void left_as(struct end *e, int fd) {
	size_t n;
	char b[LOOKED];
	struct remote *m = e->remote;
	if (!smcgw_still(e, fd)) return;
	for (;;) {
		switch (step(e, fd, b, 1, &n)) {
		case NOTHING:
			if (m->rx == FRAMED && !armed(e, fd)) return;
			if (m->rx == LOOK) {
				if (m->unsure_until) armed(e, fd);
				else if (m->lowat != 1) readable(e, fd);
				return;
			}
			if (m->rx == BACK) {
				if (m->lowat != 1) readable(e, fd);
				return;
			}
			continue;
		case FROM_RING:
		case FROM_KERNEL:
		case FROM_LOOK:
		case AT_END:
			if (m->lowat != 1) readable(e, fd);
			if (m->rx == FRAMED && get(&e->edge)) smcgw_arm(e, SMCI_ARM_SELF); // the next bytes must make an edge of their own
			return;
		}
	}
}

// tell says CLOSED, unless that is for another process to say.
static void tell(struct end *e, struct remote *m) {
	if (m->told || !ours(m)) return;
	m->told = true;
	smcgw_closed_as(e, m->tag, m->id);
}
// blame records why the end goes back, unless that is known.
static void blame(struct end *e, uint32_t why) {
	if (!get(&e->report.why)) put(&e->report.why, why);
}
// native turns an end whose directions have both gone back into an ordinary one, which may ask again. Both locks are held. Its memory stays
// until it asks: a thread may be asleep with it.
static void native(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (!e->attached || m->rx != BACK || m->drop || (m->tx != RETURNED && m->tx != NATIVE) || e->eof || e->rx_error || e->tx_error) return;
	if (m->last && !get(&e->passed) && !lost(e) && !sent_back(e)) return;
	blame(e, switched_off() ? SMCI_WHY_OFF : SMCI_WHY_RECALLED);
	smcgw_untune(e, fd);
	say(e, SMCI_GONE);
	tell(e, m);
	e->attached = false;
	uncount(e);
	bool again = ours(m) && smcgw_alone(e) && !get(&e->passed);
	if (smcgw.news) e->policy_seen = get(&smcgw.news->policy);
	smcgw_put_off(e);
	put_release(&place_of(e)->back, again);
	if (!again) put(&e->passed, true);
	put_release(&e->report.state, again ? SMCI_NATIVE : SMCI_NEVER);
}
// smcgw_remote_again is called before an end asks. It returns false while a thread still uses the memory from before the end went back.
bool smcgw_remote_again(struct end *e) {
	bool done = true;
	if (likely(!get_acquire(&place_of(e)->back))) return true;
	if (!smcgw_try(e, &e->rl)) return false;
	if (smcgw_try(e, &e->wl)) {
		done = state_of(e) == SMCI_NATIVE && !(e->remote && atomic_load(&e->remote->asleep));
		if (done && e->remote) smcgw_unmap_waited(e);
		if (done) put(&place_of(e)->back, false);
		smcgw_unlock(e, &e->wl);
	} else {
		done = false;
	}
	smcgw_unlock(e, &e->rl);
	return done;
}
static void try_native(struct end *e, int fd) { // rl is held
	struct remote *m = e->remote;
	if (likely(m->rx != BACK) || m->drop || !smcgw_try(e, &e->wl)) return;
	if (smcgw_still(e, fd)) native(e, fd);
	smcgw_unlock(e, &e->wl);
}

// all_back does so for a writer whose program may never read. wl is held.
static void all_back(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (likely(m->tx == OPENED || m->tx == RETURNS) || (m->rx != BACK && !left_unopened(e)) || !smcgw_try(e, &e->rl)) return;
	if (smcgw_still(e, fd)) {
		never_opens(e);
		native(e, fd);
	}
	smcgw_unlock(e, &e->rl);
}

// struct sleep is a sleep of this thread in a call, without the lock: meanwhile m may be released, and the entry become another connection's.
struct sleep {
	struct end *e;
	struct remote *m;
	pthread_mutex_t *lock;
	uint32_t use;
};
static __thread const struct remote *sleeps_in;
static void falls_asleep(const struct sleep *s) {
	atomic_fetch_add(&s->m->asleep, 1);
	sleeps_in = s->m;
	smcgw_unlock(s->e, s->lock);
}
static void awakes(const struct sleep *s) {
	smcgw_lock(s->e, s->lock);
	sleeps_in = 0;
	if (get(&s->e->use) == s->use && place_of(s->e)->memory.remote == s->m) atomic_fetch_sub(&s->m->asleep, 1);
}
static void is_cancelled(void *p) {
	const struct sleep *s = p;
	awakes(s);
	smcgw_unlock(s->e, s->lock);
}
static int sleep_in_poll(struct sleep *s, struct pollfd *p, int ms) {
	int k;
	pthread_cleanup_push(is_cancelled, s);
	k = REAL(poll)(p, 1, ms);
	pthread_cleanup_pop(0);
	return k;
}
static void sleep_ends(struct sleep *s) { // if the thread is cancelled
	pthread_cleanup_push(is_cancelled, s);
	pthread_testcancel();
	pthread_cleanup_pop(0);
}

// before_open returns how many of the kernel's bytes precede OPEN, if a look has found that at least found do. It may return less to a program
// that reads or gets more meanwhile: it would otherwise look at all of them at each call.
static size_t before_open(const struct end *e, int fd, size_t found) {
	struct remote *m = e->remote;
	size_t q = (size_t)queued(fd), n = q;
	uint64_t kr = get(&e->kr), come = kr + q;
	size_t known = m->looked > kr + found ? m->looked - kr : found;
	bool moves = m->come && (kr != m->asked_at || come != m->come); // the first answer may follow a peek from before the promotion
	m->asked_at = kr;
	m->come = come;
	if (moves && n > LOOKED_AHEAD) n = LOOKED_AHEAD;
	if (known >= q || get_acquire(&e->peer->nx) || m->looked_to == come || (moves && known >= n / 2)) return known;
	char *b = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b == MAP_FAILED) return known;
	long k = SYS(recvfrom, fd, b, n, MSG_PEEK | MSG_DONTWAIT);
	if (k > 0) k = data_of(e, b, k);
	munmap(b, n);
	if (k > (long)known) known = (size_t)k;
	m->looked = kr + known;
	if (n == q) m->looked_to = come;
	return known;
}

// looks_on clears what has come to the ring since step looked: what a peek has seen is still unread, so step would not look again.
static void looks_on(struct end *e, int fd) {
	struct remote *m = e->remote;
	uint64_t head;
	if (m->rx != FRAMED || m->type != NO_FRAME || m->voided || !ring_left(e, &head)) return;
	if (frameless(e, fd)) m->clear = head; // no frame precedes its bytes
}

ssize_t smcgw_remote_rx(struct end *e, int fd, const struct iovec *v, int nv, int flags) {
	char b[LOOKED];
	size_t want, done = 0, n;
	const bool peek = flags & MSG_PEEK, all = (flags & MSG_WAITALL) && !peek;
	const bool nowait = (flags & MSG_DONTWAIT) || get(&e->nonblock);
	int64_t until = 0;
	int err = 0;
	bool told = false;
	unsigned woken = 0;
	want = total(v, nv);
	if (!want) return 0;
	if (!smcgw_lock(e, &e->rl)) {
		errno = EAGAIN;
		return -1;
	}
	struct remote *m = e->remote;
	const uint32_t use = get(&e->use);
	while (done < want) {
		struct iovec w[PARTS];
		struct msghdr h = {.msg_iov = w};
		if (unlikely(!smcgw_still(e, fd))) {
			if ((done || until) && smcgw_keeps(e, use, &fd) && e->attached) continue;
			smcgw_unlock(e, &e->rl);
			if (done ? !all || nowait : !until) return done ? (ssize_t)done : RETRY;
			return smcgw_go_on(e, fd, (struct rest){v, nv, done, want, flags | (nowait ? MSG_DONTWAIT : 0), true, use, until});
		}
		m = e->remote; // promoted once more, it has another
		if (unlikely(e->repair_rx)) repair_rx(e, fd);
		// If the other direction has to go back, find out first whether the stream has ended: that would be its end, too.
		const bool rests = !told && !must_leave(e) && rested(e, fd) && (done || !nowait || !reports(fd, POLLIN | POLLRDHUP));
		if (unlikely(peek)) looks_on(e, fd);
		enum step s = rests ? NOTHING : step(e, fd, b, want - done, &n);
		if (s == FROM_RING) {
			uint64_t tail = get(&e->own->tail);
			if (!smcgw_copy(e->rx_ring, m->size - 1, tail, v, nv, done, n, true)) {
				err = EFAULT;
				break;
			}
			done += n;
			woken = m->vain = 0;
			if (peek) break;
			has_read(e, n);
			add(&e->report.rx_ring, n);
			freed(e, tail + n);
			continue;
		}
		if (s == FROM_LOOK) {
			if (peek && n < want && before_open(e, fd, n) > n) continue; // step knows it now
			if (!smcgw_copy(b, LOOK_MASK, 0, v, nv, done, n, true)) {
				err = EFAULT;
				break;
			}
			done += n;
			if (peek) break;
			sure(e);
			long k = SYS(recvfrom, fd, 0, n, MSG_TRUNC | MSG_DONTWAIT);
			if (k != (long)n) smcgw_violated(e);
			add(&e->kr, n);
			add(&e->report.rx_kernel, n);
			continue;
		}
		if (s == FROM_KERNEL) {
			h.msg_iovlen = (size_t)smcgw_part(w, v, nv, done, n);
			long k = SYS(recvmsg, fd, &h, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
			if (k == -EFAULT) {
				err = EFAULT;
				break;
			}
			smcgw_says(e, k);
			if (k > 0) {
				woken = m->vain = 0;
				done += (size_t)k;
				if (peek) break;
				done_data(e, (uint64_t)k);
				continue;
			}
		}
		if (done && (!all || nowait)) break;
		told = told || (!rests && says_end(fd)); // poll() will say it
		if (!rests && ended_now(e, fd, told)) break;
		heed(e, fd);
		bool ending = told || e->eof || e->rx_error; // the kernel has no more to report
		if (m->rx == FRAMED && !rests) {
			if (nowait) m->lowat_head = UINT64_MAX; // the kernel may report to waits that the library does not see, as by an inherited set
			if (armed(e, fd)) continue;
			if (nowait && !ending && ++m->vain > 3 && squeezed(e, fd)) continue;
		}
		if (m->rx == LOOK && m->unsure_until) {
			if (armed(e, fd)) continue;
		} else if (m->rx != FRAMED && m->lowat != 1) readable(e, fd);
		if (nowait) {
			err = EAGAIN;
			break;
		}
		if (!until) until = smcgw_timeout_of(e, fd, SO_RCVTIMEO);
		int64_t left = until == INT64_MAX ? ROUND : (until - now()) / 1000000;
		if (left < 0) {
			err = EAGAIN;
			break;
		}
		if (left > ROUND) left = ROUND;
		if (ending || m->unsure_until) left = 1;
		struct pollfd p = {ending ? -1 : fd, POLLIN | POLLRDHUP, 0};
		struct sleep sleep = {e, m, &e->rl, use};
		try_native(e, fd);
		falls_asleep(&sleep);
		if (get(&smcgw_owing)) {
			smcgw_pay();
			if (left > 10) left = 10;
		}
		int k = sleep_in_poll(&sleep, &p, (int)left + (left != ROUND));
		const bool interrupted = k < 0 && errno == EINTR, told_nothing = k == 0 || interrupted; // poll() may fail: RLIMIT_NOFILE
		bool stop = interrupted && (done || until != INT64_MAX || smcgw_interrupts());
		smcgw_remote_round();
		if (!told_nothing) smcgw_remote_calm(++woken);
		awakes(&sleep);
		if ((p.revents & (POLLRDHUP | POLLHUP | POLLERR)) && smcgw_has(e, fd)) told = true;
		if (!smcgw_keeps(e, use, &fd)) { // another thread has closed the number
			smcgw_unlock(e, &e->rl);
			errno = EBADF;
			return done ? (ssize_t)done : told ? 0 : -1;
		}
		if (!told_nothing && smcgw_still(e, fd) && e->remote == m) {
			was_reported(m);
			if (!told && woken > 3) squeezed(e, fd);
		}
		if (stop) {
			err = EINTR;
			break;
		}
	}
	ssize_t r = (ssize_t)done;
	if (!done && !err && e->eof && !e->rx_error && m->type != END && !get(&m->reset) && smcgw_over(fd)) e->rx_error = smcgw_told(e);
	if (!done && !err && get(&e->violated)) {
		err = e->rx_error;
		e->rx_error = 0;
	} else if (!done && !err && e->rx_error) {
		err = smcgw_reports(e, fd);
		if (!reports_error(m, err)) err = 0;
	}
	if ((err != EAGAIN || done) && !(smcgw_still(e, fd) && rested(e, fd))) left_as(e, fd);
	if (smcgw_still(e, fd)) try_native(e, fd);
	smcgw_unlock(e, &e->rl);
	if (err == EAGAIN) {
		smcgw_remote_round();
		if (unlikely(get(&smcgw_owing))) smcgw_pay(); // the program may never wait
	}
	smcgw_give_way(done);
	if (done || !err) return r;
	errno = err;
	return -1;
}

static bool ring_due(const struct end *e) { return e->remote->rx == FRAMED && e->remote->type == NO_FRAME && e->remote->clear != get(&e->own->tail); }
// any tells whether something can be read. rl is held.
static bool any(struct end *e, int fd) {
	char b[LOOKED];
	size_t n;
	switch (step(e, fd, b, 1, &n)) {
	case FROM_RING: case FROM_LOOK: return true;
	case FROM_KERNEL:
		if (unread(e, fd)) return true;
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
		heed(e, fd);
		was_reported(e->remote);
		while (!(r = any(e, fd)) && (m->rx == FRAMED || m->unsure_until)) {
			if (!armed(e, fd) && !squeezed(e, fd)) break;
		}
		if (m->rx != FRAMED && !m->unsure_until && m->lowat != 1) readable(e, fd); // any may have taken RAW
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
		switch (step(e, fd, b, INT_MAX, &n)) {
		case FROM_RING:
			r = n;
			head = get_acquire(&e->peer->head); // loaded before looking at the kernel
			all = m->type == NO_FRAME && frameless(e, fd);
			if (all) r = head - tail;
			if (m->type == NO_FRAME) break;
			if (head >= m->r && tail + n == m->r) r += (unsigned)queued(fd) < m->left ? (unsigned)queued(fd) : m->left;
			break;
		case FROM_LOOK:
			r = before_open(e, fd, n);
			all = false;
			break;
		case FROM_KERNEL:
			r = (unsigned)queued(fd);
			all = m->rx == BACK;
			if (!all && r > n) r = m->rx == LOOK ? before_open(e, fd, n) : n;
			break;
		default:;
		}
		if ((!all && get(&e->edge)) || (m->rx == BACK && m->lowat != 1)) readable(e, fd);
	} else { // native by now
		r = (size_t)queued(fd);
	}
	smcgw_unlock(e, &e->rl);
	return r;
}

// smcgw_remote_unsent counts what the peer has not read, except what the kernel has got.
size_t smcgw_remote_unsent(const struct end *e) {
	const struct remote *m = e->remote;
	uint64_t tail = get_acquire(&e->peer->tail), head = get_acquire(&e->own->head);
	if (m->tx == RETURNS && m->back_r > tail) tail = m->back_r;
	return (m->tx == OPENED || m->tx == RETURNS) && head > tail ? (size_t)(head - tail) : 0;
}

// ---- producing

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
	return e->remote->tx == OPENED && space(e, &tail);
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
	uint64_t to = atomic_load(&e->remote->frame_end);
	return unlikely(to) && acked_to(e, fd) < to;
}
bool smcgw_remote_full(struct end *e, int fd, uint64_t *tail) {
	const struct remote *m = e->remote;
	bool full = space(e, tail) < m->size / 4;
	return m->tx == OPENED && (full || unacked(e, fd)) && !told_to_leave(e) && !get(&e->violated) && !get(&e->passed) && !atomic_load(&e->write_ended);
}

static bool must_leave(struct end *e) {
	return told_to_leave(e) || lost(e) || sent_back(e) || get(&e->passed) || !ours(e->remote);
}
// leaves_now is must_leave for when the program does not write. A peer that may have closed, and has everything, is sent nothing until
// there is more: its kernel would answer with a reset, which the program would meet without having written.
static bool leaves_now(struct end *e, int fd) {
	if (!must_leave(e)) return false;
	return e->remote->tx != OPENED || !has_all(e) || get_acquire(&e->peer->flags) & SMCI_RECALL || get(&e->passed) || !smcgw_heard(fd);
}
static bool may_open(struct end *e) {
	return (get_acquire(&e->peer->flags) & (SMCI_ATTACHED | SMCI_RECALL | SMCI_GONE)) == SMCI_ATTACHED && !must_leave(e) &&
	       !get(&e->write_ended) && e->fin == FIN_NONE;
}

static void frame(unsigned char *f, enum type t, uint64_t n, uint64_t r) {
	memset(f, 0, FRAME);
	f[0] = (unsigned char)t;
	put_number(f + 4, n, 4);
	put_number(f + 8, r, 8);
}

// keep drops from the copy the frames that the peer has passed (its tail says so) and that the kernel has taken.
static void keep(struct end *e) {
	struct remote *m = e->remote;
	uint64_t tail = get_acquire(&e->peer->tail);
	while (m->frame_first != m->frame_last) {
		struct frame *f = &m->frame[m->frame_first % FRAMES];
		if (f->r > tail || m->kept + f->n > m->paid) return;
		m->kept += f->n;
		m->frame_first++;
	}
	if (likely(m->kept - m->released < RELEASED)) return;
	m->released = m->kept;
	SYS(madvise, m->spill, sizeof m->spill, MADV_REMOVE);
}

// low limits the unsent bytes that the kernel takes.
static void low(struct end *e, int fd) {
	const int most = e->brief ? KERNEL_LOWAT : STANDS_LOWAT;
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, e->lowat > 0 && e->lowat < most ? e->lowat : most);
}

// brief lets the kernel have few unsent bytes, so that the stream is back in the ring soon. If the peer reads nothing, it gets about as many as
// natively, and this end's window is as wide: both ends may write before they read.
static void brief(struct end *e, int fd, bool on) {
	if (likely(e->brief == on)) return;
	e->brief = on;
	low(e, fd);
	if (!on && e->clamp > 0) SYS(setsockopt, fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, &e->clamp, sizeof e->clamp);
}

// owe has a frame sent. The payload of DATA is the last n bytes of the copy.
static void owe(struct remote *m, enum type t, uint64_t n, uint64_t r) {
	frame(m->out, t, n, r);
	m->out_at = 0;
	m->out_n = FRAME;
	m->payload = t == DATA ? (uint32_t)n : 0;
	m->out_rest = t != RAW;
}

static bool open_it(struct end *e, int fd) {
	struct remote *m = e->remote;
	put(&e->own->x[0].k, get(&e->ks));
	put_release(&e->own->nx, 1);
	fence();
	if (!may_open(e)) { // recalled meanwhile: nothing is sent
		put_release(&e->own->nx, 0);
		return false;
	}
	memcpy(m->out, nonce(e, 1), NONCE);
	frame(m->out + NONCE, OPEN, 0, 0);
	m->out_at = 0;
	m->out_n = NONCE + FRAME;
	m->payload = 0;
	m->out_rest = true;
	m->tx = OPENED;
	e->brief = false;
	brief(e, fd, true);
	bell(e);
	return true;
}

// leave makes the direction go back by RAW: all that the peer may lack is sent once more. If last, FIN will follow. It returns false if the
// direction has left already, or still owes a frame.
static bool leave(struct end *e, int fd, bool last) {
	struct remote *m = e->remote;
	if (m->tx != OPENED) return false;
	if (m->out_at < m->out_n || m->payload || m->out_rest) return false; // what is owed of a frame goes first
	keep(e);
	uint64_t tail = get_acquire(&e->peer->tail);
	if (get(&e->own->head) - tail > m->size) {
		smcgw_violated(e);
		return false;
	}
	if (get(&m->unfit) || (sent_back(e) && !switched_off())) say(e, SMCI_RECALL); // nothing else tells the peer, and one direction cannot ask again
	owe(m, RAW, last, tail + m->kept);
	m->back_r = tail;
	m->back_s = m->kept;
	m->back_frame = m->frame_first;
	m->tx = RETURNS;
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
	if (must_leave(e) || get(&e->own->head) != get_acquire(&e->peer->tail)) leave(e, fd, true);
	if (m->tx != OPENED) return;
	owe(m, END, 0, get(&e->own->head));
	m->ends = true;
}

static bool owes(const struct remote *m) { return m->out_at < m->out_n || m->payload || m->out_rest || m->tx == RETURNS; }

// advance gives the kernel what is owed. It returns false while the kernel refuses.
static bool advance(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (unlikely(e->repair_tx)) repair_tx(e, fd);
	for (;;) {
		struct iovec w[5];
		struct msghdr h = {.msg_iov = w};
		bool frames = m->out_at < m->out_n || m->payload || m->out_rest;
		if (frames) {
			if (m->out_at < m->out_n) w[h.msg_iovlen++] = (struct iovec){m->out + m->out_at, m->out_n - m->out_at};
			if (m->payload) {
				size_t at = m->paid % SMCI_SPILL, k = SMCI_SPILL - at < m->payload ? SMCI_SPILL - at : m->payload;
				w[h.msg_iovlen++] = (struct iovec){m->spill + at, k};
				if (k < m->payload) w[h.msg_iovlen++] = (struct iovec){m->spill, m->payload - k};
			}
			if (m->out_rest) w[h.msg_iovlen++] = (struct iovec){"", 1};
		} else if (m->tx == RETURNS) {
			struct frame *f = m->back_frame != m->frame_last ? &m->frame[m->back_frame % FRAMES] : 0;
			uint64_t to = f ? f->r : get(&e->own->head);
			if (m->back_r < to) {
				size_t at = m->back_r & (m->size - 1), k = to - m->back_r;
				if (k > m->size - at) k = m->size - at;
				w[h.msg_iovlen++] = (struct iovec){e->tx_ring + at, k};
			} else if (f) {
				uint64_t end = m->kept;
				for (uint64_t i = m->frame_first; i <= m->back_frame; i++) end += m->frame[i % FRAMES].n;
				if (m->back_s == end) {
					m->back_frame++;
					continue;
				}
				size_t at = m->back_s % SMCI_SPILL, k = end - m->back_s;
				if (k > SMCI_SPILL - at) k = SMCI_SPILL - at;
				w[h.msg_iovlen++] = (struct iovec){m->spill + at, k};
			} else {
				m->tx = RETURNED;
				m->raw_last = true;
				smcgw_no_risk(e, fd);
				low(e, fd);
			}
		}
		if (!h.msg_iovlen) {
			if (e->fin == FIN_OWED && m->tx == OPENED && !m->ends) { // end_it did not get so far
				ends(e, fd);
				if (owes(m)) continue;
			}
			if (e->fin == FIN_OWED) {
				e->fin = FIN_SENT;
				SYS(shutdown, fd, SHUT_WR);
			}
			if (unlikely(m->frame_end) && m->tx == OPENED && !(get(&e->own->flags) & SMCI_WHOLE)) atomic_fetch_or(&e->own->flags, SMCI_WHOLE);
			if (m->ends) m->tx = RETURNED; // there is nothing to go back with
			return true;
		}
		long k = SYS(sendmsg, fd, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (k == -EINTR) continue;
		if (k == -EAGAIN) {
			put(&smcgw_owing, true);
			return false;
		}
		if (k < 0) {
			if (!e->tx_error) e->tx_error = (int)-k;
			m->out_at = m->out_n;
			m->payload = 0;
			m->out_rest = false;
			if (m->tx == RETURNS) m->tx = RETURNED;
			return true;
		}
		add(&e->ks, (uint64_t)k);
		if (!frames) {
			if (w[0].iov_base >= (void *)m->spill && w[0].iov_base < (void *)(m->spill + SMCI_SPILL)) m->back_s += (uint64_t)k;
			else m->back_r += (uint64_t)k;
			continue;
		}
		uint64_t n = (uint64_t)k, p = m->out_n - m->out_at < n ? m->out_n - m->out_at : n;
		m->out_at += (uint32_t)p;
		n -= p;
		p = m->payload < n ? m->payload : n;
		m->payload -= (uint32_t)p;
		m->paid += p;
		n -= p;
		if (n) {
			m->out_rest = false;
			if (m->frame_end == UINT64_MAX) m->frame_end = get(&e->ks); // of DATA
		}
	}
}
bool smcgw_remote_pay(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (m->tx == OPENED && leaves_now(e, fd)) {
		if (!advance(e, fd)) return false;
		leave(e, fd, false);
	}
	return advance(e, fd);
}

// smcgw_remote_at_risk tells whether a frame is unacknowledged. If the process is killed before the kernel has all of it, the peer can get no
// more than a part: RESET tells it that such an end is a reset. After that, WHOLE tells the gateway to keep the socket until the peer's kernel
// has it, too. The kernel would discard it with the socket, since the rest of a frame is unread.
bool smcgw_remote_at_risk(const struct end *e) { return e->remote->spilled && e->remote->frame_end; }

// acked tells whether the ring may go on: the peer's kernel has acknowledged the last frame.
static bool acked(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (likely(!m->frame_end)) return true;
	if (unacked(e, fd)) return false;
	m->frame_end = 0;
	brief(e, fd, true);
	atomic_fetch_and(&e->own->flags, smcgw_resets(e, fd) ? ~SMCI_WHOLE : ~(SMCI_WHOLE | SMCI_RESET));
	return true;
}

// fits tells whether the copy of frames has room for n bytes more.
static bool fits(struct end *e, size_t n) {
	const struct remote *m = e->remote;
	keep(e);
	return m->spilled - m->kept + n <= (e->brief ? BRIEF_SPILL : SMCI_SPILL) && m->frame_last - m->frame_first < FRAMES;
}

// spill sends bytes through the kernel in a frame. It returns how many; 0 if no more can be kept; -1 for a fault.
static long spill(struct end *e, int fd, const struct iovec *v, int nv, size_t done, size_t n) {
	struct remote *m = e->remote;
	if (!fits(e, n)) return 0;
	if (!smcgw_copy(m->spill, SMCI_SPILL - 1, m->spilled, v, nv, done, n, false)) return -1;
	uint64_t head = get(&e->own->head);
	m->frame[m->frame_last++ % FRAMES] = (struct frame){head, (uint32_t)n};
	m->spilled += n;
	owe(m, DATA, n, head);
	m->frame_end = UINT64_MAX;
	atomic_fetch_or(&e->own->flags, SMCI_RESET); // see at_risk
	atomic_fetch_and(&e->own->flags, ~SMCI_WHOLE);
	add(&e->report.tx_kernel, n);
	add(&e->report.spills, 1);
	if (advance(e, fd)) return (long)n;
	// The kernel has enough, and takes the rest: after this call the program may end.
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, INT_MAX);
	m->full = advance(e, fd);
	low(e, fd);
	return (long)n;
}

static bool wait_tx(struct end *e, int fd, int64_t *until, bool some, long most, int *err) { // without wl; false: the call ends
	struct pollfd p = {fd, POLLOUT, 0};
	struct sleep sleep = {e, e->remote, &e->wl, get(&e->use)};
	if (!*until) *until = smcgw_timeout_of(e, fd, SO_SNDTIMEO);
	int64_t left = *until == INT64_MAX ? most : (*until - now()) / 1000000;
	if (left < 0) {
		*err = EAGAIN;
		return false;
	}
	if (left > most) left = most;
	falls_asleep(&sleep);
	int k = sleep_in_poll(&sleep, &p, (int)left + 1);
	bool stop = k < 0 && errno == EINTR && (some || *until != INT64_MAX || smcgw_interrupts());
	smcgw_remote_round();
	awakes(&sleep);
	if (stop) *err = EINTR;
	return !stop;
}

// wants asks the gateway to wake a writer that waits for room. The gateway checks when tail moves, so the caller looks at tail afterwards.
static void wants(struct end *e) {
	put(&e->own->want, get(&e->own->want) + 1);
	fence();
}
static bool wait_room(struct end *e, int fd, int64_t *until, bool done, int *err, bool *full) {
	uint32_t r = get_acquire(&e->peer->room);
	struct sleep sleep = {e, e->remote, &e->wl, get(&e->use)};
	*full = false;
	wants(e);
	bool some = room(e);
	if (some && acked(e, fd)) return true;
	if (!*until) *until = smcgw_timeout_of(e, fd, SO_SNDTIMEO);
	// Nothing announces an acknowledgement, so look often for one.
	int64_t left = *until == INT64_MAX ? ROOM_ROUND : *until - now(), most = some ? ACKED_ROUND : ROOM_ROUND;
	if (left <= 0) {
		*err = EAGAIN;
		return false;
	}
	struct timespec ts = {0, left < most ? left : most};
	falls_asleep(&sleep);
	long n = SYS(futex, &e->peer->room, FUTEX_WAIT, r, &ts);
	bool stop = n == -EINTR && (done || *until != INT64_MAX || smcgw_interrupts());
	sleep_ends(&sleep);
	smcgw_remote_round();
	awakes(&sleep);
	if (stop) *err = EINTR;
	else *full = n == -ETIMEDOUT && !some;
	return !stop;
}

// moves tells whether the peer has taken anything within some nanoseconds: has read it from the ring or, if the ring is empty, acknowledged it.
// A carrier may be slower than the kernel, which reports room.
static bool moves(struct end *e, int fd, int64_t within) {
	struct remote *m = e->remote;
	uint64_t taken = get_acquire(&e->peer->tail);
	if (taken == get(&e->own->head)) taken += acked_to(e, fd);
	int64_t t = now();
	if (taken != m->moved || !m->moved_at) {
		m->moved = taken;
		m->moved_at = t;
	}
	return t - m->moved_at < within;
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
	if (have == room_of(m->size, 0)) m->moved_at = 0; // the peer had nothing to take
	put_release(&e->own->head, get(&e->own->head) + n);
	add(&e->report.tx_ring, n);
	bell(e);
}

// send_any sends v; some: the call has already moved other bytes.
static ssize_t send_any(struct end *e, int fd, const struct iovec *v, int nv, int flags, bool some) {
	const bool nowait = (flags & MSG_DONTWAIT) || get(&e->nonblock);
	size_t want, done = 0;
	int64_t until = 0;
	int err = 0;
	bool full = false, waited = false;
	want = total(v, nv);
	if (!want) return result(SYS(sendto, fd, "", 0, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT, 0, 0));
	if (!smcgw_lock(e, &e->wl)) {
		errno = EAGAIN;
		return -1;
	}
	struct remote *m = e->remote;
	const uint32_t use = get(&e->use);
	while (done < want) {
		if (unlikely(!smcgw_still(e, fd) || get(&e->use) != use)) {
			if ((done || until) && smcgw_keeps(e, use, &fd) && e->attached) continue;
			smcgw_unlock(e, &e->wl);
			if (done ? nowait : !until) return done ? (ssize_t)done : RETRY;
			return smcgw_go_on(e, fd, (struct rest){v, nv, done, want, flags | (nowait ? MSG_DONTWAIT : 0), false, use, until});
		}
		m = e->remote; // promoted once more, it has another
		if (unlikely(e->repair_tx)) repair_tx(e, fd);
		if (unlikely(get(&e->violated))) {
			err = e->tx_error ? e->tx_error : EPIPE;
			e->tx_error = 0;
			break;
		}
		if (unlikely(atomic_load(&e->write_ended))) {
			long k = SYS(sendto, fd, "", 0, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
			err = k < 0 ? (int)-k : EPIPE;
			break;
		}
		if (unlikely(get(&e->forgives))) { // no process is left to read it
			put(&e->forgives, false);
			m->raw_last = false; // once
			done = want;
			continue;
		}
		if (unlikely(e->tx_error)) {
			if (done) break; // the next call reports it
			err = e->tx_error;
			e->tx_error = 0;
			break;
		}
		bool paid = !owes(m) || advance(e, fd);
		if (paid && unlikely(m->full)) paid = !(m->full = !smcgw_polled(fd, POLLOUT));
		if (e->tx_error) continue;
		if (m->tx == OPENED && paid && unlikely(must_leave(e))) {
			leave(e, fd, false);
			continue;
		}
		if (m->tx == NATIVE && may_open(e) && open_it(e, fd)) continue;
		if (m->tx == OPENED) {
			uint64_t have = paid && acked(e, fd) ? room(e) : 0;
			if (have) {
				uint64_t head = get(&e->own->head), n = want - done < have ? want - done : have;
				if (n > PIECE) n = PIECE;
				if (unlikely(!smcgw_copy(e->tx_ring, m->size - 1, head, v, nv, done, n, false))) {
					err = EFAULT;
					break;
				}
				publish(e, have, n);
				done += n;
				full = false;
				continue;
			}
			if (get(&e->violated)) continue;
			const bool reads = moves(e, fd, STANDS);
			if (nowait && paid && reads && smcgw_full(e, fd)) {
				err = EAGAIN;
				break;
			}
			if (!reads && !moves(e, fd, BRIEF_FOR)) brief(e, fd, false);
			if (nowait && (done || some) && !get(&e->edge)) break;
			if (paid && (nowait || full || (!reads && !room(e)))) {
				const bool edge = get(&e->edge);
				size_t part = want - done < SPILL_PIECE ? want - done : SPILL_PIECE;
				long n = spill(e, fd, v, nv, done, part);
				if (n < 0) {
					err = EFAULT;
					break;
				}
				if (likely(!e->tx_error)) done += (size_t)n; // otherwise the call reports that, as natively
				full = false;
				if (n) {
					waited = false;
				} else if (nowait && moves(e, fd, READS_WITHIN) && smcgw_full(e, fd)) {
					err = EAGAIN;
					break;
				} else if (waited && !moves(e, fd, nowait && edge ? KEPT_WITHIN : READS_WITHIN)) {
					put(&e->report.why, SMCI_WHY_SLOW_CARRIER);
					if (leave(e, fd, false) && smcgw_alone(e)) say(e, SMCI_RECALL); // one direction cannot ask again
				} else if (!nowait) { // the copy is full; a handler may end the call, or jump out of it
					waited = true;
					if (!wait_room(e, fd, &until, done || some, &err, &full)) break;
				} else {
					// The copy is full. The peer has read its ring bytes, or the kernel would be full by now: the
					// gateway is about to report that.
					struct timespec ts = {0, edge ? KEPT_WITHIN : MOMENT};
					uint32_t count = get_acquire(&e->peer->room);
					waited = true;
					wants(e);
					if (get(&e->own->head) != get_acquire(&e->peer->tail)) SYS(futex, &e->peer->room, FUTEX_WAIT, count, &ts);
					if (!edge && moves(e, fd, READS_WITHIN) && !room(e) && !fits(e, part)) { // a program that waits for the kernel calls again at once
						err = EAGAIN;
						break;
					}
				}
				continue;
			}
			if (nowait) {
				err = EAGAIN;
				break;
			}
			if (!paid ? wait_tx(e, fd, &until, done || some, 100, &err) : wait_room(e, fd, &until, done || some, &err, &full)) continue;
			break;
		}
		if (!paid) {
			if (!nowait && wait_tx(e, fd, &until, done || some, 100, &err)) continue;
			if (!err) err = EAGAIN;
			break;
		}
		struct iovec w[PARTS];
		struct msghdr h = {.msg_iov = w};
		h.msg_iovlen = (size_t)smcgw_part(w, v, nv, done, want - done);
		if (done && unlikely(smcgw_stops(fd, false))) break;
		long n = SYS(sendmsg, fd, &h, (flags & ~MSG_MORE) | MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n == -EAGAIN && !nowait && wait_tx(e, fd, &until, done || some, ROUND, &err)) continue;
		// The reset came after a FIN. Other resets are news for both directions, also if the reader was told.
		bool answered = n == -EPIPE && m->raw_last && !reader_told(e);
		if (n != -EAGAIN) m->raw_last = false;
		if (answered) {
			put(&e->forgives, true);
			continue;
		}
		if (n < 0) {
			if (!err) err = (int)-n;
			if (done) smcgw_unsaid(e, err);
			break;
		}
		done += (size_t)n;
		add(&e->ks, (uint64_t)n);
		if (m->tx == NATIVE) put_release(&e->own->ksent, get(&e->ks));
		add(&e->report.tx_kernel, (uint64_t)n);
	}
	if (err && !done && smcgw_still(e, fd) && !reports_error(e->remote, err)) err = EPIPE;
	if (smcgw_still(e, fd)) all_back(e, fd);
	smcgw_unlock(e, &e->wl);
	if (done || err == EAGAIN) smcgw_remote_round(); // a program that only writes never waits
	smcgw_give_way(done);
	if (done || !err) return (ssize_t)done;
	if (err == EPIPE && !(flags & MSG_NOSIGNAL)) raise(SIGPIPE);
	errno = err;
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
		if (m->tx != OPENED || must_leave(e) || owes(m) || !acked(e, fd)) break;
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

// ---- ends

// pay_all makes the kernel take what is owed, in a larger send buffer if it may have one. TCP_NOTSENT_LOWAT would keep it from using that.
static bool pay_all(struct end *e, int fd) {
	if (likely(advance(e, fd))) return true;
	set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, INT_MAX);
	smcgw_widen(fd, (int)(e->remote->size + SMCI_SPILL));
	return advance(e, fd);
}
// behind_data tells whether OPEN follows bytes that the program has not read: only when it has can this end leave the ring.
static bool behind_data(const struct end *e) {
	return e->remote->rx == LOOK && get_acquire(&e->peer->nx) && get(&e->kr) < get(&e->peer->x[0].k);
}
// nears_raw goes on towards the RAW of a peer that has been asked for it. What it passes is repeated after RAW. It returns false if there are
// bytes before RAW that only the program can take.
static bool nears_raw(struct end *e, int fd) {
	struct remote *m = e->remote;
	char b[LOOKED];
	size_t n;
	if (!never_opens(e) && m->rx == LOOK && !m->asked) inquire(e); // without a gateway there is no way to know
	enum step s = step(e, fd, b, 1, &n);
	if (m->rx == FRAMED && m->type == NO_FRAME && s == FROM_RING && queued(fd) > m->rest) header(e, fd); // it may be there
	if (m->rx == FRAMED && m->type != NO_FRAME && m->r > get(&e->own->tail)) m->voided = true;
	if (m->rx == LOOK) return s != AT_END && !behind_data(e);
	return m->rx == BACK || s == NOTHING || s == FROM_RING;
}
static _Atomic int64_t unanswered_until; // until then, no close() waits for an answer: there was none to another
// smcgw_remote_leaves is called before this process closes its last descriptor of an end while other processes go on, with both locks held.
// They may never use the end, so what the carrier may no longer deliver goes by the kernel. And the gateway tells them nothing more, so the
// peer's direction goes back, too, if the peer answers soon. Otherwise the rest of its last frame would stay in the queue, and the kernel
// would reset the connection when they end without close().
void smcgw_remote_leaves(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (!ours(m) || !pay_all(e, fd)) return;
	if (!(has_all(e) && smcgw_heard(fd)) && leave(e, fd, false)) pay_all(e, fd);
	if (lost(e) || now() < get(&unanswered_until)) return;
	sure(e);
	say(e, SMCI_RECALL);
	for (int64_t until = now() + ANSWERED_WITHIN; nears_raw(e, fd) && (m->rx != BACK || m->drop);) {
		SYS(nanosleep, &((struct timespec){0, 200000}), 0);
		if (now() < until) continue;
		put(&unanswered_until, until + LAST_WITHIN);
		return;
	}
	native(e, fd);
}
// smcgw_remote_left is called before this process unmaps an end. Other processes may have the end still, or have made it native.
void smcgw_remote_left(struct end *e) {
	uint32_t s = state_of(e);
	if (get(&e->refs) > 1 || s == SMCI_NATIVE || s == SMCI_NEVER) tell(e, place_of(e)->memory.remote); // otherwise the end of the last descriptor is told
}
// smcgw_remote_never is called for an end that is not attached, and will not be.
void smcgw_remote_never(struct end *e) { say(e, SMCI_GONE); }

// last gives the kernel what is owed, before a FIN or before another program may send. It goes on for as long as the peer takes any within
// some nanoseconds.
static bool last(struct end *e, int fd, int64_t within) {
	int64_t until = now() + within;
	uint64_t had = 0;
	if (pay_all(e, fd)) return !e->tx_error;
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
static bool end_it(struct end *e, int fd, int64_t within) {
	struct remote *m = e->remote;
	if (!last(e, fd, within)) return false;
	// After a FIN nothing can be repeated, so END requires that the peer has everything, and has said so. A program that never waits does not
	// wait for that, either: what is unread goes through the kernel.
	for (int64_t until = now() + (get(&e->nonblock) ? 0 : KEPT_WITHIN); m->tx == OPENED && !must_leave(e) && get(&e->own->head) - get_acquire(&e->peer->tail) > REPEATED;) {
		uint32_t room = get_acquire(&e->peer->room);
		struct timespec ts = left_until(until);
		if (!ts.tv_sec && !ts.tv_nsec) break;
		wants(e);
		if (get(&e->own->head) - get_acquire(&e->peer->tail) > REPEATED) SYS(futex, &e->peer->room, FUTEX_WAIT, room, &ts);
	}
	if (m->tx == OPENED) ends(e, fd);
	return last(e, fd, within);
}

bool smcgw_remote_ended(struct end *e, int fd, int how) {
	if (how != SHUT_WR) put(&e->read_ended, true);
	if (how == SHUT_RD || !smcgw_still(e, fd)) return true;
	if (!smcgw_lock(e, &e->wl)) return true;
	bool done = true;
	if (smcgw_still(e, fd) && !atomic_load(&e->write_ended) && e->fin == FIN_NONE) {
		done = end_it(e, fd, LAST_WITHIN) || e->tx_error;
		e->fin = done ? FIN_SENT : FIN_OWED;
	}
	atomic_store(&e->write_ended, true);
	smcgw_unlock(e, &e->wl);
	return done;
}

// smcgw_remote_told is called after shutdown(). A thread that sleeps in a call looks for its end by the number again, so it must have heard
// of the end of the stream before the program closes the number: natively such a call keeps the file.
void smcgw_remote_told(struct end *e, int fd) {
	for (int64_t until = now() + TOLD_WITHIN; now() < until && smcgw_lock(e, &e->rl);) { // not in a signal handler
		bool others = smcgw_still(e, fd) && get(&e->read_ended) && atomic_load(&e->remote->asleep) > (sleeps_in == e->remote);
		smcgw_unlock(e, &e->rl);
		if (!others) return;
		SYS(nanosleep, &((struct timespec){0, 50000}), 0);
	}
}

// smcgw_remote_finish does the work of the last close(), since the gateway may still have a duplicate of the socket for a moment.
void smcgw_remote_finish(struct end *e, int fd, bool writes) {
	struct remote *m = e->remote;
	struct sockaddr nobody = {.sa_family = AF_UNSPEC};
	bool reset = smcgw_resets(e, fd);
	int one = 1;
	char b[LOOKED];
	size_t n;
	if (!reset && !e->rx_error) {
		enum step s = step(e, fd, b, 1, &n);
		reset = s == FROM_RING || s == FROM_LOOK || (s == FROM_KERNEL && unread(e, fd));
	}
	if (writes && !reset && e->fin != FIN_SENT && !(e->fin == FIN_OWED ? last(e, fd, CLOSE_WITHIN) : end_it(e, fd, CLOSE_WITHIN)) && !e->tx_error) reset = true;
	if (!reset && m->rx == FRAMED && m->type == NO_FRAME && queued(fd) > m->rest) header(e, fd); // a NOP may have come
	if (!reset && m->rx == FRAMED && m->type == NO_FRAME && m->rest && queued(fd) == 1) SYS(recvfrom, fd, b, 1, MSG_DONTWAIT);
	SYS(setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
	// Before GONE: the gateway keeps its duplicate until the FIN is acknowledged, and would close a socket without one at once.
	if (!reset) SYS(shutdown, fd, SHUT_WR);
	say(e, reset ? SMCI_GONE | SMCI_RESET : SMCI_GONE);
	if (reset) SYS(connect, fd, &nobody, sizeof nobody);
	uncount(e);
}

bool smcgw_remote_demote(struct end *e, int fd, int64_t until) {
	uint64_t kr = UINT64_MAX;
	int64_t read_until = 0;
	char b[LOOKED];
	size_t n;
	bool done = false;
	put(&e->passed, true);
	if (!smcgw_lock_until(e, &e->rl, until)) return false;
	if (!smcgw_lock_until(e, &e->wl, until)) {
		smcgw_unlock(e, &e->rl);
		return false;
	}
	if (smcgw_still(e, fd)) {
		sure(e); // the peer may still open after an answer to that question
		say(e, SMCI_RECALL);
	}
	while (smcgw_still(e, fd)) {
		struct remote *m = e->remote;
		if (pay_all(e, fd) && m->tx == OPENED) leave(e, fd, false);
		bool paid = pay_all(e, fd);
		enum step s = step(e, fd, b, 1, &n);
		if (!never_opens(e) && paid && m->rx == LOOK && !m->asked) inquire(e); // without a gateway there is no way to know
		if (paid && m->tx != OPENED && s == AT_END && e->eof && !e->died && !e->rx_error && !get(&e->violated) && !(m->rx == LOOK && queued(fd) && !get(&e->read_ended))) { // the kernel reports the end, too
			m->rx = BACK;
			m->type = NO_FRAME;
			m->drop = 0;
			e->eof = false;
		}
		if (paid && m->rx == BACK && !m->drop) {
			native(e, fd);
			done = true;
			break;
		}
		if (s == AT_END && (paid || e->died || e->rx_error || e->tx_error || get(&e->violated))) {
			done = true;
			break;
		}
		if (kr != get(&e->kr) || !queued(fd)) read_until = now() + READ_WITHIN;
		kr = get(&e->kr);
		if (now() > until || (paid && behind_data(e) && now() > read_until)) break;
		if (m->rx == FRAMED && m->type == NO_FRAME && s == FROM_RING && queued(fd) > m->rest) { // RAW may be there
			header(e, fd);
			continue;
		}
		if (m->rx == FRAMED && m->type != NO_FRAME && m->r > get(&e->own->tail)) m->voided = true; // RAW repeats it
		struct timespec ts = {0, 200000};
		smcgw_unlock(e, &e->wl);
		smcgw_unlock(e, &e->rl);
		SYS(nanosleep, &ts, 0);
		smcgw_lock(e, &e->rl);
		smcgw_lock(e, &e->wl);
	}
	done = done || state_of(e) == SMCI_NATIVE || state_of(e) == SMCI_NEVER; // by another thread
	smcgw_unlock(e, &e->wl);
	if (!done && smcgw_still(e, fd)) {
		e->remote->asked = false;
		left_as(e, fd);
	}
	smcgw_unlock(e, &e->rl);
	return done;
}

// spoils ends the use of the ring.
static void spoils(struct end *e, uint32_t why) {
	blame(e, why);
	put(&e->remote->unfit, true);
}

// stands finds out that the gateway stands still while the peer lacks bytes: it has been rung for, and has not woken up. The peer may be
// unable to say so, since it has ended its direction or never opened it. rl is held.
static void stands(struct end *e) {
	struct remote *m = e->remote;
	const uint64_t head = get(&e->own->head), tail = get_acquire(&e->peer->tail), by_it = tail + get_acquire(&e->peer->head);
	const uint32_t a = get(&e->peer->arm);
	const int64_t t = now_coarse(), since = t - m->stands_at < ROUND * 1000000L ? t - m->stands_at : ROUND * 1000000L;
	const uint64_t by_us = head + get(&e->own->tail);
	const bool busy = !a && by_us != m->stands_by_us; // it may look all the time at a program that reads, or writes to a peer that reads nothing
	if (m->tx != OPENED || head == tail || a != m->stands_arm || by_it != m->stands_by) m->stands_for = 0;
	else m->stands_for += busy ? since / 5 : since;
	m->stands_at = t;
	m->stands_arm = a;
	m->stands_by = by_it;
	m->stands_by_us = by_us;
	if (m->stands_for >= WAKES_WITHIN / 2 && a && a != get(&m->belled)) { // it sleeps, since it has taken all; or it was stopped in its sleep
		ring(e, a);
		m->stands_for = 0;
	} else if (m->stands_for >= WAKES_WITHIN) {
		spoils(e, SMCI_WHY_SLOW_CARRIER);
	}
}

// raw_follows tells whether RAW has come after a DATA frame that has been met.
static bool raw_follows(struct end *e, int fd) {
	const struct remote *m = e->remote;
	const size_t most = SMCI_SPILL + (FRAMES + 1) * (FRAME + 1); // all frames that the peer keeps
	unsigned char *b = mmap(0, most, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *f;
	if (b == MAP_FAILED) return false;
	long n = SYS(recvfrom, fd, b, most, MSG_PEEK | MSG_DONTWAIT), at = m->left + 1;
	smcgw_says(e, n);
	bool raw = false;
	for (; !raw && n - at >= FRAME; at += FRAME + (long)number(f + 4, 4) + 1) {
		f = b + at;
		raw = f[0] == RAW;
	}
	munmap(b, most);
	return raw;
}
// late looks at a frame before which hardly any ring bytes come: the carrier fails without an end, or the own gateway stands still. It asks the
// peer for RAW, and gives the frame up if RAW is there, or the frame keeps the kernel from receiving it. rl is held.
static void late(struct end *e, int fd) {
	struct remote *m = e->remote;
	const int64_t t = now_coarse();
	const uint64_t head = get_acquire(&e->peer->head);
	if (m->rx != FRAMED || m->type != DATA || m->voided || m->r <= head || get(&e->own->tail) != head) {
		m->due_at = 0;
	} else if (!m->due_at || m->due_r != m->r || head - m->due_head > REPEATED) {
		m->due_at = t;
		m->due_r = m->r;
		m->due_head = head;
	} else if (t - m->due_at >= DUE_WITHIN) {
		blame(e, SMCI_WHY_SLOW_CARRIER);
		say(e, SMCI_RECALL);
		m->voided = raw_follows(e, fd) || blocks(e, fd, queued(fd));
	}
}

// shown lets the kernel's connection decide: ring bytes must not pass where a native connection's would not. While they go, a frame that
// says nothing passes through the kernel twice a second, and the ring is left if it is not acknowledged. Nor do firewalls forget the
// connection then. rl is held.
static void shown(struct end *e, int fd) {
	struct remote *m = e->remote;
	const uint64_t head = get(&e->own->head), ks = get(&e->ks);
	const int64_t t = now_coarse();
	if (m->tx != OPENED) return;
	if (m->shown != ks) {
		m->shown = ks;
		m->shown_head = head;
		m->shown_at = t;
		m->unseen = false;
	}
	const bool due = head != m->shown_head && t - m->shown_at >= SHOWN_EACH;
	if (!due && !m->unseen) return;
	if (acked_to(e, fd) < ks) {
		if (!m->unseen || t - m->shown_at < SEEN_WITHIN) return;
		spoils(e, SMCI_WHY_PATH);
		heed(e, fd);
		return;
	}
	m->unseen = false;
	if (!due || !smcgw_try(e, &e->wl)) return;
	// A peer that may have closed, and has everything, would answer with a reset.
	if (smcgw_still(e, fd) && m->tx == OPENED && !owes(m) && !must_leave(e) && !(has_all(e) && smcgw_heard(fd))) {
		owe(m, NOP, 0, 0);
		advance(e, fd);
		m->shown = get(&e->ks);
		m->shown_head = head;
		m->shown_at = t;
		m->unseen = true;
	}
	smcgw_unlock(e, &e->wl);
}

// fills lets the kernel have more if the peer reads nothing: the program may be waiting for the kernel, which has refused bytes. rl is held.
static void fills(struct end *e, int fd) {
	const struct remote *m = e->remote;
	if (likely(m->spilled == m->kept) || m->tx != OPENED || !smcgw_try(e, &e->wl)) return;
	if (smcgw_still(e, fd) && m->tx == OPENED && !moves(e, fd, BRIEF_FOR)) {
		brief(e, fd, false);
		advance(e, fd);
	}
	smcgw_unlock(e, &e->wl);
}

// smcgw_remote_round looks after the ends between hosts of this process, whose gateway may have died or whose carrier may be gone. It
// returns for how many nanoseconds a wait may last.
long smcgw_remote_round(void) {
	static _Atomic int64_t at;
	bool hurry = unlikely(get(&hurry_until) && now() < get(&hurry_until));
	int64_t t = hurry ? now() : now_coarse(), last = get(&at);
	if (t - last < (hurry ? HURRY : ROUND * 1000000LL) / 2 && t >= last) return hurry ? HURRY : ROUND * 1000000L;
	put(&at, t);
	put(&hurry_until, 0);
	smcgw_heed();
	for (int fd = 0, top = smcgw_top(); fd <= top; fd++) {
		struct end *e = look(fd);
		if (!e || state_of(e) != SMCI_PROMOTED || !e->remote || !smcgw_try(e, &e->rl)) continue;
		if (smcgw_still(e, fd)) {
			stands(e);
			late(e, fd);
			heed(e, fd);
			fills(e, fd);
			if (get(&e->own->flags) & SMCI_RECALL && e->remote->rx == FRAMED && !e->repair_rx) left_as(e, fd); // the program may never read
			try_native(e, fd);
		}
		if (smcgw_still(e, fd)) {
			bool ends = e->remote->ended_at && !e->died;
			shown(e, fd);
			// So that waits look. A process that was killed may have left SO_RCVLOWAT without asking for a doorbell.
			if (carrier_gone(e) || e->remote->unsure_until || ends || e->remote->voided || e->repair_rx) readable(e, fd);
			if (ends && any(e, fd)) smcgw_remind(e); // the kernel will report nothing more
		}
		smcgw_unlock(e, &e->rl);
	}
	return get(&hurry_until) ? HURRY : ROUND * 1000000L;
}
// smcgw_remote_calm slows a wait that the kernel ends again and again, because of something not yet known to be an end, or of a full buffer.
void smcgw_remote_calm(unsigned often) {
	struct timespec ts = {0, 1000000};
	if (often > 3) SYS(nanosleep, &ts, 0);
}
