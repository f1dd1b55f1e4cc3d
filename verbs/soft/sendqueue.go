package soft

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
)

// sendWQE is a posted work request with its progress.
type sendWQE struct {
	wrID    uint64
	addr    uint64
	operand [2]uint64 // atomics: compare or add, swap
	rkey    uint32
	imm     uint32 // immediate, or the key to invalidate
	length  uint32
	op      verbs.WROpcode
	flags   verbs.SendFlags
	status  verbs.WCStatus // why it cannot be sent, set when its turn comes
	begun   bool           // has PSNs
	apart   bool           // each packet is sent as a separate WRITE
	first   uint32         // PSN
	packets uint32         // number of PSNs; for a READ, those of its responses
	got     uint32         // READ, atomic: responses received
	sges    []verbs.SGE
	inline  []byte
	dest    udDest
}

// answered reports whether the requester waits for more than an acknowledgement.
func (w *sendWQE) answered() bool {
	return w.op == verbs.WRRDMARead || w.op == verbs.WRAtomicCmpAndSwp || w.op == verbs.WRAtomicFetchAndAdd
}

func (q *qp) PostSend(wr *verbs.SendWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state < verbs.QPSRTS:
		return fmt.Errorf("post send in %v: %w", q.state, verbs.ErrState)
	case q.sq.Held() >= uint64(q.cap.MaxSendWR):
		return verbs.ErrQueueFull
	}
	n, err := q.checkSend(wr)
	if err != nil {
		return err
	}
	w := q.sq.Push()
	*w = sendWQE{
		wrID: wr.WRID, addr: wr.RemoteAddr, rkey: wr.RKey, imm: wr.ImmData, length: n, op: wr.Opcode, flags: wr.Flags,
		operand: [2]uint64{wr.CompareAdd, wr.Swap}, sges: append(w.sges[:0], wr.SGList...), inline: w.inline[:0],
	}
	if wr.Opcode == verbs.WRSendWithInv || wr.Opcode == verbs.WRLocalInv {
		w.imm = wr.InvRKey
	}
	if wr.Flags&verbs.SendInline != 0 {
		w.inline = append(w.inline, wr.Inline...)
	}
	if q.datagrams() {
		w.dest = udDest{av: wr.AH.(*ah).av, qpn: wr.RemoteQPN & 0xffffff, qkey: wr.RemoteQKey}
	}
	switch {
	case q.state == verbs.QPSErr || q.state == verbs.QPSSQE:
		q.flushSends()
	case wr.Flags&verbs.SendPush != 0:
		q.vec.schedule(q)
		q.vec.run()
		q.vec.tx.flush()
	default:
		q.vec.schedule(q)
	}
	return nil
}

const knownFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendInline | verbs.SendPush

// checkSend checks a work request and returns the length of the message.
func (q *qp) checkSend(wr *verbs.SendWR) (uint32, error) {
	if err := q.checkOpcode(wr); err != nil {
		return 0, err
	}
	if wr.Flags&^knownFlags != 0 || len(wr.SGList) > q.cap.MaxSendSGE {
		return 0, fmt.Errorf("flags %#x, %d SGEs: %w", uint16(wr.Flags), len(wr.SGList), verbs.ErrInvalid)
	}
	if wr.Flags&verbs.SendInline != 0 {
		if len(wr.Inline) > q.cap.MaxInline || len(wr.SGList) > 0 || wr.Opcode == verbs.WRRDMARead {
			return 0, fmt.Errorf("inline data of %d bytes: %w", len(wr.Inline), verbs.ErrInvalid)
		}
		return uint32(len(wr.Inline)), nil
	}
	n := uint64(0)
	for i := range wr.SGList {
		n += uint64(wr.SGList[i].Length)
	}
	if n > maxMsg {
		return 0, fmt.Errorf("message of %d bytes: %w", n, verbs.ErrInvalid)
	}
	return uint32(n), nil
}

// checkOpcode checks what each transport can do (IBTA vol. 1, table 4 of 9.2.2; ibv_post_send(3)).
func (q *qp) checkOpcode(wr *verbs.SendWR) error {
	ok := false
	switch wr.Opcode {
	case verbs.WRSend, verbs.WRSendWithImm:
		ok = true
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRLocalInv:
		ok = !q.datagrams()
	case verbs.WRRDMARead, verbs.WRSendWithInv:
		ok = q.kind == verbs.QPTRC
	case verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		ok = q.kind == verbs.QPTRC && wr.Flags&verbs.SendInline == 0 && len(wr.SGList) == 1 && wr.SGList[0].Length == 8
	default:
		return fmt.Errorf("%v: %w", wr.Opcode, verbs.ErrNotSupported)
	}
	if !ok {
		return fmt.Errorf("%v on a %v queue pair: %w", wr.Opcode, q.kind, verbs.ErrInvalid)
	}
	if q.datagrams() {
		if a, ok := wr.AH.(*ah); !ok || a.pd != q.pd || a.closed.Load() {
			return fmt.Errorf("address handle not of the domain: %w", verbs.ErrInvalid)
		}
	}
	return nil
}

// finish completes the oldest work request.
func (q *qp) finish(status verbs.WCStatus) {
	w := q.sq.Oldest()
	q.sq.Done++
	if status == verbs.WCSuccess && !q.sig && w.flags&verbs.SendSignaled == 0 {
		return
	}
	e := cqe{Retired: &q.sq.Retired, Retire: q.sq.Done}
	e.WC = verbs.WC{
		WRID: w.wrID, Status: status, Opcode: w.op.WCOpcode(), ByteLen: w.length, QPNum: q.num, SrcQP: q.attr.DestQPNum,
	}
	q.scq.push(&e)
}

// flushSends completes everything posted, as far as there is room: the work request that failed with its error, those
// after it as flushed.
func (q *qp) flushSends() {
	for !q.sq.Idle() && q.scq.room(q) {
		status := verbs.WCWRFlushErr
		if q.failure != verbs.WCSuccess {
			status, q.failure = q.failure, verbs.WCSuccess
		}
		q.finish(status)
	}
	q.req.idx, q.req.k = q.sq.Done, 0
}

// flushReceives completes all receives after an error, as far as there is room.
func (q *qp) flushReceives() {
	for (q.cur.active || !q.rq.Empty()) && q.rcq.room(q) {
		q.takeRecv()
		q.received(&verbs.WC{Status: verbs.WCWRFlushErr, Opcode: verbs.WCRecv})
	}
}

// gather collects n bytes of the payload from offset off into the vector's list of parts. It returns false if a key
// does not cover its memory.
func (q *qp) gather(w *sendWQE, off, n uint32) bool {
	v := q.vec
	v.parts = v.parts[:0]
	if w.flags&verbs.SendInline != 0 {
		v.parts = append(v.parts, w.inline[off:off+n:off+n])
		return true
	}
	for i := range w.sges {
		if n == 0 {
			break
		}
		s := &w.sges[i]
		if off >= s.Length {
			off -= s.Length
			continue
		}
		take := min(n, s.Length-off)
		b := q.pd.local(s, off, take, 0)
		if b == nil {
			return false
		}
		v.parts = append(v.parts, b)
		n -= take
		off = 0
	}
	return true
}
