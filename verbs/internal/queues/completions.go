package queues

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// smallest is the length of a ring that holds its first completion.
const smallest = 16

// Completion is a completion with what its polling frees in its work queue.
type Completion struct {
	WC      verbs.WC
	Retired *uint64 // the queue's counter of work requests that are done with
	Retire  uint64  // what it becomes, unless it is more already
}

// Completions holds the completions of one CQ, oldest first. Make one with NewCompletions. It is
// used by the goroutine that drives the CQ's vector only.
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

// NewCompletions makes a queue of at least one and at most depth completions; channel may
// be nil. Another depth than 1 to most is verbs.ErrInvalid.
func NewCompletions(depth, most int, channel *verbs.CompChannel) (Completions, error) {
	q := Completions{most: uint64(most), channel: channel}
	return q, q.Resize(depth)
}

// Full reports whether there is no room for another completion.
func (q *Completions) Full() bool { return q.Free() == 0 }

// Depth is how many completions the queue has room for.
func (q *Completions) Depth() uint64 { return q.depth }

// Free is how many more it has room for.
func (q *Completions) Free() uint64 { return q.depth - (q.tail - q.head) }

// Empty reports whether there is nothing to poll.
func (q *Completions) Empty() bool { return q.head == q.tail }

// Closed reports whether Close was called.
func (q *Completions) Closed() bool { return q.closed }

// Push adds a completion of a queue that is not full, and notifies the channel
// on behalf of cq if it was armed for that (IBTA vol. 1, 11.4.2.2).
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

// Poll moves the oldest completions to wcs and returns how many. It frees what they
// hold of their work queues.
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

// ReqNotify is verbs.CQ's.
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

// Resize is verbs.CQ's.
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

// Close gives the memory back; nothing may be pushed any more.
func (q *Completions) Close() {
	q.closed = true
	q.ring, q.head, q.tail = nil, 0, 0
}
