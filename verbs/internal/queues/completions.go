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
	most    uint64 // the device's limit of depth
	depth   uint64
	ring    []Completion // grows up to depth; length a power of two
	head    uint64
	tail    uint64
	armed   arming
	channel *verbs.CompChannel
	closed  bool
}

type arming uint8

const (
	unarmed arming = iota
	armedSolicited
	armedAny
)

// NewCompletions makes an empty queue for at most depth completions; channel may be nil. A depth outside 1 to most is
// verbs.ErrInvalid.
func NewCompletions(depth, most int, channel *verbs.CompChannel) (Completions, error) {
	q := Completions{most: uint64(most), channel: channel}
	return q, q.Resize(depth)
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

// Push adds a completion to a queue that is not full, and notifies the channel for cq if it was armed for such a
// completion (IBTA vol. 1, 11.4.2.2).
func (q *Completions) Push(e *Completion, solicited bool, cq verbs.CQ) {
	if q.tail-q.head == uint64(len(q.ring)) {
		q.grow()
	}
	q.ring[q.tail&uint64(len(q.ring)-1)] = *e
	q.tail++
	if q.armed == armedAny || q.armed == armedSolicited && (solicited || e.WC.Status != verbs.WCSuccess) {
		q.armed = unarmed
		q.channel.Notify(cq)
	}
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

// ReqNotify implements verbs.CQ.
func (q *Completions) ReqNotify(solicited bool) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.channel == nil:
		return fmt.Errorf("completion queue without channel: %w", verbs.ErrInvalid)
	case !solicited:
		q.armed = armedAny
	case q.armed == unarmed:
		q.armed = armedSolicited
	}
	return nil
}

// Resize implements verbs.CQ.
func (q *Completions) Resize(depth int) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case depth < 1 || uint64(depth) > q.most || uint64(depth) < q.tail-q.head:
		return fmt.Errorf("completion queue depth %d: %w", depth, verbs.ErrInvalid)
	}
	q.depth = uint64(depth)
	return nil
}

// Close frees the memory; nothing may be pushed afterwards.
func (q *Completions) Close() {
	q.closed = true
	q.ring, q.head, q.tail = nil, 0, 0
}
