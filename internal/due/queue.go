package due

import "time"

// Queue is a heap by time. What is due at the same time keeps its order. The zero value is empty.
type Queue[T any] struct {
	items  []item[T]
	pushed uint64
}

type item[T any] struct {
	at   time.Duration
	nth  uint64
	what T
}

func (i *item[T]) before(o *item[T]) bool { return i.at < o.at || i.at == o.at && i.nth < o.nth }

// Len returns how many there are.
func (q *Queue[T]) Len() int { return len(q.items) }

// Push adds what is due at a time, on a clock of the caller's.
func (q *Queue[T]) Push(at time.Duration, what T) {
	q.pushed++
	q.items = append(q.items, item[T]{at, q.pushed, what})
	for i := len(q.items) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.items[i].before(&q.items[parent]) {
			return
		}
		q.items[i], q.items[parent] = q.items[parent], q.items[i]
		i = parent
	}
}

// Next returns when the earliest is due; false if there is none.
func (q *Queue[T]) Next() (at time.Duration, ok bool) {
	if len(q.items) == 0 {
		return 0, false
	}
	return q.items[0].at, true
}

// Pop removes the earliest. There must be one.
func (q *Queue[T]) Pop() T {
	first, last := q.items[0].what, len(q.items)-1
	q.items[0] = q.items[last]
	q.items[last] = item[T]{}
	q.items = q.items[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child+1 < last && q.items[child+1].before(&q.items[child]) {
			child++
		}
		if child >= last || !q.items[child].before(&q.items[i]) {
			return first
		}
		q.items[i], q.items[child] = q.items[child], q.items[i]
		i = child
	}
}
