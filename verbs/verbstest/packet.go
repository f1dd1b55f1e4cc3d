package verbstest

import "github.com/smcgw/smcgw/verbs"

var packetTests = []test{
	{"PSNWrap", testPSNWrap},
	{"PathMTU", testPathMTU},
	{"ShortReads", testPSNOfReads},
	{"Inline", testInlineOfTransports},
	{"Loopback", testLoopback},
}

// Packet sequence numbers have 24 bits and start anywhere (IBTA vol. 1, 9.7.2; rocev2.md 3).
func testPSNWrap(e *env) {
	for _, typ := range []verbs.QPType{verbs.QPTRC, verbs.QPTUC} {
		for _, psn := range []uint32{0xfffffe, 0x7ffffe, 0xffffff - 20} {
			if !e.use(typ) {
				break
			}
			e.connect(firstPSN(psn))
			for i := range 30 {
				fill(e.a.bytes(0, 9000), i)
				e.b.recv(uint64(i))
				e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(i), e.b, 0, 9000))
				e.Equal(uint32(i)|0x80000000, e.b.received(i+1).ImmData)
				e.same(e.a.bytes(0, 9000), e.b.bytes(0, 9000))
				e.a.good(i + 1)
			}
		}
	}
}

// Every path MTU, at the edges of its packets.
func testPathMTU(e *env) {
	for m := verbs.MTU256; m <= e.a.Device.Port().ActiveMTU; m++ {
		for _, typ := range []verbs.QPType{verbs.QPTRC, verbs.QPTUC} {
			if e.use(typ) {
				e.connect(pathMTU(m))
				e.edges(m.Bytes())
			}
		}
	}
}

func (e *env) edges(mtu int) {
	e.t.Helper()
	for i, n := range []int{0, 1, mtu - 1, mtu, mtu + 1, 2*mtu - 1, 2 * mtu, 2*mtu + 3, 9 * mtu} {
		fill(e.a.bytes(0, n), i)
		clear(e.b.bytes(0, n+100))
		e.b.recv(uint64(2*i), e.b.sge(0, n))
		e.a.post(e.a.send(uint64(2*i), 0, n))
		e.Equal(uint32(n), e.b.received(2*i+1).ByteLen)
		e.same(e.a.bytes(0, n), e.b.bytes(0, n), "%d bytes sent", n)
		e.same(make([]byte, 100), e.b.bytes(n, 100), "nothing after")
		clear(e.b.bytes(0, n))
		e.b.recv(uint64(2*i + 1))
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(2*i+1), e.b, 0, n))
		e.Equal(uint32(n), e.b.received(2*i+2).ByteLen)
		e.same(e.a.bytes(0, n), e.b.bytes(0, n), "%d bytes written", n)
		e.a.good(2*i + 2)
	}
}

// A READ uses as many sequence numbers as its response has packets (IBTA vol. 1, 9.7.3.1), also across the wrap.
func testPSNOfReads(e *env) {
	if !e.canRead() {
		return
	}
	for _, psn := range []uint32{0, 0xfffff0} {
		e.renew()
		e.connect(firstPSN(psn), pathMTU(verbs.MTU256))
		fill(e.b.bytes(0, 20_000), int(psn))
		clear(e.a.bytes(0, 20_000))
		off := 0
		for i, n := range []int{1, 255, 256, 257, 511, 512, 513, 10_000, 3} {
			e.a.post(e.a.read(uint64(i), off, n))
			off += n
		}
		e.a.good(9)
		e.same(e.b.bytes(0, off), e.a.bytes(0, off))
		e.same(make([]byte, 100), e.a.bytes(off, 100))
		e.b.recv(1)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 9, e.b, 0, 5))
		e.b.received(1)
		e.a.good(10)
	}
}

// Inline payload of every transport is copied before PostSend returns.
func testInlineOfTransports(e *env) {
	e.each([]verbs.QPType{verbs.QPTRC, verbs.QPTUC, verbs.QPTUD}, func() {
		e.connect()
		data := fill(make([]byte, testCap.MaxInline), int(e.a.typ))
		wr := e.a.send(0, 0, 0)
		wr.SGList, wr.Inline, wr.Flags = nil, append([]byte{}, data...), verbs.SendInline
		e.b.recv(0, e.b.sge(0, 200))
		e.a.post(wr)
		clear(wr.Inline)
		e.Equal(uint32(len(data)+e.b.grh()), e.b.received(1).ByteLen)
		e.Equal(data, e.b.bytes(e.b.grh(), len(data)))
		e.a.good(1)
	})
}

// Two queue pairs of one port can be connected to each other, and one to itself
// (IBTA vol. 1, 17.2.2: loopback).
func testLoopback(e *env) {
	if !e.a.networked() {
		return
	}
	for _, typ := range []verbs.QPType{verbs.QPTRC, verbs.QPTUC} {
		if !e.use(typ) {
			continue
		}
		home := func(a *verbs.QPAttr) { a.AH = e.attr(e.b.Side, 0).AH } // as B names A
		other := own(e.a, e.a.newQP(verbs.QPInitAttr{Cap: testCap}))
		e.a.step(other, e.a.attrs(0), verbs.QPSInit)
		e.NoError(other.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.a.sge(50_000, 20_000)}}))
		e.link(e.a, other, e.a.qp.Num(), home)
		e.a.init()
		e.link(e.a, e.a.qp, other.Num(), home)
		fill(e.a.bytes(0, 20_000), 1)
		e.a.post(e.a.send(0, 0, 20_000))
		e.Equal(other.Num(), e.a.received(1).QPNum)
		e.same(e.a.bytes(0, 20_000), e.a.bytes(50_000, 20_000))
		e.a.good(1)
		e.renew()
		e.a.init()
		e.link(e.a, e.a.qp, e.a.qp.Num(), home)
		e.a.recv(1, e.a.sge(100_000, 20_000))
		e.a.post(e.a.send(0, 0, 20_000))
		e.Equal(verbs.WCSuccess, e.a.received(1).Status)
		e.same(e.a.bytes(0, 20_000), e.a.bytes(100_000, 20_000))
		e.a.good(1)
	}
}
