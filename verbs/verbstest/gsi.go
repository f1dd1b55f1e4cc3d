package verbstest

import "github.com/smcgw/smcgw/verbs"

var gsiTests = where(over(verbs.QPTGSI), []test{
	{"Exchange", testGSI},
	{"OnlyOne", testGSIOnlyOne},
	{"FromOther", testGSIFromOther},
})

// The general services interface is queue pair 1 of every port with a
// well-known Q_Key; management datagrams have 256 bytes (IBTA vol. 1, 3.9.5.4,
// 13.5.3; rocev2.md 12).
func testGSI(e *env) {
	e.Equal(uint32(1), e.a.qp.Num())
	e.Equal(verbs.QPTGSI, e.a.qp.Type())
	e.connect()
	for i := range 5 {
		fill(e.a.bytes(0, 256), i)
		e.b.recv(uint64(i), e.b.room(0, 256))
		e.a.post(e.a.send(uint64(i), 0, 256))
		wc := e.b.received(i + 1)
		e.Equal(verbs.WC{
			WRID: uint64(i), ByteLen: grhSize + 256, QPNum: 1, SrcQP: 1, Opcode: verbs.WCRecv, Flags: verbs.WCGRH,
		}, wc)
		e.same(e.a.bytes(0, 256), e.b.bytes(grhSize, 256))
		e.a.recv(uint64(i), e.a.room(1000, 256))
		e.b.post(e.b.send(uint64(i), grhSize, 256))
		e.a.received(i + 1)
		e.same(e.a.bytes(0, 256), e.a.bytes(1000+grhSize, 256))
	}
	e.a.good(5)
	e.b.good(5)
}

// There is only one; when it is closed, another can be made.
func testGSIOnlyOne(e *env) {
	_, err := e.a.PD.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap}))
	e.ErrorIs(err, verbs.ErrBusy)
	e.renew()
	e.Equal(uint32(1), e.a.qp.Num())
}

// Any UD queue pair with the Q_Key can send to it; since the key has the high bit set, the sender's own must be that
// key (IBTA vol. 1, 10.2.5).
func testGSIFromOther(e *env) {
	e.connect()
	e.b.recv(1, e.b.room(0, 256))
	for _, c := range []struct {
		qkey uint32
		ok   bool
	}{{testQKey, false}, {gsiQKey, true}} {
		qp := own(e.a, e.a.newQP(verbs.QPInitAttr{Type: verbs.QPTUD, Cap: testCap, SQSigAll: true}))
		e.NoError(verbs.StartUD(qp, c.qkey, 0))
		e.NoError(qp.PostSend(e.a.send(1, 0, 256)))
		e.a.sent(len(e.a.wcs) + 1)
		if !c.ok {
			e.settle()
			e.Empty(e.b.recvs)
			continue
		}
		e.Equal(qp.Num(), e.b.received(1).SrcQP)
	}
}
