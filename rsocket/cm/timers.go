package cm

import (
	"container/heap"
	"time"
)

// timer is a deadline of one object. It belongs to at most one timers.
type timer struct {
	at   time.Time
	fire func(now time.Time)
	slot int // index in the heap plus one; 0: not armed
}

// timers is a heap of armed timers, earliest first.
type timers []*timer

// set arms t, or moves it if it is armed.
func (ts *timers) set(t *timer, at time.Time) {
	t.at = at
	if t.slot == 0 {
		heap.Push(ts, t)
	} else {
		heap.Fix(ts, t.slot-1)
	}
}

// stop disarms t.
func (ts *timers) stop(t *timer) {
	if t.slot != 0 {
		heap.Remove(ts, t.slot-1)
	}
}

// expire fires the timers that are due; a timer may be armed again while it fires.
func (ts *timers) expire(now time.Time) {
	for len(*ts) > 0 && !(*ts)[0].at.After(now) {
		t := (*ts)[0]
		ts.stop(t)
		t.fire(now)
	}
}

// next returns the earliest deadline, or zero if there is none.
func (ts *timers) next() time.Time {
	if len(*ts) == 0 {
		return time.Time{}
	}
	return (*ts)[0].at
}

// Len, Less, Swap, Push and Pop are for package heap.
func (ts *timers) Len() int { return len(*ts) }

// Less is for package heap.
func (ts *timers) Less(i, j int) bool { return (*ts)[i].at.Before((*ts)[j].at) }

// Swap is for package heap.
func (ts *timers) Swap(i, j int) {
	s := *ts
	s[i], s[j] = s[j], s[i]
	s[i].slot, s[j].slot = i+1, j+1
}

// Push is for package heap.
func (ts *timers) Push(x any) {
	t := x.(*timer)
	*ts = append(*ts, t)
	t.slot = len(*ts)
}

// Pop is for package heap.
func (ts *timers) Pop() any {
	s := *ts
	t := s[len(s)-1]
	s[len(s)-1] = nil
	*ts = s[:len(s)-1]
	t.slot = 0
	return t
}
