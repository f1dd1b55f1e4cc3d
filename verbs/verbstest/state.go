package verbstest

import (
	"github.com/smcgw/smcgw/verbs"
)

var stateTests = []test{
	{"Path", testPath},
	{"RequiredAttributes", testRequiredAttributes},
	{"IllegalTransitions", testIllegalTransitions},
	{"CurState", testCurState},
	{"PostInState", testPostInState},
	{"ResetAndReconnect", testResetAndReconnect},
	{"SQD", testSQD},
	{"UnsupportedTypes", testUnsupportedTypes},
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

// IBTA vol. 1, table 91: each required attribute missing, each foreign one
// given, is refused and changes nothing.
func testRequiredAttributes(e *env) {
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	attr := e.attr(e.a.Side, e.b.qp.Num())
	for _, s := range []struct {
		to   verbs.QPState
		mask verbs.QPAttrMask
	}{{verbs.QPSInit, verbs.InitMask}, {verbs.QPSRTR, verbs.RTRMask}, {verbs.QPSRTS, verbs.RTSMask}} {
		attr.State, attr.Port = s.to, 1
		before := e.a.qp.State()
		for bit := verbs.QPAttrMask(2); bit < 1<<21; bit <<= 1 {
			if s.mask&bit != 0 {
				e.ErrorIs(e.a.qp.Modify(&attr, s.mask&^bit), verbs.ErrTransition, "to %v without %#x", s.to, bit)
			}
		}
		e.ErrorIs(e.a.qp.Modify(&attr, s.mask|verbs.QPAttrQKey), verbs.ErrTransition)
		e.Equal(before, e.a.qp.State())
		e.NoError(e.a.qp.Modify(&attr, s.mask))
		e.Equal(s.to, e.a.qp.State())
	}
}

func testIllegalTransitions(e *env) {
	for _, to := range []verbs.QPState{verbs.QPSRTR, verbs.QPSRTS, verbs.QPSSQD, verbs.QPSSQE, 99} {
		e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: to}, verbs.QPAttrState), verbs.ErrTransition, "RESET to %v", to)
	}
	e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{}, verbs.QPAttrAccess), verbs.ErrTransition)
	e.connect()
	for _, to := range []verbs.QPState{verbs.QPSInit, verbs.QPSRTR, verbs.QPSSQE} {
		e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: to, Port: 1}, verbs.QPAttrState), verbs.ErrTransition, "RTS to %v", to)
	}
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState), verbs.ErrTransition, "ERR to RTS")
}

// ibv_modify_qp(3): IBV_QP_CUR_STATE must be right.
func testCurState(e *env) {
	e.connect()
	mask := verbs.QPAttrState | verbs.QPAttrCurState
	e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS, CurState: verbs.QPSSQD}, mask), verbs.ErrTransition)
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS, CurState: verbs.QPSRTS}, mask))
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

// IBTA vol. 1, 10.3.1.1: RESET discards all work; the queue pair starts anew.
func testResetAndReconnect(e *env) {
	e.connect()
	e.b.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.b.received(1)
	e.a.sent(1)
	e.b.recv(2)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 2, e.b, 0, 8)) // may be discarded
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

// IBTA vol. 1, 10.3.1.5: in SQD posted sends wait, RTS resumes them; receiving goes on.
func testSQD(e *env) {
	e.connect()
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSSQD}, verbs.QPAttrState))
	e.a.recv(1)
	e.b.recv(2)
	e.b.post(e.b.write(verbs.WRRDMAWriteWithImm, 3, e.a, 0, 8))
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 4, e.b, 0, 8))
	e.a.received(1)
	e.settle()
	e.Empty(e.b.recvs)
	e.Empty(e.a.wcs)
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSRTS}, verbs.QPAttrState))
	e.Equal(uint64(2), e.b.received(1).WRID)
	e.Equal(uint64(4), e.a.sent(1).WRID)
}

func testUnsupportedTypes(e *env) {
	ops := e.a.Device.Attr().Ops
	for typ, op := range map[verbs.QPType]verbs.Ops{verbs.QPTUC: verbs.OpUC, verbs.QPTUD: verbs.OpUD} {
		if ops&op == 0 {
			_, err := e.a.PD.CreateQP(&verbs.QPInitAttr{SendCQ: e.a.scq, RecvCQ: e.a.rcq, Cap: testCap, Type: typ})
			e.ErrorIs(err, verbs.ErrNotSupported)
		}
	}
	e.connect()
	for op, have := range map[verbs.WROpcode]verbs.Ops{
		verbs.WRRDMARead: verbs.OpRDMARead, verbs.WRAtomicFetchAndAdd: verbs.OpAtomic,
		verbs.WRAtomicCmpAndSwp: verbs.OpAtomic, verbs.WRSendWithInv: verbs.OpSendWithInv,
	} {
		if ops&have == 0 {
			e.ErrorIs(e.a.qp.PostSend(e.a.write(op, 1, e.b, 0, 8)), verbs.ErrNotSupported, "%v", op)
		}
	}
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
	e.a.scq, err = e.a.Device.CreateCQ(verbs.CQAttr{Depth: 1})
	e.NoError(err)
}
