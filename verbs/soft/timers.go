package soft

import (
	"time"

	"github.com/smcgw/smcgw/internal/due"
)

// timerHeap holds queue pairs by deadline. A queue pair whose deadline moves later stays where it is and is reinserted
// when its old time comes: retransmission timers move with every acknowledgement.
type timerHeap struct{ due.Queue[*qp] }

// set ensures that q is popped at its deadline at the latest.
func (h *timerHeap) set(q *qp) {
	if q.deadline == 0 || q.timerAt != 0 && q.timerAt <= q.deadline {
		return
	}
	q.timerAt = q.deadline
	h.Push(time.Duration(q.deadline), q)
}

// next returns the earliest time, or 0.
func (h *timerHeap) next() int64 {
	at, _ := h.Next()
	return int64(at)
}

// pop returns a queue pair whose deadline has passed, or nil. It skips items that a later set has replaced.
func (h *timerHeap) pop(now int64) *qp {
	for at, ok := h.Next(); ok && int64(at) <= now; at, ok = h.Next() {
		q := h.Pop()
		if q.timerAt != int64(at) {
			continue
		}
		q.timerAt = 0
		if q.deadline > now {
			h.set(q)
			continue
		}
		if q.deadline != 0 {
			return q
		}
	}
	return nil
}
