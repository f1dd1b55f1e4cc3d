package gateway

import (
	"time"

	"golang.org/x/sys/unix"
)

// relayStand is where both directions of a relay stand.
type relayStand struct {
	sent, allowed      uint64
	received, consumed uint64
	txEnded, rxEnded   bool
	pushing            bool // records wait for the wire leg
}

// txStuck: the application has bytes, or an end, the peer's window is open, and
// nothing is read; or the wire leg takes nothing, although who reads records never
// waits. That it takes nothing because the path is dead is no stall: then the peer
// is not heard.
func (r relayStand) txStuck(leg legReady) bool {
	return r.pushing || !r.txEnded && leg.readable && r.sent < r.allowed
}

// rxStuck: bytes came that the application would take.
func (r relayStand) rxStuck(leg legReady) bool {
	return !r.rxEnded && r.received > r.consumed && leg.writable
}

func (r *relay) stand() relayStand {
	r.mu.Lock()
	defer r.mu.Unlock()
	return relayStand{
		sent: r.sent, allowed: r.allowed, received: r.received, consumed: r.consumed,
		txEnded: r.endSent || r.err || r.wireGone, rxEnded: r.haveSent || r.err,
		pushing: r.pushing.Load() && !r.err,
	}
}

// lookForStall is that of a relay; one goroutine calls it.
func (r *relay) lookForStall(leg *appLeg, now time.Time, timeout time.Duration) {
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
	written, heard := r.f.wire.Vitals()
	txStalled := r.stall.tx.look(txStuck, st.sent+written, heard, now, timeout)
	rxStalled := r.stall.rx.look(rxStuck, st.received+st.consumed, heard, now, timeout)
	if !txStalled && !rxStalled {
		return // the wire leg of a relay is kept alive anyway
	}
	r.f.stalled(CarrierRelay,
		"tx_stalled", txStalled, "tx_sent", st.sent, "tx_allowed", st.allowed, "tx_ended", st.txEnded, "wire_written", written,
		"rx_stalled", rxStalled, "rx_received", st.received, "rx_consumed", st.consumed, "rx_ended", st.rxEnded,
		"app_readable", ready.readable, "app_writable", ready.writable)
}
