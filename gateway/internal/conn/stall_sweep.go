package conn

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// stallBatch is how many flows of a shard are polled by one system call. Between two batches
// the shard takes a turn.
const stallBatch = 128

// StallLoop checks every connection, several times within the time that counts as a stall,
// until ctx ends.
func StallLoop(ctx context.Context, timeout time.Duration, all func() []*Flow) {
	tick := time.NewTicker(timeout / life.StallLooks)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			lookForStalls(all(), timeout)
		case <-ctx.Done():
			return
		}
	}
}

// lookForStalls checks every connection once. Calls must not overlap.
func lookForStalls(all []*Flow, timeout time.Duration) {
	batches := map[*loop.Shard][]*Flow{}
	for _, f := range all {
		if !f.Carried() {
			continue
		}
		s := f.Shard
		batches[s] = append(batches[s], f)
		if len(batches[s]) == stallBatch {
			lookAt(s, batches[s], timeout)
			batches[s] = batches[s][:0]
		}
	}
	for s, batch := range batches {
		lookAt(s, batch, timeout)
	}
}

// pump returns the pump that moves the bytes of a flow and can stall, or nil.
func (f *Flow) pump() pump {
	switch {
	case f.core.Ended():
		return nil
	case f.core.By() == life.ByRelay:
		return f.relay
	case f.core.By() == life.ByLink:
		return f.picked
	default:
		return nil
	}
}

// lookAt checks flows of one shard, on its thread.
func lookAt(s *loop.Shard, flows []*Flow, timeout time.Duration) {
	s.Call(func() {
		var polled [stallBatch]unix.PollFd
		var pumps [stallBatch]pump
		n := 0
		for _, f := range flows {
			p := f.pump()
			if p == nil {
				continue
			}
			if fd, ok := p.watchable(); ok {
				polled[n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}
				pumps[n] = p
				n++
			}
		}
		if n == 0 {
			return
		}
		if _, err := unix.Poll(polled[:n], 0); err != nil {
			return // the next look will find the same
		}
		now := time.Now()
		for i, p := range pumps[:n] {
			s.WorksFor(p.Owner())
			if _, ok := p.watchable(); ok {
				p.lookForStall(readyOf(polled[i].Revents), now, timeout)
			}
		}
	})
}

// stalled ends a flow that a gateway has stalled. where describes the state of both
// directions for the log.
func (f *Flow) stalled(by report.Carrier, where ...any) {
	f.env.Counters.stalled(by)
	f.env.Log.Warn("connection stalled", append([]any{"flow_id", f.ID, "side", f.Side, "carrier", by, "remote", f.Tuple.Remote}, where...)...)
	f.abort(negotiate.ReasonStalled, false)
}

// legReady is the result of polling an app leg: whether it is readable and writable now,
// regardless of edges reported earlier.
type legReady struct{ readable, writable bool }

func readyOf(revents int16) legReady {
	const in = unix.POLLIN | unix.POLLHUP | unix.POLLERR | unix.POLLRDHUP
	return legReady{readable: revents&in != 0, writable: revents&unix.POLLOUT != 0}
}

// txStand is the state of the direction from the application.
type txStand struct {
	sent, freed uint64
	ended       bool
	blocked     rsocket.Blocked
}

// stuck reports whether the application has bytes, or an end, that could be sent. A full peer
// ring is a valid reason to wait while the peer's application does not read, but not if the
// peer says that it has consumed everything.
func (t txStand) stuck(leg legReady) bool {
	if t.ended || !leg.readable {
		return false
	}
	switch t.blocked {
	case rsocket.NotBlocked, rsocket.BlockedSQ, rsocket.BlockedIOMap:
		return true
	case rsocket.BlockedGrant, rsocket.BlockedCredit, rsocket.BlockedSndbuf:
		return t.freed == t.sent
	default:
		return false
	}
}

// rxStand is the state of the direction to the application.
type rxStand struct {
	received, consumed uint64
	known, ended       bool // the end is known; was passed on
	final              uint64
}

// stuck reports whether there are bytes that the application would take, an end that it has
// not been told, or bytes announced by the peer that have not come.
func (r rxStand) stuck(leg legReady) bool {
	switch {
	case r.ended:
		return false
	case r.received > r.consumed:
		return leg.writable
	default:
		return r.known
	}
}

// lookForStall implements pump. While a stall is suspected, it asks the peer for a sign of
// life.
func (c *carry) lookForStall(leg legReady, now time.Time, timeout time.Duration) {
	b := &c.f.core.Ledger
	tx := txStand{sent: c.EP.SentOffset(), freed: c.EP.FreedOffset(), ended: b.Tx != life.TxOpen, blocked: c.EP.Blocked()}
	rx := rxStand{
		received: c.EP.ReceivedOffset(), consumed: c.EP.ConsumedOffset(),
		known: b.Rx != life.RxOpen, ended: b.Rx >= life.RxShut, final: b.Final,
	}
	c.f.ring.note(c.EP.RingSize(), rx.received-rx.consumed, tx.sent-tx.freed)
	txStuck, rxStuck := tx.stuck(leg), rx.stuck(leg)
	if !txStuck && !rxStuck {
		c.stall = nil
		return
	}
	if c.stall == nil {
		c.stall = &life.StallWatch{}
	}
	_, heard := c.f.wire.Vitals()
	txStalled := c.stall.Tx.Look(txStuck, tx.sent+tx.freed, heard, now, timeout)
	rxStalled := c.stall.Rx.Look(rxStuck, rx.received+rx.consumed, heard, now, timeout)
	if !txStalled && !rxStalled {
		c.f.ask()
		return
	}
	c.f.stalled(report.Carrier(c.Kind.String()),
		"tx_stalled", txStalled, "tx_sent", tx.sent, "tx_freed", tx.freed, "tx_ended", tx.ended, "tx_blocked", tx.blocked,
		"rx_stalled", rxStalled, "rx_received", rx.received, "rx_consumed", rx.consumed, "rx_known", rx.known, "rx_final", rx.final,
		"app_readable", leg.readable, "app_writable", leg.writable)
}

// watchable implements pump.
func (c *carry) watchable() (fd int, ok bool) {
	return c.fd, c.Carries() && !c.f.core.LegDone && !c.failed && c.EP.Err() == nil
}

// relayStand is the state of both directions of a relay.
type relayStand struct {
	books   life.Ledger
	over    bool // the flow is ending
	pushing bool // records wait for the wire leg
}

// txStuck reports whether the direction to the peer should be moving: there are bytes or an
// end to send and the peer's window is open; or the wire leg takes nothing, although a reader
// of records never pauses; or the peer does not say where the flow continues. A dead path is
// not a stall: then the peer is not heard at all.
func (r relayStand) txStuck(leg legReady) bool {
	b := &r.books
	pending := b.Tail() || leg.readable && b.Tx == life.TxOpen
	return !r.over && (r.pushing || pending && (b.Room() > 0 || b.Peer != life.PeerRelays))
}

// rxStuck reports whether bytes have come that the application would take.
func (r relayStand) rxStuck(leg legReady) bool {
	return !r.over && r.books.Received > r.books.Consumed && leg.writable
}

func (r *relay) stand() relayStand {
	return relayStand{books: r.f.core.Ledger, over: !r.ctl.talks() || r.f.core.Gone(), pushing: r.ctl.out.len() > 0}
}

// watchable implements pump.
func (r *relay) watchable() (fd int, ok bool) { return r.fd, r.fd >= 0 && r.ctl.talks() }

// lookForStall implements pump.
func (r *relay) lookForStall(leg legReady, now time.Time, timeout time.Duration) {
	st := r.stand()
	txStuck, rxStuck := st.txStuck(leg), st.rxStuck(leg)
	if !txStuck && !rxStuck {
		r.stall = life.StallWatch{}
		return
	}
	b := &st.books
	written, heard := r.f.wire.Vitals()
	txStalled := r.stall.Tx.Look(txStuck, b.Read+b.Sent+written, heard, now, timeout)
	rxStalled := r.stall.Rx.Look(rxStuck, b.Received+b.Consumed, heard, now, timeout)
	if !txStalled && !rxStalled {
		return // a relay's wire leg has keepalive anyway
	}
	r.f.stalled(report.CarrierRelay,
		"tx_stalled", txStalled, "tx_read", b.Read, "tx_sent", b.Sent, "tx_allowed", b.Allowed, "tx_ended", b.Tx != life.TxOpen, "tx_pushing", st.pushing,
		"rx_stalled", rxStalled, "rx_received", b.Received, "rx_consumed", b.Consumed, "rx_known", b.Rx != life.RxOpen, "rx_final", b.Final,
		"demoted", b.Demoted, "peer_phase", b.Peer, "app_readable", leg.readable, "app_writable", leg.writable)
}

// Stuck handles an entry whose connection has waited long for the next step of a handshake. A
// flow has its own deadlines. If there is none, the packet that should have created one was
// lost on the way here (the queue of a TUN was full). The application has connected natively
// or given up meanwhile, and nothing else would remove the entry.
func (d *Desk) Stuck(e ebpf.Flow) {
	if f := d.Find(host.Tuple(e.Tuple)); f == nil || f.ISN != e.ISN {
		_ = d.Env.Steering.Delete(e.Tuple, e.ISN, e.State) // fails if the entry has changed meanwhile
	}
}
