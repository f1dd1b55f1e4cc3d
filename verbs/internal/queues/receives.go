package queues

import (
	"math/bits"

	"github.com/smcgw/smcgw/verbs"
)

// Receives holds posted receives, oldest first. The counters only grow:
// Retired <= head <= tail. The zero value holds none.
type Receives struct {
	Retired uint64   // completions polled
	ids     []uint64 // by counter, length mask+1; nil while all ids are the same
	same    uint64   // the id of all receives while ids is nil
	mask    uint64
	lists   *lists // nil: receives have no memory
	head    uint64
	tail    uint64
}

// lists are the scatter lists of receives, by counter.
type lists struct {
	sges   []verbs.SGE
	counts []uint8
	perWR  int
}

// NewReceives makes a queue for wrs receives of up to sges SGEs.
func NewReceives(wrs, sges int) Receives {
	if wrs == 0 {
		return Receives{}
	}
	n := 1 << bits.Len(uint(wrs-1))
	r := Receives{mask: uint64(n - 1)}
	if sges > 0 {
		r.lists = &lists{sges: make([]verbs.SGE, n*sges), counts: make([]uint8, n), perWR: sges}
	}
	return r
}

// Empty reports whether no receive is posted.
func (r *Receives) Empty() bool { return r.head == r.tail }

// Posted returns the number of receives not taken yet.
func (r *Receives) Posted() int { return int(r.tail - r.head) }

// Held returns the number of receives whose completion was not polled yet.
func (r *Receives) Held() uint64 { return r.tail - r.Retired }

// Push posts a receive. The caller must have checked that there is room.
func (r *Receives) Push(id uint64, list []verbs.SGE) {
	i := int(r.tail & r.mask)
	r.putID(i, id)
	if l := r.lists; l != nil {
		l.counts[i] = uint8(copy(l.sges[i*l.perWR:(i+1)*l.perWR], list))
	}
	r.tail++
}

// putID stores the id of receive i. A queue of thousands of equal receives, as idle connections have, needs no memory
// for ids.
func (r *Receives) putID(i int, id uint64) {
	switch {
	case r.ids != nil:
		r.ids[i] = id
	case r.Empty() || id == r.same:
		r.same = id
	default:
		r.ids = make([]uint64, r.mask+1)
		for j := range r.ids {
			r.ids[j] = r.same
		}
		r.ids[i] = id
	}
}

// ID returns the work request id of the oldest receive.
func (r *Receives) ID() uint64 {
	if r.ids == nil {
		return r.same
	}
	return r.ids[r.head&r.mask]
}

// List returns the scatter list of the oldest receive, valid until the next Push.
func (r *Receives) List() []verbs.SGE {
	l := r.lists
	if l == nil {
		return nil
	}
	i := int(r.head & r.mask)
	return l.sges[i*l.perWR:][:l.counts[i]]
}

// Take removes the oldest receive and returns how many were ever taken, the value of Retired once its completion is
// polled.
func (r *Receives) Take() uint64 {
	r.head++
	return r.head
}

// Reset drops what is posted. Counters go on, since completions refer to them.
func (r *Receives) Reset() { r.head, r.Retired = r.tail, r.tail }
