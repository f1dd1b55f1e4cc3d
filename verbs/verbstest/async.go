package verbstest

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

var asyncTests = []test{
	{"CommunicationEstablished", testCommEst},
	{"AccessError", testQPAccessErr},
	{"RequestError", testQPReqErr},
	{"NoneOnFlush", testNoEventOnFlush},
	{"NoneBesideCompletion", testNoEventBesideCompletion},
	{"Channel", testAsyncChannel},
}

// The first packet for a queue pair in RTR proves that the peer is connected, even if the message that should say so,
// RTU, is lost (IBTA vol. 1, 11.6.3.1, ibv_get_async_event(3)). Receiving works before RTS.
func testCommEst(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC}, func() {
		e.a.init()
		e.b.init()
		e.b.step(e.b.qp, e.b.attrs(e.a.qp.Num()), verbs.QPSRTR)
		e.b.recv(1, e.b.sge(0, 100))
		e.link(e.a, e.a.qp, e.b.qp.Num())
		est := verbs.AsyncEvent{Type: verbs.EventCommEst, QP: e.b.qp}
		e.settle()
		e.False(e.b.take(est))
		e.a.post(e.a.send(0, 0, 8))
		e.Equal(verbs.WCSuccess, e.b.received(1).Status)
		e.b.raised(est)
		e.a.good(1)
		e.b.step(e.b.qp, e.b.attrs(e.a.qp.Num()), verbs.QPSRTS)
		e.b.recv(2, e.b.sge(0, 100))
		e.a.post(e.a.send(1, 0, 8))
		e.b.received(2)
		e.settle()
		e.False(e.b.take(est), "only in RTR")
	})
}

// If no receive reports to the responder that the peer broke the rules, an event does: local access violation (IBTA
// vol. 1, 9.9.3, 11.6.3.1),
func testQPAccessErr(e *env) {
	e.connect()
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.RKey ^= 1
	e.a.post(wr)
	e.Equal(verbs.WCRemAccessErr, e.a.sent(1).Status)
	e.b.raised(verbs.AsyncEvent{Type: verbs.EventQPAccessErr, QP: e.b.qp})
	e.Equal(verbs.QPSErr, e.b.qp.State())
}

// or invalid request.
func testQPReqErr(e *env) {
	e.a.init()
	e.NoError(verbs.Init(e.b.qp, 0))
	e.join()
	e.a.post(e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8))
	e.Equal(verbs.WCRemInvReqErr, e.a.sent(1).Status)
	e.b.raised(verbs.AsyncEvent{Type: verbs.EventQPReqErr, QP: e.b.qp})
	e.Equal(verbs.QPSErr, e.b.qp.State())
}

// What a completion reports, and what the user does, raises no event.
func testNoEventOnFlush(e *env) {
	e.connect()
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.SGList[0].LKey ^= 1
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
	e.b.recv(1)
	e.b.to(verbs.QPSErr)
	e.b.received(1)
	e.settle()
	e.Empty(e.a.events)
	e.Empty(e.b.events)
}

// The same at the responder: a receive that completes with the error is enough.
func testNoEventBesideCompletion(e *env) {
	if !e.canSend() {
		return
	}
	for _, sge := range []verbs.SGE{e.b.sge(0, 99), {Addr: e.b.mr.Addr(), Length: 200, LKey: e.b.mr.LKey() ^ 1}} {
		e.renew()
		e.connect()
		e.b.recv(1, sge)
		e.a.post(e.a.send(0, 0, 100))
		e.NotEqual(verbs.WCSuccess, e.a.sent(1).Status)
		e.NotEqual(verbs.WCSuccess, e.b.received(1).Status)
		e.settle()
		e.Empty(e.a.events)
		e.Empty(e.b.events)
	}
}

// One channel serves all objects of the device; it is empty at first.
func testAsyncChannel(e *env) {
	ch := e.a.Device.Async()
	e.Same(ch, e.a.Device.Async())
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := ch.Get(ctx)
	e.ErrorIs(err, context.DeadlineExceeded)
}
