package verbstest

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

var sendTests = append(where((*env).canSend, []test{
	{"Send", testSend},
	{"SendSizes", testSendSizes},
	{"SendScatter", testSendScatter},
	{"SendTooLong", testSendTooLong},
	{"SendToBadBuffer", testSendToBadBuffer},
	{"SendMixedWithWrite", testSendMixedWithWrite},
}), test{"SendBeforeEnd", testSendBeforeEnd})

// canSend reports whether the device has SEND on a connection, and connects two queue pairs.
func (e *env) canSend() bool { return e.can(verbs.OpSend, verbs.WRSend, verbs.WRSendWithImm) }

// IBTA vol. 1, 9.4.1: SEND fills the oldest receive.
func testSend(e *env) {
	e.b.recv(4, e.b.sge(0, 100))
	e.b.recv(5, e.b.sge(100, 100))
	fill(e.a.mr.Bytes()[:60], 1)
	e.a.post(e.a.send(1, 0, 60))
	wr := e.a.send(2, 10, 50)
	wr.Opcode, wr.ImmData = verbs.WRSendWithImm, 77
	e.a.post(wr)
	wc := e.b.received(1)
	// SrcQP is valid only for datagrams (ibv_poll_cq(3)).
	e.Equal(verbs.WC{WRID: 4, ByteLen: 60, QPNum: e.b.qp.Num(), SrcQP: wc.SrcQP, Opcode: verbs.WCRecv}, wc)
	wc = e.b.received(2)
	e.Equal(uint32(77), wc.ImmData)
	e.Equal(verbs.WCWithImm, wc.Flags)
	e.Equal(e.a.mr.Bytes()[:60], e.b.mr.Bytes()[:60])
	e.Equal(e.a.mr.Bytes()[10:60], e.b.mr.Bytes()[100:150])
	e.Equal(verbs.WCSend, e.a.sent(2).Opcode)
}

func testSendSizes(e *env) {
	for i, n := range []int{0, 1, 4095, 4096, 4097, 65536, 65537, 300_000} {
		e.b.recv(uint64(i), e.b.sge(0, n))
		fill(e.a.mr.Bytes()[:n], i)
		e.a.post(e.a.send(uint64(i), 0, n))
		e.Equal(uint32(n), e.b.received(i+1).ByteLen)
		e.Equal(verbs.WCSuccess, e.a.sent(i+1).Status)
		e.Equal(e.a.mr.Bytes()[:n], e.b.mr.Bytes()[:n])
	}
}

func testSendScatter(e *env) {
	e.b.recv(1, e.b.sge(0, 10), e.b.sge(1000, 5000), e.b.sge(20000, 20000))
	fill(e.a.mr.Bytes()[:20000], 1)
	e.a.post(e.a.send(1, 0, 20000))
	e.b.received(1)
	src, dst := e.a.mr.Bytes(), e.b.mr.Bytes()
	e.Equal(src[:10], dst[:10])
	e.Equal(src[10:5010], dst[1000:6000])
	e.Equal(src[5010:20000], dst[20000:34990])
}

// A message longer than the receive: local length error at the responder, whose
// NAK is a remote invalid request (IBTA vol. 1, 9.7.5.2.6, 10.10.2.2).
func testSendTooLong(e *env) {
	e.b.recv(1, e.b.sge(0, 99))
	e.b.recv(2, e.b.sge(0, 99))
	e.a.post(e.a.send(1, 0, 100))
	e.a.post(e.a.send(2, 0, 10))
	e.Equal(verbs.WCLocLenErr, e.b.received(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.b.received(2).Status)
	e.Equal(verbs.WCRemInvReqErr, e.a.sent(1).Status)
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
	e.Equal(verbs.QPSErr, e.b.qp.State())
}

// A receive whose key does not grant local write: local protection error at the
// responder, remote operation error at the requester (IBTA vol. 1, 10.10.2.2).
func testSendToBadBuffer(e *env) {
	bad := e.b.sge(0, 100)
	bad.LKey ^= 1
	e.b.recv(1, bad)
	e.a.post(e.a.send(1, 0, 10))
	e.Equal(verbs.WCLocProtErr, e.b.received(1).Status)
	e.Equal(verbs.WCRemOpErr, e.a.sent(1).Status)
}

// SENDs and WRITEs of one queue pair complete in the order posted.
func testSendMixedWithWrite(e *env) {
	for i := range 12 {
		e.b.recv(uint64(i), e.b.sge(i*100, 100))
	}
	for i := range uint64(12) {
		if i%3 == 0 {
			e.a.post(e.a.send(i, 0, 100))
		} else {
			e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 5000, 10))
		}
	}
	e.b.received(12)
	e.a.sent(12)
	for i := range 12 {
		e.Equal(uint64(i), e.b.recvs[i].WRID)
		e.Equal(uint64(i), e.a.wcs[i].WRID)
		e.Equal(i%3 == 0, e.b.recvs[i].Opcode == verbs.WCRecv)
	}
}

// What has completed at the responder is acknowledged even if its queue pair ends in the same turn: otherwise the
// requester would repeat it until it gives up.
func testSendBeforeEnd(e *env) {
	for name, end := range map[string]func(qp verbs.QP) error{
		"close": verbs.QP.Close,
		"error": func(qp verbs.QP) error { return qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState) },
		"reset": func(qp verbs.QP) error { return qp.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState) },
	} {
		e.renew()
		e.connect()
		e.b.recv(1, e.b.sge(0, 100))
		e.a.post(e.a.send(1, 0, 60))
		e.a.Driver.Flush()
		for deadline := time.Now().Add(e.patience()); len(e.b.recvs) == 0; pause() {
			e.True(time.Now().Before(deadline), "never: receive completion")
			e.b.Driver.Progress(time.Now())
			e.b.recvs = e.b.poll(e.b.rcq, e.b.recvs)
		}
		e.NoError(end(e.b.qp))
		e.b.Driver.Flush()
		e.Equal(verbs.WCSuccess, e.a.sent(1).Status, name)
	}
}
