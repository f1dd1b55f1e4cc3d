package conn

import (
	"time"

	"golang.org/x/sys/unix"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/rsocket"
)

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
