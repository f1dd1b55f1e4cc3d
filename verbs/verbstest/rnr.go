package verbstest

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

var rnrTests = []test{
	{"WaitsForReceive", testRNRWaits},
	{"OrderBehindRNR", testRNROrder},
	{"RetryExceeded", testRNRExceeded},
	{"RetryZero", testRNRZero},
	{"InTime", testRNRInTime},
	{"SendWaits", testRNRSend},
	{"RetriesStartAnew", testRNRStartsAnew},
	{"FenceRepeated", testRNRFence},
}

// Without a posted receive the requester waits; 7 means forever (IBTA vol. 1, 9.7.5.2.8; ibv_modify_qp(3), rnr_retry).
func testRNRWaits(e *env) {
	e.connect()
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.settle()
	e.Empty(e.a.wcs)
	e.b.recv(2)
	e.Equal(uint64(2), e.b.received(1).WRID)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
}

// Work posted after a waiting message waits too, including WRITEs.
func testRNROrder(e *env) {
	e.connect()
	fill(e.a.mr.Bytes()[:64], 1)
	for i := range uint64(8) {
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 2*i, e.b, int(i), 1))
		e.a.post(e.a.write(verbs.WRRDMAWrite, 2*i+1, e.b, int(i)+32, 1))
	}
	for i := range 8 {
		e.settle()
		e.Len(e.b.recvs, i)
		e.Equal(byte(0), e.b.mr.Bytes()[i+32], "overtook a waiting message")
		e.b.recv(uint64(i))
		e.Equal(uint32(2*i)|0x80000000, e.b.received(i+1).ImmData)
	}
	e.a.sent(16)
	for i, wc := range e.a.wcs {
		e.Equal(uint64(i), wc.WRID)
	}
	e.Equal(e.a.mr.Bytes()[32:40], e.b.mr.Bytes()[32:40])
}

func retries(n, timer uint8) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = n, timer }
}

// Each retry comes after the time that the responder asked for, and they do not all come too soon.
func testRNRExceeded(e *env) {
	const n, code = 3, 20
	e.connect(retries(n, code))
	start := time.Now()
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 2, e.b, 0, 8))
	e.Equal(verbs.WCRNRRetryExcErr, e.a.sent(1).Status)
	e.GreaterOrEqual(time.Since(start), n*verbs.RNRTimer(code))
	e.Equal(verbs.WCWRFlushErr, e.a.sent(2).Status)
	e.Equal(verbs.QPSErr, e.a.qp.State())
}

func testRNRZero(e *env) {
	e.connect(retries(0, 12))
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.Equal(verbs.WCRNRRetryExcErr, e.a.sent(1).Status)
}

func testRNRInTime(e *env) {
	e.connect(retries(6, 0)) // 6 * 655 ms
	e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, 1, e.b, 0, 8))
	e.settle()
	e.b.recv(1)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
}

func testRNRSend(e *env) {
	e.connect()
	e.a.post(e.a.send(1, 0, 10000))
	e.settle()
	e.Empty(e.a.wcs)
	e.b.recv(1, e.b.sge(0, 10000))
	e.b.received(1)
	e.Equal(verbs.WCSuccess, e.a.sent(1).Status)
}

// A fence is about earlier work (IBTA vol. 1, 10.8.3.3): a fenced message that must be sent again does not wait for a
// later atomic or READ, which comes once the message has been received.
func testRNRFence(e *env) {
	if !e.canAtomic() || !e.a.has(verbs.OpRDMARead) {
		return
	}
	const rounds = 10
	for i := range uint64(rounds) {
		e.b.setWord(64, i)
		fenced := e.a.write(verbs.WRRDMAWriteWithImm, 3*i, e.b, 0, 8)
		fenced.Flags |= verbs.SendFence
		e.a.post(fenced)
		e.a.post(e.a.add(3*i+1, 64, 1))
		e.a.post(e.a.write(verbs.WRRDMARead, 3*i+2, e.b, 128, 8))
		e.settle()
		e.b.recv(i)
		e.b.received(int(i) + 1)
		e.Equal(verbs.WCSuccess, e.a.sent(3*int(i)+3).Status)
		e.Equal(i, e.a.word(64), "what was there before")
		e.Equal(i+1, e.b.word(64))
	}
}

// Only consecutive retries count: a message that got through resets the count (IBTA vol. 1, 9.7.5.2.8).
func testRNRStartsAnew(e *env) {
	const n, code = 6, 27 // 6 * 122.88 ms, of which each message takes 2
	e.connect(retries(n, code))
	for i := range 4 {
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, uint64(i), e.b, 0, 8))
		for start := time.Now(); time.Since(start) < 2*verbs.RNRTimer(code); pause() {
			e.turn()
		}
		e.b.recv(uint64(i))
		e.Equal(verbs.WCSuccess, e.a.sent(i+1).Status)
	}
}
