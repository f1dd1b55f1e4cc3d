package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/queues"
)

// sendQueue holds the work requests not completed yet. They are issued in order, which finishes them, and complete in
// order: Done <= issued <= Posted.
type sendQueue struct {
	queues.Sends[sendSlot]
	issued uint64
}

// sendSlot is a posted work request with its result.
type sendSlot struct {
	wrID   uint64
	addr   uint64
	rkey   uint32
	dest   uint32 // UD
	qkey   uint32
	imm    uint32
	length uint32
	op     verbs.WROpcode
	flags  verbs.SendFlags
	status verbs.WCStatus
	sge    []verbs.SGE
	inline []byte
}

// reset drops what is posted. Counters go on, since completions in the CQ refer to them.
func (s *sendQueue) reset() {
	s.Reset()
	s.issued = s.Posted()
}

// failOldest fails the oldest work request, unless it is finished.
func (s *sendQueue) failOldest(status verbs.WCStatus) {
	if s.Done == s.issued {
		s.Oldest().status = status
		s.issued++
	}
}

// flushPosted flushes what was posted in SQE and has not completed yet, because the queue pair is about to send again.
func (s *sendQueue) flushPosted() {
	for ; s.issued != s.Posted(); s.issued++ {
		s.Slot(s.issued).status = verbs.WCWRFlushErr
	}
}

func (q *qp) PostSend(wr *verbs.SendWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state < verbs.QPSRTS:
		return fmt.Errorf("post send in %v: %w", q.state, verbs.ErrState)
	case q.sq.Held() >= uint64(q.cap.sendWR):
		return verbs.ErrQueueFull
	}
	n, err := q.checkSend(wr)
	if err != nil {
		return err
	}
	s := q.sq.Push()
	*s = sendSlot{
		wrID: wr.WRID, addr: wr.RemoteAddr, rkey: wr.RKey, imm: wr.ImmData, length: n, op: wr.Opcode, flags: wr.Flags,
		dest: wr.RemoteQPN, qkey: wr.RemoteQKey,
		sge: append(s.sge[:0], wr.SGList...), inline: s.inline[:0],
	}
	if wr.Flags&verbs.SendInline != 0 {
		s.inline = append(s.inline, wr.Inline...)
	}
	q.pump()
	return nil
}

const knownFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendInline | verbs.SendMapped | verbs.SendPush

// checkSend checks a work request and returns the length of the message.
func (q *qp) checkSend(wr *verbs.SendWR) (uint32, error) {
	if err := q.checkOpcode(wr); err != nil {
		return 0, err
	}
	if wr.Flags&^knownFlags != 0 || len(wr.SGList) > int(q.cap.sendSGE) {
		return 0, fmt.Errorf("flags %#x, %d SGEs: %w", uint16(wr.Flags), len(wr.SGList), verbs.ErrInvalid)
	}
	if wr.Flags&verbs.SendInline != 0 {
		if len(wr.Inline) > int(q.cap.inline) || len(wr.SGList) > 0 || wr.Flags&verbs.SendMapped != 0 {
			return 0, fmt.Errorf("inline data of %d bytes: %w", len(wr.Inline), verbs.ErrInvalid)
		}
		return uint32(len(wr.Inline)), nil
	}
	if wr.Flags&verbs.SendMapped != 0 && !mapped(wr) {
		return 0, fmt.Errorf("mapped payload that is not where it is written to: %w", verbs.ErrInvalid)
	}
	return sumSGE(wr.SGList)
}

// checkOpcode checks that the transport has the operation and, for UD, that the work request has a destination.
func (q *qp) checkOpcode(wr *verbs.SendWR) error {
	switch wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithImm:
		if q.typ != verbs.QPTUD {
			return fmt.Errorf("%v on a queue pair of type %v: %w", wr.Opcode, q.typ, verbs.ErrNotSupported)
		}
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		if q.typ == verbs.QPTUD {
			return fmt.Errorf("%v on a queue pair of type %v: %w", wr.Opcode, q.typ, verbs.ErrInvalid)
		}
	default:
		return fmt.Errorf("%v: %w", wr.Opcode, verbs.ErrNotSupported)
	}
	if q.typ != verbs.QPTUD {
		return nil
	}
	if a, ok := wr.AH.(*ah); !ok || a.peer != q.peer || a.closed.Load() || wr.RemoteQPN > 0xffffff {
		return fmt.Errorf("destination of a datagram: %w", verbs.ErrInvalid)
	}
	return nil
}

// mapped reports whether the WR's payload is already at its target.
func mapped(wr *verbs.SendWR) bool {
	write := wr.Opcode == verbs.WRRDMAWrite || wr.Opcode == verbs.WRRDMAWriteWithImm
	return write && len(wr.SGList) == 1 && wr.SGList[0].Addr == wr.RemoteAddr && wr.SGList[0].LKey == wr.RKey
}

func sumSGE(list []verbs.SGE) (uint32, error) {
	n := uint64(0)
	for i := range list {
		n += uint64(list[i].Length)
	}
	if n > maxMsg {
		return 0, fmt.Errorf("message of %d bytes: %w", n, verbs.ErrInvalid)
	}
	return uint32(n), nil
}

// pump issues and completes what it can.
func (q *qp) pump() {
	if q.state != verbs.QPSErr && q.peer.down.Load() {
		q.peerDown()
	}
	for q.sending() && q.issue(q.sq.Slot(q.sq.issued)) {
		q.sq.issued++
	}
	for !q.sq.Idle() && q.complete(q.sq.Oldest()) {
		q.sq.Done++
	}
}

// sending reports whether there is something to issue.
func (q *qp) sending() bool { return q.state == verbs.QPSRTS && q.sq.issued != q.sq.Posted() }

// complete queues the completion of the oldest work request if it is due.
func (q *qp) complete(s *sendSlot) bool {
	if !q.finished(s) {
		return false
	}
	if s.status == verbs.WCSuccess && !q.sig && s.flags&verbs.SendSignaled == 0 {
		return true
	}
	if !q.scq.room() {
		q.scq.wait(q, &q.fullS)
		return false
	}
	e := cqe{Retired: &q.sq.Retired, Retire: q.sq.Done + 1}
	e.WC = verbs.WC{
		WRID: s.wrID, Status: s.status, Opcode: s.op.WCOpcode(), ByteLen: s.length, QPNum: q.num, SrcQP: q.rem.qpn,
	}
	q.scq.push(&e)
	return true
}

// finished reports whether the oldest work request is finished. It finishes it with an error if the partner is gone or
// the queue pair failed.
func (q *qp) finished(s *sendSlot) bool {
	switch {
	case q.sq.Done < q.sq.issued:
	case q.typ == verbs.QPTRC && q.rem.gone && q.sending(): // later ones are flushed
		q.sq.failOldest(verbs.WCRetryExcErr)
		q.fail()
	case q.state == verbs.QPSErr || q.state == verbs.QPSSQE:
		s.status = verbs.WCWRFlushErr
	default:
		return false
	}
	return true
}
