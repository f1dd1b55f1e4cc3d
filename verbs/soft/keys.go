package soft

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
)

// A key is the index of its region and a tag that a stale or guessed key lacks:
// random at first, and different for each of the next 2^14 regions with that
// index. L_Key and R_Key are the same number, as with rxe.
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
	free []uint32   // keys to use the index of again
	next uint32     // index 0 is not used: no key is 0
	step uint32     // odd, drawn when first needed
}

// successor is the key with the index of an old one and another tag. Multiplier
// and odd step make the period that of all tags (Hull and Dobell).
func (t *keyTable) successor(key uint32) uint32 {
	const mask = 1<<tagBits - 1
	if t.step == 0 {
		t.step = rand.Uint32() | 1
	}
	return key&^uint32(mask) | (key*5+t.step)&mask
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
	switch {
	case len(t.free) > 0:
		m.key = t.successor(t.free[len(t.free)-1])
		t.free = t.free[:len(t.free)-1]
	case t.next < maxKeys-1:
		t.next++
		m.key = t.next<<tagBits | rand.Uint32()&(1<<tagBits-1)
	default:
		return false
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
	t.free = append(t.free, m.key)
	t.count.Add(-1)
}
