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
	{"FullReceiveCQ", testFullReceiveCQ},
	{"FullSendCQ", testFullSendCQ},
	{"CQAttributes", testCQAttributes},
}

// withChannel gives B a receive CQ with a channel.
func (e *env) withChannel() *verbs.CompChannel {
	ch := verbs.NewCompChannel()
	cq, err := e.b.Device.CreateCQ(verbs.CQAttr{Depth: 16, Channel: ch})
	e.NoError(err)
	e.b.rcq = cq
	e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.connect()
	return ch
}

func (e *env) event(ch *verbs.CompChannel, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	cq, err := ch.Get(ctx)
	return err == nil && cq == e.b.rcq
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
	e.True(e.event(ch, time.Second))
	e.False(e.event(ch, time.Millisecond), "one event")
	e.NoError(e.b.rcq.ReqNotify(false))
	e.imm(4, 0)
	e.True(e.event(ch, time.Second))
	e.ErrorIs(e.a.rcq.ReqNotify(false), verbs.ErrInvalid, "no channel")
}

// solicited_only: messages without SendSolicited give no event.
func testSolicited(e *env) {
	ch := e.withChannel()
	e.NoError(e.b.rcq.ReqNotify(true))
	e.imm(1, 0)
	e.False(e.event(ch, time.Millisecond))
	e.imm(2, verbs.SendSolicited)
	e.True(e.event(ch, time.Second))
	e.NoError(e.b.rcq.ReqNotify(false))
	e.NoError(e.b.rcq.ReqNotify(true), "does not weaken")
	e.imm(3, 0)
	e.True(e.event(ch, time.Second))
}

// Errors count as solicited (IBTA vol. 1, 11.4.2.2).
func testSolicitedError(e *env) {
	ch := e.withChannel()
	e.b.recv(1)
	e.NoError(e.b.rcq.ReqNotify(true))
	e.NoError(e.b.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	e.b.received(1)
	e.True(e.event(ch, time.Second))
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

// smallCQ replaces a CQ by one of depth 2.
func (d *end) smallCQ(recv bool) {
	cq, err := d.Device.CreateCQ(verbs.CQAttr{Depth: 2})
	d.e.NoError(err)
	if recv {
		d.rcq = cq
	} else {
		d.scq = cq
	}
	d.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
}

// unpolled drives without polling anything.
func (e *env) unpolled() {
	for range 20 {
		for _, d := range []*end{e.a, e.b} {
			d.Driver.Progress(time.Now())
			d.Driver.Flush()
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// drained polls until everything has come, or the CQ says that it overran.
func (d *end) drained(cq verbs.CQ, want int) {
	wcs, buf := []verbs.WC{}, make([]verbs.WC, 1)
	for deadline := time.Now().Add(time.Second); len(wcs) < want; {
		d.e.True(time.Now().Before(deadline), "%d of %d completions", len(wcs), want)
		n, err := cq.Poll(buf)
		wcs = append(wcs, buf[:n]...)
		if err != nil {
			d.e.ErrorIs(err, verbs.ErrCQOverrun)
			d.e.False(d.Device.Attr().CQHoldsBack)
			return
		}
		d.Driver.Progress(time.Now())
		d.Driver.Flush()
	}
	for i, wc := range wcs {
		d.e.Equal(uint64(i), wc.WRID)
		d.e.Equal(verbs.WCSuccess, wc.Status)
	}
}

// A full CQ loses nothing silently: it holds back, or reports an overrun
// (IBTA vol. 1, 10.8.5 and 11.6.3.1).
func testFullReceiveCQ(e *env) {
	e.b.smallCQ(true)
	e.connect()
	for i := range uint64(10) {
		e.b.recv(i)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 8))
	}
	e.unpolled()
	e.b.drained(e.b.rcq, 10)
}

func testFullSendCQ(e *env) {
	e.a.smallCQ(false)
	e.connect()
	for i := range uint64(10) {
		e.a.post(e.a.write(verbs.WRRDMAWrite, i, e.b, 0, 8))
	}
	e.unpolled()
	e.a.drained(e.a.scq, 10)
}

func testCQAttributes(e *env) {
	attr := e.a.Device.Attr()
	for _, bad := range []verbs.CQAttr{{Depth: 0}, {Depth: -1}, {Depth: attr.MaxCQE + 1}, {Depth: 1, Vector: attr.Vectors}, {Depth: 1, Vector: -1}} {
		_, err := e.a.Device.CreateCQ(bad)
		e.ErrorIs(err, verbs.ErrInvalid, "%+v", bad)
	}
	e.Equal(0, e.a.scq.Vector())
}
