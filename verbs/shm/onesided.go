package shm

import (
	"encoding/binary"

	"github.com/smcgw/smcgw/verbs"
)

// The requester does READ and atomics at once, in the memory of the peer, whose
// processor takes no part. So one is never under way: a fence is fulfilled
// before it is looked at, and any number of them may be allowed.

// maxRDAtomic is that number, as large as attributes can say.
const maxRDAtomic = 255

// read copies out of the peer's memory. A zero-length READ may name anything,
// as a WRITE may.
func (q *qp) read(s *sendSlot) {
	s.finished = true
	if s.length == 0 {
		return
	}
	if src := q.remote(s, verbs.AccessRemoteRead); src != nil {
		q.store(s, src)
	}
}

// atomic does a 64-bit operation on the peer's memory, atomic to all
// processors of the machine; the operands and the result are in its byte order.
func (q *qp) atomic(s *sendSlot) {
	s.finished = true
	if s.addr%8 != 0 {
		q.fault(s, newsBad, verbs.WCRemInvReqErr)
		return
	}
	if q.remote(s, verbs.AccessRemoteAtomic) == nil || !q.storable(s) {
		return
	}
	w := q.peer.rem.word(s.addr)
	var old uint64
	if s.op == verbs.WRAtomicFetchAndAdd {
		old = w.Add(s.operand) - s.operand
	} else {
		for old = w.Load(); old == s.operand && !w.CompareAndSwap(old, s.swap); old = w.Load() {
		}
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], old)
	q.store(s, b[:])
}

// storable checks where the result goes before the operation is done.
func (q *qp) storable(s *sendSlot) bool {
	for i := range s.sge {
		if q.peer.local(s.sge[i], verbs.AccessLocalWrite) == nil {
			q.failed(s, verbs.WCLocProtErr)
			return false
		}
	}
	return true
}

// store scatters what was fetched; it fits, since its length is that of the list.
func (q *qp) store(s *sendSlot, data []byte) {
	for i := range s.sge {
		dst := q.peer.local(s.sge[i], verbs.AccessLocalWrite)
		if dst == nil {
			q.failed(s, verbs.WCLocProtErr)
			return
		}
		data = data[copy(dst, data):]
	}
}
