package soft

import "math/rand/v2"

// A queue pair's number names its vector (so that peers can choose the source
// port, and the kernel the socket), its slot in the vector's table, and a
// generation, so that packets of a predecessor find nobody:
//
//	generation (6) | slot (14) | vector (4)
const (
	vectorBits = 4
	slotBits   = 14
	maxSlots   = 1 << slotBits // per vector; slot 0 is not used, its numbers are special
	gsiQPN     = 1
)

func slotOf(qpn uint32) uint32 { return qpn >> vectorBits & (maxSlots - 1) }

func vectorOf(qpn uint32) int { return int(qpn & (1<<vectorBits - 1)) }

// slotTable hands out numbers. The caller holds Device.mu.
type slotTable struct {
	free  [][]uint32 // by vector: slots to use again, oldest first
	next  []uint32   // by vector: lowest slot never used
	gens  [][]uint8  // by vector and slot
	used  int
	limit int
}

func (t *slotTable) init(vectors, limit int) {
	t.free, t.next, t.gens = make([][]uint32, vectors), make([]uint32, vectors), make([][]uint8, vectors)
	t.limit = limit
	for i := range t.next {
		t.next[i] = 1
		t.gens[i] = []uint8{0}
	}
}

// take returns the number of a new queue pair.
func (t *slotTable) take(vector int) (qpn uint32, ok bool) {
	if t.used >= t.limit {
		return 0, false
	}
	var slot uint32
	switch {
	case t.next[vector] < maxSlots:
		slot = t.next[vector]
		t.next[vector]++
		t.gens[vector] = append(t.gens[vector], uint8(rand.Uint32()))
	case len(t.free[vector]) > 0:
		slot = t.free[vector][0]
		t.free[vector] = t.free[vector][1:]
	default:
		return 0, false
	}
	t.used++
	t.gens[vector][slot]++
	gen := uint32(t.gens[vector][slot]) & 0x3f
	return gen<<(vectorBits+slotBits) | slot<<vectorBits | uint32(vector), true
}

func (t *slotTable) put(qpn uint32) {
	v := vectorOf(qpn)
	t.free[v] = append(t.free[v], slotOf(qpn))
	t.used--
}
