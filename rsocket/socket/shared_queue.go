package socket

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/rsocket/internal/vector"

	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// sharedReceives is the size a shared receive queue begins with.
const sharedReceives = 512

// sharedQueue is the receives of all connections of a domain on one vector: an idle connection costs none. They have no
// memory, for the bytes of a stream go where they were granted; a receive is posted again as soon as it has completed.
// When the peers are faster than the holder of the token, so that less than half is left, the queue doubles.
type sharedQueue struct {
	vec   *vector.Vector
	srq   verbs.SRQ
	grown *atomic.Uint64 // counts

	// Owned by the holder of the vector's token.
	size, limit int
}

func newSharedQueue(d *domain, vec *vector.Vector) (*sharedQueue, error) {
	attr := d.stack.dev.Attr()
	q := &sharedQueue{vec: vec, grown: &d.stack.counters.grown, size: min(sharedReceives, attr.MaxSRQWR), limit: attr.MaxSRQWR}
	var err error
	q.srq, err = d.pd.CreateSRQ(verbs.SRQInitAttr{MaxWR: q.size, Limit: q.size / 2, Vector: vec.Index})
	if err != nil {
		return nil, fmt.Errorf("shared receive queue: %w", err)
	}
	if err := q.post(q.size); err != nil { // the queue is not shared yet
		return nil, errors.Join(err, q.srq.Close())
	}
	return q, nil
}

func (q *sharedQueue) post(n int) error {
	rr := verbs.RecvWR{WRID: rsocket.RecvID}
	for range n {
		if err := q.srq.PostRecv(&rr); err != nil {
			return fmt.Errorf("post shared receive: %w", err)
		}
	}
	return nil
}

// grow doubles the queue and asks to be told again; the token is held. A queue that cannot grow makes senders wait
// (receiver not ready), no more.
func (q *sharedQueue) grow() {
	more := min(2*q.size, q.limit)
	if more == q.size {
		return
	}
	if q.srq.Modify(verbs.SRQAttr{MaxWR: more, Limit: more / 2}, verbs.SRQAttrMaxWR|verbs.SRQAttrLimit) != nil {
		return
	}
	added := more - q.size
	q.size = more
	if q.post(added) == nil {
		q.grown.Add(1)
	}
}

// watch is the goroutine that hears of what happens to queues outside of any work request.
func (s *Stack) watch() {
	for {
		e, err := s.dev.Async().Get(s.life)
		if err != nil {
			return
		}
		switch e.Type {
		case verbs.EventSRQLimitReached:
			if q := s.queueOf(e.SRQ); q != nil {
				_ = q.vec.Do(q.grow)
			}
		case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventQPLastWQEReached:
			if c := s.connOf(e.QP); c != nil {
				c.broken(e.Type)
			}
		default:
		}
	}
}

func (s *Stack) queueOf(srq verbs.SRQ) *sharedQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.domains {
		d.mu.Lock()
		for _, q := range d.shared {
			if q != nil && q.srq == srq {
				d.mu.Unlock()
				return q
			}
		}
		d.mu.Unlock()
	}
	return nil
}

func (s *Stack) connOf(qp verbs.QP) *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byQP[qp]
}
