package shm

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

// Entries of a ring: {imm<<32 | flags<<8 | op, length<<32 | staging offset / 64}.
const (
	entryWriteImm = 1 // a WRITE_WITH_IMM was placed
	entrySegment  = 2 // part of a SEND lies in the sender's staging memory

	entrySolicited = 1 << 8
	entryImm       = 1 << 9
	entryFirst     = 1 << 10
	entryLast      = 1 << 11
	entryInv       = 1 << 12 // instead of an immediate there is a key to invalidate
	entryFlags     = entrySolicited | entryImm | entryFirst | entryLast | entryInv
)

// A SEND has no address at the receiver, so it goes through staging memory of
// the sender, allocated with the first one.
const (
	segmentSize = 4096
	segments    = 16
	stageSize   = segmentSize * segments
)

type stage struct {
	off  uint64
	next uint64           // segments used so far
	ends [segments]uint64 // segment is free when the partner has consumed entries up to here
}

// issue does as much of s as it can; false means that it has to wait. A work
// request that fails is finished and leaves the queue pair in ERR.
func (q *qp) issue(s *sendSlot) bool {
	switch {
	case q.typ == verbs.QPTUD:
		q.sendDatagram(s)
	case q.typ == verbs.QPTUC && q.rem.gone: // nothing hears it, and no error follows
		s.finished = true
	case s.op == verbs.WRLocalInv:
		return q.localInv(s)
	case !q.rem.bound || q.mustWait(s): // of a partner that is gone finished takes care, in order
		return false
	case isSend(s.op):
		return q.send(s)
	case s.op == verbs.WRRDMAWrite:
		s.finished = true
		q.place(s)
	case s.op == verbs.WRRDMARead:
		q.read(s)
	case isAtomic(s.op):
		q.atomic(s)
	default:
		if !q.ready(q.typ == verbs.QPTRC) {
			return false
		}
		s.finished = true
		if q.place(s) {
			q.publish(entryWriteImm|entryImm, s, uint64(s.length)<<32, true)
			s.finished, s.until = !q.rem.shared, q.rem.published
			q.port.push(int(s.length), s.flags&verbs.SendPush != 0)
		}
	}
	return true
}

// mustWait tells whether s would overtake an earlier message that it must not
// overtake. What a SEND brings is in place for a later READ, and nothing
// follows a message that may yet find no receive.
func (q *qp) mustWait(s *sendSlot) bool {
	return (fetches(s.op) || q.rem.shared && s.op == verbs.WRRDMAWrite) && !q.acknowledged(q.rem.published)
}

// failed finishes s with an error. Unreliable queue pairs go on receiving.
func (q *qp) failed(s *sendSlot, status verbs.WCStatus) {
	s.finished, s.status = true, status
	if q.typ != verbs.QPTRC {
		q.state = verbs.QPSSQE
		return
	}
	q.fail(verbs.WCSuccess)
}

// place puts the payload of a WRITE where it belongs. A zero-length one may
// name any address and key (rsocket keepalive and credits rely on it).
func (q *qp) place(s *sendSlot) bool {
	if s.length == 0 {
		return true
	}
	dst := q.remote(s, verbs.AccessRemoteWrite)
	if dst == nil {
		return false
	}
	if s.flags&verbs.SendMapped != 0 {
		return true
	}
	return q.gather(s, 0, dst)
}

// remote is the memory of the peer that s names, nil if the partner or the
// region does not grant it.
func (q *qp) remote(s *sendSlot, need verbs.Access) []byte {
	if q.rem.access&need == 0 {
		q.fault(s, newsBad, verbs.WCRemInvReqErr)
		return nil
	}
	b := q.peer.remoteSpan(s.rkey, s.addr, uint64(s.length), need)
	if b == nil {
		q.fault(s, newsFault, verbs.WCRemAccessErr)
	}
	return b
}

// fault ends the queue pairs of both sides, as a NAK does (IBTA vol. 1, 9.9.3.1).
// On an unreliable connection there is none: nothing is done.
func (q *qp) fault(s *sendSlot, news uint64, status verbs.WCStatus) {
	if q.typ == verbs.QPTUC {
		return
	}
	q.tell(news)
	q.failed(s, status)
}

// gather copies len(dst) bytes of the payload from offset skip on.
func (q *qp) gather(s *sendSlot, skip uint64, dst []byte) bool {
	if s.flags&verbs.SendInline != 0 {
		copy(dst, s.inline[skip:])
		return true
	}
	for i := range s.sge {
		n := uint64(s.sge[i].Length)
		if skip >= n {
			skip -= n
			continue
		}
		src := q.peer.local(s.sge[i], 0)
		if src == nil {
			q.failed(s, verbs.WCLocProtErr)
			return false
		}
		dst = dst[copy(dst, src[skip:]):]
		skip = 0
		if len(dst) == 0 {
			break
		}
	}
	return true
}

// publish appends an entry to the partner's ring; ready has found room.
func (q *qp) publish(op uint64, s *sendSlot, second uint64, consumes bool) {
	r := &q.rem
	if s.flags&verbs.SendSolicited != 0 {
		op |= entrySolicited
	}
	i := (r.published & r.mask()) * 2
	r.ring[i], r.ring[i+1] = uint64(s.imm)<<32|op, second
	r.published++
	if consumes {
		r.used++
	}
	r.prod.Store(r.published)
	q.port.notify(int(r.vector), slotOf(r.qpn))
}

// ready tells whether an entry can be published now: the ring has room and, if
// the entry consumes one, a receive is posted. If not, the partner is asked to
// tell when that changes.
func (q *qp) ready(consumes bool) bool {
	if q.rem.shared { // its RNR clock is that of what was published
		return q.free(false) || q.askRoom()
	}
	if q.free(consumes) {
		q.rnrDeadline = time.Time{}
		return true
	}
	q.ask()
	if q.rem.bound && q.free(consumes) {
		q.rnrDeadline = time.Time{}
		return true
	}
	if consumes && q.rem.bound && q.rem.published-q.rem.consSeen <= q.rem.mask() {
		q.waitRNR()
	} else {
		q.rnrDeadline = time.Time{} // waits for the peer's loop, not for a receive
	}
	return false
}

// askRoom asks the partner for room in the ring and looks again.
func (q *qp) askRoom() bool {
	if q.rem.bound {
		q.ask()
	}
	return q.rem.bound && q.free(false)
}

func (q *qp) free(consumes bool) bool {
	r := &q.rem
	if r.published-r.consSeen > r.mask() {
		q.seeConsumed()
		if !r.bound || r.published-r.consSeen > r.mask() {
			return false
		}
	}
	if !consumes || int64(r.postSeen-r.used) > 0 {
		return true
	}
	r.postSeen = r.posted.Load()
	return int64(r.postSeen-r.used) > 0
}

// seeConsumed reads how far the partner is.
func (q *qp) seeConsumed() {
	r := &q.rem
	c := r.cons.Load()
	if c-r.consSeen > r.published-r.consSeen {
		q.peer.violation("entries consumed that were not published")
		return
	}
	r.consSeen, q.sq.acked = c, c
}

// ask has the partner mark this queue pair when its cons or posted moves. Look
// again afterwards.
func (q *qp) ask() {
	if q.rem.want.Load() == 0 {
		q.rem.want.Store(1)
	}
}

// waitRNR starts the clock of a queue pair that does not wait for ever: in IBTA
// terms, RNRRetry retries at the interval the partner asks for.
func (q *qp) waitRNR() {
	if q.attr.RNRRetry == 7 || !q.rnrDeadline.IsZero() {
		return
	}
	q.rnrDeadline = time.Now().Add(time.Duration(q.attr.RNRRetry) * verbs.RNRTimer(q.rem.rnr))
	q.vec.watch(q)
	q.vec.schedule(q) // so that the loop learns of the deadline before it sleeps
}

// watchStarved runs the RNR clock of a queue pair whose partner has a shared
// receive queue: while the oldest message waits there for a receive.
func (q *qp) watchStarved(progress bool) {
	waiting := q.state == verbs.QPSRTS && q.sq.Done != q.sq.issued && !q.sq.Oldest().finished &&
		q.rem.starve.Load() != 0
	if progress || !waiting {
		q.rnrDeadline = time.Time{}
	}
	if waiting {
		q.waitRNR()
	}
}

// rnrExpired gives up unless the receive has come at the last moment.
func (q *qp) rnrExpired() {
	deadline := q.rnrDeadline
	if q.pump(); !q.rnrDeadline.Equal(deadline) {
		return // another message waits, or none
	}
	q.rnrDeadline = time.Time{}
	waits := q.sq.issued != q.sq.Posted()
	if q.rem.shared {
		waits = q.sq.Done != q.sq.issued
	}
	if q.state != verbs.QPSRTS || !waits {
		return
	}
	if q.rem.shared {
		// The partner learns it and discards what is left in its ring; whether
		// or not it has taken more by then, nothing later is acknowledged.
		q.failed(q.sq.Oldest(), verbs.WCRNRRetryExcErr)
		q.rem, q.sq.nak = partner{gone: true}, verbs.WCWRFlushErr
		return
	}
	q.failed(q.sq.Slot(q.sq.issued), verbs.WCRNRRetryExcErr)
	q.sq.issued++
}

// send publishes a SEND segment by segment; it finishes when the partner has
// consumed the last one, since only then it is known to have fitted.
func (q *qp) send(s *sendSlot) bool {
	if q.sq.stage == nil && s.length > 0 && !q.allocStage() {
		q.failed(s, verbs.WCLocQPOpErr)
		return true
	}
	for {
		if !q.ready(!s.started && q.typ == verbs.QPTRC) || !q.segmentFree(s) {
			return false
		}
		n := min(s.length-s.sent, segmentSize)
		second, ok := q.fillSegment(s, n)
		if !ok {
			return true
		}
		op := uint64(entrySegment)
		if !s.started {
			op |= entryFirst
		}
		if s.sent += n; s.sent == s.length {
			op |= entryLast
		}
		switch s.op {
		case verbs.WRSendWithImm:
			op |= entryImm
		case verbs.WRSendWithInv:
			op |= entryInv
		default:
		}
		q.publish(op, s, second, !s.started)
		q.port.push(int(n), s.flags&verbs.SendPush != 0)
		s.started, s.until = true, q.rem.published
		if s.sent == s.length {
			s.finished = q.typ == verbs.QPTUC
			return true
		}
	}
}

func (q *qp) allocStage() bool {
	q.peer.mu.Lock()
	defer q.peer.mu.Unlock()
	off, err := q.peer.allocLocked(stageSize)
	if err != nil {
		return false
	}
	q.sq.stage = &stage{off: off}
	return true
}

// segmentFree tells whether the next staging segment can be overwritten.
func (q *qp) segmentFree(s *sendSlot) bool {
	st := q.sq.stage
	return s.sent == s.length || q.acknowledged(st.ends[st.next%segments])
}

// fillSegment copies n bytes into the next segment and returns the second word
// of their entry.
func (q *qp) fillSegment(s *sendSlot, n uint32) (uint64, bool) {
	if n == 0 {
		return 0, true
	}
	st := q.sq.stage
	off := st.off + st.next%segments*segmentSize
	if !q.gather(s, uint64(s.sent), q.peer.own.span(off, uint64(n))) {
		return 0, false
	}
	st.ends[st.next%segments] = q.rem.published + 1
	st.next++
	return uint64(n)<<32 | off/64, true
}

// MapRemote implements verbs.RemoteMapper.
func (q *qp) MapRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	if q.closed || !q.rem.bound || q.peer.down.Load() {
		return nil, verbs.ErrRemoteGone
	}
	if n < 0 || q.rem.access&verbs.AccessRemoteWrite == 0 {
		return nil, verbs.ErrAccess
	}
	if b := q.peer.remoteSpan(rkey, addr, uint64(n), verbs.AccessRemoteWrite); b != nil {
		return b, nil
	}
	return nil, verbs.ErrAccess
}

// ReadRemote implements verbs.RemoteReader. The queue pair keeps the peer's memory
// mapped until it is closed.
func (q *qp) ReadRemote(rkey uint32, addr uint64, n int) ([]byte, error) {
	if q.closed || q.peer.rem == nil {
		return nil, verbs.ErrRemoteGone
	}
	if n >= 0 {
		if b := q.peer.remoteSpan(rkey, addr, uint64(n), verbs.AccessRemoteWrite); b != nil {
			return b, nil
		}
	}
	return nil, verbs.ErrAccess
}
