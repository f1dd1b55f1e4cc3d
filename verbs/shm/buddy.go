package shm

import "math/bits"

// buddy allocates ranges of an arena in sizes of pageSize << k. It only manages offsets; its owner locks.
type buddy struct {
	size uint64
	used uint64
	free [40]map[uint64]struct{} // by order: offsets of free ranges
}

func newBuddy(size uint64) *buddy {
	b := &buddy{size: size &^ (pageSize - 1)}
	for i := range b.free {
		b.free[i] = map[uint64]struct{}{}
	}
	for off := uint64(0); off < b.size; {
		k := b.largest(off)
		b.free[k][off] = struct{}{}
		off += orderSize(k)
	}
	return b
}

// largest returns the order of the largest aligned range at off within the arena.
func (b *buddy) largest(off uint64) int {
	k := bits.Len64((b.size-off)/pageSize) - 1
	if off != 0 {
		k = min(k, bits.TrailingZeros64(off/pageSize))
	}
	return min(k, len(b.free)-1)
}

func orderSize(k int) uint64 { return pageSize << k }

// order returns the smallest order that holds n bytes.
func order(n uint64) int {
	if n <= pageSize {
		return 0
	}
	return bits.Len64((n - 1) / pageSize)
}

// alloc returns the offset of a range of at least n bytes.
func (b *buddy) alloc(n uint64) (uint64, bool) {
	if n == 0 || n > b.size {
		return 0, false
	}
	want := order(n)
	for k := want; k < len(b.free); k++ {
		for off := range b.free[k] {
			delete(b.free[k], off)
			b.split(off, k, want)
			b.used += orderSize(want)
			return off, true
		}
	}
	return 0, false
}

// split frees the parts of a range of order k beyond order want.
func (b *buddy) split(off uint64, k, want int) {
	for k--; k >= want; k-- {
		b.free[k][off+orderSize(k)] = struct{}{}
	}
}

// release frees what alloc(n) returned and merges it with its buddies.
func (b *buddy) release(off, n uint64) {
	k := order(n)
	b.used -= orderSize(k)
	for ; k < len(b.free)-1; k++ {
		other := off ^ orderSize(k)
		if _, ok := b.free[k][other]; !ok {
			break
		}
		delete(b.free[k], other)
		off = min(off, other)
	}
	b.free[k][off] = struct{}{}
}
