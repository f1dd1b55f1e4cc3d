package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

const maxSRQ = 1 << 16

// srq is a shared receive queue. Its queue pairs take receives in the order of
// their messages.
type srq struct {
	pd     *pd
	vec    *vector
	rq     recvQueue
	max    int
	sges   int
	limit  int
	users  atomic.Int32
	closed bool
}

var _ verbs.SRQ = (*srq)(nil)

// CreateSRQ implements verbs.PD.
func (p *pd) CreateSRQ(attr verbs.SRQInitAttr) (verbs.SRQ, error) {
	d := p.dev
	switch {
	case attr.Vector < 0 || attr.Vector >= len(d.vectors),
		attr.MaxWR < 1 || attr.MaxWR > maxWR,
		attr.MaxSGE < 0 || attr.MaxSGE > maxSGE,
		attr.Limit < 0 || attr.Limit > attr.MaxWR:
		return nil, fmt.Errorf("shared receive queue %+v: %w", attr, verbs.ErrInvalid)
	case d.isClosed():
		return nil, verbs.ErrClosed
	case d.srqCount.Add(1) > maxSRQ:
		d.srqCount.Add(-1)
		return nil, fmt.Errorf("shared receive queues: %w", verbs.ErrNoMemory)
	}
	if err := p.hold(); err != nil {
		d.srqCount.Add(-1)
		return nil, err
	}
	s := &srq{pd: p, vec: d.vectors[attr.Vector], max: attr.MaxWR, sges: attr.MaxSGE, limit: attr.Limit}
	s.rq.init(attr.MaxWR, attr.MaxSGE)
	return s, nil
}

// PostRecv implements verbs.SRQ.
func (s *srq) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case s.closed:
		return verbs.ErrClosed
	case len(wr.SGList) > s.sges:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case s.rq.posted() >= uint64(s.max):
		return verbs.ErrQueueFull
	}
	s.rq.push(wr)
	return nil
}

// take moves the oldest receive into w and raises the limit event when few are
// left: once, until the limit is set again (ibv_modify_srq(3)).
func (s *srq) take(w *recvWQE) bool {
	if s.rq.posted() == 0 {
		return false
	}
	s.rq.pop(w)
	if s.limit > 0 && s.rq.posted() < uint64(s.limit) {
		s.limit = 0
		s.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
	return true
}

// Modify implements verbs.SRQ.
func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	if s.closed {
		return verbs.ErrClosed
	}
	size, limit := s.max, s.limit
	if mask&verbs.SRQAttrMaxWR != 0 {
		size = attr.MaxWR
	}
	if mask&verbs.SRQAttrLimit != 0 {
		limit = attr.Limit
	}
	if mask&^(verbs.SRQAttrMaxWR|verbs.SRQAttrLimit) != 0 || size < 1 || size > maxWR ||
		uint64(size) < s.rq.posted() || limit < 0 || limit > size {
		return fmt.Errorf("modify shared receive queue to %+v: %w", attr, verbs.ErrInvalid)
	}
	if size > len(s.rq.ids) {
		s.rq.resize(size)
	}
	s.max, s.limit = size, limit
	return nil
}

// resize makes room for n receives.
func (r *recvQueue) resize(n int) {
	var bigger recvQueue
	bigger.init(n, r.perWR)
	for i := r.head; i != r.tail; i++ {
		from, to := int(i&uint64(len(r.ids)-1)), int(i&uint64(len(bigger.ids)-1))
		bigger.ids[to], bigger.counts[to] = r.ids[from], r.counts[from]
		copy(bigger.sges[to*r.perWR:(to+1)*r.perWR], r.sges[from*r.perWR:(from+1)*r.perWR])
	}
	bigger.head, bigger.tail, bigger.retired = r.head, r.tail, r.retired
	*r = bigger
}

// Query implements verbs.SRQ.
func (s *srq) Query() verbs.SRQAttr {
	return verbs.SRQAttr{MaxWR: s.max, MaxSGE: s.sges, Limit: s.limit}
}

// Close implements verbs.SRQ.
func (s *srq) Close() error {
	if n := s.users.Load(); n > 0 {
		return fmt.Errorf("shared receive queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	if !s.closed {
		s.closed = true
		s.vec.dev.srqCount.Add(-1)
		s.pd.release()
	}
	return nil
}
