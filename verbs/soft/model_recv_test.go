package soft

import (
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// modelRecvs is the receive queue of a queue pair and the buffers that are posted
// to it.
type modelRecvs struct {
	t      simTB
	w      *simWorld
	rng    *rand.Rand
	post   func(wr *verbs.RecvWR) error
	sges   int // per receive
	slots  *modelSlots
	lazy   time.Duration // how late receives are posted again
	posted []modelRecv
	due    int // receives to post now
	nextID uint64
	deaf   bool // posts nothing
	prefix int  // bytes in front of the payload: the GRH of UD
}

// modelRecv is one posted receive.
type modelRecv struct {
	id   uint64
	off  int
	list []verbs.SGE
}

// modelRecvID marks the work request ids of receives.
const modelRecvID = 1 << 63

// again posts a receive, some time later.
func (q *modelRecvs) again() {
	d := time.Duration(0)
	if q.lazy > 0 && q.rng.IntN(2) == 0 {
		d = time.Duration(q.rng.Int64N(int64(q.lazy)))
	}
	q.w.net.after(d, func() { q.due++ })
}

// turn posts what is due; the loop calls it.
func (q *modelRecvs) turn() bool {
	worked := false
	for ; q.due > 0 && !q.deaf; q.due-- {
		off, ok := q.slots.take()
		if !ok {
			return worked
		}
		list := q.slots.cut(q.rng, off, q.slots.each, 1+q.rng.IntN(q.sges))
		q.nextID++
		r := modelRecv{id: modelRecvID | q.nextID, off: off, list: list}
		require.NoError(q.t, q.post(&verbs.RecvWR{WRID: r.id, SGList: list}))
		for i := range list {
			list[i].LKey = 0 // the device has its own copy
		}
		q.posted = append(q.posted, r)
		worked = true
	}
	return worked
}

// take takes the receive of a completion. Queue pairs use theirs in order.
func (q *modelRecvs) take(id uint64) modelRecv {
	q.t.Helper()
	require.NotEmpty(q.t, q.posted)
	r := q.posted[0]
	require.Equal(q.t, r.id, id)
	q.posted = q.posted[1:]
	return r
}

// contents is what the receive holds.
func (q *modelRecvs) contents(r modelRecv, n int) []byte {
	return q.slots.bytes()[r.off : r.off+n]
}

// done gives the buffer back, overwritten.
func (q *modelRecvs) done(r modelRecv) {
	clear(q.slots.bytes()[r.off : r.off+q.slots.each])
	q.slots.give(r.off)
	q.again()
}
