package soft

// timerHeap holds queue pairs by deadline. A queue pair whose deadline moves later stays where it is and is reinserted
// when its old time comes: retransmission timers move with every acknowledgement.
type timerHeap struct {
	items []timerItem
}

type timerItem struct {
	at int64
	q  *qp
}

// set ensures that q is popped at its deadline at the latest.
func (h *timerHeap) set(q *qp) {
	if q.deadline == 0 || q.timerAt != 0 && q.timerAt <= q.deadline {
		return
	}
	q.timerAt = q.deadline
	h.items = append(h.items, timerItem{q.deadline, q})
	h.up(len(h.items) - 1)
}

// next returns the earliest time, or 0.
func (h *timerHeap) next() int64 {
	if len(h.items) == 0 {
		return 0
	}
	return h.items[0].at
}

// pop returns a queue pair whose deadline has passed, or nil. It skips items that a later set has replaced.
func (h *timerHeap) pop(now int64) *qp {
	for len(h.items) > 0 && h.items[0].at <= now {
		it := h.items[0]
		last := len(h.items) - 1
		h.items[0] = h.items[last]
		h.items[last] = timerItem{}
		h.items = h.items[:last]
		h.down(0)
		if it.q.timerAt != it.at {
			continue
		}
		it.q.timerAt = 0
		if it.q.deadline > now {
			h.set(it.q)
			continue
		}
		if it.q.deadline != 0 {
			return it.q
		}
	}
	return nil
}

func (h *timerHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if h.items[parent].at <= h.items[i].at {
			return
		}
		h.items[parent], h.items[i] = h.items[i], h.items[parent]
		i = parent
	}
}

func (h *timerHeap) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.items); c++ {
			if h.items[c].at < h.items[least].at {
				least = c
			}
		}
		if least == i {
			return
		}
		h.items[i], h.items[least] = h.items[least], h.items[i]
		i = least
	}
}
