package hw

import (
	"fmt"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/ibv"
)

// poster collects the work requests of a queue. Until the queue belongs to the loop they go into its own batch, from
// then on into the vector's.
type poster struct {
	dev   *Device
	batch *batch // nil: it has none yet
	loop  bool   // batch is the vector's
}

func (p *poster) init(d *Device) { p.dev = d }

// join passes the queue to the loop, which owns batch b. Earlier requests are posted first.
func (p *poster) join(b *batch) {
	if p.loop {
		return
	}
	p.flush()
	p.batch, p.loop = b, true
}

// flush posts the collected requests.
func (p *poster) flush() {
	if p.batch != nil {
		p.batch.flush(p.dev)
	}
}

// drop is flush for a queue that ends: requests in its own batch need not be posted any more.
func (p *poster) drop() {
	if p.loop {
		p.flush()
	}
	p.batch = nil
}

// gathering returns the batch with room for a request.
func (p *poster) gathering() *batch {
	if p.batch == nil {
		p.batch = &batch{turn: 1}
	}
	if p.batch.full() {
		p.flush()
	}
	return p.batch
}

func (q *qp) PostRecv(wr *verbs.RecvWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state == verbs.QPSReset || q.failed:
		return verbs.ErrState
	case len(wr.SGList) > q.cap.MaxRecvSGE:
		return fmt.Errorf("%d SGEs: %w", len(wr.SGList), verbs.ErrInvalid)
	case q.rq.full():
		return verbs.ErrQueueFull
	}
	b := q.poster.gathering()
	entry := q.rq.push(wr.WRID)
	r := ibv.Recv{QP: q.h, WRID: q.rq.wrid(entry), First: uint32(len(b.SGEs)), Count: uint16(len(wr.SGList))}
	b.SGEs = append(b.SGEs, wr.SGList...)
	b.addRecv(&q.rq, &r)
	return nil
}

// libraryFlags are the flags that libibverbs knows.
const libraryFlags = verbs.SendFence | verbs.SendSignaled | verbs.SendInline

// PostSend implements verbs.QP. It only writes a record: see batch.
func (q *qp) PostSend(wr *verbs.SendWR) error {
	switch {
	case q.closed:
		return verbs.ErrClosed
	case q.state < verbs.QPSRTS || q.failed:
		return verbs.ErrState
	}
	if err := q.checkSend(wr); err != nil {
		return err
	}
	if q.sq.full() {
		return verbs.ErrQueueFull
	}
	handle, err := q.address(wr)
	if err != nil {
		return err
	}
	b := q.poster.gathering()
	entry := q.sq.push(wr.WRID)
	s := ibv.Send{
		QP: q.h, WRID: q.sq.wrid(entry), RemoteAddr: wr.RemoteAddr, CompareAdd: wr.CompareAdd, Swap: wr.Swap, RKey: wr.RKey,
		Imm: wr.ImmData, RemoteQPN: wr.RemoteQPN, RemoteQKey: q.qkey(wr), Opcode: uint16(wr.Opcode), Flags: uint16(wr.Flags & libraryFlags),
		First: uint32(len(b.SGEs)), Count: uint32(len(wr.SGList)),
	}
	if handle != nil {
		s.AH = handle.h
		q.sq.ahs[entry].Store(handle)
	}
	if len(wr.Inline) > 0 {
		s.First, s.Count = uint32(len(b.Inline)), uint32(len(wr.Inline))
		b.Inline = append(b.Inline, wr.Inline...)
	} else {
		s.Flags &^= uint16(verbs.SendInline) // an empty message needs no copy
		b.SGEs = append(b.SGEs, wr.SGList...)
	}
	b.addSend(&q.sq, &s)
	if wr.Flags&verbs.SendPush != 0 {
		q.poster.flush()
	}
	return nil
}

// controlled is the bit of a Q_Key that selects the queue pair's own instead (IBTA vol. 1, 10.2.5).
const controlled = 1 << 31

// qkey returns the Q_Key of a datagram. rdma_rxe would send a controlled one as it is.
func (q *qp) qkey(wr *verbs.SendWR) uint32 {
	if q.kind == verbs.QPTUD && wr.RemoteQKey&controlled != 0 {
		return q.attr.QKey
	}
	return wr.RemoteQKey
}

// address takes a reference to the address handle of a datagram.
func (q *qp) address(wr *verbs.SendWR) (*ah, error) {
	if q.kind != verbs.QPTUD {
		return nil, nil
	}
	a, ok := wr.AH.(*ah)
	if !ok || a.pd != q.pd || wr.RemoteQPN > maxQPN || !a.ref() {
		return nil, fmt.Errorf("datagram to queue pair %#x: %w", wr.RemoteQPN, verbs.ErrInvalid)
	}
	return a, nil
}

const maxQPN = 1<<24 - 1

// checkSend refuses requests that providers would refuse in different ways, or not at all.
func (q *qp) checkSend(wr *verbs.SendWR) error {
	if err := q.checkOpcode(wr.Opcode); err != nil {
		return err
	}
	inline := wr.Flags&verbs.SendInline != 0
	atomic := wr.Opcode == verbs.WRAtomicCmpAndSwp || wr.Opcode == verbs.WRAtomicFetchAndAdd
	switch {
	case wr.Flags&^(libraryFlags|verbs.SendPush) != 0,
		inline && (len(wr.Inline) > q.cap.MaxInline || len(wr.SGList) > 0 || atomic || wr.Opcode == verbs.WRRDMARead),
		!inline && len(wr.Inline) > 0,
		len(wr.SGList) > q.cap.MaxSendSGE,
		atomic && (len(wr.SGList) != 1 || wr.SGList[0].Length != 8):
		return fmt.Errorf("%v with flags %#x, %d SGEs, %d bytes inline: %w", wr.Opcode, uint16(wr.Flags), len(wr.SGList), len(wr.Inline), verbs.ErrInvalid)
	}
	var n uint64
	for i := range wr.SGList {
		n += uint64(wr.SGList[i].Length)
	}
	if n > q.pd.dev.attr.MaxMsgSize {
		return fmt.Errorf("message of %d bytes: %w", n, verbs.ErrInvalid)
	}
	return nil
}

func (q *qp) checkOpcode(o verbs.WROpcode) error {
	ops, need := q.pd.dev.attr.Ops, verbs.OpSend
	rc, fits := q.kind == verbs.QPTRC, true
	switch o {
	case verbs.WRSend, verbs.WRSendWithImm:
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		fits = q.kind != verbs.QPTUD
	case verbs.WRRDMARead:
		need, fits = verbs.OpRDMARead, rc
	case verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		need, fits = verbs.OpAtomic, rc
	case verbs.WRLocalInv, verbs.WRBindMW, verbs.WRSendWithInv:
		need = verbs.OpSendWithInv
	default:
		fits = false
	}
	switch {
	case !fits:
		return fmt.Errorf("%v on %v: %w", o, q.kind, verbs.ErrInvalid)
	case ops&need == 0:
		return fmt.Errorf("%v: %w", o, verbs.ErrNotSupported)
	}
	return nil
}
