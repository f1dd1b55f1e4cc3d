package gateway

import (
	"sync/atomic"
	"time"
)

// instant is a time that goroutines share. It keeps the reading of the monotonic
// clock, unlike a number of nanoseconds: a wall clock that jumps changes nothing.
// The zero value is the zero time.
type instant struct{ at atomic.Pointer[time.Time] }

func (i *instant) load() time.Time {
	if t := i.at.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

func (i *instant) store(t time.Time) { i.at.Store(&t) }

// passed moves the instant to now if it is at least d ago, and reports whether the
// caller is who did.
func (i *instant) passed(now time.Time, d time.Duration) bool {
	last := i.at.Load()
	return (last == nil || now.Sub(*last) >= d) && i.at.CompareAndSwap(last, &now)
}
