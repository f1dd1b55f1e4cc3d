package verbstest

import "github.com/smcgw/smcgw/verbs"

var srqEventTests = []test{
	{"Limit", onSRQ(testSRQLimit)},
	{"LimitAtCreation", testSRQLimitAtCreation},
	{"NotFlushed", onSRQ(testSRQNotFlushed)},
	{"LastWQE", onSRQ(testSRQLastWQE)},
}

func limitReached(srq verbs.SRQ) verbs.AsyncEvent {
	return verbs.AsyncEvent{Type: verbs.EventSRQLimitReached, SRQ: srq}
}

// The event is raised once when fewer than the limit are left; then the limit is 0 until it is set again (IBTA vol. 1,
// 10.2.9.1 and 11.6.3.1; rocev2.md 10).
func testSRQLimit(e *env, srq verbs.SRQ) {
	e.connect()
	e.supply(srq, 0, 10)
	next := 0
	take := func(n int) {
		for range n {
			e.a.post(e.a.send(uint64(next), 0, 8))
			next++
			e.b.received(next)
		}
		e.settle()
	}
	e.NoError(srq.Modify(verbs.SRQAttr{Limit: 8}, verbs.SRQAttrLimit))
	e.Equal(8, srq.Query().Limit)
	take(2)
	e.False(e.b.take(limitReached(srq)), "8 are left")
	e.Equal(8, srq.Query().Limit)
	take(1)
	e.b.raised(limitReached(srq))
	e.Equal(0, srq.Query().Limit)
	take(2)
	e.False(e.b.take(limitReached(srq)), "once")
	e.NoError(srq.Modify(verbs.SRQAttr{Limit: 3}, verbs.SRQAttrLimit))
	take(2)
	e.False(e.b.take(limitReached(srq)), "3 are left")
	take(1)
	e.b.raised(limitReached(srq))
}

func testSRQLimitAtCreation(e *env) {
	attr := testSRQ
	attr.Limit = 2
	srq := e.shared(attr)
	if srq == nil {
		return
	}
	e.Equal(2, srq.Query().Limit)
	e.connect()
	e.supply(srq, 0, 3)
	e.a.post(e.a.send(0, 0, 8))
	e.b.received(1)
	e.settle()
	e.False(e.b.take(limitReached(srq)))
	e.a.post(e.a.send(1, 0, 8))
	e.b.raised(limitReached(srq))
}

// A queue pair in ERR does not flush the receives, which belong to all queue pairs (IBTA vol. 1, 10.2.9.4).
func testSRQNotFlushed(e *env, srq verbs.SRQ) {
	e.connect()
	e.supply(srq, 0, 4)
	e.b.to(verbs.QPSErr)
	e.settle()
	e.Empty(e.b.recvs)
	e.renewShared(srq)
	e.connect()
	e.a.post(e.a.send(0, 0, 8))
	e.Equal(uint64(0), e.b.received(1).WRID)
}

// A queue pair in ERR raises an event when it takes no receives any more (IBTA vol. 1, 11.6.3.1;
// ibv_get_async_event(3)).
func testSRQLastWQE(e *env, srq verbs.SRQ) {
	last := func(qp verbs.QP) verbs.AsyncEvent {
		return verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QP: qp}
	}
	e.connect()
	e.supply(srq, 0, 4)
	e.a.post(e.a.send(0, 0, 8))
	e.b.received(1)
	e.settle()
	e.False(e.b.take(last(e.b.qp)))
	e.b.to(verbs.QPSErr)
	e.b.raised(last(e.b.qp))
	e.settle()
	e.False(e.b.take(last(e.b.qp)), "once")
	e.a.to(verbs.QPSErr)
	e.settle()
	e.False(e.a.take(last(e.a.qp)), "has no shared receive queue")
}
