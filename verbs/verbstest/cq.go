package verbstest

import (
	"context"
	"time"

	"github.com/smcgw/smcgw/verbs"
)

var cqTests = []test{
	{"Arming", testArming},
	{"Solicited", testSolicited},
	{"SolicitedError", testSolicitedError},
	{"SharedCQ", testSharedCQ},
	{"SelectiveSignaling", testSelectiveSignaling},
	{"SelectiveSignalingOfTransports", testSelectiveOfTransports},
	{"SharedChannel", testSharedChannel},
	{"SolicitedOfTransports", testSolicitedOfTransports},
	{"ClosedQueuePair", testCompletionsOutlive},
	{"PollNothing", testPollNothing},
}

// withChannel gives B a receive CQ with a channel.
func (e *env) withChannel() *verbs.CompChannel {
	ch := verbs.NewCompChannel()
	cq, err := e.b.Device.CreateCQ(verbs.CQAttr{Depth: 16, Channel: ch})
	e.NoError(err)
	own(e.b, cq)
	e.b.rcq = cq
	e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.connect()
	return ch
}

// event reports whether the channel has an event of B's receive CQ, after everything in flight has arrived.
func (e *env) event(ch *verbs.CompChannel, wait time.Duration) bool {
	e.settle()
	return e.next(ch, wait) == e.b.rcq
}

// next drives both sides until the channel has an event, and returns that, or nil if there was none in time.
func (e *env) next(ch *verbs.CompChannel, wait time.Duration) verbs.CQ {
	for deadline := time.Now().Add(wait); ; e.turn() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		cq, err := ch.Get(ctx)
		cancel()
		if err == nil {
			return cq
		}
		if time.Now().After(deadline) {
			return nil
		}
	}
}

func (e *env) imm(id uint64, flags verbs.SendFlags) {
	e.b.recv(id)
	e.a.post(&verbs.SendWR{WRID: id, Opcode: verbs.WRRDMAWriteWithImm, Flags: flags})
	e.b.received(len(e.b.recvs) + 1)
}

// ibv_req_notify_cq(3): one event for the next completion, none until armed again.
func testArming(e *env) {
	ch := e.withChannel()
	e.imm(1, 0)
	e.False(e.event(ch, time.Millisecond), "not armed")
	e.NoError(e.b.rcq.ReqNotify(false))
	e.False(e.event(ch, time.Millisecond), "what was before gives no event")
	e.imm(2, 0)
	e.imm(3, 0)
	e.True(e.event(ch, e.patience()))
	e.False(e.event(ch, time.Millisecond), "one event")
	e.NoError(e.b.rcq.ReqNotify(false))
	e.imm(4, 0)
	e.True(e.event(ch, e.patience()))
	e.ErrorIs(e.a.rcq.ReqNotify(false), verbs.ErrInvalid, "no channel")
}

// solicited_only: messages without SendSolicited cause no event.
func testSolicited(e *env) {
	ch := e.withChannel()
	e.NoError(e.b.rcq.ReqNotify(true))
	e.imm(1, 0)
	e.False(e.event(ch, time.Millisecond))
	e.imm(2, verbs.SendSolicited)
	e.True(e.event(ch, e.patience()))
	e.NoError(e.b.rcq.ReqNotify(false))
	e.NoError(e.b.rcq.ReqNotify(true), "does not weaken")
	e.imm(3, 0)
	e.True(e.event(ch, e.patience()))
}

// Errors count as solicited (IBTA vol. 1, 11.4.2.2), of receives and of sends.
func testSolicitedError(e *env) {
	ch := e.withChannel()
	e.b.recv(1)
	e.NoError(e.b.rcq.ReqNotify(true))
	e.b.to(verbs.QPSErr)
	e.b.received(1)
	e.True(e.event(ch, e.patience()))
	e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true, SendCQ: e.b.rcq})
	e.a.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.connect()
	e.NoError(e.b.rcq.ReqNotify(true))
	e.b.post(e.b.write(verbs.WRRDMAWrite, 2, e.a, 0, 8))
	e.Equal(verbs.WCSuccess, e.b.received(2).Status)
	e.False(e.event(ch, time.Millisecond), "a send is not solicited")
	wr := e.b.write(verbs.WRRDMAWrite, 3, e.a, 0, 8)
	wr.SGList[0].LKey ^= 1
	e.b.post(wr)
	e.Equal(verbs.WCLocProtErr, e.b.received(3).Status)
	e.True(e.event(ch, e.patience()))
}

// Both queues, and several queue pairs, may share a CQ.
func testSharedCQ(e *env) {
	e.a.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true, SendCQ: e.a.scq, RecvCQ: e.a.scq})
	e.connect()
	e.a.recv(1)
	e.b.recv(2)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 3, e.b, 0, 8))
	e.b.post(e.b.write(verbs.WRRDMAWriteWithImm, 4, e.a, 0, 8))
	e.a.sent(2)
	ids := map[uint64]verbs.WCOpcode{e.a.wcs[0].WRID: e.a.wcs[0].Opcode, e.a.wcs[1].WRID: e.a.wcs[1].Opcode}
	e.Equal(map[uint64]verbs.WCOpcode{1: verbs.WCRecvRDMAWithImm, 3: verbs.WCRDMAWrite}, ids)
}

// Without SQSigAll only SendSignaled completes; its completion frees the
// entries of the work requests before it (ibv_post_send(3)).
func testSelectiveSignaling(e *env) {
	e.a.replace(verbs.QPInitAttr{Cap: testCap})
	e.connect()
	for round := range 5 {
		for i := range testCap.MaxSendWR - 1 {
			e.a.post(e.a.write(verbs.WRRDMAWrite, uint64(i), e.b, 0, 8))
		}
		e.settle()
		e.Len(e.a.wcs, round)
		wr := e.a.write(verbs.WRRDMAWrite, 1000+uint64(round), e.b, 0, 8)
		wr.Flags = verbs.SendSignaled
		e.a.post(wr)
		e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrQueueFull, "nothing polled yet")
		e.Equal(1000+uint64(round), e.a.sent(round+1).WRID)
	}
}

// The same where nothing is acknowledged, and mixed with failures: an error always completes (ibv_create_qp(3),
// sq_sig_all).
func testSelectiveOfTransports(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD}, func() {
		e.a.replace(verbs.QPInitAttr{Cap: testCap})
		e.connect()
		for i := range 6 {
			e.b.recv(uint64(i), e.b.sge(i*200, 200))
		}
		for i := range 5 {
			wr := e.a.send(uint64(i), 0, 8)
			if i == 3 {
				wr.Flags = verbs.SendSignaled
			}
			e.a.post(wr)
		}
		e.b.received(5)
		e.Equal(uint64(3), e.a.sent(1).WRID)
		wr := e.a.send(9, 0, 8)
		wr.SGList[0].LKey ^= 1
		e.a.post(wr)
		wc := e.a.sent(2)
		e.Equal(verbs.WCLocProtErr, wc.Status)
		e.Equal(uint64(9), wc.WRID)
		e.settle()
		e.Len(e.a.wcs, 2)
	})
}

// Two CQs in one channel: each event names its CQ.
func testSharedChannel(e *env) {
	ch := verbs.NewCompChannel()
	for _, cq := range []*verbs.CQ{&e.b.rcq, &e.b.scq} {
		var err error
		*cq, err = e.b.Device.CreateCQ(verbs.CQAttr{Depth: 16, Channel: ch})
		e.NoError(err)
		own(e.b, *cq)
		e.NoError((*cq).ReqNotify(false))
	}
	e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.connect()
	e.b.post(e.b.write(verbs.WRRDMAWrite, 0, e.a, 0, 8))
	e.b.good(1)
	e.imm(1, 0)
	seen := map[verbs.CQ]bool{}
	for range 2 {
		seen[e.next(ch, e.patience())] = true
	}
	e.True(seen[e.b.rcq])
	e.True(seen[e.b.scq])
}

// The solicited bit of messages of every transport (IBTA vol. 1, 9.2.3).
func testSolicitedOfTransports(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD}, func() {
		ch := e.withChannel()
		ops := []verbs.WROpcode{verbs.WRSend, verbs.WRSendWithImm}
		if first := e.a.send(1, 0, 200).Opcode; first != verbs.WRSend {
			ops = []verbs.WROpcode{first}
		}
		for i, op := range ops {
			for j, flags := range []verbs.SendFlags{0, verbs.SendSolicited} {
				e.NoError(e.b.rcq.ReqNotify(true))
				e.b.recv(1, e.b.sge(0, 1000))
				wr := e.a.send(1, 0, 200)
				wr.Opcode, wr.Flags = op, flags
				e.a.post(wr)
				e.b.received(2*i + j + 1)
				wait := time.Millisecond
				if flags != 0 {
					wait = e.patience()
				}
				e.Equal(flags != 0, e.event(ch, wait), "%v of %v, %#x", op, e.a.typ, flags)
			}
		}
	})
}

// Closing a queue pair removes no completion from the CQ, and adds none (ibv_destroy_qp(3)).
func testCompletionsOutlive(e *env) {
	e.connect()
	cq := e.b.rcq
	e.b.rcq = e.b.newCQ(1) // the other one is not polled
	for i := range uint64(8) {
		e.b.recv(i)
	}
	for i := range uint64(4) {
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 8))
	}
	e.a.good(4)
	num := e.b.qp.Num()
	e.NoError(e.b.qp.Close())
	e.settle()
	var wcs [16]verbs.WC
	n, err := cq.Poll(wcs[:])
	e.NoError(err)
	e.Equal(4, n)
	for i, wc := range wcs[:n] {
		e.Equal(uint64(i), wc.WRID)
		e.Equal(num, wc.QPNum)
	}
	e.NoError(cq.Close())
}

func testPollNothing(e *env) {
	n, err := e.a.scq.Poll(nil)
	e.NoError(err)
	e.Zero(n)
	e.connect()
	e.a.post(e.a.write(verbs.WRRDMAWrite, 0, e.b, 0, 8))
	e.settle()
	n, err = e.a.scq.Poll(make([]verbs.WC, 0))
	e.NoError(err)
	e.Zero(n)
	e.a.good(1)
}
