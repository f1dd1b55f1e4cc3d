package verbstest

import "github.com/smcgw/smcgw/verbs"

var limitTests = []test{
	{"SendQueue", testSendQueueFull},
	{"ReceiveQueue", testReceiveQueueFull},
	{"SGEs", testSGELimits},
	{"Inline", testInlineLimit},
	{"Capabilities", testCapabilities},
	{"Flags", testFlags},
	{"NoReceives", testNoReceives},
	{"Memory", testMemoryLimits},
}

// A posted WR occupies its entry until a completion was polled
// (IBTA vol. 1, 10.8.5.1: freed when the completion is retrieved).
func testSendQueueFull(e *env) {
	e.connect()
	for i := range testCap.MaxSendWR {
		e.a.post(e.a.write(verbs.WRRDMAWrite, uint64(i), e.b, 0, 8))
	}
	wr := e.a.write(verbs.WRRDMAWrite, 99, e.b, 0, 8)
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrQueueFull)
	e.a.sent(testCap.MaxSendWR)
	e.a.post(wr)
	e.Equal(uint64(99), e.a.sent(testCap.MaxSendWR+1).WRID)
}

func testReceiveQueueFull(e *env) {
	e.connect()
	for i := range testCap.MaxRecvWR {
		e.b.recv(uint64(i))
	}
	e.ErrorIs(e.b.qp.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.b.received(1)
	e.b.recv(99)
}

func testSGELimits(e *env) {
	e.connect()
	list := make([]verbs.SGE, testCap.MaxSendSGE+1)
	for i := range list {
		list[i] = e.a.sge(i, 1)
	}
	e.ErrorIs(e.a.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: list}), verbs.ErrInvalid)
	e.ErrorIs(e.a.qp.PostRecv(&verbs.RecvWR{SGList: list}), verbs.ErrInvalid)
	huge := []verbs.SGE{{Length: 1 << 31}, {Length: 1 << 31}, {Length: 1 << 31}}
	e.ErrorIs(e.a.qp.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: huge}), verbs.ErrInvalid, "message too long")
}

func testInlineLimit(e *env) {
	e.connect()
	wr := e.a.write(verbs.WRRDMAWriteWithImm, 0, e.b, 0, 0)
	wr.SGList, wr.Flags, wr.Inline = nil, verbs.SendInline, make([]byte, testCap.MaxInline+1)
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrInvalid)
	wr.Inline = wr.Inline[1:]
	e.b.recv(1)
	e.a.post(wr)
	e.Equal(uint32(testCap.MaxInline), e.b.received(1).ByteLen)
}

func testCapabilities(e *env) {
	attr := e.a.Device.Attr()
	for _, change := range []func(c *verbs.QPCap){
		func(c *verbs.QPCap) { c.MaxSendWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxRecvWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxRecvWR = -1 },
		func(c *verbs.QPCap) { c.MaxSendSGE = attr.MaxSGE + 1 },
		func(c *verbs.QPCap) { c.MaxRecvSGE = attr.MaxSGE + 1 },
		func(c *verbs.QPCap) { c.MaxInline = attr.MaxInline + 1 },
	} {
		c := testCap
		change(&c)
		_, err := e.a.PD.CreateQP(&verbs.QPInitAttr{SendCQ: e.a.scq, RecvCQ: e.a.rcq, Cap: c, Type: verbs.QPTRC})
		e.ErrorIs(err, verbs.ErrInvalid, "%+v", c)
	}
	_, err := e.a.PD.CreateQP(&verbs.QPInitAttr{SendCQ: e.a.scq, Cap: testCap, Type: verbs.QPTRC})
	e.ErrorIs(err, verbs.ErrInvalid, "no receive CQ")
	_, err = e.a.PD.CreateQP(&verbs.QPInitAttr{SendCQ: e.b.scq, RecvCQ: e.b.rcq, Cap: testCap, Type: verbs.QPTRC})
	e.ErrorIs(err, verbs.ErrInvalid, "CQs of another device")
}

// Unknown flags are refused (ibv_post_send(3): EINVAL).
func testFlags(e *env) {
	e.connect()
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 8)
	wr.Flags = 1 << 15
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrInvalid)
}

// A queue pair may be created for sending only.
func testNoReceives(e *env) {
	c := testCap
	c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	e.a.replace(verbs.QPInitAttr{Cap: c, SQSigAll: true})
	e.connect()
	e.ErrorIs(e.a.qp.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 0, e.b, 0, 8))
	e.a.good(1)
}

func testMemoryLimits(e *env) {
	for _, n := range []int{0, -1} {
		_, err := e.a.PD.AllocMR(n, bothWrite)
		e.ErrorIs(err, verbs.ErrInvalid)
	}
	_, err := e.a.PD.AllocMR(int(e.a.Device.Attr().MaxMRSize)+1, bothWrite)
	e.ErrorIs(err, verbs.ErrNoMemory)
	_, err = e.a.PD.AllocMR(4096, verbs.AccessRemoteWrite)
	e.ErrorIs(err, verbs.ErrInvalid)
	_, err = e.a.PD.RegMR(nil, verbs.AccessLocalWrite)
	e.ErrorIs(err, verbs.ErrInvalid)
	mr, err := e.a.PD.AllocMR(5000, bothWrite)
	e.NoError(err)
	e.Len(mr.Bytes(), 5000)
	e.same(make([]byte, 5000), mr.Bytes(), "zeroed")
	e.NoError(mr.Close())
}
