package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// A key is the index of its region and a random tag that a stale or guessed key
// lacks. L_Key and R_Key are the same number, as with rxe.
//
//	index (18) | tag (14)
const (
	tagBits   = 14
	maxKeys   = 1 << (32 - tagBits)
	keyChunk  = 512
	keyChunks = maxKeys / keyChunk
)

// keyTable finds regions by key. Looking up takes no lock: the loops of all
// vectors do, while other goroutines register and close regions.
type keyTable struct {
	count  atomic.Int64
	chunks [keyChunks]atomic.Pointer[[keyChunk]atomic.Pointer[mr]]

	mu   sync.Mutex // guards everything below, and writing chunks
	free []uint32
	next uint32 // index 0 is not used: no key is 0
}

// find returns the region of a key, nil if there is none.
func (t *keyTable) find(key uint32) *mr {
	i := key >> tagBits
	c := t.chunks[i/keyChunk].Load()
	if c == nil {
		return nil
	}
	if m := c[i%keyChunk].Load(); m != nil && m.key == key {
		return m
	}
	return nil
}

// add gives m a key; false means that there is none left.
func (t *keyTable) add(m *mr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	var i uint32
	switch {
	case len(t.free) > 0:
		i = t.free[len(t.free)-1]
		t.free = t.free[:len(t.free)-1]
	case t.next < maxKeys-1:
		t.next++
		i = t.next
	default:
		return false
	}
	if t.chunks[i/keyChunk].Load() == nil {
		t.chunks[i/keyChunk].Store(new([keyChunk]atomic.Pointer[mr]))
	}
	m.key = i<<tagBits | rand.Uint32()&(1<<tagBits-1)
	t.chunks[i/keyChunk].Load()[i%keyChunk].Store(m)
	t.count.Add(1)
	return true
}

func (t *keyTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := m.key >> tagBits
	t.chunks[i/keyChunk].Load()[i%keyChunk].Store(nil)
	t.free = append(t.free, i)
	t.count.Add(-1)
}
