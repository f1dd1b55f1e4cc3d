package verbstest

import "github.com/smcgw/smcgw/verbs"

var ucTests = where(over(verbs.QPTUC), []test{
	{"Send", testUCSend},
	{"Write", testUCWrite},
	{"NoReceive", testUCNoReceive},
	{"WriteWithoutReceive", testUCWriteNoReceive},
	{"RemoteErrors", testUCRemoteErrors},
	{"TooLong", testUCTooLong},
	{"BadBuffer", testBadBuffer},
	{"SendQueueError", testSendQueueError},
	{"PeerGone", testUCPeerGone},
	{"ForeignPeer", testUCForeignPeer},
	{"Many", testUCMany},
})

// IBTA vol. 1, 9.8.2: like RC, but without acknowledgement.
func testUCSend(e *env) {
	e.connect()
	for i, n := range []int{0, 1, 1000, 4096, 4097, 50_000} {
		fill(e.a.bytes(0, n), i)
		e.b.recv(uint64(i), e.b.sge(0, n))
		wr := e.a.send(uint64(i), 0, n)
		wr.Opcode, wr.ImmData = verbs.WRSendWithImm, uint32(i)
		e.a.post(wr)
		wc := e.b.received(i + 1)
		e.Equal(verbs.WC{
			WRID: uint64(i), ByteLen: uint32(n), QPNum: e.b.qp.Num(), SrcQP: wc.SrcQP, ImmData: uint32(i),
			Opcode: verbs.WCRecv, Flags: verbs.WCWithImm,
		}, wc)
		e.same(e.a.bytes(0, n), e.b.bytes(0, n))
		e.a.good(i + 1)
	}
}

func testUCWrite(e *env) {
	e.connect()
	fill(e.a.bytes(0, 60_000), 1)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 0, e.b, 0, 30_000))
	e.b.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 30_000, 30_000))
	wc := e.b.received(1)
	e.Equal(uint32(30_000), wc.ByteLen)
	e.Equal(verbs.WCRecvRDMAWithImm, wc.Opcode)
	e.Equal(uint32(1)|0x80000000, wc.ImmData)
	e.same(e.a.bytes(0, 60_000), e.b.bytes(0, 60_000))
	e.a.good(2)
}

// Without a receive only that message is lost (IBTA vol. 1, 9.8.2.2.2).
func testUCNoReceive(e *env) {
	e.connect()
	fill(e.a.bytes(0, 20_000), 1)
	e.a.post(e.a.send(0, 0, 10_000))
	e.a.good(1)
	e.settle()
	e.b.recv(1, e.b.sge(0, 20_000))
	e.a.post(e.a.send(1, 10_000, 10_000))
	e.b.received(1)
	e.a.good(2)
	e.same(e.a.bytes(10_000, 10_000), e.b.bytes(0, 10_000), "the second message")
	e.settle()
	e.Len(e.b.recvs, 1)
}

// A WRITE_WITH_IMM needs a receive for its immediate, a WRITE does not.
func testUCWriteNoReceive(e *env) {
	e.connect()
	fill(e.a.bytes(0, 20_000), 1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 0, e.b, 0, 8))
	e.a.post(e.a.write(verbs.WRRDMAWrite, 1, e.b, 10_000, 8))
	e.a.good(2)
	e.settle()
	e.b.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 2, e.b, 0, 8))
	e.Equal(uint32(2)|0x80000000, e.b.received(1).ImmData)
	e.same(e.a.bytes(10_000, 8), e.b.bytes(10_000, 8))
	e.settle()
	e.Len(e.b.recvs, 1)
}

// The responder silently drops what it must not execute (rocev2.md 8.3); later messages are executed.
func testUCRemoteErrors(e *env) {
	e.connect()
	fill(e.a.bytes(0, 20_000), 1)
	for i, change := range []func(wr *verbs.SendWR){
		func(wr *verbs.SendWR) { wr.RKey ^= 1 },
		func(wr *verbs.SendWR) { wr.RemoteAddr += regionSize - 9999 },
		func(wr *verbs.SendWR) { wr.RemoteAddr-- },
	} {
		wr := e.a.write(verbs.WRRDMAWrite, uint64(i), e.b, 0, 10_000)
		change(wr)
		e.a.post(wr)
	}
	e.a.good(3)
	e.settle()
	e.same(make([]byte, 10_000), e.b.bytes(0, 10_000))
	e.same(make([]byte, 10_000), e.b.bytes(regionSize-10_000, 10_000))
	e.Equal(verbs.QPSRTS, e.b.qp.State())
	e.b.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 3, e.b, 0, 10_000))
	e.b.received(1)
	e.same(e.a.bytes(0, 10_000), e.b.bytes(0, 10_000))
}

// A message longer than the receive does not succeed and writes nothing after it.
func testUCTooLong(e *env) {
	e.connect()
	fill(e.a.bytes(0, 10_000), 1)
	e.b.recv(1, e.b.sge(0, 99))
	e.a.post(e.a.send(0, 0, 100))
	e.a.good(1)
	e.settle()
	for _, wc := range e.b.recvs {
		e.NotEqual(verbs.WCSuccess, wc.Status)
	}
	e.same(make([]byte, 1), e.b.bytes(99, 1))
}

// A receive with invalid memory is the receiver's own error: local protection error and ERR (IBTA vol. 1, 10.10.2.2).
// The sender, which did nothing wrong, does not notice.
func testBadBuffer(e *env) {
	e.connect()
	bad := e.b.room(0, 100)
	bad.LKey ^= 1
	e.b.recv(1, bad)
	e.b.recv(2, e.b.room(0, 100))
	e.a.post(e.a.send(0, 0, 8))
	e.Equal(verbs.WCLocProtErr, e.b.received(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.b.received(2).Status)
	e.Equal(verbs.QPSErr, e.b.qp.State())
	e.a.good(1)
	e.Equal(verbs.QPSRTS, e.a.qp.State())
	e.settle()
	e.Empty(e.b.events, "the completion says it")
}

// sendQueueError provokes a local error: the rest of the send queue is flushed, receiving continues, and a move to RTS
// recovers (IBTA vol. 1, 10.3.1.6: send queue error).
func (e *env) sendQueueError(wr *verbs.SendWR, status verbs.WCStatus) {
	e.t.Helper()
	e.connect()
	e.b.recv(1, e.b.sge(0, 100))
	e.a.recv(1, e.a.sge(1000, 100))
	e.a.post(e.a.send(0, 0, 8))
	wr.WRID = 1
	e.a.post(wr)
	e.a.post(e.a.send(2, 0, 8))
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.Equal(status, e.a.sent(2).Status)
	e.Equal(uint64(1), e.a.wcs[1].WRID)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(3).Status)
	e.Equal(verbs.QPSSQE, e.a.qp.State())
	e.a.post(e.a.send(3, 0, 8))
	e.Equal(verbs.WCWRFlushErr, e.a.sent(4).Status, "posted in SQE")
	e.b.received(1)
	e.b.post(e.b.send(0, 0, 8))
	e.Equal(verbs.WCSuccess, e.a.received(1).Status, "receives work")
	for _, to := range []verbs.QPState{verbs.QPSInit, verbs.QPSRTR, verbs.QPSSQD, verbs.QPSSQE} {
		e.ErrorIs(e.a.qp.Modify(&verbs.QPAttr{State: to}, verbs.QPAttrState), verbs.ErrTransition, "SQE to %v", to)
	}
	e.a.to(verbs.QPSRTS)
	e.b.recv(2, e.b.sge(0, 100))
	e.a.post(e.a.send(4, 0, 8))
	e.Equal(verbs.WCSuccess, e.a.sent(5).Status)
	e.Equal(uint64(2), e.b.received(2).WRID)
}

func testSendQueueError(e *env) {
	wr := e.a.send(0, 0, 8)
	wr.SGList[0].LKey ^= 1
	e.sendQueueError(wr, verbs.WCLocProtErr)
}

// A sender does not notice that its peer is gone.
func testUCPeerGone(e *env) {
	e.connect()
	e.b.to(verbs.QPSErr)
	e.a.post(e.a.send(0, 0, 8))
	e.NoError(e.b.qp.Close())
	e.a.post(e.a.send(1, 0, 8))
	e.a.good(2)
	e.Equal(verbs.QPSRTS, e.a.qp.State())
}

// Packets of a transport are for queue pairs of that transport (rocev2.md 8.5):
// what a UC queue pair sends to an RC one is dropped there.
func testUCForeignPeer(e *env) {
	if !e.a.networked() {
		return
	}
	rc := own(e.b, e.b.newQP(verbs.QPInitAttr{Type: verbs.QPTRC, Cap: testCap}))
	e.b.step(rc, e.b.attrs(0), verbs.QPSInit)
	e.NoError(rc.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.b.sge(0, 100)}}))
	e.link(e.b, rc, e.a.qp.Num())
	e.a.init()
	e.link(e.a, e.a.qp, rc.Num())
	e.a.post(e.a.send(0, 0, 8))
	e.a.good(1)
	e.settle()
	e.Empty(e.b.recvs)
	e.Equal(verbs.QPSRTS, rc.State())
}

func testUCMany(e *env) {
	e.connect()
	for i := range 500 {
		n := i * 13 % 3000
		fill(e.a.bytes(0, n), i)
		e.b.recv(uint64(i), e.b.sge(0, n))
		e.a.post(e.a.send(uint64(i), 0, n))
		e.Equal(uint32(n), e.b.received(i+1).ByteLen)
		e.same(e.a.bytes(0, n), e.b.bytes(0, n))
		e.a.good(i + 1)
	}
}
