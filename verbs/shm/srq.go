package shm

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// srq is a shared receive queue. All its queue pairs have one peer, whose
// protection domain it belongs to, so a peer starves nobody but itself.
//
// A sender cannot know whether a shared receive will be left for it. It
// publishes without, and its work request completes when the entry was taken.
// An entry that finds the queue empty stays in the ring, which blocks the queue
// pair as RNR does; the word blkStarve tells the sender, whose RNR clock runs
// while it is set. The queue pair waits here, first come, first served. When
// the sender gives up or goes away, what is left of it in the ring is discarded:
// none of it has been acknowledged.
type srq struct {
	peer *Peer
	vec  *vector

	users atomic.Int32

	// Owned by the loop, before that by the creator.
	rq      recvQueue
	attr    verbs.SRQAttr
	waiters []*qp
	closed  bool
}

var _ verbs.SRQ = (*srq)(nil)

// shared is the receive a queue pair has taken from its SRQ.
type shared struct {
	held bool
	id   uint64
	list []verbs.SGE
}

func (p *Peer) createSRQ(a verbs.SRQInitAttr) (verbs.SRQ, error) {
	if a.Vector < 0 || a.Vector >= len(p.dev.vectors) || a.MaxWR < 1 || a.MaxWR > maxWR ||
		a.MaxSGE < 0 || a.MaxSGE > maxSGE || a.Limit < 0 || a.Limit > a.MaxWR {
		return nil, fmt.Errorf("shared receive queue %+v: %w", a, verbs.ErrInvalid)
	}
	s := &srq{peer: p, vec: p.dev.vectors[a.Vector], attr: verbs.SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, Limit: a.Limit}}
	s.rq.init(a.MaxWR, a.MaxSGE)
	if err := p.add(&p.srqCount, 1, maxSRQ); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *srq) posted() int { return int(s.rq.tail - s.rq.head) }

// PostRecv implements verbs.SRQ.
func (s *srq) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case s.closed:
		return verbs.ErrClosed
	case len(wr.SGList) > s.attr.MaxSGE:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case s.posted() >= s.attr.MaxWR:
		return verbs.ErrQueueFull
	}
	s.rq.push(wr.WRID, wr.SGList)
	s.wake()
	return nil
}

// Modify implements verbs.SRQ.
func (s *srq) Modify(a verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	size, limit := s.attr.MaxWR, s.attr.Limit
	if mask&verbs.SRQAttrMaxWR != 0 {
		size = a.MaxWR
	}
	if mask&verbs.SRQAttrLimit != 0 {
		limit = a.Limit
	}
	switch {
	case s.closed:
		return verbs.ErrClosed
	case mask&^(verbs.SRQAttrMaxWR|verbs.SRQAttrLimit) != 0,
		size < 1 || size > maxWR || size < s.posted(), limit < 0 || limit > size:
		return fmt.Errorf("shared receive queue attributes %+v: %w", a, verbs.ErrInvalid)
	}
	if size != s.attr.MaxWR {
		s.rq.resize(size)
	}
	s.attr.MaxWR, s.attr.Limit = size, limit
	return nil
}

// Query implements verbs.SRQ.
func (s *srq) Query() verbs.SRQAttr { return s.attr }

// Close implements verbs.SRQ.
func (s *srq) Close() error {
	if s.closed {
		return nil
	}
	if n := s.users.Load(); n > 0 {
		return fmt.Errorf("shared receive queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	s.closed = true
	s.rq, s.waiters = recvQueue{}, nil
	return s.peer.add(&s.peer.srqCount, -1, maxSRQ)
}

// take gives r the oldest receive.
func (s *srq) take(r *shared) bool {
	if s.rq.empty() {
		return false
	}
	r.held, r.id, r.list = true, s.rq.id(), append(r.list[:0], s.rq.list()...)
	s.rq.head++
	if s.posted() < s.attr.Limit {
		s.attr.Limit = 0
		s.peer.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
	return true
}

// wait has q run again when a receive is posted.
func (s *srq) wait(q *qp) {
	if !q.waits {
		q.waits = true
		s.waiters = append(s.waiters, q)
	}
}

// wake runs as many waiting queue pairs as there are receives. Whoever was
// woken and leaves receives behind calls it again.
func (s *srq) wake() {
	if len(s.waiters) == 0 {
		return
	}
	n := 0
	for woken := 0; n < len(s.waiters) && woken < s.posted(); n++ {
		q := s.waiters[n]
		q.waits = false
		if q.receiving() {
			s.vec.schedule(q)
			woken++
		}
	}
	left := copy(s.waiters, s.waiters[n:])
	clear(s.waiters[left:])
	s.waiters = s.waiters[:left]
}

// receiving tells whether the queue pair takes messages.
func (q *qp) receiving() bool {
	return !q.closed && q.state >= verbs.QPSRTR && q.state != verbs.QPSErr
}

// sharedReceive makes sure that the queue pair has a receive of its SRQ.
func (q *qp) sharedReceive() bool {
	return q.cur.held || q.srq.take(&q.cur)
}

// starve tells the partner whether the next entry waits for a receive.
func (q *qp) starve(on bool) {
	if q.starves == on {
		return
	}
	q.starves = on
	word := uint64(0)
	if on {
		word = 1
	}
	q.blk.starve.Store(word)
}

// discard forgets the entries of a partner that is gone. It has not been told
// that they were taken, and it will not hear it any more.
func (q *qp) discard() {
	b := &q.blk
	if n := b.prod.Load() - b.consumed; n > 0 && n <= b.mask+1 {
		b.consumed += n
		b.cons.Store(b.consumed)
	}
}

// flushShared ends the queue pair's part in the SRQ after an error: the receive
// it holds is flushed, and the user learns that no more will be taken
// (IBTA vol. 1, 10.9.3.3: last WQE reached).
func (q *qp) flushShared() {
	if q.lastWQE {
		return
	}
	if q.cur.held {
		if !q.rcq.room() {
			q.rcq.wait(q, &q.fullR)
			return
		}
		q.received(verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv}, true)
	}
	q.lastWQE = true
	q.peer.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: q})
}

// leaveShared lets the others have what the queue pair was woken for.
func (q *qp) leaveShared() {
	if q.srq != nil {
		q.srq.wake()
	}
}
