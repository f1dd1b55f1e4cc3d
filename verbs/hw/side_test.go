package hw

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/hw/hwtest"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// ends are two connected queue pairs on two adapters, driven by the test.
type ends struct {
	t    testing.TB
	lib  *hwtest.Library
	a, b *end
}

// end is an adapter with a vector, one completion queue and a queue pair.
type end struct {
	dev *Device
	pd  verbs.PD
	drv *driver
	cq  *cq
	qp  *qp
	mr  verbs.MR
	wcs []verbs.WC
}

var smallCap = verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 32}

func newEnds(t testing.TB, change ...func(*hwtest.Library)) *ends {
	e := &ends{t: t, lib: newLibrary(t, 2, change...)}
	e.a, e.b = newEnd(t, e.lib, "fake0"), newEnd(t, e.lib, "fake1")
	return e
}

func newEnd(t testing.TB, lib *hwtest.Library, adapter string, change ...func(*Config)) *end {
	d := &end{dev: openFake(t, lib, adapter, change...)}
	var err error
	d.pd, err = d.dev.AllocPD()
	require.NoError(t, err)
	drv, err := d.dev.Drive(0, verbstest.Deaf{})
	require.NoError(t, err)
	d.drv = drv.(*driver)
	c, err := d.dev.CreateCQ(verbs.CQAttr{Depth: 100})
	require.NoError(t, err)
	d.cq = c.(*cq)
	d.mr, err = d.pd.AllocMR(1<<16, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	d.qp = d.newQP(t, verbs.QPTRC)
	t.Cleanup(func() {
		require.NoError(t, d.qp.Close())
		require.NoError(t, d.mr.Close())
		require.NoError(t, d.cq.Close())
		require.NoError(t, d.drv.Close())
		require.NoError(t, d.pd.Close())
	})
	return d
}

func (d *end) newQP(t testing.TB, typ verbs.QPType) *qp {
	q, err := d.pd.CreateQP(&verbs.QPInitAttr{SendCQ: d.cq, RecvCQ: d.cq, Type: typ, Cap: smallCap})
	require.NoError(t, err)
	return q.(*qp)
}

// connect connects the queue pairs of both ends.
func (e *ends) connect() {
	for _, d := range []*end{e.a, e.b} {
		require.NoError(e.t, verbs.Init(d.qp, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	}
	require.NoError(e.t, verbs.Connect(e.a.qp, attrTo(e.b.dev, e.b.qp.num)))
	require.NoError(e.t, verbs.Connect(e.b.qp, attrTo(e.a.dev, e.a.qp.num)))
}

// until drives both ends until cond holds.
func (e *ends) until(what string, cond func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(100 * time.Microsecond) {
		require.True(e.t, time.Now().Before(deadline), "never: %s", what)
		e.a.turn(e.t)
		e.b.turn(e.t)
	}
}

func (d *end) turn(t testing.TB) {
	d.drv.Progress(time.Now())
	var buf [16]verbs.WC
	n, err := d.cq.Poll(buf[:])
	require.NoError(t, err)
	d.wcs = append(d.wcs, buf[:n]...)
	d.drv.Flush()
}

// write makes a signaled WRITE of n bytes to the other end.
func (e *ends) write(id uint64, n uint32) *verbs.SendWR {
	return &verbs.SendWR{
		WRID: id, Opcode: verbs.WRRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: e.b.mr.Addr(), RKey: e.b.mr.RKey(),
		SGList: []verbs.SGE{{Addr: e.a.mr.Addr(), Length: n, LKey: e.a.mr.LKey()}},
	}
}

// statuses are those of completions by work request id, in their order.
func statuses(wcs []verbs.WC) (ids []uint64, list []verbs.WCStatus) {
	for _, wc := range wcs {
		ids, list = append(ids, wc.WRID), append(list, wc.Status)
	}
	return ids, list
}
