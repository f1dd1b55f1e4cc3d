package verbstest

import (
	"time"

	"github.com/smcgw/smcgw/lab/loop"
	"github.com/smcgw/smcgw/verbs"
)

var loopTests = []test{
	{"PingPong", testLoopPingPong},
	{"ReceiverNotReady", testLoopRNR},
	{"SilentPeer", testLoopSilentPeer},
	{"Flush", testLoopFlush},
}

// asleep gives both vectors to loops that sleep whenever the driver lets them: everything must be announced by an fd or
// by the time that Progress returned (see verbs.Driver). The turn functions run in the loops; stop returns after the
// loops have ended.
func (e *env) asleep(a, b func() bool) (onA func(func()), stop func()) {
	e.t.Helper()
	e.NoError(e.a.Driver.Close())
	e.NoError(e.b.Driver.Close())
	la, err := loop.New(e.a.Device, 0, a)
	e.NoError(err)
	e.t.Cleanup(func() { _ = la.Close() })
	lb, err := loop.New(e.b.Device, 0, b)
	e.NoError(err)
	e.t.Cleanup(func() { _ = lb.Close() })
	return func(f func()) { e.NoError(la.Do(f)) }, func() {
		e.NoError(la.Close())
		e.NoError(lb.Close())
	}
}

// collect returns a turn function that sends the completions of a CQ to c, whose buffer must have room.
func collect(cq verbs.CQ, c chan<- verbs.WC) func() bool {
	return func() bool {
		var wcs [8]verbs.WC
		n, _ := cq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			c <- wc
		}
		return n > 0
	}
}

// from waits for a completion of a collected CQ.
func (e *env) from(c <-chan verbs.WC) verbs.WC {
	e.t.Helper()
	select {
	case wc := <-c:
		return wc
	case <-time.After(e.patience()):
		e.Fail("no completion: the loop sleeps")
	}
	return verbs.WC{}
}

// echo returns a turn function that answers each message with a WRITE_WITH_IMM of its number plus one until that
// reaches last, when it sends to done.
func (d *end) echo(last uint32, done chan<- error) func() bool {
	wr := d.write(verbs.WRRDMAWriteWithImm, 0, d.peer, 0, 100)
	wr.Flags = verbs.SendSignaled
	return func() bool {
		var wcs [8]verbs.WC
		sent, _ := d.scq.Poll(wcs[:])
		n, _ := d.rcq.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.Status != verbs.WCSuccess || wc.ImmData == last {
				done <- nil
				break
			}
			wr.ImmData = wc.ImmData + 1
			err := d.qp.PostRecv(&verbs.RecvWR{})
			if err == nil {
				err = d.qp.PostSend(wr)
			}
			if err != nil {
				done <- err
			}
		}
		return n+sent > 0
	}
}

// Two loops that sleep between messages wake each other.
func testLoopPingPong(e *env) {
	for _, d := range e.ends() {
		d.init()
		for i := range uint64(4) {
			d.recv(i)
		}
	}
	e.join()
	const last = 300
	done := make(chan error, 4)
	first := e.a.write(verbs.WRRDMAWriteWithImm, 0, e.b, 0, 100)
	first.ImmData = 1
	onA, stop := e.asleep(e.a.echo(last, done), e.b.echo(last, done))
	var err error
	onA(func() { err = e.a.qp.PostSend(first) })
	e.NoError(err)
	select {
	case err = <-done:
	case <-time.After(e.patience()):
		e.Fail("a loop sleeps")
	}
	stop()
	e.NoError(err)
}

// A requester that received an RNR NAK tries again.
func testLoopRNR(e *env) {
	e.connect(retries(3, 14))
	e.failsAsleep(e.a.write(verbs.WRRDMAWriteWithImm, 7, e.b, 0, 8), verbs.WCRNRRetryExcErr)
}

// A requester whose peer is silent gives up.
func testLoopSilentPeer(e *env) {
	e.connect(soon)
	e.NoError(e.b.qp.Close())
	e.failsAsleep(e.a.write(verbs.WRRDMAWrite, 7, e.b, 0, 8), verbs.WCRetryExcErr)
}

// failsAsleep posts a request and waits until it fails.
func (e *env) failsAsleep(wr *verbs.SendWR, want verbs.WCStatus) {
	e.t.Helper()
	c := make(chan verbs.WC, 16)
	onA, stop := e.asleep(collect(e.a.scq, c), func() bool { return false })
	var err error
	onA(func() { err = e.a.qp.PostSend(wr) })
	e.NoError(err)
	wc := e.from(c)
	e.Equal(wr.WRID, wc.WRID)
	e.Equal(want, wc.Status)
	stop()
}

// Work caused by the loop itself needs no wake-up.
func testLoopFlush(e *env) {
	e.connect()
	for i := range uint64(3) {
		e.a.recv(i)
	}
	c := make(chan verbs.WC, 16)
	onA, stop := e.asleep(collect(e.a.rcq, c), func() bool { return false })
	var err error
	onA(func() { err = e.a.qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState) })
	e.NoError(err)
	for i := range uint64(3) {
		wc := e.from(c)
		e.Equal(i, wc.WRID)
		e.Equal(verbs.WCWRFlushErr, wc.Status)
	}
	stop()
}
