package verbstest

import "github.com/smcgw/smcgw/verbs"

var invalidateTests = where((*env).canInvalidate, []test{
	{"SendWithInv", testSendWithInv},
	{"NotPermitted", testInvNotPermitted},
	{"UnknownKey", testInvUnknownKey},
	{"Local", testLocalInv},
	{"LocalUnknownKey", testLocalInvUnknown},
})

func (e *env) canInvalidate() bool {
	return e.can(verbs.OpSendWithInv, verbs.WRSendWithInv, verbs.WRLocalInv)
}

// invalidatable returns a region of B whose key A may invalidate.
func (e *env) invalidatable() verbs.MR {
	return e.b.alloc(bothWrite | verbs.AccessRemoteInvalidate)
}

// to makes a WRITE of 8 bytes to a region of B.
func (e *env) to(id uint64, mr verbs.MR) *verbs.SendWR {
	wr := e.a.write(verbs.WRRDMAWrite, id, e.b, 0, 8)
	wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
	return wr
}

// SEND_WITH_INV is a SEND that ends the peer's access by a key before its
// completion is seen (IBTA vol. 1, 9.4.1.1.3; IBV_WC_WITH_INV in ibv_poll_cq(3)).
func testSendWithInv(e *env) {
	mr := e.invalidatable()
	e.a.post(e.to(0, mr))
	e.a.good(1)
	e.b.recv(5, e.b.sge(0, 100))
	fill(e.a.bytes(0, 60), 1)
	wr := e.a.send(1, 0, 60)
	wr.Opcode, wr.InvRKey = verbs.WRSendWithInv, mr.RKey()
	e.a.post(wr)
	wc := e.b.received(1)
	e.Equal(verbs.WCSuccess, wc.Status)
	e.Equal(verbs.WCRecv, wc.Opcode)
	e.Equal(verbs.WCWithInv, wc.Flags)
	e.Equal(mr.RKey(), wc.ImmData)
	e.Equal(uint32(60), wc.ByteLen)
	e.same(e.a.bytes(0, 60), e.b.bytes(0, 60))
	e.a.good(2)
	e.Equal(verbs.WCSend, e.a.wcs[1].Opcode)
	e.b.recv(6, sgeOf(mr, 100))
	e.a.post(e.a.send(2, 0, 60))
	e.Equal(verbs.WCSuccess, e.b.received(2).Status, "local use goes on")
	e.a.good(3)
	e.a.wcs, e.b.recvs = nil, nil
	e.refused(e.to(3, mr))
	e.Equal(e.a.bytes(0, 60), mr.Bytes()[:60])
}

// invRefused sends an invalidation that must fail: the responder's queue pair is in ERR, and the requester learns of it
// by a NAK or a timeout.
func (e *env) invRefused(key uint32) {
	e.t.Helper()
	e.renew()
	e.connect(soon)
	e.b.recv(1, e.b.sge(0, 100))
	wr := e.a.send(1, 0, 8)
	wr.Opcode, wr.InvRKey = verbs.WRSendWithInv, key
	e.a.post(wr)
	e.Contains([]verbs.WCStatus{verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCRetryExcErr}, e.a.sent(1).Status)
	e.NotEqual(verbs.WCSuccess, e.b.received(1).Status)
	e.Equal(verbs.QPSErr, e.b.qp.State())
}

// Only regions that permit it can be invalidated by the peer (IBTA vol. 1, 10.6.7.2.2).
func testInvNotPermitted(e *env) {
	mr := e.b.alloc(bothWrite)
	e.invRefused(mr.RKey())
	e.renew()
	e.connect()
	e.a.post(e.to(0, mr))
	e.a.good(1)
}

func testInvUnknownKey(e *env) {
	e.invRefused(e.invalidatable().RKey() ^ 1)
}

// LOCAL_INV does the same to a local region (IBTA vol. 1, 10.6.5.2).
func testLocalInv(e *env) {
	mr := e.invalidatable()
	e.a.post(e.to(0, mr))
	e.a.good(1)
	e.b.post(&verbs.SendWR{WRID: 9, Opcode: verbs.WRLocalInv, InvRKey: mr.RKey()})
	wc := e.b.sent(1)
	e.Equal(verbs.WCSuccess, wc.Status)
	e.Equal(verbs.WCLocalInv, wc.Opcode)
	e.Equal(uint64(9), wc.WRID)
	e.a.wcs = nil
	e.refused(e.to(1, mr))
}

// A key that is not ours is a local queue pair operation error (IBTA vol. 1,
// 10.10.2.2; rxe's do_local_ops).
func testLocalInvUnknown(e *env) {
	e.a.post(&verbs.SendWR{WRID: 1, Opcode: verbs.WRLocalInv, InvRKey: e.a.mr.RKey() ^ 0x5500})
	e.a.post(e.a.send(2, 0, 8))
	e.Equal(verbs.WCLocQPOpErr, e.a.sent(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
}
