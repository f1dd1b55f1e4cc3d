package shm

import (
	"math/bits"

	"github.com/smcgw/smcgw/verbs"
)

// recvQueue holds posted receives, of a queue pair or shared: head <=
// retired-or-not <= tail, all counters only grow.
type recvQueue struct {
	ids     []uint64 // by counter, length mask+1; nil as long as all of them are the same
	same    uint64   // then it is this
	mask    uint64
	sges    []verbs.SGE
	counts  []uint8
	perWR   int
	head    uint64
	tail    uint64
	retired uint64 // completion polled; of a queue pair's own queue
}

func (r *recvQueue) init(maxWR, maxSGE int) {
	if maxWR == 0 {
		return
	}
	n := 1 << bits.Len(uint(maxWR-1))
	r.mask, r.perWR = uint64(n-1), maxSGE
	if r.perWR > 0 {
		r.sges, r.counts = make([]verbs.SGE, n*r.perWR), make([]uint8, n)
	}
}

// resize makes room for maxWR receives, at least those posted.
func (r *recvQueue) resize(maxWR int) {
	n := recvQueue{head: r.head, tail: r.head, retired: r.retired}
	n.init(maxWR, r.perWR)
	for ; r.head != r.tail; r.head++ {
		n.push(r.id(), r.list())
	}
	*r = n
}

// reset forgets what is posted; see sendQueue.reset.
func (r *recvQueue) reset() { r.head, r.retired = r.tail, r.tail }

func (r *recvQueue) empty() bool { return r.head == r.tail }

func (r *recvQueue) push(id uint64, list []verbs.SGE) {
	i := int(r.tail & r.mask)
	r.putID(i, id)
	if r.perWR > 0 {
		r.counts[i] = uint8(copy(r.sges[i*r.perWR:], list))
	}
	r.tail++
}

// putID notes the id of receive i. A queue of thousands of receives that are all
// alike, as those of idle connections are, needs no memory for that.
func (r *recvQueue) putID(i int, id uint64) {
	switch {
	case r.ids != nil:
		r.ids[i] = id
	case r.tail == 0 || id == r.same:
		r.same = id
	default:
		r.ids = make([]uint64, r.mask+1)
		for j := range r.ids {
			r.ids[j] = r.same
		}
		r.ids[i] = id
	}
}

// id is the work request id of the oldest receive.
func (r *recvQueue) id() uint64 {
	if r.ids == nil {
		return r.same
	}
	return r.ids[r.head&r.mask]
}

// list is the scatter list of the oldest receive.
func (r *recvQueue) list() []verbs.SGE {
	if r.perWR == 0 {
		return nil
	}
	i := int(r.head & r.mask)
	return r.sges[i*r.perWR:][:r.counts[i]]
}
