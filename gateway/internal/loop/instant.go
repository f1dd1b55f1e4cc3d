package loop

import (
	"sync/atomic"
	"time"
)

// Instant is a time that goroutines share. Unlike a number of nanoseconds it keeps the monotonic clock reading, so it
// is immune to jumps of the wall clock. The zero value is the zero time.
type Instant struct{ at atomic.Pointer[time.Time] }

// Load returns the time.
func (i *Instant) Load() time.Time {
	if t := i.at.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Store sets the time.
func (i *Instant) Store(t time.Time) { i.at.Store(&t) }

// Passed moves the instant to now if it is at least d ago, and reports whether
// this caller moved it.
func (i *Instant) Passed(now time.Time, d time.Duration) bool {
	last := i.at.Load()
	return (last == nil || now.Sub(*last) >= d) && i.at.CompareAndSwap(last, &now)
}
