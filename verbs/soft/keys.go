package soft

import (
	"sync"
	"sync/atomic"
)

// A key is 32 random bits, of which the upper ones are the index of its region, so that a stale or guessed key opens
// nothing. L_Key and R_Key are the same number, as in rxe.
//
//	index (20) | tag (12)
//
// At most a quarter of the indices is used, so that a random one is free at the first try or the second.
const (
	tagBits   = 12
	keySlots  = 1 << (32 - tagBits)
	maxKeys   = keySlots / 4
	keyChunk  = 512
	keyChunks = keySlots / keyChunk
)

// keyTable finds regions by key. Lookups take no lock: the loops of all vectors make them while other goroutines
// register and close regions.
type keyTable struct {
	count  atomic.Int64
	chunks [keyChunks]atomic.Pointer[[keyChunk]atomic.Pointer[mr]]

	mu sync.Mutex // guards writing chunks
}

// find returns the region of a key, or nil.
func (t *keyTable) find(key uint32) *mr {
	if m := t.at(key); m != nil && m.key == key {
		return m
	}
	return nil
}

// at returns the region with the index of a key.
func (t *keyTable) at(key uint32) *mr {
	i := key >> tagBits
	if c := t.chunks[i/keyChunk].Load(); c != nil {
		return c[i%keyChunk].Load()
	}
	return nil
}

// add assigns a key to m; it returns false if none is left.
func (t *keyTable) add(m *mr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count.Load() >= maxKeys-1 {
		return false
	}
	for m.key = random32(); m.key>>tagBits == 0 || t.at(m.key) != nil; { // no key is 0
		m.key = random32()
	}
	i := m.key >> tagBits
	if t.chunks[i/keyChunk].Load() == nil {
		t.chunks[i/keyChunk].Store(new([keyChunk]atomic.Pointer[mr]))
	}
	t.chunks[i/keyChunk].Load()[i%keyChunk].Store(m)
	t.count.Add(1)
	return true
}

func (t *keyTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := m.key >> tagBits
	t.chunks[i/keyChunk].Load()[i%keyChunk].Store(nil)
	t.count.Add(-1)
}
