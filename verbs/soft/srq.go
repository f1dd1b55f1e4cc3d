package soft

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

const maxSRQ = 1 << 16

// srq is a shared receive queue. Its queue pairs take receives in the order of
// their messages.
type srq struct {
	pd    *pd
	vec   *vector
	users atomic.Int32 // queue pairs

	// Owned by the creator, then by the loop.
	rq     queues.Receives
	attr   verbs.SRQAttr
	closed bool
}

var _ verbs.SRQ = (*srq)(nil)

// CreateSRQ implements verbs.PD.
func (p *pd) CreateSRQ(a verbs.SRQInitAttr) (verbs.SRQ, error) {
	d := p.dev
	if a.Vector < 0 || a.Vector >= len(d.vectors) || a.MaxWR < 1 || a.MaxWR > maxWR ||
		a.MaxSGE < 0 || a.MaxSGE > maxSGE || a.Limit < 0 || a.Limit > a.MaxWR {
		return nil, fmt.Errorf("shared receive queue %+v: %w", a, verbs.ErrInvalid)
	}
	switch {
	case d.isClosed():
		return nil, verbs.ErrClosed
	case d.srqCount.Add(1) > maxSRQ:
		d.srqCount.Add(-1)
		return nil, fmt.Errorf("shared receive queues: %w", verbs.ErrNoMemory)
	}
	if err := p.users.Hold(); err != nil {
		d.srqCount.Add(-1)
		return nil, err
	}
	return &srq{
		pd: p, vec: d.vectors[a.Vector], rq: queues.NewReceives(a.MaxWR, a.MaxSGE),
		attr: verbs.SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, Limit: a.Limit},
	}, nil
}

// PostRecv implements verbs.SRQ.
func (s *srq) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case s.closed:
		return verbs.ErrClosed
	case len(wr.SGList) > s.attr.MaxSGE:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case s.rq.Posted() >= s.attr.MaxWR:
		return verbs.ErrQueueFull
	}
	s.rq.Push(wr.WRID, wr.SGList)
	return nil
}

// take moves the oldest receive into w and raises the limit event if few are left, once until the limit is set again
// (ibv_modify_srq(3)).
func (s *srq) take(w *recvWQE) bool {
	if s.rq.Empty() {
		return false
	}
	w.fill(&s.rq)
	s.rq.Take()
	if s.rq.Posted() < s.attr.Limit {
		s.attr.Limit = 0
		s.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
	return true
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
		size < 1 || size > maxWR || size < s.rq.Posted(), limit < 0 || limit > size:
		return fmt.Errorf("shared receive queue attributes %+v: %w", a, verbs.ErrInvalid)
	}
	if size != s.attr.MaxWR {
		s.rq.Resize(size)
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
	s.closed, s.rq = true, queues.Receives{}
	s.vec.dev.srqCount.Add(-1)
	s.pd.users.Release()
	return nil
}
