package hw

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// srq is a shared receive queue.
type srq struct {
	pd  *pd
	vec *vector
	h   ibv.SRQ
	id  uint64

	connected, datagrams atomic.Int32 // queue pairs that use it, by kind

	// Owned by the loop, before that by the creator.
	queue  workQueue
	poster poster
	sges   int
	closed bool
}

var _ verbs.SRQ = (*srq)(nil)

// CreateSRQ implements verbs.PD.
func (p *pd) CreateSRQ(attr verbs.SRQInitAttr) (verbs.SRQ, error) {
	d := p.dev
	if attr.Vector < 0 || attr.Vector >= len(d.vectors) || attr.MaxWR < 1 || attr.MaxWR > d.attr.MaxSRQWR ||
		attr.MaxSGE < 0 || attr.MaxSGE > d.attr.MaxSRQSGE || attr.Limit < 0 || attr.Limit > attr.MaxWR {
		return nil, fmt.Errorf("shared receive queue %+v: %w", attr, verbs.ErrInvalid)
	}
	if err := p.hold(); err != nil {
		return nil, err
	}
	s := &srq{pd: p, vec: d.vectors[attr.Vector], sges: attr.MaxSGE}
	if err := s.create(attr); err != nil {
		p.users.Release()
		return nil, err
	}
	d.use.srqs.Add(1)
	return s, nil
}

func (s *srq) create(attr verbs.SRQInitAttr) (err error) {
	d := s.pd.dev
	s.queue.srq = s
	s.queue.share(attr.MaxWR)
	if err := d.queues.add(&s.queue); err != nil {
		return err
	}
	s.id = d.objects.add(s)
	if s.h, err = d.ctx.CreateSRQ(s.pd.h, attr.MaxWR, max(attr.MaxSGE, 1), s.id); err == nil && attr.Limit > 0 {
		if err = d.ctx.ModifySRQ(s.h, verbs.SRQAttr{Limit: attr.Limit}, verbs.SRQAttrLimit); err != nil {
			_ = d.ctx.DestroySRQ(s.h)
		}
	}
	if err != nil {
		d.objects.remove(s.id)
		d.queues.remove(&s.queue)
		return failure("shared receive queue", err)
	}
	s.poster.init(d)
	return nil
}

// PostRecv implements verbs.SRQ.
func (s *srq) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case s.closed:
		return verbs.ErrClosed
	case len(wr.SGList) > s.sges:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case s.queue.full():
		return verbs.ErrQueueFull
	}
	s.poster.recv(&s.queue, uintptr(s.h), ibv.FlagShared, wr)
	return nil
}

// begin is the first move of a queue pair of it to RTR.
func (s *srq) begin() { s.poster.join(&s.vec.batch) }

// Modify implements verbs.SRQ.
func (s *srq) Modify(attr verbs.SRQAttr, mask verbs.SRQAttrMask) error {
	if s.closed {
		return verbs.ErrClosed
	}
	size, limit := s.queue.limit, 0
	if mask&verbs.SRQAttrMaxWR != 0 {
		size = attr.MaxWR
	}
	if mask&verbs.SRQAttrLimit != 0 {
		limit = attr.Limit
	}
	if mask&^(verbs.SRQAttrMaxWR|verbs.SRQAttrLimit) != 0 || size < 1 || size > s.pd.dev.attr.MaxSRQWR ||
		limit < 0 || limit > size || size < s.queue.used() {
		return fmt.Errorf("shared receive queue %+v, mask %#x: %w", attr, uint32(mask), verbs.ErrInvalid)
	}
	s.poster.flush() // the limit counts what is posted
	if err := s.pd.dev.ctx.ModifySRQ(s.h, verbs.SRQAttr{MaxWR: size, Limit: limit}, mask); err != nil {
		return failure("modify shared receive queue", err)
	}
	s.queue.resize(size)
	return nil
}

// Query implements verbs.SRQ.
func (s *srq) Query() verbs.SRQAttr {
	attr := verbs.SRQAttr{MaxWR: s.queue.limit, MaxSGE: s.sges}
	if !s.closed {
		attr.Limit, _ = s.pd.dev.ctx.QuerySRQLimit(s.h)
	}
	return attr
}

// users returns the number of queue pairs that use the queue.
func (s *srq) users() int32 { return s.connected.Load() + s.datagrams.Load() }

// count adds n queue pairs of a kind.
func (s *srq) count(kind verbs.QPType, n int32) {
	if kind == verbs.QPTUD {
		s.datagrams.Add(n)
	} else {
		s.connected.Add(n)
	}
}

// Close implements verbs.SRQ.
func (s *srq) Close() error {
	if n := s.users(); n > 0 {
		return fmt.Errorf("shared receive queue of %d queue pairs: %w", n, verbs.ErrBusy)
	}
	if s.closed {
		return nil
	}
	s.closed = true
	d := s.pd.dev
	s.poster.drop()
	d.objects.remove(s.id)
	err := d.ended("destroy shared receive queue", d.ctx.DestroySRQ(s.h))
	d.queues.remove(&s.queue)
	d.use.srqs.Add(-1)
	s.pd.users.Release()
	return errors.Join(err)
}
