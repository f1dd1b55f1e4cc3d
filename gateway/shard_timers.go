package gateway

import (
	"container/heap"
	"time"
)

// timer is a time at which a shard does something; the shard's thread owns it.
type timer struct {
	at  time.Time
	fn  func()
	pos int // in the heap; -1: not set
}

// newTimer returns a timer that is not set.
func newTimer(fn func()) timer { return timer{fn: fn, pos: -1} }

// timers is a heap, the next one first.
type timers []*timer

func (h timers) Len() int           { return len(h) }
func (h timers) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

// Push and Pop are for package heap.
func (h *timers) Push(x any) {
	t := x.(*timer)
	t.pos = len(*h)
	*h = append(*h, t)
}

func (h *timers) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = -1
	return t
}

// setTimer has t run at a time; the zero time stops it. The caller is on the
// shard.
func (s *shard) setTimer(t *timer, at time.Time) {
	switch {
	case t.pos >= 0 && at.IsZero():
		heap.Remove(&s.timers, t.pos)
	case at.IsZero() || t.pos >= 0 && t.at.Equal(at):
	case t.pos >= 0:
		t.at = at
		heap.Fix(&s.timers, t.pos)
	default:
		t.at = at
		heap.Push(&s.timers, t)
	}
}

// runTimers runs those whose time has come.
func (s *shard) runTimers(now time.Time) (worked bool) {
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		s.expire(now)
		worked = true
	}
	return worked
}

// expire runs timers until now, or until one panics.
func (s *shard) expire(now time.Time) {
	var ran int
	defer s.contain(&ran)
	for len(s.timers) > 0 && !s.timers[0].at.After(now) {
		s.worksFor(nil) // those that work for a flow say so
		heap.Pop(&s.timers).(*timer).fn()
	}
}

// After implements Loop.
func (s *shard) After(d time.Duration, fn func()) (stop func()) {
	t := newTimer(fn)
	s.setTimer(&t, time.Now().Add(d))
	return func() { s.setTimer(&t, time.Time{}) }
}
