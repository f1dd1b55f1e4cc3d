package conn

import (
	"time"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/report"
)

// relayStand is where both directions of a relay stand.
type relayStand struct {
	books   life.Ledger
	over    bool // the flow is ending
	pushing bool // records wait for the wire leg
}

// txStuck: there are bytes to be sent, or an end, the peer's window is open, and
// nothing is read; or the wire leg takes nothing, although a reader of records never
// waits; or the peer does not say where the flow goes on. That nothing comes
// through because the path is dead is no stall: then the peer is not heard.
func (r relayStand) txStuck(leg legReady) bool {
	b := &r.books
	pending := b.Tail() || leg.readable && b.Tx == life.TxOpen
	return !r.over && (r.pushing || pending && (b.Room() > 0 || b.Peer != life.PeerRelays))
}

// rxStuck: bytes came that the application would take.
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
		return // the wire leg of a relay is kept alive anyway
	}
	r.f.stalled(report.CarrierRelay,
		"tx_stalled", txStalled, "tx_read", b.Read, "tx_sent", b.Sent, "tx_allowed", b.Allowed, "tx_ended", b.Tx != life.TxOpen, "tx_pushing", st.pushing,
		"rx_stalled", rxStalled, "rx_received", b.Received, "rx_consumed", b.Consumed, "rx_known", b.Rx != life.RxOpen, "rx_final", b.Final,
		"demoted", b.Demoted, "peer_phase", b.Peer, "app_readable", leg.readable, "app_writable", leg.writable)
}
