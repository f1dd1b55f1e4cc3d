package verbstest

import "github.com/smcgw/smcgw/verbs"

var readTests = where((*env).canRead, []test{
	{"Read", testRead},
	{"Sizes", testReadSizes},
	{"Scatter", testReadScatter},
	{"ManyOutstanding", testReadMany},
	{"Order", testReadOrder},
	{"Fence", testFence},
	{"BothDirections", testReadBoth},
	{"ZeroLength", testReadZero},
	{"Inline", testReadInline},
	{"Key", testReadKey},
	{"Range", testReadRange},
	{"RegionRights", testReadRights},
	{"QueuePairRights", testReadQueuePairRights},
	{"LocalRights", testReadLocalRights},
	{"Flush", testReadFlush},
})

func (e *env) canRead() bool { return e.can(verbs.OpRDMARead, verbs.WRRDMARead) }

// read makes a READ of a part of the peer's region to the same offset here.
func (d *end) read(id uint64, off, n int) *verbs.SendWR {
	return d.write(verbs.WRRDMARead, id, d.peer, off, n)
}

// A READ fetches the peer's memory and changes nothing there (IBTA vol. 1, 9.4.4).
func testRead(e *env) {
	e.b.recv(1)
	fill(e.b.bytes(100, 100), 1)
	e.a.post(e.a.read(7, 100, 100))
	wc := e.a.sent(1)
	e.Equal(verbs.WC{WRID: 7, Opcode: verbs.WCRDMARead, QPNum: e.a.qp.Num(), ByteLen: wc.ByteLen, SrcQP: wc.SrcQP}, wc)
	e.same(e.b.bytes(0, 300), e.a.bytes(0, 300))
	e.settle()
	e.Empty(e.b.recvs, "takes no receive")
}

func testReadSizes(e *env) {
	for i, n := range []int{1, 3, 63, 255, 256, 257, 4095, 4096, 4097, 65536, 100_001, regionSize} {
		fill(e.b.bytes(0, n), i)
		e.a.post(e.a.read(uint64(i), 0, n))
		e.Equal(verbs.WCSuccess, e.a.sent(i+1).Status)
		e.same(e.b.bytes(0, n), e.a.bytes(0, n), "size %d", n)
	}
}

// The result is scattered over the SGEs.
func testReadScatter(e *env) {
	fill(e.b.mr.Bytes(), 1)
	wr := e.a.read(1, 500, 0)
	wr.SGList = []verbs.SGE{e.a.sge(10, 7), e.a.sge(0, 0), e.a.sge(300, 1), e.a.sge(2000, 20000)}
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	src := e.b.bytes(500, 20008)
	e.Equal(src[:7], e.a.bytes(10, 7))
	e.Equal(src[7:8], e.a.bytes(300, 1))
	e.Equal(src[8:], e.a.bytes(2000, 20000))
	e.same(make([]byte, 10), e.a.bytes(0, 10), "nothing beside")
	e.same(make([]byte, 10), e.a.bytes(22000, 10), "nothing beside")
}

// READs beyond the allowed number wait (max_rd_atomic; IBTA vol. 1, 9.7.6.2.2).
func testReadMany(e *env) {
	for _, depth := range []uint8{1, 4} {
		if int(depth) > e.a.Device.Attr().MaxRDAtomic {
			continue
		}
		e.renew()
		e.connect(func(a *verbs.QPAttr) { a.MaxRDAtomic, a.MaxDestRDAtomic = depth, depth })
		clear(e.a.mr.Bytes())
		fill(e.b.bytes(0, testCap.MaxSendWR*10_000), int(depth))
		for i := range testCap.MaxSendWR {
			e.a.post(e.a.read(uint64(i), i*10_000, 10_000))
		}
		e.a.good(testCap.MaxSendWR)
		n := testCap.MaxSendWR * 10_000
		e.same(e.b.bytes(0, n), e.a.bytes(0, n))
	}
}

// A READ sees the effect of earlier WRITEs, and completes in order (IBTA vol. 1, 10.8.3.3, table 79).
func testReadOrder(e *env) {
	const half = regionSize / 2
	for i := range 10 {
		fill(e.a.bytes(0, 5000), i)
		e.a.post(e.a.write(verbs.WRRDMAWrite, uint64(2*i), e.b, 0, 5000))
		wr := e.a.read(uint64(2*i+1), 0, 5000)
		wr.SGList[0] = e.a.sge(half, 5000)
		e.a.post(wr)
		e.a.good(2*i + 2)
		e.same(e.a.bytes(0, 5000), e.a.bytes(half, 5000))
	}
}

// With SendFence a work request starts when the READs before it have completed, so it can send their results (IBTA vol.
// 1, 10.8.3.3).
func testFence(e *env) {
	const there = regionSize / 2
	for i := range 10 {
		fill(e.b.bytes(0, 50_000), i)
		e.b.recv(uint64(i), e.b.sge(there, 50_000))
		e.a.post(e.a.read(uint64(2*i), 0, 50_000))
		wr := e.a.send(uint64(2*i+1), 0, 50_000)
		wr.Flags = verbs.SendFence
		e.a.post(wr)
		e.b.received(i + 1)
		e.same(e.b.bytes(0, 50_000), e.b.bytes(there, 50_000))
		e.a.good(2*i + 2)
	}
}

func testReadBoth(e *env) {
	fill(e.a.bytes(0, 200_000), 1)
	fill(e.b.bytes(200_000, 200_000), 2)
	for i := range 10 {
		e.a.post(e.a.read(uint64(i), 200_000+i*20_000, 20_000))
		e.b.post(e.b.read(uint64(i), i*20_000, 20_000))
	}
	e.a.good(10)
	e.b.good(10)
	e.same(e.a.bytes(0, 400_000), e.b.bytes(0, 400_000))
}

// A zero-length READ needs no memory (IBTA vol. 1, 9.7.4.1.4).
func testReadZero(e *env) {
	e.a.post(&verbs.SendWR{WRID: 0, Opcode: verbs.WRRDMARead, RemoteAddr: ^uint64(0), RKey: ^uint32(0)})
	e.a.good(1)
}

// Inline is only for outgoing data (ibv_post_send(3)).
func testReadInline(e *env) {
	wr := e.a.read(1, 0, 8)
	wr.SGList, wr.Inline, wr.Flags = nil, make([]byte, 8), verbs.SendInline
	e.ErrorIs(e.a.qp.PostSend(wr), verbs.ErrInvalid)
}

// readRefused posts a READ that must fail with an error.
func (e *env) readRefused(wr *verbs.SendWR, status verbs.WCStatus) {
	e.t.Helper()
	fill(e.b.mr.Bytes(), 3)
	clear(e.a.mr.Bytes())
	e.refusedWith(wr, status)
	e.same(make([]byte, 4096), e.a.bytes(0, 4096))
}

func testReadKey(e *env) {
	wr := e.a.read(1, 0, 8)
	wr.RKey ^= 1
	e.readRefused(wr, verbs.WCRemAccessErr)
}

// The whole range is checked before the first byte is sent.
func testReadRange(e *env) {
	for _, off := range []uint64{regionSize - 19_999, regionSize, ^uint64(0)} {
		e.renew()
		e.connect()
		wr := e.a.read(1, 0, 20_000)
		wr.RemoteAddr += off
		e.readRefused(wr, verbs.WCRemAccessErr)
	}
}

func testReadRights(e *env) {
	mr := e.b.alloc(bothWrite)
	wr := e.a.read(1, 0, 8)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	e.readRefused(wr, verbs.WCRemAccessErr)
}

// A queue pair that does not grant READs answers as if it did not know them (IBTA vol. 1, 9.7.4.1.2, table 58;
// rocev2.md 8.3).
func testReadQueuePairRights(e *env) {
	e.renew()
	e.a.init()
	e.NoError(verbs.Init(e.b.qp, bothWrite))
	e.join()
	e.readRefused(e.a.read(1, 0, 8), verbs.WCRemInvReqErr)
}

// The target of a READ must be writable here: local protection error (IBTA vol. 1, 10.10.2.2).
func testReadLocalRights(e *env) {
	mr := e.a.alloc(verbs.AccessRemoteRead)
	wr := e.a.read(1, 0, 8)
	wr.SGList = []verbs.SGE{sgeOf(mr, 8)}
	fill(e.b.bytes(0, 8), 1)
	e.a.post(wr)
	e.Equal(verbs.WCLocProtErr, e.a.sent(1).Status)
	e.same(make([]byte, 8), mr.Bytes()[:8])
	e.Equal(verbs.QPSErr, e.a.qp.State())
}

// READs in flight are flushed in order with the rest, if they are in flight at all: on shared memory they may complete
// when they are posted.
func testReadFlush(e *env) {
	for i := range uint64(8) {
		e.a.post(e.a.read(i, 0, 100_000))
	}
	e.a.to(verbs.QPSErr)
	e.a.sent(8)
	failed := false
	for i, wc := range e.a.wcs {
		e.Equal(uint64(i), wc.WRID)
		e.False(failed && wc.Status == verbs.WCSuccess, "success after flush")
		if wc.Status != verbs.WCSuccess {
			e.Equal(verbs.WCWRFlushErr, wc.Status)
			failed = true
		}
	}
	e.settle()
	e.Len(e.a.wcs, 8)
}
