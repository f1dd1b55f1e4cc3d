package due

import (
	"container/heap"
	"time"
)

// Timer is a time of its owner's, and what to do then. It belongs to one [Timers] at most. The zero value may be stopped.
type Timer[T any] struct {
	What T
	at   time.Time
	pos  int // index in the heap plus 1; 0: not set
}

// At returns the time at which the timer was set last.
func (t *Timer[T]) At() time.Time { return t.at }

// Pending reports whether the timer is set.
func (t *Timer[T]) Pending() bool { return t.pos > 0 }

// Timers are the timers that are set. The zero value has none.
type Timers[T any] struct{ heap byTime[T] }

// Len returns how many are set.
func (ts *Timers[T]) Len() int { return len(ts.heap) }

// Set sets a timer, or moves it; the zero time stops it.
func (ts *Timers[T]) Set(t *Timer[T], at time.Time) {
	switch {
	case t.Pending() && at.IsZero():
		heap.Remove(&ts.heap, t.pos-1)
	case at.IsZero() || t.Pending() && t.at.Equal(at):
	case t.Pending():
		t.at = at
		heap.Fix(&ts.heap, t.pos-1)
	default:
		t.at = at
		heap.Push(&ts.heap, t)
	}
}

// Next returns the earliest time, or zero if no timer is set.
func (ts *Timers[T]) Next() time.Time {
	if len(ts.heap) == 0 {
		return time.Time{}
	}
	return ts.heap[0].at
}

// Take stops the earliest timer that is due and returns it; nil: there is none.
func (ts *Timers[T]) Take(now time.Time) *Timer[T] {
	if len(ts.heap) == 0 || ts.heap[0].at.After(now) {
		return nil
	}
	return heap.Pop(&ts.heap).(*Timer[T])
}

// byTime is the heap.
type byTime[T any] []*Timer[T]

func (h byTime[T]) Len() int           { return len(h) }
func (h byTime[T]) Less(i, j int) bool { return h[i].at.Before(h[j].at) }

func (h byTime[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h *byTime[T]) Push(x any) {
	t := x.(*Timer[T])
	*h = append(*h, t)
	t.pos = len(*h)
}

func (h *byTime[T]) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	t.pos = 0
	return t
}
