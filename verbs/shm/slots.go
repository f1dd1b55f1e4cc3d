package shm

import "sync"

// slotTable allocates the slots of queue pairs for the whole device. A slot is reused as late as possible and with
// another generation, so that stale queue pair numbers are invalid.
type slotTable struct {
	mu    sync.Mutex // guards everything below; innermost lock
	used  []bool
	gens  []uint32
	next  uint32
	count int
}

func (t *slotTable) take() (slot, gen uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == nil {
		t.used, t.gens = make([]bool, maxSlots), make([]uint32, maxSlots)
	}
	if t.count >= maxSlots-firstSlot {
		return 0, 0, false
	}
	for t.next < firstSlot || t.used[t.next] {
		t.next = (t.next + 1) % maxSlots
	}
	slot = t.next
	t.next = (t.next + 1) % maxSlots
	t.used[slot] = true
	t.gens[slot]++
	t.count++
	return slot, t.gens[slot], true
}

func (t *slotTable) put(slot uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used[slot] = false
	t.count--
}

func (t *slotTable) inUse() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count
}
