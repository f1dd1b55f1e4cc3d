package loop

import (
	"container/heap"
	"time"
)

// Timer calls a function on a shard at a set time. The shard's thread owns it. The zero value may be stopped, but not
// set.
type Timer struct {
	at  time.Time
	fn  func()
	pos int // index in the heap plus 1; 0: not set
}

// NewTimer returns a timer that is not set.
func NewTimer(fn func()) Timer { return Timer{fn: fn} }

// Pending reports whether the timer is set.
func (t *Timer) Pending() bool { return t.pos > 0 }

// timers is a heap, earliest first.
type timers []*Timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

// Push and Pop implement heap.Interface.
func (h *timers) Push(x any) {
	t := x.(*Timer)
	*h = append(*h, t)
	t.pos = len(*h)
}

func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = 0
	return t
}

// SetTimer sets t to run at a time; the zero time stops it. The caller is on the shard.
func (s *Shard) SetTimer(t *Timer, at time.Time) {
	switch {
	case t.Pending() && at.IsZero():
		heap.Remove(&s.timers, t.pos-1)
	case at.IsZero() || t.Pending() && t.at.Equal(at):
	case t.Pending():
		t.at = at
		heap.Fix(&s.timers, t.pos-1)
	default:
		t.at = at
		heap.Push(&s.timers, t)
	}
}

// runTimers runs the timers that are due.
func (s *Shard) runTimers(now time.Time) (worked bool) {
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		s.expire(now)
		worked = true
	}
	return worked
}

// expire runs the timers that are due, until one panics.
func (s *Shard) expire(now time.Time) {
	var ran int
	defer s.contain(&ran)
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		s.WorksFor(nil) // timers that work for a flow call WorksFor
		heap.Pop(&s.timers).(*Timer).fn()
	}
}

// After implements host.Loop.
func (s *Shard) After(d time.Duration, fn func()) (stop func()) {
	t := NewTimer(fn)
	s.SetTimer(&t, time.Now().Add(d))
	return func() { s.SetTimer(&t, time.Time{}) }
}
