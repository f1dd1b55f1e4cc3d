package loop

import (
	"time"
)

// Late returns by how much the loop's next turn is late. One that has ended owes none: what the
// gateway still closes may take a while.
func (s *Shard) Late(now time.Time) time.Duration {
	if s.left.Load() {
		return 0
	}
	return max(0, now.Sub(s.made)-time.Duration(s.due.Load()))
}

// expect says that the loop has a reason to turn now. A loop that is about to
// sleep says first until when, and then looks for posts: either it sees the post
// after which this is called, or this sees the sleep.
func (s *Shard) expect(now time.Time) {
	at := int64(now.Sub(s.made))
	for {
		due := s.due.Load()
		if due <= at || s.due.CompareAndSwap(due, at) {
			return
		}
	}
}
