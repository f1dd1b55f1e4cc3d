// A promoted connection whose other end is on another host; docs/protocol/between-hosts.md has the rules. The host's gateway writes the
// mirror, e->peer, and reads what this end writes. Between OPEN and RAW the kernel's stream consists of frames.
#include "remote.h"

#include <netinet/in.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAST_WITHIN 2000000000LL
#define CLOSE_WITHIN 60000000000LL      // nanoseconds without any progress after which close() gives up what is left
#define ANSWERED_WITHIN 300000000LL    // nanoseconds that a close() by one of several processes waits for the peer
#define READ_WITHIN (20 * 1000000LL)    // nanoseconds in which another thread of the program may read what is before OPEN
#define TOLD_WITHIN 1000000000LL        // nanoseconds in which a thread that sleeps in a call hears of shutdown()
#define WAKES_WITHIN 2000000000LL       // nanoseconds in which a gateway that runs changes arm: it needs milliseconds
#define HURRY (10 * 1000000LL)         // nanoseconds between looks at ends that wait for news

_Atomic int smcgw_remotes;

static _Atomic int64_t hurry_until; // until then, ends of this process wait for news of how their peer's process ended

void remote_ring(struct end *e, uint32_t a) {
	uint64_t one = 1;
	put(&e->remote->belled, a); // written under either lock: at worst the bell rings twice
	SYS(write, place_of(e)->memory.bell, &one, sizeof one);
}

bool remote_lost(struct end *e) {
	struct remote *m = e->remote;
	if (get(&m->gone)) return true;
	if (m->pid == smcgw.pid && m->talk != get(&smcgw_talk)) put(&m->gone, true);
	return get(&m->gone);
}

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
	m->rx.lowat = 1;
	m->rx.has_rest = UINT64_MAX;
	e->remote = m;
	place_of(e)->memory.remote = m;
	return true;
}

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

// remote_reports tells whether an error is for the program: a reset is reported once, by whichever call.
bool remote_reports(struct remote *m, int err) { return (err != ECONNRESET && err != ECONNABORTED) || !atomic_exchange(&m->reset, true); }

// smcgw_remote_error returns the error that SO_ERROR shows: err, which the kernel reports, or one that it has already reported to the library.
int smcgw_remote_error(struct end *e, int err) {
	if (!smcgw_lock(e, &e->rl)) return err;
	if (e->attached && place_of(e)->memory.remote) {
		if (!err && (e->died || e->remote->rx.state == BACK) && (err = e->rx_error)) {
			e->rx_error = 0;
			e->eof = true;
		}
		if (err && !remote_reports(e->remote, err)) err = 0;
	}
	smcgw_unlock(e, &e->rl);
	return err;
}

// smcgw_remote_tune notes what the gateway changes: the size of the send buffer, and whether the kernel may do so, too.
void smcgw_remote_tune(struct end *e, int fd) {
	e->remote->sndbuf = int_option(fd, SOL_SOCKET, SO_SNDBUF);
	e->remote->locks = int_option(fd, SOL_SOCKET, SO_BUF_LOCK);
	tx_low(e, fd); // the direction may not open for long
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
	remote_bell(e);
}

// remote_lacks is called when it is not known any more where the kernel's stream is.
void remote_lacks(struct end *e) {
	smcgw_violated(e);
	put(&e->report.why, SMCI_WHY_SHARED);
}

// tell says CLOSED, unless that is for another process to say.
static void tell(struct end *e, struct remote *m) {
	if (m->told || !ours(m)) return;
	m->told = true;
	smcgw_closed_as(e, m->tag, m->id);
}

// remote_blame records why the end goes back, unless that is known.
void remote_blame(struct end *e, uint32_t why) {
	if (!get(&e->report.why)) put(&e->report.why, why);
}

// native turns an end whose directions have both gone back into an ordinary one, which may ask again. Both locks are held. Its memory stays
// until it asks: a thread may be asleep with it.
static void native(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (!e->attached || m->rx.state != BACK || m->rx.drop || (m->tx.state != RETURNED && m->tx.state != NATIVE) || e->eof || e->rx_error || e->tx_error) return;
	if (m->rx.last && !get(&e->passed) && !remote_lost(e) && !sent_back(e)) return;
	remote_blame(e, switched_off() ? SMCI_WHY_OFF : SMCI_WHY_RECALLED);
	smcgw_untune(e, fd);
	remote_say(e, SMCI_GONE);
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

void remote_try_native(struct end *e, int fd) { // rl is held
	struct remote *m = e->remote;
	if (likely(m->rx.state != BACK) || m->rx.drop || !smcgw_try(e, &e->wl)) return;
	if (smcgw_still(e, fd)) native(e, fd);
	smcgw_unlock(e, &e->wl);
}

// remote_all_back does so for a writer whose program may never read. wl is held.
void remote_all_back(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (likely(m->tx.state == OPENED || m->tx.state == RETURNS) || (m->rx.state != BACK && !rx_left_unopened(e)) || !smcgw_try(e, &e->rl)) return;
	if (smcgw_still(e, fd)) {
		rx_never_opens(e);
		native(e, fd);
	}
	smcgw_unlock(e, &e->rl);
}

static __thread const struct remote *sleeps_in;

void remote_falls_asleep(const struct sleep *s) {
	atomic_fetch_add(&s->m->asleep, 1);
	sleeps_in = s->m;
	smcgw_unlock(s->e, s->lock);
}

void remote_awakes(const struct sleep *s) {
	smcgw_lock(s->e, s->lock);
	sleeps_in = 0;
	if (get(&s->e->use) == s->use && place_of(s->e)->memory.remote == s->m) atomic_fetch_sub(&s->m->asleep, 1);
}

static void is_cancelled(void *p) {
	const struct sleep *s = p;
	remote_awakes(s);
	smcgw_unlock(s->e, s->lock);
}

int remote_sleeps_in_poll(struct sleep *s, struct pollfd *p, int ms) {
	int k;
	pthread_cleanup_push(is_cancelled, s);
	k = REAL(poll)(p, 1, ms);
	pthread_cleanup_pop(0);
	return k;
}

void remote_sleep_ends(struct sleep *s) { // if the thread is cancelled
	pthread_cleanup_push(is_cancelled, s);
	pthread_testcancel();
	pthread_cleanup_pop(0);
}

// raw_may_come tells whether no bytes are before RAW that only the program can take; s is what the reader has met.
static bool raw_may_come(const struct end *e, enum step s) {
	switch (e->remote->rx.state) {
	case LOOK: return s != AT_END && !rx_behind_data(e);
	case FRAMED: return s == NOTHING || s == FROM_RING;
	default: return true;
	}
}

static _Atomic int64_t unanswered_until; // until then, no close() waits for an answer: there was none to another

// smcgw_remote_leaves is called before this process closes its last descriptor of an end while other processes go on, with both locks held.
// They may never use the end, so what the carrier may no longer deliver goes by the kernel. And the gateway tells them nothing more, so the
// peer's direction goes back, too, if the peer answers soon. Otherwise the rest of its last frame would stay in the queue, and the kernel
// would reset the connection when they end without close().
void smcgw_remote_leaves(struct end *e, int fd) {
	struct remote *m = e->remote;
	if (!ours(m) || !tx_pay_all(e, fd)) return;
	if (!(tx_has_all(e) && smcgw_heard(fd)) && tx_leave(e, fd, false)) tx_pay_all(e, fd);
	if (remote_lost(e) || now() < get(&unanswered_until)) return;
	rx_sure(e);
	remote_say(e, SMCI_RECALL);
	for (int64_t until = now() + ANSWERED_WITHIN; raw_may_come(e, rx_nears_raw(e, fd)) && (m->rx.state != BACK || m->rx.drop);) {
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
void smcgw_remote_never(struct end *e) { remote_say(e, SMCI_GONE); }

bool smcgw_remote_ended(struct end *e, int fd, int how) {
	if (how != SHUT_WR) put(&e->read_ended, true);
	if (how == SHUT_RD || !smcgw_still(e, fd)) return true;
	if (!smcgw_lock(e, &e->wl)) return true;
	bool done = true;
	if (smcgw_still(e, fd) && !atomic_load(&e->write_ended) && e->fin == FIN_NONE) {
		done = tx_end(e, fd, LAST_WITHIN) || e->tx_error;
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
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	bool reset = smcgw_resets(e, fd) || rx_unread_at_close(e, fd);
	if (writes && !reset && e->fin != FIN_SENT && !(e->fin == FIN_OWED ? tx_last(e, fd, CLOSE_WITHIN) : tx_end(e, fd, CLOSE_WITHIN)) && !e->tx_error) reset = true;
	if (!reset) rx_take_rest(e, fd);
	set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
	// Before GONE: the gateway keeps its duplicate until the FIN is acknowledged, and would close a socket without one at once.
	if (!reset) SYS(shutdown, fd, SHUT_WR);
	remote_say(e, reset ? SMCI_GONE | SMCI_RESET : SMCI_GONE);
	if (reset) SYS(connect, fd, &none, sizeof none);
	uncount(e);
}

// ends_plainly tells whether the kernel, too, reports the end that the library has come to.
static bool ends_plainly(struct end *e, int fd) {
	if (!e->eof || e->died || e->rx_error || get(&e->violated)) return false;
	return e->remote->rx.state != LOOK || !queued(fd) || get(&e->read_ended);
}

bool smcgw_remote_demote(struct end *e, int fd, int64_t until) {
	uint64_t kr = UINT64_MAX;
	int64_t read_until = 0;
	bool done = false;
	put(&e->passed, true);
	if (!smcgw_lock_until(e, &e->rl, until)) return false;
	if (!smcgw_lock_until(e, &e->wl, until)) {
		smcgw_unlock(e, &e->rl);
		return false;
	}
	if (smcgw_still(e, fd)) {
		rx_sure(e); // the peer may still open after an answer to that question
		remote_say(e, SMCI_RECALL);
	}
	while (smcgw_still(e, fd)) {
		struct remote *m = e->remote;
		if (tx_pay_all(e, fd)) tx_leave(e, fd, false);
		const bool paid = tx_pay_all(e, fd);
		const enum step s = rx_nears_raw(e, fd);
		if (paid && m->tx.state != OPENED && s == AT_END && ends_plainly(e, fd)) {
			m->rx.state = BACK;
			m->rx.type = NO_FRAME;
			m->rx.drop = 0;
			e->eof = false;
		}
		if (paid && m->rx.state == BACK && !m->rx.drop) {
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
		if (now() > until || (paid && rx_behind_data(e) && now() > read_until)) break;
		smcgw_unlock(e, &e->wl);
		smcgw_unlock(e, &e->rl);
		SYS(nanosleep, &((struct timespec){0, 200000}), 0);
		smcgw_lock(e, &e->rl);
		smcgw_lock(e, &e->wl);
	}
	done = done || state_of(e) == SMCI_NATIVE || state_of(e) == SMCI_NEVER; // by another thread
	smcgw_unlock(e, &e->wl);
	if (!done && smcgw_still(e, fd)) {
		e->remote->rx.asked = false;
		rx_left_as(e, fd);
	}
	smcgw_unlock(e, &e->rl);
	return done;
}

// remote_spoils ends the use of the ring.
void remote_spoils(struct end *e, uint32_t why) {
	remote_blame(e, why);
	put(&e->remote->unfit, true);
}

// stands finds out that the gateway stands still while the peer lacks bytes: it has been rung for, and has not woken up. The peer may be
// unable to say so, since it has ended its direction or never opened it. rl is held.
static void stands(struct end *e) {
	struct remote *m = e->remote;
	const uint64_t head = get(&e->own->head), tail = get_acquire(&e->peer->tail), by_it = tail + get_acquire(&e->peer->head);
	const uint32_t a = get(&e->peer->arm);
	const int64_t t = now_coarse(), since = t - m->gateway.at < ROUND * 1000000L ? t - m->gateway.at : ROUND * 1000000L;
	const uint64_t by_us = head + get(&e->own->tail);
	const bool busy = !a && by_us != m->gateway.by_us; // it may look all the time at a program that reads, or writes to a peer that reads nothing
	if (m->tx.state != OPENED || head == tail || a != m->gateway.arm || by_it != m->gateway.by) m->gateway.stands_for = 0;
	else m->gateway.stands_for += busy ? since / 5 : since;
	m->gateway.at = t;
	m->gateway.arm = a;
	m->gateway.by = by_it;
	m->gateway.by_us = by_us;
	if (m->gateway.stands_for >= WAKES_WITHIN / 2 && a && a != get(&m->belled)) { // it sleeps, since it has taken all; or it was stopped in its sleep
		remote_ring(e, a);
		m->gateway.stands_for = 0;
	} else if (m->gateway.stands_for >= WAKES_WITHIN) {
		remote_spoils(e, SMCI_WHY_SLOW_CARRIER);
	}
}

void remote_hurry(int64_t until) { put(&hurry_until, until); }

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
			rx_late(e, fd);
			tx_heed(e, fd);
			tx_fills(e, fd);
			if (get(&e->own->flags) & SMCI_RECALL && e->remote->rx.state == FRAMED && !e->repair_rx) rx_left_as(e, fd); // the program may never read
			remote_try_native(e, fd);
		}
		if (smcgw_still(e, fd)) {
			bool ends = e->remote->rx.ended_at && !e->died;
			tx_shown(e, fd);
			// So that waits look. A process that was killed may have left SO_RCVLOWAT without asking for a doorbell.
			if (carrier_gone(e) || e->remote->rx.unsure_until || ends || e->remote->rx.voided || e->repair_rx) rx_readable(e, fd);
			if (ends && rx_any(e, fd)) smcgw_remind(e); // the kernel will report nothing more
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
