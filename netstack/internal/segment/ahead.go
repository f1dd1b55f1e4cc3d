package segment

import (
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/packet"
)

// HeldTotal is the memory that the segments of all flows take together. Legs that relay may have all of it, and each of them
// a quarter; the others half of it together, and each of them HeldLeg.
const (
	HeldTotal = 64 << 20
	HeldLeg   = 256 << 10
)

// farthest is beyond every window: an endpoint keeps nothing that is as far ahead.
const farthest = 64 << 20

// Budget is what is left of HeldTotal. The zero value is whole.
type Budget struct{ used atomic.Int64 }

// Used is the memory that is taken.
func (b *Budget) Used() int64 { return b.used.Load() }

// take reports whether the flow that has taken so much already may take n bytes more.
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

// Arrived is a segment that has come.
type Arrived struct {
	Seq, End uint32
	Cost     int64 // the memory of its buffers
}

// Ahead is what one flow has taken of the budget: the memory of segments that came before those in front of them.
//
// gVisor keeps such segments for each connection by itself, up to its receive buffer, repeated ones too, and counts their
// bytes, not the buffers that these are in. Here the buffers are counted, of all connections of a stack together. The trap:
// what is counted is at least what gVisor keeps, and can be more for as long as a gap is open.
//
// Methods may be called concurrently.
//
// The segments are counted in two generations: the old one returns to the budget when everything before its end was acknowledged,
// and the next one takes its place. So what has come in a round trip is counted at most twice.
type Ahead struct {
	taken atomic.Bool // something is counted

	mu       sync.Mutex // guards everything below
	begun    bool       // what is below is valid
	over     bool       // the flow has ended
	top      uint32     // the end of what has come
	gap      uint32     // what was acknowledged, or where the last gap ends: bytes in front of it are missing
	old, new generation
}

type generation struct {
	bytes int64
	end   uint32
}

// Take reports whether g may be given to an endpoint that has acknowledged everything before acked. What continues where
// the last segment of a relay ended is in order, if no gap is open: the endpoint has not come to it yet. A leg that carries
// records has next to nothing under way, so everything ahead of the acknowledgement counts.
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
		q.gap = acked // none is open
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

// count adds g to the newer generation.
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

// Acked notes that the endpoint has acknowledged everything before acked, and whether it has said that something behind is
// missing.
func (q *Ahead) Acked(b *Budget, acked uint32, missing bool) {
	if !missing && !q.taken.Load() {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if missing && q.begun && packet.After(q.top, q.gap) {
		q.gap = q.top // the endpoint may have dropped what the network has not
	}
	for q.old.bytes > 0 && !packet.After(q.old.end, acked) {
		b.used.Add(-q.old.bytes)
		q.old, q.new = q.new, generation{}
	}
	q.taken.Store(q.old.bytes > 0)
}

// End returns everything to the budget. A flow that has ended takes nothing.
func (q *Ahead) End(b *Budget) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b.used.Add(-q.old.bytes - q.new.bytes)
	q.old, q.new, q.over = generation{}, generation{}, true
	q.taken.Store(false)
}
