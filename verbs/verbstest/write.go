package verbstest

import (
	"bytes"

	"github.com/smcgw/smcgw/verbs"
)

var writeTests = []test{
	{"Write", testWrite},
	{"WriteSizes", testWriteSizes},
	{"WriteWithImm", testWriteWithImm},
	{"ZeroLength", testZeroLength},
	{"ScatterGather", testScatterGather},
	{"Inline", testInline},
	{"RegisteredSource", testRegisteredSource},
	{"Ordering", testOrdering},
	{"ManyInFlight", testManyInFlight},
	{"BothDirections", testBothDirections},
}

// A WRITE changes only memory at the responder (IBTA vol. 1, 9.4.3).
func testWrite(e *env) {
	e.connect()
	e.b.recv(1)
	fill(e.a.mr.Bytes()[100:200], 1)
	e.a.post(e.a.write(verbs.WRRDMAWrite, 7, e.b, 100, 100))
	wc := e.a.sent(1)
	e.Equal(verbs.WCSuccess, wc.Status)
	e.Equal(verbs.WCRDMAWrite, wc.Opcode)
	e.Equal(uint64(7), wc.WRID)
	e.Equal(e.a.qp.Num(), wc.QPNum)
	e.settle()
	e.Equal(e.a.mr.Bytes()[:300], e.b.mr.Bytes()[:300])
	e.Empty(e.b.recvs)
}

func testWriteSizes(e *env) {
	e.connect()
	done := 0
	for i, n := range []int{1, 2, 63, 64, 65, 4095, 4096, 4097, 65536, 100_001, regionSize} {
		fill(e.a.mr.Bytes()[:n], i)
		e.b.recv(uint64(i))
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(i), e.b, 0, n))
		done++
		e.Equal(uint32(n), e.b.received(done).ByteLen)
		e.Equal(verbs.WCSuccess, e.a.sent(done).Status)
		e.True(bytes.Equal(e.a.mr.Bytes()[:n], e.b.mr.Bytes()[:n]), "size %d", n)
	}
}

// WRITE_WITH_IMM consumes a receive, which says how long it was (IBTA vol. 1,
// 9.4.4; ibv_poll_cq(3)). Data is in place when the completion is seen.
func testWriteWithImm(e *env) {
	e.connect()
	e.b.recv(11)
	fill(e.a.mr.Bytes()[:1000], 3)
	wr := e.a.write(verbs.WRRDMAWriteWithImm, 5, e.b, 0, 1000)
	wr.ImmData = 0x80000180
	e.a.post(wr)
	wc := e.b.received(1)
	e.Equal(e.a.mr.Bytes()[:1000], e.b.mr.Bytes()[:1000])
	e.Equal(verbs.WCSuccess, wc.Status)
	e.Equal(verbs.WCRecvRDMAWithImm, wc.Opcode)
	e.Equal(verbs.WCWithImm, wc.Flags)
	e.Equal(uint32(0x80000180), wc.ImmData)
	e.Equal(uint32(1000), wc.ByteLen)
	e.Equal(uint64(11), wc.WRID)
	e.Equal(e.b.qp.Num(), wc.QPNum)
	e.Equal(verbs.WCRDMAWrite, e.a.sent(1).Opcode)
}

// A zero-length WRITE needs no memory: any address and key are valid (IBTA vol. 1, 9.7.4.1.4: "R_Key is not checked").
// rsocket uses it for credits and keepalives.
func testZeroLength(e *env) {
	e.connect()
	e.b.recv(1)
	e.a.post(&verbs.SendWR{WRID: 1, Opcode: verbs.WRRDMAWrite})
	e.a.post(&verbs.SendWR{WRID: 2, Opcode: verbs.WRRDMAWriteWithImm, ImmData: 9, RemoteAddr: ^uint64(0), RKey: ^uint32(0)})
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.Equal(verbs.WCSuccess, e.a.sent(2).Status)
	wc := e.b.received(1)
	e.Equal(uint32(9), wc.ImmData)
	e.Equal(uint32(0), wc.ByteLen)
}

// The payload is the concatenation of the SGEs.
func testScatterGather(e *env) {
	e.connect()
	fill(e.a.mr.Bytes(), 1)
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 5000, 0)
	wr.SGList = []verbs.SGE{e.a.sge(10, 7), e.a.sge(0, 0), e.a.sge(300, 1), e.a.sge(2000, 2000)}
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.settle()
	m := e.a.mr.Bytes()
	want := append(append(append([]byte{}, m[10:17]...), m[300]), m[2000:4000]...)
	e.Equal(want, e.b.mr.Bytes()[5000:5000+len(want)])
}

// Inline data is copied before PostSend returns (ibv_post_send(3)).
func testInline(e *env) {
	e.connect()
	data := []byte("sixteen bytes sge")
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 0)
	wr.SGList, wr.Inline, wr.Flags = nil, data, verbs.SendInline
	e.a.post(wr)
	clear(data)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.settle()
	e.Equal("sixteen bytes sge", string(e.b.mr.Bytes()[:17]))
}

// RegMR makes the caller's memory usable as a source and a target.
func testRegisteredSource(e *env) {
	e.connect()
	buf := fill(make([]byte, 5000), 9)
	mr, err := e.a.PD.RegMR(buf, verbs.AccessLocalWrite)
	e.NoError(err)
	e.Equal(&buf[0], &mr.Bytes()[0])
	wr := e.a.write(verbs.WRRDMAWrite, 1, e.b, 0, 0)
	wr.SGList = []verbs.SGE{{Addr: mr.Addr() + 1000, Length: 4000, LKey: mr.LKey()}}
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
	e.settle()
	e.Equal(buf[1000:], e.b.mr.Bytes()[:4000])
	e.NoError(mr.Close())
	e.registeredTarget(make([]byte, 5000))
	_, err = e.a.PD.RegMR(buf, verbs.AccessRemoteWrite)
	e.ErrorIs(err, verbs.ErrInvalid, "remote write needs local write, ibv_reg_mr(3)")
}

// registeredTarget makes A write to memory of the caller at B, or checks that B does not grant that.
func (e *env) registeredTarget(buf []byte) {
	mr, err := e.b.PD.RegMR(buf, bothWrite)
	if !e.b.Device.Attr().RemoteRegMR {
		e.ErrorIs(err, verbs.ErrNotSupported)
		return
	}
	e.NoError(err)
	wr := e.a.write(verbs.WRRDMAWrite, 2, e.b, 0, 3000)
	wr.RemoteAddr, wr.RKey = mr.Addr()+2000, mr.RKey()
	e.a.post(wr)
	e.Equal(verbs.WCSuccess, e.a.sent(2).Status)
	e.Equal(e.a.bytes(0, 3000), buf[2000:])
	e.NoError(mr.Close())
}

// Messages of one queue pair are executed and completed in order, and earlier
// WRITEs are visible when a later completion is (IBTA vol. 1, 9.5, o9-20).
func testOrdering(e *env) {
	e.connect()
	next := uint64(0)
	for round := range 50 {
		for i := range uint64(5) {
			e.b.recv(next + i)
			m := e.a.mr.Bytes()
			m[0] = byte(round)
			m[1+i] = byte(round) + byte(i)
			e.a.post(e.a.write(verbs.WRRDMAWrite, 1000+next+i, e.b, 0, 1))
			e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, next+i, e.b, int(1+i), 1))
			e.a.sent(int(2 * (next + i + 1)))
		}
		next += 5
		e.b.received(int(next))
		e.Equal(byte(round), e.b.mr.Bytes()[0])
	}
	for i, wc := range e.b.recvs {
		e.Equal(uint64(i), wc.WRID)
		e.Equal(uint32(i)|0x80000000, wc.ImmData)
	}
	for i := 0; i < len(e.a.wcs); i += 2 {
		e.Equal(e.a.wcs[i].WRID, e.a.wcs[i+1].WRID+1000)
	}
}

// A full send queue in flight, many times around all rings.
func testManyInFlight(e *env) {
	e.connect()
	posted, total := 0, 2000
	for i := range testCap.MaxRecvWR {
		e.b.recv(uint64(i))
	}
	reposted := testCap.MaxRecvWR
	e.until("all received", func() bool {
		for posted < total && posted-len(e.a.wcs) < testCap.MaxSendWR {
			e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(posted), e.b, posted%1000, posted%500))
			posted++
		}
		for reposted-len(e.b.recvs) < testCap.MaxRecvWR {
			e.b.recv(uint64(reposted))
			reposted++
		}
		return len(e.b.recvs) == total && len(e.a.wcs) == total
	})
	for i, wc := range e.b.recvs {
		e.Equal(uint64(i), wc.WRID)
		e.Equal(uint32(i)|0x80000000, wc.ImmData)
		e.Equal(uint32(i%500), wc.ByteLen)
	}
}

func testBothDirections(e *env) {
	e.connect()
	for i := range uint64(10) {
		e.a.recv(i)
		e.b.recv(i)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 10))
		e.b.post(e.b.write(verbs.WRRDMAWriteWithImm, i, e.a, 100, 10))
	}
	e.a.received(10)
	e.b.received(10)
	e.a.sent(10)
	e.b.sent(10)
}
