package queues

import (
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
)

// Limits bound the work queues of a device.
type Limits struct {
	WR     int // work requests of a queue
	SGE    int // elements of a scatter or gather list
	Inline int // bytes of inline data
}

// Check reports whether a queue pair can have these capabilities.
func (l Limits) Check(c verbs.QPCap) error {
	in := func(n, limit int) bool { return n >= 0 && n <= limit }
	if c.MaxSendWR < 1 || !in(c.MaxSendWR, l.WR) || !in(c.MaxRecvWR, l.WR) ||
		!in(c.MaxSendSGE, l.SGE) || !in(c.MaxRecvSGE, l.SGE) || !in(c.MaxInline, l.Inline) {
		return fmt.Errorf("queue pair capabilities %+v: %w", c, verbs.ErrInvalid)
	}
	return nil
}

// Shared is a shared receive queue. It implements the methods of verbs.SRQ except Close.
type Shared struct {
	Users atomic.Int32 // queue pairs

	// Owned by the creator, then by the loop.
	rq     Receives
	attr   verbs.SRQAttr
	limits Limits
	closed bool
}

// Init initializes the queue; vectors is the device's number of vectors.
func (s *Shared) Init(a verbs.SRQInitAttr, vectors int, l Limits) error {
	if a.Vector < 0 || a.Vector >= vectors || a.MaxWR < 1 || a.MaxWR > l.WR ||
		a.MaxSGE < 0 || a.MaxSGE > l.SGE || a.Limit < 0 || a.Limit > a.MaxWR {
		return fmt.Errorf("shared receive queue %+v: %w", a, verbs.ErrInvalid)
	}
	s.rq, s.limits = NewReceives(a.MaxWR, a.MaxSGE), l
	s.attr = verbs.SRQAttr{MaxWR: a.MaxWR, MaxSGE: a.MaxSGE, Limit: a.Limit}
	return nil
}

// Closed reports whether Release was called.
func (s *Shared) Closed() bool { return s.closed }

// PostRecv implements verbs.SRQ.
func (s *Shared) PostRecv(wr *verbs.RecvWR) error {
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

// Oldest returns the queue of which Take removes the oldest receive, or nil if there is none.
func (s *Shared) Oldest() *Receives {
	if s.rq.Empty() {
		return nil
	}
	return &s.rq
}

// Take removes the oldest receive and reports whether the limit event is due, which happens once until the limit is set
// again (ibv_modify_srq(3)).
func (s *Shared) Take() (low bool) {
	s.rq.Take()
	low = s.rq.Posted() < s.attr.Limit
	if low {
		s.attr.Limit = 0
	}
	return low
}

// Modify implements verbs.SRQ.
func (s *Shared) Modify(a verbs.SRQAttr, mask verbs.SRQAttrMask) error {
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
		size < 1 || size > s.limits.WR || size < s.rq.Posted(), limit < 0 || limit > size:
		return fmt.Errorf("shared receive queue attributes %+v: %w", a, verbs.ErrInvalid)
	}
	if size != s.attr.MaxWR {
		s.rq.Resize(size)
	}
	s.attr.MaxWR, s.attr.Limit = size, limit
	return nil
}

// Query implements verbs.SRQ.
func (s *Shared) Query() verbs.SRQAttr { return s.attr }

// Release frees the memory unless a queue pair uses the queue; first reports whether this call was the one that did.
func (s *Shared) Release() (first bool, err error) {
	if s.closed {
		return false, nil
	}
	if n := s.Users.Load(); n > 0 {
		return false, fmt.Errorf("shared receive queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	s.closed, s.rq = true, Receives{}
	return true, nil
}
