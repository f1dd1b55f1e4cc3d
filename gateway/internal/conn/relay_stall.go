package conn

import (
	"time"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
)

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
