package gateway

import (
	"sync/atomic"
	"time"
)

// Late returns by how much the loop's next turn is late.
func (s *shard) Late(now time.Time) time.Duration {
	return max(0, now.Sub(s.made)-time.Duration(s.due.Load()))
}

// expect says that the loop has a reason to turn now. A loop that is about to
// sleep says first until when, and then looks for posts: either it sees the post
// behind which this is called, or this sees the sleep.
func (s *shard) expect(now time.Time) {
	at := int64(now.Sub(s.made))
	for {
		due := s.due.Load()
		if due <= at || s.due.CompareAndSwap(due, at) {
			return
		}
	}
}

// BusySince tells for how long a loop that waits for things has been with one of
// them. The zero value waits. It is safe for concurrent use; one loop each.
type BusySince struct{ since atomic.Pointer[time.Time] }

// Begin says that the loop has got something.
func (b *BusySince) Begin(now time.Time) { b.since.Store(&now) }

// End says that it waits for the next.
func (b *BusySince) End() { b.since.Store(nil) }

// Late returns for how long the loop has been busy, 0 while it waits.
func (b *BusySince) Late(now time.Time) time.Duration {
	if at := b.since.Load(); at != nil {
		return max(0, now.Sub(*at))
	}
	return 0
}
