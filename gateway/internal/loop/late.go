package loop

import (
	"time"
)

// Late returns how late the loop's next turn is. It is 0 once the loop has ended: what the gateway still closes may
// take a while.
func (s *Shard) Late(now time.Time) time.Duration {
	if s.left.Load() {
		return 0
	}
	return max(0, now.Sub(s.made)-time.Duration(s.due.Load()))
}

// expect makes the next turn due now. A loop that is about to sleep first publishes until when, and then looks for
// posts. So either it sees the post for which expect is called, or expect sees the new due time.
func (s *Shard) expect(now time.Time) {
	at := int64(now.Sub(s.made))
	for {
		due := s.due.Load()
		if due <= at || s.due.CompareAndSwap(due, at) {
			return
		}
	}
}
