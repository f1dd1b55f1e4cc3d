package shm

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Entries of a ring: {imm<<32 | flags | op, length<<32}. Each announces a WRITE_WITH_IMM whose payload was placed, and
// uses a receive.
const (
	entryWriteImm = 1
	entryImm      = 1 << 9 // of datagrams
)

// issue executes s, which finishes it; false means that it has to wait. A work request that fails leaves the queue pair
// in ERR.
func (q *qp) issue(s *sendSlot) bool {
	switch {
	case q.typ == verbs.QPTUD:
		q.sendDatagram(s)
	case !q.rem.bound: // if the partner is gone, finished handles it, in order
		return false
	case s.op == verbs.WRRDMAWrite:
		q.place(s)
	default:
		if !q.ready() {
			return false
		}
		if q.place(s) {
			q.publish(s)
			q.port.push(s)
		}
	}
	return true
}

// failed marks s as failed. Unreliable queue pairs continue to receive.
func (q *qp) failed(s *sendSlot, status verbs.WCStatus) {
	s.status = status
	if q.typ == verbs.QPTUD {
		q.state = verbs.QPSSQE
		return
	}
	q.fail()
}

// place copies the payload of a WRITE to its target. A zero-length one may have any address and key (rsocket's
// keepalives and credits rely on it).
func (q *qp) place(s *sendSlot) bool {
	if s.length == 0 {
		return true
	}
	dst := q.remote(s)
	return dst != nil && (s.flags&verbs.SendMapped != 0 || q.gather(s, dst))
}

// remote returns the peer's memory that s refers to, or nil if the partner or the region does not grant it.
func (q *qp) remote(s *sendSlot) []byte {
	if q.rem.access&verbs.AccessRemoteWrite == 0 {
		q.fault(s, newsBad, verbs.WCRemInvReqErr)
		return nil
	}
	b := q.peer.remoteSpan(s.rkey, s.addr, uint64(s.length))
	if b == nil {
		q.fault(s, newsFault, verbs.WCRemAccessErr)
	}
	return b
}

// fault ends the queue pairs of both sides, as a NAK does (IBTA vol. 1, 9.9.3.1).
func (q *qp) fault(s *sendSlot, news uint64, status verbs.WCStatus) {
	q.tell(news)
	q.failed(s, status)
}

// gather copies the payload.
func (q *qp) gather(s *sendSlot, dst []byte) bool {
	if s.flags&verbs.SendInline != 0 {
		copy(dst, s.inline)
		return true
	}
	for i := range s.sge {
		src := q.peer.local(s.sge[i], 0)
		if src == nil {
			q.failed(s, verbs.WCLocProtErr)
			return false
		}
		dst = dst[copy(dst, src):]
	}
	return true
}

// publish appends an entry to the partner's ring; ready must have found room.
func (q *qp) publish(s *sendSlot) {
	r := &q.rem
	i := (r.published & r.mask()) * 2
	r.ring[i], r.ring[i+1] = uint64(s.imm)<<32|entryWriteImm, uint64(s.length)<<32
	r.published++
	r.prod.Store(r.published)
	q.port.notify(int(r.vector), slotOf(r.qpn))
}

// ready reports whether an entry can be published now: the ring has room and a receive is posted. If not, the partner
// is asked to tell when that changes.
func (q *qp) ready() bool {
	if !q.free() {
		q.ask()
		if !q.free() {
			q.wait()
			return false
		}
	}
	q.rnrDeadline = time.Time{}
	return true
}

// wait runs the RNR clock if a receive is missing, but not if the peer's loop is only slow.
func (q *qp) wait() {
	if q.rem.full() {
		q.rnrDeadline = time.Time{}
		return
	}
	q.waitRNR()
}

// full reports whether the ring had no room at the last look.
func (r *partner) full() bool { return r.published-r.consSeen > r.mask() }

func (q *qp) free() bool {
	r := &q.rem
	if r.full() {
		if q.seeConsumed(); r.full() {
			return false
		}
	}
	if int64(r.postSeen-r.published) > 0 {
		return true
	}
	r.postSeen = r.posted.Load()
	return int64(r.postSeen-r.published) > 0
}

// seeConsumed reads and checks how much the partner has consumed.
func (q *qp) seeConsumed() {
	r := &q.rem
	c := r.cons.Load()
	if c-r.consSeen > r.published-r.consSeen {
		q.peer.violation("entries consumed that were not published")
		return
	}
	r.consSeen = c
}

// ask makes the partner mark this queue pair when its cons or posted moves. Check again afterwards.
func (q *qp) ask() {
	if q.rem.want.Load() == 0 {
		q.rem.want.Store(1)
	}
}

// waitRNR starts the clock of a queue pair that does not wait forever: in IBTA terms, RNRRetry retries at the interval
// that the partner asks for.
func (q *qp) waitRNR() {
	if q.attr.RNRRetry == 7 || !q.rnrDeadline.IsZero() {
		return
	}
	q.rnrDeadline = time.Now().Add(time.Duration(q.attr.RNRRetry) * verbs.RNRTimer(q.rem.rnr))
	q.vec.watch(q)
	q.vec.schedule(q) // so that the loop learns of the deadline before it sleeps
}

// rnrExpired gives up unless the receive has come at the last moment.
func (q *qp) rnrExpired() {
	deadline := q.rnrDeadline
	if q.pump(); !q.rnrDeadline.Equal(deadline) {
		return // another message waits, or none
	}
	q.rnrDeadline = time.Time{}
	if q.sending() {
		q.failed(q.sq.Slot(q.sq.issued), verbs.WCRNRRetryExcErr)
		q.sq.issued++
	}
}

func (q *qp) MapRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	if q.closed || !q.rem.bound || q.peer.down.Load() {
		return nil, verbs.ErrRemoteGone
	}
	if n < 0 || q.rem.access&verbs.AccessRemoteWrite == 0 {
		return nil, verbs.ErrAccess
	}
	if b := q.peer.remoteSpan(rkey, addr, uint64(n)); b != nil {
		return b, nil
	}
	return nil, verbs.ErrAccess
}

// ReadRemote implements verbs.RemoteReader. The queue pair keeps the peer's memory mapped until it is closed.
func (q *qp) ReadRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	if q.closed || q.peer.rem == nil {
		return nil, verbs.ErrRemoteGone
	}
	if n >= 0 {
		if b := q.peer.remoteSpan(rkey, addr, uint64(n)); b != nil {
			return b, nil
		}
	}
	return nil, verbs.ErrAccess
}
