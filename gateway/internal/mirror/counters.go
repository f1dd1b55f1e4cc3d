package mirror

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/negotiate"
)

// counters are an end's counters, which any goroutine may read.
type counters struct {
	carrier                   atomic.Uint32 // 1 + the kind of the link that carries; 0: none has
	sent, consumed            atomic.Uint64
	received, read            atomic.Uint64
	bells, doorbells, wakeups atomic.Uint64
}

// Report is what an end has done. Byte counts are totals since it began.
type Report struct {
	ID uint64
	// Carrier is what carries the connection, or last did. Carried is false if nothing ever has.
	Carrier negotiate.CarrierKind
	Carried bool
	// RingBytes is the size of each ring.
	RingBytes uint64
	// Sent is what the gateway has taken from the library, Freed how much of it the peer's library has read. Received
	// is what has come from the peer, Read how much of it the library has read.
	Sent, Freed, Received, Read uint64
	// Bells counts the bells from the library, Doorbells and Wakeups those to it, for a reader and for a writer.
	Bells, Doorbells, Wakeups uint64
}

// Report returns a snapshot, even of a closed end.
func (e *End) Report() Report {
	c := &e.counters
	kind := c.carrier.Load()
	return Report{
		ID: e.cfg.ID, Carrier: negotiate.CarrierKind(max(kind, 1) - 1), Carried: kind > 0, RingBytes: e.size,
		Sent: c.sent.Load(), Freed: c.consumed.Load(), Received: c.received.Load(), Read: c.read.Load(),
		Bells: c.bells.Load(), Doorbells: c.doorbells.Load(), Wakeups: c.wakeups.Load(),
	}
}
