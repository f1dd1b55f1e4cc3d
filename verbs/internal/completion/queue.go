package completion

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// smallest is the length of a ring that holds its first completion.
const smallest = 16

// Entry is a completion with what its polling frees in the queue pair.
type Entry[Q any] struct {
	WC     verbs.WC
	QP     Q
	Retire uint64 // work requests of the queue up to here are done with
	Recv   bool   // the receive queue's, not the send queue's
}

// Queue holds the completions of one CQ, oldest first. Make one with New. It is
// used by the goroutine that drives the CQ's vector only.
type Queue[Q any] struct {
	most    uint64 // the device's limit of depth
	depth   uint64
	ring    []Entry[Q] // grows up to depth; length a power of two
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

// New makes a queue of at least one and at most depth completions; channel may
// be nil. Another depth than 1 to most is verbs.ErrInvalid.
func New[Q any](depth, most int, channel *verbs.CompChannel) (Queue[Q], error) {
	q := Queue[Q]{most: uint64(most), channel: channel}
	return q, q.Resize(depth)
}

// Full reports whether there is no room for another completion.
func (q *Queue[Q]) Full() bool { return q.tail-q.head >= q.depth }

// Empty reports whether there is nothing to poll.
func (q *Queue[Q]) Empty() bool { return q.head == q.tail }

// Closed reports whether Close was called.
func (q *Queue[Q]) Closed() bool { return q.closed }

// Push adds a completion of a queue that is not full, and notifies the channel
// on behalf of cq if it was armed for that (IBTA vol. 1, 11.4.2.2).
func (q *Queue[Q]) Push(e *Entry[Q], solicited bool, cq verbs.CQ) {
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

func (q *Queue[Q]) grow() {
	ring := make([]Entry[Q], max(smallest, 2*len(q.ring)))
	for i := q.head; i != q.tail; i++ {
		ring[i&uint64(len(ring)-1)] = q.ring[i&uint64(len(q.ring)-1)]
	}
	q.ring = ring
}

// Take removes the oldest completion; nil if there is none. The entry is valid
// until the next Push; its taker clears QP.
func (q *Queue[Q]) Take() *Entry[Q] {
	if q.head == q.tail {
		return nil
	}
	e := &q.ring[q.head&uint64(len(q.ring)-1)]
	q.head++
	return e
}

// ReqNotify is verbs.CQ's.
func (q *Queue[Q]) ReqNotify(solicited bool) error {
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
func (q *Queue[Q]) Resize(depth int) error {
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
func (q *Queue[Q]) Close() {
	q.closed = true
	q.ring, q.head, q.tail = nil, 0, 0
}
