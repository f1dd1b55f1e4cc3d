package verbstest

import (
	"github.com/smcgw/smcgw/verbs"
)

var cqTests = []test{
	{"Arrived", testArrived},
	{"SharedCQ", testSharedCQ},
	{"SelectiveSignaling", testSelectiveSignaling},
	{"SelectiveSignalingOfTransports", testSelectiveOfTransports},
	{"ClosedQueuePair", testCompletionsOutlive},
	{"PollNothing", testPollNothing},
}

// Each completion leaves a value in the channel, in which there is one at most.
func testArrived(e *env) {
	arrived := make(chan struct{}, 1)
	cq, err := e.b.Device.CreateCQ(verbs.CQAttr{Depth: 16, Arrived: arrived})
	if !e.b.has(verbs.OpGSI) {
		e.ErrorIs(err, verbs.ErrNotSupported)
		return
	}
	e.NoError(err)
	own(e.b, cq)
	e.b.rcq = cq
	e.b.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
	e.connect()
	e.Empty(arrived)
	for i := range 3 {
		e.b.recv(uint64(i))
		e.a.post(&verbs.SendWR{WRID: uint64(i), Opcode: verbs.WRRDMAWriteWithImm})
		e.b.received(i + 1)
		e.Len(arrived, 1)
		if i > 0 {
			<-arrived
		}
	}
	e.b.recv(3)
	e.b.to(verbs.QPSErr)
	e.b.received(4)
	e.Len(arrived, 1, "errors too")
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
