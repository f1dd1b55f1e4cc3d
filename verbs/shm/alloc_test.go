package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// oneWay is a queue pair of A that writes into a region of B, in one goroutine.
type oneWay struct {
	*hostilePair
	src, dst verbs.MR
	wr       verbs.SendWR
	rr       verbs.RecvWR
	wcs      [8]verbs.WC
	span     []byte
}

func newOneWay(t testing.TB, n int) *oneWay {
	o := &oneWay{hostilePair: newHostilePair(t)}
	var err error
	o.src, err = o.pa.PD().AllocMR(n, verbs.AccessLocalWrite)
	require.NoError(t, err)
	o.dst, err = o.pb.PD().AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	o.wr = verbs.SendWR{
		Opcode: verbs.WRRDMAWriteWithImm, RemoteAddr: o.dst.Addr(), RKey: o.dst.RKey(),
		SGList: []verbs.SGE{{Addr: o.src.Addr(), Length: uint32(n), LKey: o.src.LKey()}},
	}
	for range 32 {
		require.NoError(t, o.qb.PostRecv(&o.rr))
	}
	t.Cleanup(func() { _ = o.src.Close(); _ = o.dst.Close() })
	return o
}

// mapped makes the payload lie in place.
func (o *oneWay) mapped() *oneWay {
	o.wr.Flags = verbs.SendMapped
	o.wr.SGList = []verbs.SGE{{Addr: o.wr.RemoteAddr, Length: o.wr.SGList[0].Length, LKey: o.wr.RKey}}
	return o
}

// message sends one and receives it.
func (o *oneWay) message(t testing.TB) {
	if o.wr.Flags&verbs.SendMapped != 0 {
		o.span, _ = o.qa.MapRemote(o.wr.RKey, o.wr.RemoteAddr, int(o.wr.SGList[0].Length))
	}
	if err := o.qa.PostSend(&o.wr); err != nil {
		t.Fatal(err)
	}
	o.da.Flush()
	o.db.Progress(time.Time{})
	n, _ := o.qb.rcq.Poll(o.wcs[:])
	if n != 1 {
		t.Fatalf("%d completions", n)
	}
	_ = o.qb.PostRecv(&o.rr)
	o.db.Flush()
	o.da.Progress(time.Time{})
	if n, _ = o.qa.scq.Poll(o.wcs[:]); n != 1 {
		t.Fatalf("%d send completions", n)
	}
}

func TestNoAllocations(t *testing.T) {
	for name, o := range map[string]*oneWay{
		"copied": newOneWay(t, 4096), "mapped": newOneWay(t, 4096).mapped(),
		"inline": func() *oneWay {
			o := newOneWay(t, 64)
			o.wr.SGList, o.wr.Inline, o.wr.Flags = nil, make([]byte, 64), verbs.SendInline
			return o
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			for range 100 {
				o.message(t)
			}
			require.Zero(t, testing.AllocsPerRun(200, func() { o.message(t) }))
			require.Zero(t, testing.AllocsPerRun(200, func() {
				if o.db.Arm() {
					o.db.Disarm()
				}
			}))
		})
	}
}

// datagrams sends, takes and completes a datagram a call.
func datagrams(t testing.TB) func() {
	a, b := newSides(t)
	from, to := a.ud(), b.ud()
	wr, rr := a.datagram(to, 4000), verbs.RecvWR{SGList: b.sge(0, 5000)}
	var wcs [8]verbs.WC
	return func() {
		_ = to.PostRecv(&rr)
		if err := from.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		a.drv.Flush()
		b.drv.Progress(time.Time{})
		if n, _ := b.cq.Poll(wcs[:]); n != 1 {
			t.Fatalf("%d receive completions", n)
		}
		b.drv.Flush()
		a.drv.Progress(time.Time{})
		if n, _ := a.cq.Poll(wcs[:]); n != 1 || wcs[0].Status != verbs.WCSuccess {
			t.Fatalf("%d send completions, %v", n, wcs[0].Status)
		}
	}
}

func TestNoAllocationsOfDatagrams(t *testing.T) {
	run := datagrams(t)
	for range 100 {
		run()
	}
	require.Zero(t, testing.AllocsPerRun(200, run))
}

// A queue pair that waits for a receive is woken and watches its clock without allocating.
func TestNoAllocationsWhileWaiting(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, rnr(6, 0))
	wr, rr := imm(1), verbs.RecvWR{}
	var wcs [8]verbs.WC
	run := func() {
		_ = q.PostSend(wr)
		a.drv.Flush()
		a.drv.Progress(time.Time{})
		_ = d.PostRecv(&rr)
		for range 2 {
			b.drv.Progress(time.Time{})
			b.drv.Flush()
			a.drv.Progress(time.Time{})
			a.drv.Flush()
		}
		b.drv.Progress(time.Time{})
		n, _ := a.cq.Poll(wcs[:])
		if m, _ := b.cq.Poll(wcs[:]); n != 1 || m != 1 {
			t.Fatalf("%d sent, %d received", n, m)
		}
	}
	for range 20 {
		run()
	}
	require.Zero(t, testing.AllocsPerRun(100, run))
}

func BenchmarkDatagram(b *testing.B) {
	run := datagrams(b)
	for b.Loop() {
		run()
	}
}

func benchmark(b *testing.B, n int, mapped bool) {
	o := newOneWay(b, n)
	if mapped {
		o.mapped()
	}
	b.SetBytes(int64(n))
	for b.Loop() {
		o.message(b)
	}
}

func BenchmarkWriteImm64(b *testing.B)     { benchmark(b, 64, false) }
func BenchmarkWriteImm64K(b *testing.B)    { benchmark(b, 64<<10, false) }
func BenchmarkWriteImmMapped(b *testing.B) { benchmark(b, 64<<10, true) }

// BenchmarkPingPong is a round trip between two sleeping loops.
func BenchmarkPingPong(b *testing.B) {
	d, c, p, pc := met(b)
	hd, hc := newHost(b, d, p), newHost(b, c, pc)
	hd.connect(hc.qp.Num())
	hc.connect(hd.qp.Num())
	for b.Loop() {
		hd.post(1)
		hc.recv()
		hc.post(2)
		hd.recv()
	}
	hd.close()
	hc.close()
}

// BenchmarkQPChurn is what a connection costs: queue pairs on both sides.
func BenchmarkQPChurn(b *testing.B) {
	d, c, p, pc := met(b)
	dd, dc := drive(b, d, 0), drive(b, c, 0)
	for b.Loop() {
		q1, q2 := bareQP(b, d, p), bareQP(b, c, pc)
		require.NoError(b, verbs.Connect(q1, verbs.ConnectAttr(q2.num)))
		require.NoError(b, verbs.Connect(q2, verbs.ConnectAttr(q1.num)))
		_, _ = q1.Close(), q2.Close()
		dd.Progress(time.Time{})
		dc.Progress(time.Time{})
	}
}
