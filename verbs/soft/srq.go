package soft

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

const maxSRQ = 1 << 16

// srq is a shared receive queue. Its queue pairs take receives in the order of
// their messages.
type srq struct {
	queues.Shared
	pd  *pd
	vec *vector
}

var _ verbs.SRQ = (*srq)(nil)

// CreateSRQ implements verbs.PD.
func (p *pd) CreateSRQ(attr verbs.SRQInitAttr) (verbs.SRQ, error) {
	d := p.dev
	s := &srq{pd: p}
	if err := s.Init(attr, len(d.vectors), limits); err != nil {
		return nil, err
	}
	s.vec = d.vectors[attr.Vector]
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
	return s, nil
}

// take moves the oldest receive into w and raises the limit event if few are left.
func (s *srq) take(w *recvWQE) bool {
	oldest := s.Oldest()
	if oldest == nil {
		return false
	}
	w.fill(oldest)
	if s.Take() {
		s.vec.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: s})
	}
	return true
}

// Close implements verbs.SRQ.
func (s *srq) Close() error {
	first, err := s.Release()
	if first {
		s.vec.dev.srqCount.Add(-1)
		s.pd.users.Release()
	}
	return err
}
