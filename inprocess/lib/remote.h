// What remote.c, remote_rx.c and remote_tx.c share: an end whose peer is on another host.
#pragma once
#include "lib.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "real.h"
#include "stream.h"

#define NONCE SMCI_NONCE_SIZE
#define FRAME 16
#define FRAMES 4096                    // most frames in the copy
#define LOOK_MASK 4095
#define LOOKED (LOOK_MASK + 1 - SMCI_SLACK)
#define ROUND 500                      // milliseconds between looks at the gateway
#define REPEATED (64 << 10)            // bytes that are rather sent once more than waited for

enum type { NO_FRAME, OPEN, DATA, END, RAW, NOP };

// The kernel's stream towards this end: the program's bytes, among which OPEN may come; frames; the program's bytes for good.
enum rx_state { LOOK, FRAMED, BACK };

// The kernel's stream from this end: the program's bytes; frames; RAW and what it repeats; the program's bytes for good.
enum tx_state { NATIVE, OPENED, RETURNS, RETURNED };

// Where the next bytes to read are.
enum step { NOTHING, FROM_RING, FROM_KERNEL, FROM_LOOK, AT_END };

struct frame {
	uint64_t r;
	uint32_t n;
};

// An end as the consumer; rl.
struct rx {
	_Atomic int state;      // enum rx_state; the writer also looks at it
	uint64_t got;           // bytes read since OPEN, from ring and DATA
	uint64_t clear;         // ring position up to which bytes may be read without looking at the kernel
	bool rest;              // the last frame's rest byte is still in the kernel's queue, or first in in
	unsigned char in[NONCE + FRAME]; // beginning of OPEN or a frame, taken since it blocked the kernel's buffer: see squeezed
	uint32_t in_n;
	bool voided;            // a frame can no longer come due: RAW repeats it and all after it
	enum type type;         // of the frame being processed
	uint32_t left;
	uint64_t r, drop;
	struct {                // a frame that is not due: what rx_late has seen of it and of the mirror, and when
		uint64_t r, head;
		int64_t at;
	} due;
	int lowat;              // the value that this end last gave SO_RCVLOWAT; the gateway may have changed it since
	uint64_t lowat_head;    // the mirror's head and flags at that time
	uint32_t lowat_flags;
	uint64_t has_rest;      // the position in the kernel's stream at which a byte was seen: the rest, if that is next
	// Positions in the kernel's stream, of before_open:
	uint64_t looked, looked_to; // before this there is no OPEN; what had come when it looked at all
	uint64_t asked_at, come;    // kr at the last question, and what had come
	bool reported;          // the kernel has reported readable, and no thread has looked since
	unsigned vain;          // reads in a row that must not wait and that found nothing when the kernel had to be asked
	int64_t unsure_until;
	uint64_t unsure_at;     // bytes of the kernel's stream that had come when the gateway was asked what they are; 0: not asked
	_Atomic bool asked;     // the gateway was asked after RECALL: see left_unopened; the writer also looks at it
	int64_t ended_at;       // when the kernel had reported the end, but the peer had not, or head last moved since
	uint64_t ended_head;
	bool last;              // FIN follows RAW: the end is not native, it ends
	uint64_t freed;         // tail when the bell was last rung for it
};

// An end as the producer; wl. The reader also looks at the atomic words.
struct tx {
	_Atomic int state;      // enum tx_state
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
	uint64_t moved;         // what the peer had taken when moves last looked, and since when
	int64_t moved_at;
	struct frame frame[FRAMES];
	uint64_t released;      // spilled when the copy's memory was last released
	_Alignas(4096) char spill[SMCI_SPILL];
};

// State of an end between hosts beyond struct end, in memory that fork() shares.
struct remote {
	uint32_t talk;          // the conversation with the gateway that granted the end
	int32_t pid;            // and the process that had it, which alone can say CLOSED,
	uint32_t tag;           // of this end
	uint64_t id;
	bool told;              // and has done so
	_Atomic bool gone;      // the gateway is gone
	_Atomic bool unfit;     // the ring is: the gateway stands still and the peer lacks bytes, or the kernel's path does not acknowledge
	_Atomic bool reset;     // a call has reported a reset to the program. The kernel's and the library's news of one both come here; it hears of one
	_Atomic int asleep;     // sleeping threads that will come back to this memory
	_Atomic uint32_t belled; // the value of the mirror's arm for which the bell was last rung
	uint64_t size;          // of the ring
	int sndbuf, locks;      // SO_SNDBUF and SO_BUF_LOCK before the gateway widened the send buffer; -1: unknown
	struct {                // rl: what the gateway writes, and what it looks at, when stands last looked; and for how long that was the same
		uint32_t arm;
		uint64_t by, by_us;
		int64_t at, stands_for;
	} gateway;
	struct {                // rl: ks and head when tx_shown last saw the kernel's stream move, and when
		uint64_t ks, head;
		int64_t at;
		bool unseen;    // what moved it was a NOP that the peer's kernel has not acknowledged
	} path;
	struct rx rx;
	struct tx tx;
};

static inline const unsigned char *nonce(const struct end *e, int which) { return (const unsigned char *)e->peer + SMCI_NONCES_AT + which * NONCE; }
static inline bool ours(const struct remote *m) { return m->pid == smcgw.pid; }

static inline int queued(int fd) {
	int q = 0;
	SYS(ioctl, fd, SIOCINQ, &q);
	return q;
}

// ---- remote.c
void remote_ring(struct end *e, uint32_t arm);
bool remote_lost(struct end *e); // whether the own gateway is gone
void remote_lacks(struct end *e);
void remote_blame(struct end *e, uint32_t why);
void remote_spoils(struct end *e, uint32_t why);
void remote_try_native(struct end *e, int fd);
void remote_all_back(struct end *e, int fd);
bool remote_reports(struct remote *m, int err); // whether an error is for the program
void remote_hurry(int64_t until);               // until then, smcgw_remote_round is called each 10 milliseconds

// remote_bell wakes the gateway if it sleeps. It announces that in arm, by a new value each time.
static inline void remote_bell(struct end *e) {
	fence();
	uint32_t a = get(&e->peer->arm);
	if (unlikely(a && a != e->remote->belled)) remote_ring(e, a);
}
static inline void remote_say(struct end *e, uint32_t f) {
	atomic_fetch_or(&e->own->flags, f);
	remote_bell(e);
}
// carrier_gone tells whether the carrier has ended: the mirror's head and tail no longer change.
static inline bool carrier_gone(struct end *e) { return remote_lost(e) || (get_acquire(&e->peer->flags) & SMCI_GONE); }

// struct sleep is a sleep of this thread in a call, without the lock: meanwhile m may be released, and the entry become another connection's.
struct sleep {
	struct end *e;
	struct remote *m;
	pthread_mutex_t *lock;
	uint32_t use;
};
void remote_falls_asleep(const struct sleep *s);
void remote_awakes(const struct sleep *s);
int remote_sleeps_in_poll(struct sleep *s, struct pollfd *p, int ms);
void remote_sleep_ends(struct sleep *s); // if the thread is cancelled

// ---- remote_rx.c; rl is held
enum step rx_step(struct end *e, int fd, char *b, size_t want, size_t *n);
bool rx_any(struct end *e, int fd);
void rx_readable(struct end *e, int fd);
void rx_left_as(struct end *e, int fd);
bool rx_unread(struct end *e, int fd);
void rx_sure(struct end *e);
bool rx_left_unopened(struct end *e);
bool rx_never_opens(struct end *e);
bool rx_behind_data(const struct end *e);
enum step rx_nears_raw(struct end *e, int fd);
bool rx_unread_at_close(struct end *e, int fd);
void rx_take_rest(struct end *e, int fd);
void rx_late(struct end *e, int fd);

// ---- remote_tx.c; wl is held, except by tx_heed, tx_kept_up, tx_fills and tx_shown, which try it with rl held
bool tx_has_all(struct end *e);
bool tx_had_all(struct end *e);
void tx_kept_up(struct end *e);
void tx_heed(struct end *e, int fd);
bool tx_must_leave(struct end *e);
bool tx_leave(struct end *e, int fd, bool last);
void tx_low(struct end *e, int fd);
bool tx_pay_all(struct end *e, int fd);
bool tx_last(struct end *e, int fd, int64_t within);
bool tx_end(struct end *e, int fd, int64_t within);
void tx_fills(struct end *e, int fd);
void tx_shown(struct end *e, int fd);
