package segment

import (
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/packet"
)

// HeldTotal is the memory for out-of-order segments of all flows together. Legs that relay may use all of it, and each
// of them a quarter. The others may use half of it together, and each of them HeldLeg.
const (
	HeldTotal = 64 << 20
	HeldLeg   = 256 << 10
)

// farthest is beyond every window: an endpoint keeps nothing that far ahead.
const farthest = 64 << 20

// Budget is the remainder of HeldTotal. The zero value is all of it.
type Budget struct{ used atomic.Int64 }

// Used returns the memory in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// take reports whether a flow that already uses already bytes may use n more, and takes them if so.
func (b *Budget) take(n, already int64, relays bool) bool {
	most, each := int64(HeldTotal/2), int64(HeldLeg)
	if relays {
		most, each = HeldTotal, HeldTotal/4
	}
	if already+n > each {
		return false
	}
	if b.used.Add(n) > most {
		b.used.Add(-n)
		return false
	}
	return true
}

// Arrived is an inbound segment.
type Arrived struct {
	Seq, End uint32
	Cost     int64 // the memory of its buffers
}

// Ahead is one flow's share of the budget: the memory of segments that arrived ahead of missing ones.
//
// gVisor keeps such segments for each connection separately, up to its receive buffer, including duplicates, and counts
// their bytes rather than the buffers that hold them. Ahead counts the buffers, for all connections of a stack
// together. What it counts is at least what gVisor keeps, and can be more while a gap is open.
//
// It is safe for concurrent use.
//
// Segments are counted in two generations. The old one is returned to the budget when everything before its end has
// been acknowledged, and the new one replaces it. So the arrivals of one round trip are counted at most twice.
type Ahead struct {
	taken atomic.Bool // something is counted

	mu       sync.Mutex // guards everything below
	begun    bool       // the fields below are valid
	over     bool       // the flow has ended
	top      uint32     // the end of what has arrived
	gap      uint32     // the acknowledgement, or the end of the last gap, before which bytes are missing
	old, new generation
}

type generation struct {
	bytes int64
	end   uint32
}

// Take reports whether g may be passed to an endpoint that has acknowledged everything before acked. On a relay, a
// segment that continues where the last one ended is in order if no gap is open; the endpoint has just not processed
// the last one yet. A leg that carries records has next to nothing in flight, so everything ahead of the
// acknowledgement counts.
func (q *Ahead) Take(b *Budget, g Arrived, acked uint32, relays bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.begun {
		q.begun, q.top, q.gap = true, acked, acked
	}
	if packet.After(acked, q.top) {
		q.top = acked
	}
	if !packet.After(q.gap, acked) {
		q.gap = acked // no gap is open
	}
	if packet.After(g.Seq, acked) && g.Seq-acked >= farthest {
		return true
	}
	inOrder := !packet.After(g.Seq, acked) || relays && g.Seq == q.top && q.gap == acked
	if packet.After(g.Seq, q.top) {
		q.gap = g.Seq
	}
	if !inOrder && (q.over || !b.take(g.Cost, q.old.bytes+q.new.bytes, relays)) {
		return false
	}
	if packet.After(g.End, q.top) {
		q.top = g.End
	}
	if !inOrder {
		q.count(g)
	}
	return true
}

// count counts g in the new generation.
func (q *Ahead) count(g Arrived) {
	into := &q.new
	if q.old.bytes == 0 {
		into = &q.old
	}
	if into.bytes == 0 || packet.After(g.End, into.end) {
		into.end = g.End
	}
	into.bytes += g.Cost
	q.taken.Store(true)
}

// Acked records that the endpoint has acknowledged everything before acked. missing says that it has reported missing
// bytes after that.
func (q *Ahead) Acked(b *Budget, acked uint32, missing bool) {
	if !missing && !q.taken.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if missing && q.begun && packet.After(q.top, q.gap) {
		q.gap = q.top // the endpoint may have dropped what the network has delivered
	}
	for q.old.bytes > 0 && !packet.After(q.old.end, acked) {
		b.used.Add(-q.old.bytes)
		q.old, q.new = q.new, generation{}
	}
	q.taken.Store(q.old.bytes > 0)
}

// End returns everything to the budget. A flow that has ended takes nothing more.
func (q *Ahead) End(b *Budget) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.used.Add(-q.old.bytes - q.new.bytes)
	q.old, q.new, q.over = generation{}, generation{}, true
	q.taken.Store(false)
}
