package queues

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// smallest is the initial length of a ring, allocated with its first completion.
const smallest = 16

// Completion is a completion, with the work queue entries that polling it frees.
type Completion struct {
	WC      verbs.WC
	Retired *uint64 // the work queue's counter of freed entries
	Retire  uint64  // its new value, unless it is already larger
}

// Completions holds the completions of one CQ, oldest first. Make one with NewCompletions. Only the goroutine that
// drives the CQ's vector may use it.
type Completions struct {
	depth  uint64
	ring   []Completion // grows up to depth; length a power of two
	head   uint64
	tail   uint64
	closed bool
}

// NewCompletions makes an empty queue for at most depth completions. A depth outside 1 to most is verbs.ErrInvalid.
func NewCompletions(depth, most int) (Completions, error) {
	if depth < 1 || depth > most {
		return Completions{}, fmt.Errorf("completion queue depth %d: %w", depth, verbs.ErrInvalid)
	}
	return Completions{depth: uint64(depth)}, nil
}

// Full reports whether there is no room for another completion.
func (q *Completions) Full() bool { return q.Free() == 0 }

// Depth returns the maximum number of completions.
func (q *Completions) Depth() uint64 { return q.depth }

// Free returns how many more completions fit.
func (q *Completions) Free() uint64 { return q.depth - (q.tail - q.head) }

// Empty reports whether there is nothing to poll.
func (q *Completions) Empty() bool { return q.head == q.tail }

// Closed reports whether Close was called.
func (q *Completions) Closed() bool { return q.closed }

// Push adds a completion to a queue that is not full.
func (q *Completions) Push(e *Completion) {
	if q.tail-q.head == uint64(len(q.ring)) {
		q.grow()
	}
	q.ring[q.tail&uint64(len(q.ring)-1)] = *e
	q.tail++
}

func (q *Completions) grow() {
	ring := make([]Completion, max(smallest, 2*len(q.ring)))
	for i := q.head; i != q.tail; i++ {
		ring[i&uint64(len(ring)-1)] = q.ring[i&uint64(len(q.ring)-1)]
	}
	q.ring = ring
}

// Poll moves the oldest completions to wcs, frees the work queue entries they held, and returns how many there were.
func (q *Completions) Poll(wcs []verbs.WC) int {
	n := 0
	for ; n < len(wcs) && q.head != q.tail; n++ {
		e := &q.ring[q.head&uint64(len(q.ring)-1)]
		q.head++
		wcs[n] = e.WC
		*e.Retired = max(*e.Retired, e.Retire)
		e.Retired = nil
	}
	return n
}

// Close frees the memory; nothing may be pushed afterwards.
func (q *Completions) Close() {
	q.closed = true
	q.ring, q.head, q.tail = nil, 0, 0
}
