package verbstest

import (
	"time"

	"github.com/smcgw/smcgw/verbs"
)

var cqSizeTests = []test{
	{"FullReceiveCQ", testFullReceiveCQ},
	{"FullSendCQ", testFullSendCQ},
	{"Attributes", testCQAttributes},
	{"Closed", testCQClosed},
}

// smallCQ replaces a CQ by one of depth 2.
func (d *end) smallCQ(recv bool) {
	cq := d.newCQ(2)
	if recv {
		d.rcq = cq
	} else {
		d.scq = cq
	}
	d.replace(verbs.QPInitAttr{Cap: testCap, SQSigAll: true})
}

// unpolled drives without polling any CQ until all posted work has completed on any device: a completion that finds
// room again after one that found none would hide the gap.
func (e *env) unpolled() {
	for start := time.Now(); time.Since(start) < 50*quietTime; pause() {
		for _, d := range e.ends() {
			d.Driver.Progress(time.Now())
			d.Driver.Flush()
		}
	}
}

// all polls until everything has completed, or the CQ reports an overrun. In that case the queue pair is in ERR and an
// event reports it.
func (d *end) all(cq verbs.CQ, want int) {
	d.e.t.Helper()
	wcs, buf := []verbs.WC{}, make([]verbs.WC, 1)
	for deadline := time.Now().Add(d.e.patience()); len(wcs) < want; {
		d.e.True(time.Now().Before(deadline), "%d of %d completions", len(wcs), want)
		n, err := cq.Poll(buf)
		wcs = append(wcs, buf[:n]...)
		if err != nil {
			d.overrun(cq, err)
			break
		}
		for _, o := range d.e.ends() {
			o.Driver.Progress(time.Now())
			o.Driver.Flush()
		}
	}
	d.e.NotEmpty(wcs)
	for i, wc := range wcs {
		d.e.Equal(uint64(i), wc.WRID)
		d.e.Equal(verbs.WCSuccess, wc.Status)
	}
}

// IBTA vol. 1, 11.6.3.2: a CQ that overran stays in error, and so do its queue pairs; ibv_get_async_event(3):
// IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL.
func (d *end) overrun(cq verbs.CQ, err error) {
	d.e.t.Helper()
	d.e.ErrorIs(err, verbs.ErrCQOverrun)
	d.e.False(d.Device.Attr().CQHoldsBack)
	_, err = cq.Poll(make([]verbs.WC, 1))
	d.e.ErrorIs(err, verbs.ErrCQOverrun)
	d.e.Equal(verbs.QPSErr, d.qp.State())
	want := verbs.AsyncEvent{Type: verbs.EventCQErr, CQ: cq}
	for ev, ok := d.Device.Async().Poll(); ok; ev, ok = d.Device.Async().Poll() {
		d.events = append(d.events, ev)
	}
	d.e.True(d.take(want), "no event in %v", d.events)
	d.e.True(d.take(verbs.AsyncEvent{Type: verbs.EventQPFatal, QP: d.qp}), "no event in %v", d.events)
}

// A full CQ loses nothing silently: it holds back, or reports an overrun
// (IBTA vol. 1, 10.8.5 and 11.6.3.2).
func testFullReceiveCQ(e *env) {
	e.b.smallCQ(true)
	e.connect()
	for i := range uint64(10) {
		e.b.recv(i)
		e.a.post(e.a.write(verbs.WRRDMAWriteWithImm, i, e.b, 0, 8))
	}
	e.unpolled()
	e.b.all(e.b.rcq, 10)
	e.b.rcq = e.b.newCQ(64) // so that the rest of the test can poll it
}

func testFullSendCQ(e *env) {
	e.a.smallCQ(false)
	e.connect()
	for i := range uint64(10) {
		e.a.post(e.a.write(verbs.WRRDMAWrite, i, e.b, 0, 8))
	}
	e.unpolled()
	e.a.all(e.a.scq, 10)
	e.a.scq = e.a.newCQ(64)
}

func testCQAttributes(e *env) {
	attr := e.a.Device.Attr()
	for _, bad := range []verbs.CQAttr{{Depth: 0}, {Depth: -1}, {Depth: attr.MaxCQE + 1}, {Depth: 1, Vector: attr.Vectors}, {Depth: 1, Vector: -1}} {
		_, err := e.a.Device.CreateCQ(bad)
		e.ErrorIs(err, verbs.ErrInvalid, "%+v", bad)
	}
	e.Equal(0, e.a.scq.Vector())
}

func testCQClosed(e *env) {
	cq := e.a.newCQ(4)
	qp := own(e.a, e.a.newQP(verbs.QPInitAttr{Cap: testCap, RecvCQ: cq}))
	e.ErrorIs(cq.Close(), verbs.ErrBusy)
	e.NoError(qp.Close())
	e.NoError(cq.Close())
	e.NoError(cq.Close(), "closing again")
	_, err := cq.Poll(nil)
	e.ErrorIs(err, verbs.ErrClosed)
	_, err = e.a.PD.CreateQP(e.a.complete(verbs.QPInitAttr{Cap: testCap, RecvCQ: cq}))
	e.Error(err, "a closed one")
}
