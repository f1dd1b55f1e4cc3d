package gateway

import (
	"context"
	"sync"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/lab/twohosts"
)

// fakeSteering keeps entries in a table and counts heartbeats.
type fakeSteering struct {
	*twohosts.Table

	mu       sync.Mutex // guards everything below
	beats    int
	mode     ebpf.Mode
	off      bool
	counters ebpf.Counters
	policy   []ebpf.Rule
	rollout  ebpf.Rollout
	compare  bool
	seen     []ebpf.Seen
	refuse   error // of SetPolicy

	refused   uint8     // of Refuse
	shed      uint8     // of Shed
	lingering []lingers // what Lingering tells, one after another, and the last from then on
}

// lingers is what Lingering tells.
type lingers struct {
	n   int
	err error
}

func newFakeSteering() *fakeSteering { return &fakeSteering{Table: twohosts.NewTable()} }

func (s *fakeSteering) Heartbeat() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beats++
	return nil
}

func (s *fakeSteering) SetMode(m ebpf.Mode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = m
	return nil
}

func (s *fakeSteering) SetOff(off bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.off = off
	return nil
}

func (s *fakeSteering) Refuse(reason uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = reason
	return nil
}

func (*fakeSteering) SetProofs(int) error { return nil }

func (s *fakeSteering) SetRollout(r ebpf.Rollout) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rollout = r
	return nil
}

func (s *fakeSteering) TakeSeen() ([]ebpf.Seen, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := s.seen
	s.seen = nil
	return list, nil
}

func (s *fakeSteering) SetCompare(on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.compare = on
	return nil
}

func (*fakeSteering) TakeCompared() ([]ebpf.Compared, error) { return nil, nil }

func (s *fakeSteering) Shed(reason uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shed = reason
	return nil
}

func (s *fakeSteering) Lingering() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l lingers
	if len(s.lingering) > 0 {
		l = s.lingering[0]
		s.lingering = s.lingering[min(1, len(s.lingering)-1):]
	}
	return l.n, l.err
}

func (s *fakeSteering) SetPolicy(rules []ebpf.Rule) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse == nil {
		s.policy = rules
	}
	return s.refuse
}

func (*fakeSteering) Sweep(ebpf.SweepLimits) (int, error) { return 0, nil }

func (*fakeSteering) Events(ctx context.Context, _ func(ebpf.Event)) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (*fakeSteering) BlockedLegs() []ebpf.BlockedLegs { return nil }

func (s *fakeSteering) Counters() (ebpf.Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counters, nil
}

func (*fakeSteering) MapUsage() ([]ebpf.MapUsage, error) { return nil, nil }

func (*fakeSteering) Close() error { return nil }
