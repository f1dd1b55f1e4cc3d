package shm

import (
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/workqueue"
)

// srq is a shared receive queue. All its queue pairs have one peer, whose
// protection domain it belongs to, so a peer starves only itself.
//
// A sender cannot know whether a shared receive will be left for it. It
// publishes without, and its work request completes when the entry was taken.
// An entry that finds the queue empty stays in the ring, which blocks the queue
// pair as RNR does; the word starve tells the sender, whose RNR clock runs
// while it is set. The queue pair waits here, first come, first served. When
// the sender gives up or goes away, what is left of it in the ring is discarded:
// none of it has been acknowledged.
type srq struct {
	peer *Peer
	vec  *vector

	// Owned by the loop, before that by the creator.
	queue   workqueue.Shared
	waiters []*qp
}

var _ verbs.SRQ = (*srq)(nil)

// shared is the receive a queue pair has taken from its SRQ.
type shared struct {
	held bool
	id   uint64
	list []verbs.SGE
}

func (p *Peer) createSRQ(a verbs.SRQInitAttr) (verbs.SRQ, error) {
	s := &srq{peer: p}
	if err := s.queue.Init(a, len(p.dev.vectors), limits); err != nil {
		return nil, err
	}
	s.vec = p.dev.vectors[a.Vector]
	if err := p.add(&p.srqCount, 1, maxSRQ); err != nil {
		return nil, err
	}
	return s, nil
}

// PostRecv implements verbs.SRQ.
func (s *srq) PostRecv(wr *verbs.RecvWR) error {
	if err := s.queue.Post(wr); err != nil {
		return err
	}
	s.wake()
	return nil
}

// Modify implements verbs.SRQ.
func (s *srq) Modify(a verbs.SRQAttr, mask verbs.SRQAttrMask) error { return s.queue.Modify(a, mask) }

// Query implements verbs.SRQ.
func (s *srq) Query() verbs.SRQAttr { return s.queue.Query() }

// Close implements verbs.SRQ.
func (s *srq) Close() error {
	first, err := s.queue.Release()
	if err != nil || !first {
		return err
	}
	s.waiters = nil
	return s.peer.add(&s.peer.srqCount, -1, maxSRQ)
}

// take gives r the oldest receive.
func (s *srq) take(r *shared) bool {
	oldest := s.queue.Oldest()
	if oldest == nil {
		return false
	}
	r.held, r.id, r.list = true, oldest.ID(), append(r.list[:0], oldest.List()...)
	if s.queue.Take() {
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

// wake runs as many waiting queue pairs as there are receives. A woken queue
// pair that leaves receives behind calls it again.
func (s *srq) wake() {
	if len(s.waiters) == 0 {
		return
	}
	n := 0
	for woken := 0; n < len(s.waiters) && woken < s.queue.Posted(); n++ {
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
	return q.cur.held || q.srq.take(q.cur)
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
