package verbstest

import "github.com/smcgw/smcgw/verbs"

var errorTests = []test{
	{"FlushOnModify", testFlushOnModify},
	{"PostInErr", testPostInErr},
	{"InTheMiddle", testErrorInTheMiddle},
	{"RemoteKey", testRemoteKey},
	{"RemoteRange", testRemoteRange},
	{"RemoteRights", testRemoteRights},
	{"QueuePairRights", testQueuePairRights},
	{"ClosedRegion", testClosedRegion},
	{"LocalKey", testLocalKey},
	{"PeerInErr", testPeerInErr},
	{"PeerClosed", testPeerClosed},
	{"UnknownPeer", testUnknownPeer},
}

// IBTA vol. 1, 10.8.4.1 and 11.6.2: after an error both queues are flushed, in order.
func testFlushOnModify(e *env) {
	e.connect()
	for i := range uint64(5) {
		e.a.recv(10 + i)
	}
	for i := range uint64(5) {
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 20+i, e.b, 0, 8)) // waits: no receive
	}
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.a.sent(5)
	e.a.received(5)
	for i := range 5 {
		e.Equal(verbs.WCWRFlushErr, e.a.wcs[i].Status)
		e.Equal(uint64(20+i), e.a.wcs[i].WRID)
		e.Equal(verbs.WCWRFlushErr, e.a.recvs[i].Status)
		e.Equal(uint64(10+i), e.a.recvs[i].WRID)
	}
	e.settle()
	e.Len(e.a.wcs, 5)
	e.Len(e.a.recvs, 5)
}

// Work posted in ERR is flushed as well, signaled or not (10.8.4.1).
func testPostInErr(e *env) {
	e.a.replace(verbs.QPInitAttr{Cap: testCap})
	e.connect()
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.a.recv(1)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 2, e.b, 0, 8))
	e.Equal(verbs.WCWRFlushErr, e.a.received(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(1).Status)
}

// Work posted before the failing work request succeeds; work posted after it is flushed, unsignaled work requests too
// (IBTA vol. 1, 10.8.4.1, 10.10.2.3).
func testErrorInTheMiddle(e *env) {
	for _, signaled := range []bool{true, false} {
		e.renew()
		e.a.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: signaled})
		e.connect()
		for i := range uint64(10) {
			e.b.recv(i)
			wr := e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 5000)
			if i == 5 {
				wr.RKey ^= 1
			}
			e.a.post(wr)
		}
		first := uint64(0)
		if !signaled {
			first = 5
		}
		e.a.sent(int(10 - first))
		e.b.received(10)
		e.settle()
		e.Len(e.a.wcs, int(10-first))
		want := map[uint64]verbs.WCStatus{5: verbs.WCRemAccessErr}
		for i, wc := range e.a.wcs {
			id := first + uint64(i)
			e.Equal(id, wc.WRID)
			if id > 5 {
				want[id] = verbs.WCWRFlushErr
			}
			e.Equal(want[id], wc.Status, "%d", id)
		}
		for i, wc := range e.b.recvs {
			e.Equal(i < 5, wc.Status == verbs.WCSuccess)
		}
	}
}

// refused posts wr and expects a remote access error.
func (e *env) refused(wr *verbs.SendWR) {
	e.t.Helper()
	e.refusedWith(wr, verbs.WCRemAccessErr)
}

// refusedWith posts wr, which the responder refuses: the requester's work is
// flushed and the responder's queue pair is in ERR too (IBTA vol. 1, 9.7.5.2.4,
// 10.10.2.2: the responder class C error takes its queue pair down).
func (e *env) refusedWith(wr *verbs.SendWR, status verbs.WCStatus) {
	e.t.Helper()
	before := string(e.b.mr.Bytes()[:4096])
	e.b.recv(1)
	e.a.post(wr)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 99, e.b, 0, 1))
	e.Equal(status, e.a.sent(1).Status)
	e.Equal(wr.WRID, e.a.wcs[0].WRID)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
	e.NotEqual(verbs.WCSuccess, e.b.received(1).Status)
	e.Equal(verbs.QPSErr, e.b.qp.State())
	e.Equal(before, string(e.b.mr.Bytes()[:4096]))
}

func testRemoteKey(e *env) {
	e.connect()
	fill(e.a.mr.Bytes()[:8], 1)
	wr := e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8)
	wr.RKey ^= 1
	e.refused(wr)
}

func testRemoteRange(e *env) {
	for _, addr := range []func(m verbs.MR) uint64{
		func(m verbs.MR) uint64 { return m.Addr() + regionSize - 7 },
		func(m verbs.MR) uint64 { return m.Addr() - 1 },
		func(m verbs.MR) uint64 { return m.Addr() + regionSize },
		func(verbs.MR) uint64 { return ^uint64(0) - 3 },
		func(verbs.MR) uint64 { return 0 },
	} {
		e.a.wcs, e.a.recvs, e.b.wcs, e.b.recvs = nil, nil, nil, nil
		e.a.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
		e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
		e.connect()
		fill(e.a.mr.Bytes()[:8], 1)
		wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
		wr.RemoteAddr = addr(e.b.mr)
		e.refused(wr)
	}
}

// The region must grant remote write.
func testRemoteRights(e *env) {
	e.connect()
	mr, err := e.b.PD.AllocMR(4096, verbs.AccessLocalWrite)
	e.NoError(err)
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	e.refused(wr)
	e.NoError(mr.Close())
}

// So must the queue pair (qp_access_flags). One that does not grant WRITEs answers as if it did not know them: invalid
// request (IBTA vol. 1, 9.7.4.1.2, table 58: "a function not supported by this QP"; rocev2.md 8.3).
func testQueuePairRights(e *env) {
	e.NoError(verbs.Init(e.a.qp, bothWrite))
	e.NoError(verbs.Init(e.b.qp, verbs.AccessLocalWrite))
	e.join()
	e.refusedWith(e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8), verbs.WCRemInvReqErr)
}

func testClosedRegion(e *env) {
	e.connect()
	mr, err := e.b.PD.AllocMR(4096, bothWrite)
	e.NoError(err)
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	e.NoError(mr.Close())
	e.NoError(mr.Close(), "closing again")
	e.refused(wr)
}

// A bad local key is a local protection error (IBTA vol. 1, 10.10.2.2).
func testLocalKey(e *env) {
	e.connect()
	e.a.recv(1)
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.SGList[0].LKey ^= 1
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.a.received(1).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
}

// A peer that stops answering: transport retry counter exceeded (IBTA vol. 1, 9.7.6.1.3).
func testPeerInErr(e *env) {
	e.connect(soon)
	e.NoError(e.b.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.settle()
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 2, e.b, 0, 8))
	e.Equal(verbs.WCRetryExcErr, e.a.sent(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
}

// The same for a peer that is closed while sends wait.
func testPeerClosed(e *env) {
	e.connect(soon)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.settle()
	e.NoError(e.b.qp.Close())
	e.Equal(verbs.WCRetryExcErr, e.a.sent(1).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
}

// Connecting to a queue pair that does not exist fails immediately or with the first send.
func testUnknownPeer(e *env) {
	e.NoError(verbs.Init(e.a.qp, bothWrite))
	attr := e.attr(e.a.Side, e.b.qp.Num()^0x550000)
	soon(&attr)
	if err := verbs.Connect(e.a.qp, attr); err != nil {
		e.ErrorIs(err, verbs.ErrRemoteGone)
		e.Equal(verbs.QPSInit, e.a.qp.State())
		return
	}
	e.a.post(e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8))
	e.Equal(verbs.WCRetryExcErr, e.a.sent(1).Status)
}
