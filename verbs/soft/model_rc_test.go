package soft

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// modelEnd is one end of a reliable connection: a queue pair, its memory, and
// what a trivial device that executes every work request at once, in order and
// without a network would have made of it.
type modelEnd struct {
	t     simTB
	w     *simWorld
	rng   *rand.Rand
	loop  *simLoop
	qp    verbs.QP
	peer  *modelEnd
	cap   verbs.QPCap
	all   bool // SQSigAll
	oneCQ bool // for sends and receives, whose completions then are in order
	msg   int  // longest message
	src   *modelRegion
	reads *modelSlots // results of READs and atomics
	// target is what the peer writes and reads; its want is what it will be
	// when everything posted so far is done.
	target *modelRegion
	keys   []verbs.MR // for the peer to invalidate
	own    verbs.MR   // to invalidate locally
	recvs  *modelRecvs

	todo     []modelOp
	waited   bool // for the gap of todo[0]
	ready    time.Duration
	sq       []*modelSend
	id       uint64
	refs     map[int]int // uses of slots of reads by work that is not complete
	stores   []modelStore
	hazards  []modelHazard // READs that later work could meet
	expect   []modelMessage
	finished int         // completions with success
	broken   *modelBreak // errors are expected
	gone     bool        // closed
}

// modelSend is posted work.
type modelSend struct {
	id       uint64
	op       verbs.WROpcode
	n        int
	signaled bool
	slots    []int  // of reads, in use
	want     []byte // what slots[0] must hold when it is complete; nil: no result
}

// modelStore is a change of the peer's memory.
type modelStore struct{ off, n int }

// modelHazard is memory that a READ has still to read or to bring. Later work
// that touches it needs the fence (IBTA vol. 1, 10.8.3.3).
type modelHazard struct {
	id     uint64
	off, n int // in the peer's target
	slot   int // in reads
}

// modelMessage is what must arrive, in this order.
type modelMessage struct {
	op    verbs.WROpcode
	data  []byte
	imm   uint32
	off   int // of a WRITE
	store int // how many stores there are up to this one
}

// turn posts; the loop calls it.
func (e *modelEnd) turn() bool {
	worked := false
	if e.gone {
		return false
	}
	for len(e.todo) > 0 && len(e.sq) < e.cap.MaxSendWR {
		if gap := e.todo[0].gap; gap > 0 && !e.waited {
			e.waited, e.ready = true, e.w.net.now+gap
			e.w.net.after(gap, func() {})
		}
		if e.w.net.now < e.ready || !e.post(e.todo[0]) {
			break
		}
		e.todo, e.waited, worked = e.todo[1:], false, true
	}
	return worked
}

// post gives an operation memory, posts it and applies it to the model. It is
// false if there is no memory for the result just now.
func (e *modelEnd) post(o modelOp) bool {
	e.id++
	s := &modelSend{id: e.id, op: o.op, n: o.n}
	wr := verbs.SendWR{WRID: s.id, Opcode: o.op, Flags: o.flags &^ verbs.SendInline, ImmData: o.imm}
	var data []byte
	switch o.op {
	case verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd:
		slot, ok := e.reads.take()
		if !ok {
			e.id--
			return false
		}
		e.use(s, slot)
		pieces := min(o.sges, e.cap.MaxSendSGE)
		if o.op != verbs.WRRDMARead {
			pieces = 1 // IBTA vol. 1, 9.4.5: one word of memory
		}
		wr.SGList = e.reads.cut(e.rng, slot, o.n, pieces)
		e.result(s, o, &wr)
	case verbs.WRLocalInv:
		s.n, wr.InvRKey = 0, e.own.RKey()
	default:
		data = e.payload(s, o, &wr)
		e.deliver(s, o, &wr, data)
	}
	if wr.Flags&verbs.SendFence != 0 {
		e.hazards = nil
	}
	if s.op == verbs.WRRDMARead {
		e.hazards = append(e.hazards, modelHazard{s.id, int(wr.RemoteAddr - e.peer.target.addr(0)), s.n, s.slots[0]})
	}
	s.signaled = e.signal(&wr)
	require.NoError(e.t, e.qp.PostSend(&wr), "%+v", o)
	e.sq = append(e.sq, s)
	clear(wr.Inline)
	clear(wr.SGList)
	return true
}

// signal decides about the completion: the last work request of all, one in
// every queue full, and the one that takes the last memory for results must
// have one.
func (e *modelEnd) signal(wr *verbs.SendWR) bool {
	run := 1
	for i := len(e.sq) - 1; i >= 0 && !e.sq[i].signaled; i-- {
		run++
	}
	if run == e.cap.MaxSendWR || len(e.todo) == 1 || len(e.reads.free) == 0 {
		wr.Flags |= verbs.SendSignaled
	}
	return e.all || wr.Flags&verbs.SendSignaled != 0
}

func (e *modelEnd) use(s *modelSend, slot int) {
	s.slots = append(s.slots, slot)
	e.refs[slot]++
}

// payload chooses what is sent: what an earlier READ brings, inline data, or a
// piece of src.
func (e *modelEnd) payload(s *modelSend, o modelOp, wr *verbs.SendWR) []byte {
	if read := e.lastRead(); o.fromRead && read != nil {
		s.n = min(o.n, read.n)
		e.use(s, read.slots[0])
		for _, h := range e.hazards {
			if h.slot == read.slots[0] {
				wr.Flags |= verbs.SendFence
			}
		}
		wr.SGList = e.reads.cut(e.rng, read.slots[0], s.n, min(o.sges, e.cap.MaxSendSGE))
		return read.want[:s.n]
	}
	off := o.local % (e.src.size - o.n + 1)
	data := e.src.want[off : off+o.n]
	if o.flags&verbs.SendInline != 0 && o.n <= e.cap.MaxInline {
		wr.Flags |= verbs.SendInline
		wr.Inline = append([]byte(nil), data...)
		return data
	}
	wr.SGList = e.src.cut(e.rng, off, o.n, min(o.sges, e.cap.MaxSendSGE))
	return data
}

func (e *modelEnd) lastRead() *modelSend {
	for _, s := range slices.Backward(e.sq) {
		if s.op == verbs.WRRDMARead {
			return s
		}
	}
	return nil
}

// deliver applies a SEND or a WRITE to the peer.
func (e *modelEnd) deliver(s *modelSend, o modelOp, wr *verbs.SendWR, data []byte) {
	p := e.peer
	m := modelMessage{op: o.op, data: data, imm: o.imm}
	switch o.op {
	case verbs.WRSendWithInv:
		if len(p.keys) == 0 {
			wr.Opcode, s.op, m.op = verbs.WRSend, verbs.WRSend, verbs.WRSend
			break
		}
		wr.InvRKey, m.imm = p.keys[0].RKey(), p.keys[0].RKey()
		p.keys = p.keys[1:]
	case verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm:
		m.off = o.remote % (p.target.size - s.n + 1)
		wr.RemoteAddr, wr.RKey = p.target.addr(m.off), p.target.RKey()
		e.store(wr, m.off, data)
		m.store = len(e.stores)
		if o.op == verbs.WRRDMAWrite {
			return
		}
	default:
	}
	p.expect = append(p.expect, m)
}

// store changes what the peer's memory must be, after a fence if a READ has
// still to see what was there.
func (e *modelEnd) store(wr *verbs.SendWR, off int, data []byte) {
	for _, h := range e.hazards {
		if off < h.off+h.n && h.off < off+len(data) {
			wr.Flags |= verbs.SendFence
		}
	}
	copy(e.peer.target.want[off:], data)
	e.stores = append(e.stores, modelStore{off, len(data)})
}

// result computes what a READ or an atomic operation brings.
func (e *modelEnd) result(s *modelSend, o modelOp, wr *verbs.SendWR) {
	p := e.peer.target
	wr.RKey = p.RKey()
	if o.op == verbs.WRRDMARead {
		off := o.remote % (p.size - o.n + 1)
		wr.RemoteAddr = p.addr(off)
		s.want = append([]byte{}, p.want[off:off+o.n]...)
		return
	}
	off := o.remote % 8 * 8 // few words, so that operations meet
	wr.RemoteAddr = p.addr(off)
	s.want = append([]byte{}, p.want[off:off+8]...)
	old := binary.NativeEndian.Uint64(s.want)
	sum := old + o.b
	if wr.CompareAdd, wr.Swap = o.b, 0; o.op == verbs.WRAtomicCmpAndSwp {
		wr.CompareAdd, wr.Swap, sum = old^(o.a/2), o.b, o.b // a below 2: equal
		if o.a/2 != 0 {
			sum = old
		}
	}
	e.store(wr, off, binary.NativeEndian.AppendUint64(nil, sum))
}

// complete checks the completion of a send work request.
func (e *modelEnd) complete(wc *verbs.WC) {
	t := e.t
	require.Equal(t, verbs.WCSuccess, wc.Status, "work request %d", wc.WRID)
	require.Equal(t, e.qp.Num(), wc.QPNum)
	i := 0
	for ; i < len(e.sq) && !e.sq[i].signaled; i++ {
	}
	require.Less(t, i, len(e.sq), "completion of %d although nothing waits for one", wc.WRID)
	s := e.sq[i]
	require.Equal(t, s.id, wc.WRID, "completions in order and once")
	require.Equal(t, s.op.WCOpcode(), wc.Opcode)
	if s.op == verbs.WRRDMARead {
		require.EqualValues(t, s.n, wc.ByteLen)
	}
	for _, s := range e.sq[:i+1] {
		e.retire(s)
	}
	e.sq = e.sq[i+1:]
	e.finished++
}

// retire checks the result of work and frees what it used.
func (e *modelEnd) retire(s *modelSend) {
	if s.want != nil {
		off := s.slots[0]
		requireSame(e.t, s.want, e.reads.bytes()[off:off+len(s.want)], "result of %v %d of %d bytes", s.op, s.id, s.n)
		copy(e.reads.want[off:], s.want)
	}
	for _, slot := range s.slots {
		if e.refs[slot]--; e.refs[slot] == 0 {
			e.reads.give(slot)
		}
	}
	for len(e.hazards) > 0 && e.hazards[0].id <= s.id {
		e.hazards = e.hazards[1:]
	}
}

// receive checks the completion of a receive.
func (e *modelEnd) receive(wc *verbs.WC) {
	t := e.t
	require.Equal(t, verbs.WCSuccess, wc.Status, "receive %#x", wc.WRID)
	require.NotEmpty(t, e.expect, "receive without a message: %+v", wc)
	m := e.expect[0]
	e.expect = e.expect[1:]
	r := e.recvs.take(wc.WRID)
	require.EqualValues(t, len(m.data), wc.ByteLen, "length of a %v", m.op)
	if m.op == verbs.WRRDMAWriteWithImm {
		require.Equal(t, verbs.WCRecvRDMAWithImm, wc.Opcode)
		e.checkStored(m)
		m.data = nil
	} else {
		require.Equal(t, verbs.WCRecv, wc.Opcode, "of a %v", m.op)
	}
	requireSame(t, m.data, e.recvs.contents(r, len(m.data)), "payload of a %v", m.op)
	rest := e.recvs.slots.bytes()[r.off+len(m.data) : r.off+e.recvs.slots.each]
	requireSame(t, make([]byte, len(rest)), rest, "receive buffer after the message")
	var flags verbs.WCFlags
	switch m.op {
	case verbs.WRSendWithImm, verbs.WRRDMAWriteWithImm:
		flags = verbs.WCWithImm
	case verbs.WRSendWithInv:
		flags = verbs.WCWithInv
	default:
	}
	require.Equal(t, flags, wc.Flags, "flags of a %v", m.op)
	if flags != 0 {
		require.Equal(t, m.imm, wc.ImmData)
	}
	e.recvs.done(r)
}

// checkStored checks that a WRITE's data was there before its completion,
// unless a later one may have changed it.
func (e *modelEnd) checkStored(m modelMessage) {
	for _, later := range e.peer.stores[m.store:] {
		if m.off < later.off+later.n && later.off < m.off+len(m.data) {
			return
		}
	}
	requireSame(e.t, m.data, e.target.bytes()[m.off:m.off+len(m.data)], "WRITE_WITH_IMM completed before its data")
}

// idle tells whether everything is done.
func (e *modelEnd) idle() bool { return len(e.todo)+len(e.sq)+len(e.expect) == 0 }

// check compares all memory with the model when everything is done.
func (e *modelEnd) check() {
	for i, r := range []*modelRegion{e.src, e.target, e.reads.modelRegion} {
		requireSame(e.t, r.want, r.bytes(), "%s at the end", []string{"the source", "the peer's target", "the results"}[i])
		r.checkFrame(e.t)
	}
	e.recvs.slots.checkFrame(e.t)
	require.Equal(e.t, verbs.QPSRTS, e.qp.State())
}
