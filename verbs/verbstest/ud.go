package verbstest

import "github.com/smcgw/smcgw/verbs"

var udTests = where(over(verbs.QPTUD), []test{
	{"Send", testUDSend},
	{"SendWithImm", testUDImm},
	{"GRH", testGRH},
	{"Sizes", testUDSizes},
	{"Scatter", testUDScatter},
	{"Reply", testUDReply},
	{"QKeyMismatch", testQKeyMismatch},
	{"ControlledQKey", testControlledQKey},
	{"QKeyModified", testQKeyModified},
	{"NoReceive", testUDNoReceive},
	{"BufferTooSmall", testUDTooSmall},
	{"BadBuffer", testBadBuffer},
	{"UnknownPeer", testUDUnknownPeer},
	{"ForeignPeer", testUDForeignPeer},
	{"TooLong", testUDTooLong},
	{"SendQueueError", testSendQueueError},
	{"ManySenders", testUDManySenders},
	{"Flush", testUDFlush},
	{"Start", testStartUD},
})

// grhSize is the room before the payload in a receive of a UD queue pair, for the global route header (IBTA vol. 1,
// 10.2.2.2; ibv_post_recv(3)).
const grhSize = 40

// grh returns the room before the payload in the end's receives.
func (d *end) grh() int {
	if d.typ == verbs.QPTUD || d.typ == verbs.QPTGSI {
		return grhSize
	}
	return 0
}

// room returns a receive buffer for n bytes of datagram at off.
func (d *end) room(off, n int) verbs.SGE { return d.sge(off, d.grh()+n) }

func testUDSend(e *env) {
	e.connect()
	fill(e.a.bytes(0, 60), 1)
	e.b.recv(4, e.b.room(0, 100))
	e.a.post(e.a.send(0, 0, 60))
	e.Equal(verbs.WC{
		WRID: 4, ByteLen: grhSize + 60, QPNum: e.b.qp.Num(), SrcQP: e.a.qp.Num(), Opcode: verbs.WCRecv, Flags: verbs.WCGRH,
	}, e.b.received(1))
	e.same(e.a.bytes(0, 60), e.b.bytes(grhSize, 60))
	e.same(make([]byte, 40), e.b.bytes(grhSize+60, 40))
	e.a.good(1)
	e.Equal(verbs.WCSend, e.a.wcs[0].Opcode)
}

func testUDImm(e *env) {
	e.connect()
	e.b.recv(4, e.b.room(0, 100))
	wr := e.a.send(0, 0, 7)
	wr.Opcode, wr.ImmData = verbs.WRSendWithImm, 0x80000180
	e.a.post(wr)
	wc := e.b.received(1)
	e.Equal(uint32(0x80000180), wc.ImmData)
	e.Equal(verbs.WCGRH|verbs.WCWithImm, wc.Flags)
	e.Equal(uint32(grhSize+7), wc.ByteLen)
}

// On a network the room contains the network header: an IPv4 header in its last 20 bytes, an IPv6 header in all 40
// (rocev2.md 6).
func testGRH(e *env) {
	if !e.a.networked() {
		return
	}
	e.connect()
	fill(e.b.bytes(0, grhSize), 1)
	e.b.recv(1, e.b.room(0, 100))
	e.a.post(e.a.send(0, 0, 60))
	e.b.received(1)
	to, from := e.attr(e.a.Side, 0).AH.DGID, e.attr(e.b.Side, 0).AH.DGID
	h := e.b.bytes(0, grhSize)
	if !to.Addr().Is4() {
		e.Equal(byte(6), h[0]>>4)
		e.Equal(from[:], h[8:24])
		e.Equal(to[:], h[24:40])
		return
	}
	e.Equal(make([]byte, 20), h[:20])
	e.Equal(byte(0x45), h[20])
	e.Equal(from[12:], h[32:36])
	e.Equal(to[12:], h[36:40])
}

// One packet: up to the path MTU of the port (IBTA vol. 1, 9.8.3).
func testUDSizes(e *env) {
	e.connect()
	mtu := e.a.Device.Port().ActiveMTU.Bytes()
	for i, n := range []int{0, 1, 2, 3, 4, 255, mtu - 1, mtu} {
		fill(e.a.bytes(0, n), i)
		clear(e.b.bytes(0, mtu+1000))
		e.b.recv(uint64(i), e.b.room(0, n))
		e.a.post(e.a.send(uint64(i), 0, n))
		e.Equal(uint32(grhSize+n), e.b.received(i+1).ByteLen)
		e.same(e.a.bytes(0, n), e.b.bytes(grhSize, n), "%d bytes", n)
		e.same(make([]byte, 100), e.b.bytes(grhSize+n, 100))
		e.a.good(i + 1)
	}
}

// The room is part of the scatter list, cut wherever the list is.
func testUDScatter(e *env) {
	e.connect()
	fill(e.a.bytes(0, 500), 1)
	e.b.recv(1, e.b.sge(0, 10), e.b.sge(100, 33), e.b.sge(200, 0), e.b.sge(1000, 500))
	wr := e.a.send(0, 0, 0)
	wr.SGList = []verbs.SGE{e.a.sge(100, 50), e.a.sge(0, 1), e.a.sge(200, 149)}
	e.a.post(wr)
	e.Equal(uint32(grhSize+200), e.b.received(1).ByteLen)
	want := append(append(append([]byte{}, e.a.bytes(100, 50)...), e.a.bytes(0, 1)...), e.a.bytes(200, 149)...)
	e.Equal(want[:3], e.b.bytes(130, 3))
	e.Equal(want[3:], e.b.bytes(1000, 197))
}

// The source queue pair of a datagram is the destination of an answer.
func testUDReply(e *env) {
	e.connect()
	for i := range 10 {
		e.b.recv(uint64(i), e.b.room(0, 100))
		e.a.recv(uint64(i), e.a.room(1000, 100))
		e.a.post(e.a.send(uint64(i), 0, i))
		wr := e.b.send(uint64(i), grhSize, i)
		wr.RemoteQPN = e.b.received(i + 1).SrcQP
		e.b.post(wr)
		e.Equal(e.b.qp.Num(), e.a.received(i+1).SrcQP)
	}
	e.a.good(10)
	e.b.good(10)
}

// lost posts a datagram that does not arrive: the sender does not notice.
func (e *env) lost(wr *verbs.SendWR) {
	e.t.Helper()
	n := len(e.b.recvs)
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.a.sent(len(e.a.wcs)+1).Status)
	e.settle()
	e.Len(e.b.recvs, n)
}

// found posts one that arrives.
func (e *env) found(wr *verbs.SendWR) {
	e.t.Helper()
	n, sent := len(e.b.recvs), len(e.a.wcs)
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.b.received(n+1).Status)
	e.Equal(verbs.WCSuccess, e.a.sent(sent+1).Status)
}

// A datagram with another Q_Key is dropped (IBTA vol. 1, 10.2.5).
func testQKeyMismatch(e *env) {
	e.connect()
	e.b.recv(1, e.b.room(0, 100))
	wr := e.a.send(1, 0, 8)
	wr.RemoteQKey ^= 1
	e.lost(wr)
	e.found(e.a.send(2, 0, 8))
}

// A Q_Key with the high bit set stands for the sender's own, so that a sender
// cannot use a controlled one that it was not given (IBTA vol. 1, 10.2.5;
// rxe_req).
func testControlledQKey(e *env) {
	e.connect()
	e.b.recv(1, e.b.room(0, 100))
	wr := e.a.send(1, 0, 8)
	wr.RemoteQKey = 0x80000000
	e.found(wr)
	e.NoError(e.a.qp.Modify(&verbs.QPAttr{QKey: 77}, verbs.QPAttrQKey))
	e.b.recv(2, e.b.room(0, 100))
	e.lost(wr)
	e.found(e.a.send(2, 0, 8))
}

func testQKeyModified(e *env) {
	e.connect()
	e.b.recv(1, e.b.room(0, 100))
	e.NoError(e.b.qp.Modify(&verbs.QPAttr{QKey: 77}, verbs.QPAttrQKey))
	e.lost(e.a.send(1, 0, 8))
	wr := e.a.send(2, 0, 8)
	wr.RemoteQKey = 77
	e.found(wr)
}

// Without a receive the datagram is dropped; the next one is not affected (IBTA vol. 1, 9.8.3.2.2).
func testUDNoReceive(e *env) {
	e.connect()
	e.lost(e.a.send(1, 0, 8))
	e.b.recv(1, e.b.room(0, 100))
	fill(e.a.bytes(100, 8), 3)
	e.found(e.a.send(2, 100, 8))
	e.same(e.a.bytes(100, 8), e.b.bytes(grhSize, 8))
}

// A receive that is too small, including the room, does not complete successfully, and nothing is written after it.
func testUDTooSmall(e *env) {
	e.connect()
	fill(e.a.bytes(0, 100), 1)
	e.b.recv(1, e.b.room(0, 99))
	e.a.post(e.a.send(0, 0, 100))
	e.a.good(1)
	e.settle()
	for _, wc := range e.b.recvs {
		e.Equal(verbs.WCLocLenErr, wc.Status)
	}
	e.same(make([]byte, 100), e.b.bytes(grhSize+99, 100))
}

func testUDUnknownPeer(e *env) {
	e.connect()
	e.b.recv(1, e.b.room(0, 100))
	for _, qpn := range []uint32{e.b.qp.Num() ^ 0x550000, 0, 0xffffff} {
		wr := e.a.send(1, 0, 8)
		wr.RemoteQPN = qpn
		e.lost(wr)
	}
	e.found(e.a.send(2, 0, 8))
}

// Datagrams are for UD queue pairs only (rocev2.md 8.5).
func testUDForeignPeer(e *env) {
	e.connect()
	rc, _ := e.second(verbs.QPInitAttr{Type: verbs.QPTRC, Cap: testCap}, verbs.QPInitAttr{Type: verbs.QPTRC, Cap: testCap})
	e.NoError(rc.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.a.sge(0, 100)}}))
	e.a.recv(1, e.a.room(0, 100))
	wr := e.b.send(1, 0, 8)
	wr.RemoteQPN = rc.Num()
	e.b.post(wr)
	e.Equal(verbs.WCSuccess, e.b.sent(1).Status)
	e.settle()
	e.Empty(e.a.recvs)
	e.Equal(verbs.QPSRTS, rc.State())
	e.b.post(e.b.send(2, 0, 8))
	e.Equal(e.a.qp.Num(), e.a.received(1).QPNum)
}

// A message longer than a packet fails locally, with a local length error (IBTA vol. 1, 9.8.3 and 10.10.2.2), and no
// part of it is sent.
func testUDTooLong(e *env) {
	mtu := e.a.Device.Port().ActiveMTU.Bytes()
	e.sendQueueError(e.a.send(0, 0, mtu+1), verbs.WCLocLenErr)
	e.settle()
	e.Len(e.b.recvs, 2)
}

// One UD queue pair receives from many.
func testUDManySenders(e *env) {
	e.connect()
	const n = 10
	want := map[uint32]bool{}
	for i := range n {
		qp := own(e.a, e.a.newQP(verbs.QPInitAttr{Cap: testCap}))
		e.NoError(verbs.StartUD(qp, 99, uint32(i)), "its own Q_Key does not matter")
		e.b.recv(uint64(i), e.b.room(i*200, 100))
		e.NoError(qp.PostSend(e.a.send(1, i, 8)))
		want[qp.Num()] = true
	}
	e.b.received(n)
	for _, wc := range e.b.recvs {
		e.Equal(verbs.WCSuccess, wc.Status)
		e.True(want[wc.SrcQP])
		delete(want, wc.SrcQP)
	}
}

func testUDFlush(e *env) {
	e.connect()
	for i := range uint64(3) {
		e.a.recv(i, e.a.room(0, 100))
	}
	e.a.to(verbs.QPSErr)
	e.a.post(e.a.send(7, 0, 8))
	e.Equal(verbs.WCWRFlushErr, e.a.sent(1).Status)
	e.a.received(3)
	for i, wc := range e.a.recvs {
		e.Equal(verbs.WCWRFlushErr, wc.Status)
		e.Equal(uint64(i), wc.WRID)
	}
}

// verbs.StartUD goes from RESET to RTS in one call.
func testStartUD(e *env) {
	for _, d := range e.ends() {
		e.NoError(verbs.StartUD(d.qp, testQKey, 5))
		e.Equal(verbs.QPSRTS, d.qp.State())
	}
	e.b.recv(1, e.b.room(0, 100))
	e.found(e.a.send(0, 0, 8))
}
