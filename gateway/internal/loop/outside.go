package loop

import (
	"time"
)

// An Outsider makes a system call that a program can hold up: one on a socket that it shares with the gateway, which the
// kernel locks while it copies the program's memory, however slow that memory is, and even while the program may not run
// because its control group has used up its processor time.
type Outsider interface {
	Work
	// Ready is called on the shard right before the call. It returns false if the shard is not to make it: there is
	// nothing to do any more, or [Shard.Beside] does it.
	Ready() bool
	// Outside makes the call. It uses nothing that the shard may change before Back.
	Outside()
	// Held reports on the shard that the call is held up, so that the shard goes on without it.
	Held()
	// Back reports on the shard that the call has returned.
	Back()
}

const (
	// heldAfter is how long such a call may keep a shard. Heart looks for longer ones.
	heldAfter = 10 * time.Millisecond
	// mostHeld is how many calls of a shard may be held up at a time: each keeps a thread.
	mostHeld = 64
)

// Outside has o make its call at the end of the turn. The caller is on the shard.
func (s *Shard) Outside(o Outsider) {
	s.outsiders = append(s.outsiders, o)
	if s.left.Load() {
		s.dismiss()
	}
}

// dismiss makes the calls that are due once there are no more turns.
func (s *Shard) dismiss() {
	for s.called < len(s.outsiders) { // Ready may add one
		o := s.outsiders[s.called]
		s.called++
		if o.Ready() {
			go s.Beside(o)
		}
	}
	s.outsiders, s.called = nil, 0
}

// Crowded reports whether so many calls are held up that the shard had better make no more: of the last one no
// thread relieves it.
func (s *Shard) Crowded() bool { return s.held.Load() >= mostHeld/2 }

// Beside makes o's call on the caller's goroutine, and reports its return on the shard.
func (s *Shard) Beside(o Outsider) {
	o.Outside()
	s.Post(func() { s.tell(o, Outsider.Back) })
}

// callOutsiders makes the calls that are due. It returns false if another goroutine has meanwhile taken over the shard.
func (s *Shard) callOutsiders() bool {
	for s.called < len(s.outsiders) {
		o := s.outsiders[s.called]
		s.called++
		ready := false
		s.tell(o, func(o Outsider) { ready = o.Ready() })
		if !ready {
			continue
		}
		s.outside = o
		began := int64(time.Since(s.made))
		s.outsideAt.Store(began)
		o.Outside()
		if !s.outsideAt.CompareAndSwap(began, 0) {
			s.Post(func() {
				s.held.Add(-1)
				s.tell(o, Outsider.Back)
			})
			return false
		}
		s.tell(o, Outsider.Back)
	}
	clear(s.outsiders)
	s.outsiders, s.called = s.outsiders[:0], 0
	return true
}

func (s *Shard) tell(o Outsider, what func(Outsider)) {
	var reported int
	defer s.contain(&reported)
	s.WorksFor(o.Owner())
	what(o)
}

// relieve has another goroutine take over the shard if a call is held up. Of that call the loop's goroutine then has
// nothing left to do but to report its end.
func (s *Shard) relieve(now time.Time) {
	at, spent := s.outsideAt.Load(), int64(s.processorTime())
	if at == 0 || now.Sub(s.made)-time.Duration(at) < heldAfter || s.held.Load() >= mostHeld || !s.outsideAt.CompareAndSwap(at, 0) {
		return
	}
	s.held.Add(1)
	s.spent.Store(spent)
	s.tid.Store(0)
	s.before.Store(spent)
	s.placer.forget()
	o := s.outside
	go s.run(func() { s.tell(o, Outsider.Held) })
}
