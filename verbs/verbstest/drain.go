package verbstest

import "github.com/smcgw/smcgw/verbs"

var drainTests = []test{
	{"HoldsBack", testSQD},
	{"Event", testSQDrained},
	{"EventUnderWay", testSQDrainedUnderWay},
	{"EventOfReads", testSQDrainedReads},
	{"NoEvent", testSQDrainedUnwanted},
	{"Datagrams", testSQDOfDatagrams},
}

// IBTA vol. 1, 10.3.1.5: in SQD posted sends wait, RTS resumes them; receiving goes on.
func testSQD(e *env) {
	if !e.drains() {
		return
	}
	e.a.to(verbs.QPSSQD)
	e.a.recv(1)
	e.b.recv(2)
	e.b.post(e.b.write(verbs.WRRDMAWriteWithImm, 3, e.a, 0, 8))
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 4, e.b, 0, 8))
	e.a.received(1)
	e.settle()
	e.Empty(e.b.recvs)
	e.Empty(e.a.wcs)
	e.a.to(verbs.QPSRTS)
	e.Equal(uint64(2), e.b.received(1).WRID)
	e.Equal(uint64(4), e.a.sent(1).WRID)
}

// drains reports whether the device has the state SQD, and connects two queue pairs. A device without it must refuse to
// go there.
func (e *env) drains() bool {
	e.t.Helper()
	e.connect()
	if e.a.has(verbs.OpSQD) {
		return true
	}
	e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSSQD}, verbs.QPAttrState), verbs.ErrNotSupported)
	e.Equal(verbs.QPSRTS, e.a.qp.State())
	return false
}

// drain moves A's queue pair to SQD and requests the event.
func (e *env) drain() {
	e.t.Helper()
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSSQD, SQDAsyncNotify: true},
		verbs.QPAttrState|verbs.QPAttrSQDAsyncNotify))
	e.Equal(verbs.QPSSQD, e.a.qp.State())
}

func (e *env) drained() verbs.AsyncEvent {
	return verbs.AsyncEvent{Type: verbs.EventSQDrained, QP: e.a.qp}
}

// A drained send queue raises SQ_DRAINED each time, if requested (IBTA vol. 1, 11.6.3.1; ibv_modify_qp(3),
// en_sqd_async_notify).
func testSQDrained(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD}, func() {
		if !e.drains() {
			return
		}
		for i := range 3 {
			e.a.post(e.a.send(uint64(i), 0, 8))
			e.b.recv(uint64(i), e.b.sge(0, 100))
			e.a.sent(i + 1)
			e.drain()
			e.a.raised(e.drained())
			e.settle()
			e.False(e.a.take(e.drained()), "once")
			e.a.to(verbs.QPSRTS)
		}
	})
}

// Work that was begun completes before the event; other work waits for RTS.
func testSQDrainedUnderWay(e *env) {
	if !e.drains() {
		return
	}
	const n = 10
	for i := range uint64(n) {
		e.b.recv(i)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 100_000))
	}
	e.turn()
	e.drain()
	e.a.raised(e.drained())
	e.a.wcs = e.a.poll(e.a.scq, e.a.wcs)
	begun := len(e.a.wcs)
	e.settle()
	e.Len(e.a.wcs, begun)
	e.Len(e.b.recvs, begun)
	e.a.to(verbs.QPSRTS)
	e.a.good(n)
	e.b.received(n)
}

// READs begin with their request and end with their response.
func testSQDrainedReads(e *env) {
	if !e.canRead() || !e.a.has(verbs.OpSQD) {
		return
	}
	fill(e.b.bytes(0, 800_000), 1)
	for i := range uint64(8) {
		e.a.post(e.a.read(i, int(i)*100_000, 100_000))
	}
	e.turn()
	e.drain()
	e.a.raised(e.drained())
	e.a.wcs = e.a.poll(e.a.scq, e.a.wcs)
	begun := len(e.a.wcs)
	e.same(e.b.bytes(0, begun*100_000), e.a.bytes(0, begun*100_000))
	e.settle()
	e.Len(e.a.wcs, begun)
	e.a.to(verbs.QPSRTS)
	e.a.good(8)
	e.same(e.b.bytes(0, 800_000), e.a.bytes(0, 800_000))
}

func testSQDrainedUnwanted(e *env) {
	if !e.drains() {
		return
	}
	e.a.to(verbs.QPSSQD)
	e.settle()
	e.False(e.a.take(e.drained()))
	e.a.to(verbs.QPSRTS)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 0, e.b, 0, 8))
	e.a.good(1)
}

// The same for datagrams, and from SQD to ERR.
func testSQDOfDatagrams(e *env) {
	if !e.use(verbs.QPTUD) || !e.drains() {
		return
	}
	e.a.to(verbs.QPSSQD)
	e.b.recv(1, e.b.sge(0, 100))
	e.a.post(e.a.send(0, 0, 8))
	e.settle()
	e.Empty(e.a.wcs)
	e.Empty(e.b.recvs)
	e.a.to(verbs.QPSRTS)
	e.a.good(1)
	e.b.received(1)
	e.a.to(verbs.QPSSQD)
	e.a.post(e.a.send(1, 0, 8))
	e.a.to(verbs.QPSErr)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
}
