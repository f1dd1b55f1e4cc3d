package loop

import (
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// Timer calls a function on a shard at a set time. The shard's thread owns it. The zero value may be stopped, but not
// set.
type Timer = due.Timer[func()]

// NewTimer returns a timer that is not set.
func NewTimer(fn func()) Timer { return Timer{What: fn} }

// SetTimer sets t to run at a time; the zero time stops it. The caller is on the shard.
func (s *Shard) SetTimer(t *Timer, at time.Time) { s.timers.Set(t, at) }

// runTimers runs the timers that are due.
func (s *Shard) runTimers(now time.Time) (worked bool) {
	for next := s.timers.Next(); !next.IsZero() && !next.After(now); next = s.timers.Next() {
		s.expire(now)
		worked = true
	}
	return worked
}

// expire runs the timers that are due, until one panics.
func (s *Shard) expire(now time.Time) {
	var ran int
	defer s.contain(&ran)
	for t := s.timers.Take(now); t != nil; t = s.timers.Take(now) {
		s.WorksFor(nil) // timers that work for a flow call WorksFor
		t.What()
	}
}

// After implements host.Loop.
func (s *Shard) After(d time.Duration, fn func()) (stop func()) {
	t := NewTimer(fn)
	s.SetTimer(&t, time.Now().Add(d))
	return func() { s.SetTimer(&t, time.Time{}) }
}
