package shm

import "sync/atomic"

// keyTable finds memory regions by key: index<<16 | generation. Loops look up without a lock; the owner of the table
// changes it under Peer.mu.
type keyTable struct {
	pages [maxKeys / keyPage]atomic.Pointer[[keyPage]atomic.Pointer[mr]]
	gens  []uint16
	next  uint32
	count int
}

const keyPage = 256

// find returns the region with that key, or nil.
func (t *keyTable) find(key uint32) *mr {
	page := t.pages[key>>16/keyPage].Load()
	if page == nil {
		return nil
	}
	if m := page[key>>16%keyPage].Load(); m != nil && m.key == key {
		return m
	}
	return nil
}

// addLocked assigns a key to m. Indexes are used in turn, so a stale key stays invalid for long.
func (t *keyTable) addLocked(m *mr) bool {
	if t.count >= maxKeys-1 {
		return false
	}
	for {
		t.next = (t.next + 1) % maxKeys
		if t.next == 0 {
			continue
		}
		page := t.pageLocked(t.next)
		if s := &page[t.next%keyPage]; s.Load() == nil {
			m.key = t.next<<16 | uint32(t.genLocked(t.next))
			s.Store(m)
			t.count++
			return true
		}
	}
}

func (t *keyTable) pageLocked(i uint32) *[keyPage]atomic.Pointer[mr] {
	p := &t.pages[i/keyPage]
	if p.Load() == nil {
		p.Store(new([keyPage]atomic.Pointer[mr]))
	}
	return p.Load()
}

func (t *keyTable) genLocked(i uint32) uint16 {
	for uint32(len(t.gens)) <= i {
		t.gens = append(t.gens, 0)
	}
	t.gens[i]++
	return t.gens[i]
}

func (t *keyTable) removeLocked(m *mr) {
	t.pages[m.key>>16/keyPage].Load()[m.key>>16%keyPage].Store(nil)
	t.count--
}
