package verbstest

import "github.com/smcgw/smcgw/verbs"

var srqTests = []test{
	{"Create", testSRQCreate},
	{"Shared", onSRQ(testSRQShared)},
	{"PostToQueuePair", onSRQ(testSRQPostToQP)},
	{"Full", onSRQ(testSRQFull)},
	{"Empty", onSRQ(testSRQEmpty)},
	{"Modify", onSRQ(testSRQModify)},
	{"InUse", onSRQ(testSRQInUse)},
	{"SGEs", onSRQ(testSRQSGEs)},
	{"BadBuffer", onSRQ(testSRQBadBuffer)},
	{"TooLong", onSRQ(testSRQTooLong)},
	{"Datagrams", testSRQDatagrams},
	{"Unreliable", testSRQUnreliable},
	{"Vector", testSRQVector},
	{"ManyTimes", testSRQManyTimes},
}

// shared gives B a shared receive queue and a queue pair of the end's type that uses it. A device without them must
// refuse to create one; then shared returns nil.
func (e *env) shared(attr verbs.SRQInitAttr) verbs.SRQ {
	e.t.Helper()
	srq, err := e.b.PD.CreateSRQ(attr)
	if !e.b.has(verbs.OpSRQ) {
		e.ErrorIs(err, verbs.ErrNotSupported)
		return nil
	}
	e.NoError(err)
	own(e.b, srq)
	e.b.replace(verbs.QPInitAttr{SRQ: srq, Cap: testCap, SQSigAll: true})
	return srq
}

// onSRQ makes a test run on a queue pair with a shared receive queue.
func onSRQ(run func(*env, verbs.SRQ)) func(*env) {
	return func(e *env) {
		if srq := e.shared(testSRQ); srq != nil {
			run(e, srq)
		}
	}
}

var testSRQ = verbs.SRQInitAttr{MaxWR: 16, MaxSGE: 4}

// supply posts receives of 200 bytes each, numbered from from to to-1.
func (e *env) supply(srq verbs.SRQ, from, to int) {
	e.t.Helper()
	for i := from; i < to; i++ {
		e.NoError(srq.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{e.b.sge(i*200, 200)}}))
	}
	e.b.Driver.Flush()
}

func testSRQCreate(e *env) {
	if e.shared(testSRQ) == nil {
		return
	}
	limits := e.b.Device.Attr()
	for _, bad := range []verbs.SRQInitAttr{
		{MaxWR: 0, MaxSGE: 1},
		{MaxWR: -1, MaxSGE: 1},
		{MaxWR: limits.MaxSRQWR + 1, MaxSGE: 1},
		{MaxWR: 1, MaxSGE: limits.MaxSRQSGE + 1},
		{MaxWR: 1, MaxSGE: -1},
		{MaxWR: 4, MaxSGE: 1, Limit: 5},
		{MaxWR: 1, MaxSGE: 1, Vector: limits.Vectors},
		{MaxWR: 1, MaxSGE: 1, Vector: -1},
	} {
		_, err := e.b.PD.CreateSRQ(bad)
		e.ErrorIs(err, verbs.ErrInvalid, "%+v", bad)
	}
}

// Receives go, oldest first, to whichever queue pair gets a message (IBTA
// vol. 1, 10.2.9). The receive CQ is that of the queue pair.
func testSRQShared(e *env, srq verbs.SRQ) {
	e.connect()
	other, otherB := e.second(verbs.QPInitAttr{Cap: testCap, SQSigAll: true}, verbs.QPInitAttr{Cap: testCap, SRQ: srq})
	e.supply(srq, 0, 12)
	for i := range 12 {
		qp, to := e.a.qp, e.b.qp
		if i%3 == 0 {
			qp, to = other, otherB
		}
		fill(e.a.bytes(0, 150), i)
		e.NoError(qp.PostSend(e.a.send(uint64(i), 0, 150)))
		wc := e.b.received(i + 1)
		e.Equal(verbs.WCSuccess, wc.Status)
		e.Equal(uint64(i), wc.WRID)
		e.Equal(to.Num(), wc.QPNum)
		e.same(e.a.bytes(0, 150), e.b.bytes(i*200, 150))
		e.a.good(i + 1) // queue pairs complete in no order
	}
}

// A queue pair with an SRQ has no receive queue of its own (ibv_post_recv(3)).
func testSRQPostToQP(e *env, srq verbs.SRQ) {
	e.connect()
	e.ErrorIs(e.b.qp.PostRecv(&verbs.RecvWR{}), verbs.ErrInvalid)
}

// An entry is free again when its receive was taken.
func testSRQFull(e *env, srq verbs.SRQ) {
	e.connect()
	e.supply(srq, 0, testSRQ.MaxWR)
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	e.a.post(e.a.send(0, 0, 8))
	e.b.received(1)
	e.supply(srq, 16, 17)
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
}

// An empty SRQ is like an empty receive queue: receiver not ready.
func testSRQEmpty(e *env, srq verbs.SRQ) {
	e.connect()
	e.a.post(e.a.send(0, 0, 8))
	e.settle()
	e.Empty(e.a.wcs)
	e.supply(srq, 0, 1)
	e.b.received(1)
	e.a.good(1)
	e.renewShared(srq)
	e.connect(retries(1, 12))
	e.a.post(e.a.send(0, 0, 8))
	e.Equal(verbs.WCRNRRetryExcErr, e.a.sent(1).Status)
}

// renewShared is renew with a queue pair of B that takes from srq.
func (e *env) renewShared(srq verbs.SRQ) {
	e.t.Helper()
	e.renew()
	e.b.replace(verbs.QPInitAttr{SRQ: srq, Cap: testCap, SQSigAll: true})
}

// ibv_modify_srq(3).
func testSRQModify(e *env, srq verbs.SRQ) {
	e.Equal(verbs.SRQAttr{MaxWR: 16, MaxSGE: 4}, srq.Query())
	e.supply(srq, 0, 10)
	limits := e.b.Device.Attr()
	for _, bad := range []struct {
		attr verbs.SRQAttr
		mask verbs.SRQAttrMask
	}{
		{verbs.SRQAttr{MaxWR: 9}, verbs.SRQAttrMaxWR},
		{verbs.SRQAttr{MaxWR: limits.MaxSRQWR + 1}, verbs.SRQAttrMaxWR},
		{verbs.SRQAttr{Limit: 17}, verbs.SRQAttrLimit},
		{verbs.SRQAttr{Limit: -1}, verbs.SRQAttrLimit},
		{verbs.SRQAttr{}, 1 << 5},
	} {
		e.ErrorIs(srq.Modify(bad.attr, bad.mask), verbs.ErrInvalid, "%+v", bad)
		e.Equal(verbs.SRQAttr{MaxWR: 16, MaxSGE: 4}, srq.Query())
	}
	e.NoError(srq.Modify(verbs.SRQAttr{MaxWR: 40}, verbs.SRQAttrMaxWR))
	e.Equal(40, srq.Query().MaxWR)
	e.connect()
	e.supply(srq, 10, 40)
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	for i := range 40 {
		e.a.post(e.a.send(uint64(i), 0, 8))
		e.Equal(uint64(i), e.b.received(i+1).WRID, "the receives stay")
	}
	e.NoError(srq.Modify(verbs.SRQAttr{MaxWR: 4}, verbs.SRQAttrMaxWR))
	e.supply(srq, 0, 4)
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
}

// ibv_destroy_srq(3): fails while a queue pair uses it.
func testSRQInUse(e *env, srq verbs.SRQ) {
	e.ErrorIs(srq.Close(), verbs.ErrBusy)
	e.NoError(e.b.qp.Close())
	e.NoError(srq.Close())
	e.NoError(srq.Close(), "closing again")
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{}), verbs.ErrClosed)
	e.ErrorIs(srq.Modify(verbs.SRQAttr{}, 0), verbs.ErrClosed)
	_, err := e.b.PD.CreateQP(e.b.complete(verbs.QPInitAttr{SRQ: srq, Cap: testCap}))
	e.Error(err, "a closed one")
}

func testSRQSGEs(e *env, srq verbs.SRQ) {
	list := make([]verbs.SGE, testSRQ.MaxSGE+1)
	for i := range list {
		list[i] = e.b.sge(i*1000, 10)
	}
	e.ErrorIs(srq.PostRecv(&verbs.RecvWR{SGList: list}), verbs.ErrInvalid)
	e.NoError(srq.PostRecv(&verbs.RecvWR{SGList: list[1:]}))
	e.connect()
	fill(e.a.bytes(0, 40), 1)
	e.a.post(e.a.send(0, 0, 40))
	e.b.received(1)
	for i := range 4 {
		e.same(e.a.bytes(i*10, 10), e.b.bytes(1000+i*1000, 10))
	}
}

// A bad receive fails only the queue pair whose message took it.
func testSRQBadBuffer(e *env, srq verbs.SRQ) {
	e.connect()
	other, _ := e.second(verbs.QPInitAttr{Cap: testCap, SQSigAll: true}, verbs.QPInitAttr{Cap: testCap, SRQ: srq})
	bad := e.b.sge(0, 100)
	bad.LKey ^= 1
	e.NoError(srq.PostRecv(&verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{bad}}))
	e.supply(srq, 1, 3)
	e.a.post(e.a.send(0, 0, 8))
	wc := e.b.received(1)
	e.Equal(verbs.WCLocProtErr, wc.Status)
	e.Equal(uint64(7), wc.WRID)
	e.Equal(e.b.qp.Num(), wc.QPNum)
	e.Equal(verbs.WCRemOpErr, e.a.sent(1).Status)
	e.NoError(other.PostSend(e.a.send(1, 0, 8)))
	e.Equal(verbs.WCSuccess, e.b.received(2).Status)
	e.Equal(uint64(1), e.b.recvs[1].WRID)
}

func testSRQTooLong(e *env, srq verbs.SRQ) {
	e.connect()
	e.supply(srq, 0, 2)
	e.a.post(e.a.send(0, 0, 201))
	e.Equal(verbs.WCRemInvReqErr, e.a.sent(1).Status)
	e.Equal(verbs.WCLocLenErr, e.b.received(1).Status)
	e.settle()
	e.Len(e.b.recvs, 1, "the other receive belongs to all")
	e.b.raised(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: e.b.qp})
}

// UD queue pairs may use it too, also beside RC ones; without a receive the message is lost.
func testSRQDatagrams(e *env) {
	if !e.use(verbs.QPTUD) {
		return
	}
	srq := e.shared(testSRQ)
	if srq == nil {
		return
	}
	e.connect()
	rc, _ := e.second(verbs.QPInitAttr{Type: verbs.QPTRC, Cap: testCap, SQSigAll: true},
		verbs.QPInitAttr{Type: verbs.QPTRC, Cap: testCap, SRQ: srq})
	e.lost(e.a.send(0, 0, 8))
	e.supply(srq, 0, 6)
	for i := range 6 {
		fill(e.a.bytes(0, 50), i)
		qp, room := e.a.qp, grhSize
		if i%2 == 0 {
			qp, room = rc, 0
		}
		e.NoError(qp.PostSend(e.a.send(uint64(i+1), 0, 50)))
		e.Equal(uint64(i), e.b.received(i+1).WRID)
		e.same(e.a.bytes(0, 50), e.b.bytes(i*200+room, 50))
	}
}

// UC queue pairs may, or may not: IBTA vol. 1, 10.2.9 leaves it open, and
// libibverbs' manual names only RC and UD (ibv_create_qp(3)).
func testSRQUnreliable(e *env) {
	if !e.use(verbs.QPTUC) || !e.b.has(verbs.OpSRQ) {
		return
	}
	srq, err := e.b.PD.CreateSRQ(testSRQ)
	e.NoError(err)
	own(e.b, srq)
	qp, err := e.b.PD.CreateQP(e.b.complete(verbs.QPInitAttr{SRQ: srq, Cap: testCap}))
	if err != nil {
		e.ErrorIs(err, verbs.ErrInvalid)
		return
	}
	e.NoError(e.b.qp.Close())
	e.b.qp = qp
	e.connect()
	e.supply(srq, 0, 1)
	e.a.post(e.a.send(0, 0, 50))
	e.Equal(verbs.WCSuccess, e.b.received(1).Status)
}

// Queue, queue pairs and CQs belong to one vector; see verbs.QPInitAttr.
func testSRQVector(e *env) {
	if e.b.Device.Attr().Vectors < 2 || !e.b.has(verbs.OpSRQ) {
		return
	}
	srq, err := e.b.PD.CreateSRQ(verbs.SRQInitAttr{MaxWR: 4, MaxSGE: 1, Vector: 1})
	e.NoError(err)
	own(e.b, srq)
	_, err = e.b.PD.CreateQP(e.b.complete(verbs.QPInitAttr{SRQ: srq, Cap: testCap}))
	e.ErrorIs(err, verbs.ErrInvalid)
}

// Many times around the queue, with few receives at a time.
func testSRQManyTimes(e *env) {
	srq := e.shared(verbs.SRQInitAttr{MaxWR: 5, MaxSGE: 1})
	if srq == nil {
		return
	}
	e.connect()
	const total = 300
	posted, supplied := 0, 0
	e.until("all received", func() bool {
		for supplied < total && supplied-len(e.b.recvs) < 5 {
			e.supply(srq, supplied, supplied+1)
			supplied++
		}
		for posted < total && posted-len(e.a.wcs) < testCap.MaxSendWR {
			e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(posted), e.b, 500_000, 10))
			posted++
		}
		return len(e.b.recvs) == total && len(e.a.wcs) == total
	})
	for i, wc := range e.b.recvs {
		e.Equal(uint64(i), wc.WRID)
		e.Equal(uint32(i)|0x80000000, wc.ImmData)
	}
}
