package mirror

import (
	"sync/atomic"

	"github.com/smcgw/smcgw/negotiate"
)

// counters are what an end counts, for any goroutine to read.
type counters struct {
	carrier                   atomic.Uint32 // kind of the link that carries, and 1
	sent, consumed            atomic.Uint64
	received, read            atomic.Uint64
	bells, doorbells, wakeups atomic.Uint64
}

// Report is what an end has done. Bytes are counted since it began.
type Report struct {
	ID uint64
	// Carrier is what carries, or has; Carried is false if nothing has.
	Carrier negotiate.CarrierKind
	Carried bool
	// RingBytes is the size of each of its rings.
	RingBytes uint64
	// Sent is what the gateway has taken from the library, Freed of that what the peer's has read. Received is what has come
	// from the peer, Read of that what the library has read.
	Sent, Freed, Received, Read uint64
	// Bells are those of the library, Doorbells and Wakeups those for it: of a reader, and of a writer.
	Bells, Doorbells, Wakeups uint64
}

// Report returns a snapshot, also of an end that is closed.
func (e *End) Report() Report {
	c := &e.counters
	kind := c.carrier.Load()
	return Report{
		ID: e.cfg.ID, Carrier: negotiate.CarrierKind(max(kind, 1) - 1), Carried: kind > 0, RingBytes: e.size,
		Sent: c.sent.Load(), Freed: c.consumed.Load(), Received: c.received.Load(), Read: c.read.Load(),
		Bells: c.bells.Load(), Doorbells: c.doorbells.Load(), Wakeups: c.wakeups.Load(),
	}
}
