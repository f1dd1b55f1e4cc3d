package verbstest

import (
	"errors"

	"github.com/smcgw/smcgw/verbs"
)

var stateTests = []test{
	{"Path", testPath},
	{"PostInState", testPostInState},
	{"ResetAndReconnect", testResetAndReconnect},
	{"UnknownType", testUnknownType},
	{"OpcodeOfTransport", testOpcodeOfTransport},
	{"NumbersDiffer", testNumbersDiffer},
	{"Closed", testClosed},
}

// ibv_modify_qp(3), IBTA vol. 1, 10.3.1: RESET, INIT, RTR, RTS.
func testPath(e *env) {
	e.Equal(verbs.QPSReset, e.a.qp.State())
	e.Equal(verbs.QPTRC, e.a.qp.Type())
	e.NoError(verbs.Init(e.a.qp, bothWrite))
	e.Equal(verbs.QPSInit, e.a.qp.State())
	e.NoError(verbs.Init(e.a.qp, bothWrite), "INIT to INIT")
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	e.join()
	e.Equal(verbs.QPSRTS, e.a.qp.State())
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.Equal(verbs.QPSErr, e.a.qp.State())
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	e.Equal(verbs.QPSReset, e.a.qp.State())
}

// IBTA vol. 1, 10.8.3: sends are refused before RTS, receives in RESET only.
func testPostInState(e *env) {
	send := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	recv := &verbs.RecvWR{}
	e.ErrorIs(e.a.qp.PostSend(send), verbs.ErrState)
	e.ErrorIs(e.a.qp.PostRecv(recv), verbs.ErrState)
	e.NoError(verbs.Init(e.a.qp, bothWrite))
	e.ErrorIs(e.a.qp.PostSend(send), verbs.ErrState)
	e.NoError(e.a.qp.PostRecv(recv))
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	attr := e.attr(e.a.Side, e.b.qp.Num())
	attr.State = verbs.QPSRTR
	e.NoError(e.a.qp.Modify(&attr, verbs.RTRMask))
	e.ErrorIs(e.a.qp.PostSend(send), verbs.ErrState)
	e.NoError(e.a.qp.PostRecv(recv))
}

// IBTA vol. 1, 10.3.1.1: RESET discards all work; the queue pair starts again.
func testResetAndReconnect(e *env) {
	e.connect()
	e.b.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.b.received(1)
	e.a.sent(1)
	e.b.recv(2, e.b.sge(0, regionSize))
	e.b.recv(3)
	e.a.post(e.a.send(2, 0, regionSize)) // may be under way,
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 3, e.b, 0, 8))
	e.turn() // and is discarded
	for _, d := range []*end{e.a, e.b} {
		e.NoError(d.qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	}
	e.settle()
	e.a.wcs, e.b.recvs = nil, nil
	e.connect()
	for i := range uint64(20) {
		e.b.recv(10 + i)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 30+i, e.b, 0, 8))
		e.Equal(10+i, e.b.received(int(i)+1).WRID)
		e.Equal(30+i, e.a.sent(int(i)+1).WRID)
	}
}

// An unknown transport is refused.
func testUnknownType(e *env) {
	for _, typ := range []verbs.QPType{5, 99} {
		_, err := e.a.PD.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap, Type: typ}))
		e.ErrorIs(err, verbs.ErrNotSupported, "%v", typ)
	}
}

// foreignOpcodes are the operations that a transport lacks (IBTA vol. 1, table 80; the table of ibv_post_send(3)).
var foreignOpcodes = map[verbs.QPType][]verbs.WROpcode{
	verbs.QPTRC: {verbs.WRBindMW, 10, 99},
	verbs.QPTUC: {verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp, verbs.WRAtomicFetchAndAdd, verbs.WRBindMW, 99},
	verbs.QPTUD: {
		verbs.WRRDMAWrite, verbs.WRRDMAWriteWithImm, verbs.WRRDMARead, verbs.WRAtomicCmpAndSwp,
		verbs.WRAtomicFetchAndAdd, verbs.WRSendWithInv, verbs.WRLocalInv, verbs.WRBindMW, 99,
	},
}

// They are refused when posted: as malformed or, if no queue pair of the device supports them, as not supported.
func testOpcodeOfTransport(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD}, func() {
		e.connect()
		for _, op := range foreignOpcodes[e.a.typ] {
			wr := e.a.send(1, 0, 8)
			wr.Opcode, wr.RemoteAddr, wr.RKey = op, e.b.mr.Addr(), e.b.mr.RKey()
			err := e.a.qp.PostSend(wr)
			if !errors.Is(err, verbs.ErrNotSupported) {
				e.ErrorIs(err, verbs.ErrInvalid, "%v on %v", op, e.a.typ)
			}
		}
		e.settle()
		e.Empty(e.a.wcs)
		e.Equal(verbs.QPSRTS, e.a.qp.State())
	})
}

// Queue pair numbers are 24 bits, not 0 or 1 (QP0, QP1), and differ.
func testNumbersDiffer(e *env) {
	seen := map[uint32]bool{}
	for range 50 {
		qp := e.a.newQP(verbs.QPInitAttr{Cap: testCap})
		e.Greater(qp.Num(), uint32(1))
		e.Less(qp.Num(), uint32(1<<24))
		e.False(seen[qp.Num()])
		seen[qp.Num()] = true
		e.t.Cleanup(func() { _ = qp.Close() })
	}
}

func testClosed(e *env) {
	e.connect()
	qp := e.a.qp
	e.ErrorIs(e.a.scq.Close(), verbs.ErrBusy)
	e.NoError(qp.Close())
	e.NoError(qp.Close(), "closing again")
	e.ErrorIs(qp.PostSend(&verbs.SendWR{}), verbs.ErrClosed)
	e.ErrorIs(qp.PostRecv(&verbs.RecvWR{}), verbs.ErrClosed)
	e.ErrorIs(qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState), verbs.ErrClosed)
	e.NoError(e.a.scq.Close())
	_, err := e.a.scq.Poll(make([]verbs.WC, 1))
	e.ErrorIs(err, verbs.ErrClosed)
	e.a.scq = e.a.newCQ(1)
}
