package soft

import "time"

// simEvents is a heap of what will happen, by time, then by order of insertion.
type simEvents struct {
	heap []simEvent
	seq  uint64
}

type simEvent struct {
	at  time.Duration
	seq uint64
	run func()
}

func (e simEvent) before(o simEvent) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

func (h *simEvents) push(at time.Duration, run func()) {
	h.seq++
	h.heap = append(h.heap, simEvent{at, h.seq, run})
	for i := len(h.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.heap[i].before(h.heap[parent]) {
			break
		}
		h.heap[i], h.heap[parent] = h.heap[parent], h.heap[i]
		i = parent
	}
}

// next is when the first event is due.
func (h *simEvents) next() (time.Duration, bool) {
	if len(h.heap) == 0 {
		return 0, false
	}
	return h.heap[0].at, true
}

func (h *simEvents) pop() func() {
	first := h.heap[0].run
	last := len(h.heap) - 1
	h.heap[0] = h.heap[last]
	h.heap[last] = simEvent{}
	h.heap = h.heap[:last]
	for i := 0; ; {
		c := 2*i + 1
		if c >= last {
			return first
		}
		if c+1 < last && h.heap[c+1].before(h.heap[c]) {
			c++
		}
		if !h.heap[c].before(h.heap[i]) {
			return first
		}
		h.heap[i], h.heap[c] = h.heap[c], h.heap[i]
		i = c
	}
}
