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
