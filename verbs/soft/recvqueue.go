package soft

import (
	"math/bits"

	"github.com/smcgw/smcgw/verbs"
)

// recvQueue holds posted receives, of a queue pair or of an SRQ. The counters
// only grow: head <= tail, retired <= head.
type recvQueue struct {
	ids     []uint64 // by counter, length a power of two
	sges    []verbs.SGE
	counts  []uint8
	perWR   int
	head    uint64
	tail    uint64
	retired uint64 // completion polled
}

func (r *recvQueue) init(wrs, sges int) {
	if wrs == 0 {
		return
	}
	n := 1 << bits.Len(uint(wrs-1))
	r.ids, r.perWR = make([]uint64, n), sges
	r.sges, r.counts = make([]verbs.SGE, n*sges), make([]uint8, n)
}

func (r *recvQueue) posted() uint64 { return r.tail - r.head }

func (r *recvQueue) push(wr *verbs.RecvWR) {
	i := int(r.tail & uint64(len(r.ids)-1))
	r.ids[i] = wr.WRID
	r.counts[i] = uint8(copy(r.sges[i*r.perWR:(i+1)*r.perWR], wr.SGList))
	r.tail++
}

// pop moves the oldest receive into w.
func (r *recvQueue) pop(w *recvWQE) {
	i := int(r.head & uint64(len(r.ids)-1))
	r.head++
	w.id, w.retire, w.active, w.got = r.ids[i], r.head, true, 0
	w.sges = append(w.sges[:0], r.sges[i*r.perWR:i*r.perWR+int(r.counts[i])]...)
}

// recvWQE is the receive that the message under way goes into.
type recvWQE struct {
	id     uint64
	retire uint64
	sges   []verbs.SGE
	got    uint32 // bytes received
	active bool
}

// scatter appends data to what was received of the message.
func (w *recvWQE) scatter(p *pd, data []byte) verbs.WCStatus {
	n, status := p.scatter(w.sges, w.got, data)
	w.got += n
	return status
}

// scatter copies data to offset off of the memory that a list names; n bytes had
// room before the list or what its keys cover came to an end.
func (p *pd) scatter(sges []verbs.SGE, off uint32, data []byte) (n uint32, status verbs.WCStatus) {
	for i := range sges {
		s := &sges[i]
		if len(data) == 0 {
			break
		}
		if off >= s.Length {
			off -= s.Length
			continue
		}
		dst := p.local(s, off, min(uint32(len(data)), s.Length-off), verbs.AccessLocalWrite)
		if dst == nil {
			return n, verbs.WCLocProtErr
		}
		data = data[copy(dst, data):]
		n += uint32(len(dst))
		off = 0
	}
	if len(data) > 0 {
		return n, verbs.WCLocLenErr
	}
	return n, verbs.WCSuccess
}

// room is how many bytes the receive takes.
func (w *recvWQE) room() uint64 {
	n := uint64(0)
	for i := range w.sges {
		n += uint64(w.sges[i].Length)
	}
	return n
}
