package shm

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/internal/workqueue"
)

// sendQueue holds the work requests not completed yet. They are issued in order and
// complete in order: Done <= issued <= Posted.
type sendQueue struct {
	workqueue.Sends[sendSlot]
	issued  uint64
	nak     verbs.WCStatus
	acked   uint64 // entries the partner has consumed, as last seen
	flushed bool   // one was flushed: none after it succeeds
	stage   *stage // nil until the first SEND
}

// sendSlot is a posted work request with its progress.
type sendSlot struct {
	wrID     uint64
	addr     uint64
	operand  uint64 // atomics: CompareAdd
	swap     uint64
	rkey     uint32
	dest     uint32 // UD
	qkey     uint32
	imm      uint32
	length   uint32
	sent     uint32 // SEND: bytes published
	op       verbs.WROpcode
	flags    verbs.SendFlags
	status   verbs.WCStatus
	started  bool
	finished bool
	until    uint64 // SEND: finished when the partner has consumed entries up to here
	sge      []verbs.SGE
	inline   []byte
}

// reset forgets what is posted. Counters go on: completions in the CQ refer to them.
func (s *sendQueue) reset() {
	s.Reset()
	s.issued = s.Posted()
	s.nak, s.acked, s.flushed = verbs.WCSuccess, 0, false
}

// failOldest gives the oldest work request not completed yet an error status.
func (s *sendQueue) failOldest(status verbs.WCStatus) {
	t := s.Oldest()
	if s.Done < s.issued && t.finished {
		return
	}
	t.status, t.finished = status, true
	s.issued = max(s.issued, s.Done+1)
}

// flushPosted gives what was posted in SQE and has not completed yet an error
// status: the queue pair is about to send again.
func (s *sendQueue) flushPosted() {
	for ; s.issued != s.Posted(); s.issued++ {
		t := s.Slot(s.issued)
		t.status, t.finished = verbs.WCWRFlushErr, true
	}
}

// PostSend implements verbs.QP.
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
		operand: wr.CompareAdd, swap: wr.Swap, dest: wr.RemoteQPN, qkey: wr.RemoteQKey,
		sge: append(s.sge[:0], wr.SGList...), inline: s.inline[:0],
	}
	if wr.Opcode == verbs.WRSendWithInv || wr.Opcode == verbs.WRLocalInv {
		s.imm = wr.InvRKey
	}
	if wr.Flags&verbs.SendInline != 0 {
		s.inline = append(s.inline, wr.Inline...)
	}
	q.pump()
	return nil
}

const knownFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendSolicited | verbs.SendInline | verbs.SendMapped | verbs.SendPush

// checkSend returns the length of the message.
func (q *qp) checkSend(wr *verbs.SendWR) (uint32, error) {
	if err := q.checkOpcode(wr); err != nil {
		return 0, err
	}
	if wr.Flags&^knownFlags != 0 || len(wr.SGList) > int(q.cap.sendSGE) {
		return 0, fmt.Errorf("flags %#x, %d SGEs: %w", uint16(wr.Flags), len(wr.SGList), verbs.ErrInvalid)
	}
	if wr.Flags&verbs.SendInline != 0 {
		if len(wr.Inline) > int(q.cap.inline) || len(wr.SGList) > 0 || wr.Flags&verbs.SendMapped != 0 || fetches(wr.Opcode) {
			return 0, fmt.Errorf("inline data of %d bytes: %w", len(wr.Inline), verbs.ErrInvalid)
		}
		return uint32(len(wr.Inline)), nil
	}
	if wr.Flags&verbs.SendMapped != 0 && !mapped(wr) {
		return 0, fmt.Errorf("mapped payload that is not where it is written to: %w", verbs.ErrInvalid)
	}
	if wr.Opcode == verbs.WRLocalInv && len(wr.SGList) > 0 {
		return 0, fmt.Errorf("payload of LOCAL_INV: %w", verbs.ErrInvalid)
	}
	n, err := sumSGE(wr.SGList)
	if err == nil && isAtomic(wr.Opcode) && n != 8 {
		err = fmt.Errorf("atomic of %d bytes: %w", n, verbs.ErrInvalid)
	}
	return n, err
}

// checkOpcode decides whether the transport has the operation and, for UD,
// whether the work request says where to go.
func (q *qp) checkOpcode(wr *verbs.SendWR) error {
	least := verbs.QPTRC // of the transports in the order RC, UC, UD the last that has it
	switch wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithImm:
		least = verbs.QPTUD
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		least = verbs.QPTUC
	case verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd, verbs.WRSendWithInv, verbs.WRLocalInv:
	default:
		return fmt.Errorf("%v: %w", wr.Opcode, verbs.ErrNotSupported)
	}
	if q.typ > least {
		return fmt.Errorf("%v on a queue pair of type %v: %w", wr.Opcode, q.typ, verbs.ErrInvalid)
	}
	if q.typ != verbs.QPTUD {
		return nil
	}
	if a, ok := wr.AH.(*ah); !ok || a.peer != q.peer || a.closed.Load() || wr.RemoteQPN > 0xffffff {
		return fmt.Errorf("destination of a datagram: %w", verbs.ErrInvalid)
	}
	return nil
}

// isSend tells whether the operation fills a receive.
func isSend(op verbs.WROpcode) bool {
	return op == verbs.WRSend || op == verbs.WRSendWithImm || op == verbs.WRSendWithInv
}

// fetches tells whether the operation brings data of the peer.
func fetches(op verbs.WROpcode) bool { return op == verbs.WRRDMARead || isAtomic(op) }

func isAtomic(op verbs.WROpcode) bool {
	return op == verbs.WRAtomicCmpAndSwp || op == verbs.WRAtomicFetchAndAdd
}

// mapped tells whether the WR's payload is where it is to be written to.
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

// pump issues and completes what can be.
func (q *qp) pump() {
	if q.state != verbs.QPSErr && q.peer.down.Load() {
		q.peerDown()
	}
	for q.sending() && q.issue(q.sq.Slot(q.sq.issued)) {
		q.sq.issued++
	}
	before := q.sq.Done
	for !q.sq.Idle() && q.complete(q.sq.Oldest()) {
		q.sq.Done++
	}
	if q.rem.shared {
		q.watchStarved(q.sq.Done != before)
	}
	if !q.drained {
		q.checkDrained()
	}
}

// sending tells whether there is something to issue. In SQD that is only the
// rest of a message begun before (IBTA vol. 1, 10.3.1.5).
func (q *qp) sending() bool {
	if q.sq.issued == q.sq.Posted() {
		return false
	}
	return q.state == verbs.QPSRTS || q.state == verbs.QPSSQD && q.sq.Slot(q.sq.issued).started
}

// checkDrained raises the event of SQD once all that was begun has completed.
func (q *qp) checkDrained() {
	if q.state == verbs.QPSSQD && q.sq.Done == q.sq.issued && !q.sending() {
		q.drained = true
		q.peer.dev.async.Notify(verbs.AsyncEvent{Type: verbs.EventSQDrained, QP: q})
	}
}

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
	q.scq.push(&e, false)
	return true
}

// finished tells whether the oldest work request is, and makes it so if the
// queue pair is in ERR or the partner has acknowledged it.
func (q *qp) finished(s *sendSlot) bool {
	issued := q.sq.Done < q.sq.issued
	switch {
	case issued && s.finished:
	case issued && q.acknowledged(s.until):
		s.finished = true
	case q.typ == verbs.QPTRC && q.rem.gone && (issued || q.sending()):
		s.finished, s.status = true, q.takeNAK()
		q.sq.issued = max(q.sq.issued, q.sq.Done+1)
		q.fail(verbs.WCSuccess)
	case q.state == verbs.QPSErr || q.state == verbs.QPSSQE:
		q.sq.flushed = q.state == verbs.QPSErr
		s.finished, s.status = true, verbs.WCWRFlushErr
	default:
		return false
	}
	return true
}

// takeNAK is why the partner did not take the oldest SEND. Later ones are flushed.
func (q *qp) takeNAK() verbs.WCStatus {
	status := q.sq.nak
	q.sq.nak = verbs.WCWRFlushErr
	if status == verbs.WCSuccess {
		return verbs.WCRetryExcErr
	}
	return status
}

// acknowledged tells whether the partner has consumed entries up to until, and
// asks it to say so otherwise.
func (q *qp) acknowledged(until uint64) bool {
	if q.sq.acked >= until {
		return true
	}
	if !q.rem.bound || q.sq.flushed {
		return false
	}
	if q.seeConsumed(); q.sq.acked >= until {
		return true
	}
	q.ask()
	q.seeConsumed()
	return q.sq.acked >= until
}
