package gateway

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
)

// relayStand is where both directions of a relay stand.
type relayStand struct {
	books   ledger
	over    bool // the flow is ending
	pushing bool // records wait for the wire leg
}

// txStuck: there are bytes to be sent, or an end, the peer's window is open, and
// nothing is read; or the wire leg takes nothing, although who reads records never
// waits; or the peer does not say where the flow goes on. That nothing comes
// through because the path is dead is no stall: then the peer is not heard.
func (r relayStand) txStuck(leg legReady) bool {
	b := &r.books
	pending := b.tail() || leg.readable && !b.ended
	return !r.over && (r.pushing || pending && (b.room() > 0 || b.peer != peerRelays))
}

// rxStuck: bytes came that the application would take.
func (r relayStand) rxStuck(leg legReady) bool {
	return !r.over && r.books.received > r.books.consumed && leg.writable
}

func (r *relay) stand() relayStand {
	pushing := r.pushing.Load()
	r.mu.Lock()
	defer r.mu.Unlock()
	return relayStand{books: r.books, over: r.err || r.wireGone, pushing: pushing}
}

// lookForStall is that of a relay; one goroutine calls it.
func (r *relay) lookForStall(leg *appLeg, now time.Time, timeout time.Duration) {
	defer r.f.contain()
	var ready legReady
	leg.control(func(fd int) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}}
		if n, err := unix.Poll(p, 0); err == nil && n > 0 {
			ready = readyOf(p[0].Revents)
		}
	})
	st := r.stand()
	txStuck, rxStuck := st.txStuck(ready), st.rxStuck(ready)
	if !txStuck && !rxStuck {
		r.stall = stallWatch{}
		return
	}
	b := &st.books
	written, heard := r.f.wire.Vitals()
	txStalled := r.stall.tx.look(txStuck, b.read+b.sent+written, heard, now, timeout)
	rxStalled := r.stall.rx.look(rxStuck, b.received+b.consumed, heard, now, timeout)
	if !txStalled && !rxStalled {
		return // the wire leg of a relay is kept alive anyway
	}
	r.f.stalled(config.CarrierRelay,
		"tx_stalled", txStalled, "tx_read", b.read, "tx_sent", b.sent, "tx_allowed", b.allowed, "tx_ended", b.ended, "tx_pushing", st.pushing,
		"rx_stalled", rxStalled, "rx_received", b.received, "rx_consumed", b.consumed, "rx_known", b.endKnown, "rx_final", b.final,
		"demoted", b.demoted, "peer_phase", b.peer, "app_readable", ready.readable, "app_writable", ready.writable)
}
