package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// allocEnd is one side of a pair whose whole work is measured: it posts,
// drives and polls with memory that is there already.
type allocEnd struct {
	side *verbstest.Side
	cq   verbs.CQ
	qp   verbs.QP
	mr   verbs.MR
	ah   verbs.AH
	wcs  [16]verbs.WC
	done int
	wr   verbs.SendWR
	sge  [1]verbs.SGE
	recv verbs.RecvWR
	rsge [1]verbs.SGE
}

const allocSize = 64 << 10

func newAllocEnd(t *testing.T, side *verbstest.Side, kind verbs.QPType) *allocEnd {
	e := &allocEnd{side: side}
	var err error
	e.cq, err = side.Device.CreateCQ(verbs.CQAttr{Depth: 64})
	require.NoError(t, err)
	e.mr, err = side.PD.AllocMR(allocSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic)
	require.NoError(t, err)
	e.qp, err = side.PD.CreateQP(&verbs.QPInitAttr{
		SendCQ: e.cq, RecvCQ: e.cq, Type: kind, SQSigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, e.qp.Close())
		if e.ah != nil {
			require.NoError(t, e.ah.Close())
		}
		require.NoError(t, e.mr.Close())
		require.NoError(t, e.cq.Close())
	})
	return e
}

func (e *allocEnd) turn(t *testing.T) {
	e.side.Driver.Progress(time.Now())
	n, err := e.cq.Poll(e.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	for i := range e.wcs[:n] {
		if e.wcs[i].Status != verbs.WCSuccess {
			t.Fatal(e.wcs[i].Opcode, e.wcs[i].Status)
		}
	}
	e.done += n
	e.side.Driver.Flush()
}

// post sends n bytes of the region's beginning.
func (e *allocEnd) post(t *testing.T, op verbs.WROpcode, n int, to *allocEnd) {
	e.sge[0] = verbs.SGE{Addr: e.mr.Addr(), Length: uint32(n), LKey: e.mr.LKey()}
	e.wr = verbs.SendWR{
		Opcode: op, SGList: e.sge[:], RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey(),
		AH: e.ah, RemoteQPN: to.qp.Num(), RemoteQKey: allocQKey,
	}
	if n <= 64 && op == verbs.WRRDMAWriteWithImm {
		e.wr.SGList, e.wr.Inline, e.wr.Flags = nil, e.mr.Bytes()[:n], verbs.SendInline
	}
	if err := e.qp.PostSend(&e.wr); err != nil {
		t.Fatal(err)
	}
}

func (e *allocEnd) receive(t *testing.T) {
	e.rsge[0] = verbs.SGE{Addr: e.mr.Addr(), Length: allocSize, LKey: e.mr.LKey()}
	e.recv.SGList = e.rsge[:]
	if err := e.qp.PostRecv(&e.recv); err != nil {
		t.Fatal(err)
	}
}

// until drives both ends until each has had so many completions.
func until(t *testing.T, a, b *allocEnd, wantA, wantB int) {
	for deadline := time.Now().Add(patience); a.done < wantA || b.done < wantB; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d and %d of %d completions", a.done, wantA, b.done, wantB)
		}
		a.turn(t)
		b.turn(t)
	}
	a.done, b.done = 0, 0
}

const allocQKey = 0x1234

// Posting, sending, receiving, acknowledging and completing allocate nothing.
func TestEngineAllocatesNothing(t *testing.T) {
	plain := func(c *Config) { c.NoOffload, c.MTU = true, verbs.MTU1024 }
	ecn := func(c *Config) { c.ECN = true }
	for name, c := range map[string][2]Config{
		"IPv4":                 {on("127.0.0.1"), on("127.0.0.2")},
		"IPv6":                 {on("::1"), on("::1")},
		"IPv4 with ECN":        {on("127.0.0.1", ecn), on("127.0.0.2", ecn)},
		"IPv6 with ECN":        {on("::1", ecn), on("::1", ecn)},
		"IPv4 without offload": {on("127.0.0.1", plain), on("127.0.0.2", plain)},
		"IPv6 without offload": {on("::1", plain), on("::1", plain)},
	} {
		t.Run(name, func(t *testing.T) { testEngineAllocatesNothing(t, openPair(t, c[0], c[1])) })
	}
}

func testEngineAllocatesNothing(t *testing.T, p *verbstest.Pair) {
	t.Helper()
	rc := func() (a, b *allocEnd) {
		a, b = newAllocEnd(t, &p.A, verbs.QPTRC), newAllocEnd(t, &p.B, verbs.QPTRC)
		for _, e := range []*allocEnd{a, b} {
			require.NoError(t, verbs.Init(e.qp, verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
		}
		require.NoError(t, verbs.Connect(a.qp, p.Attr(a.side, b.qp.Num())))
		require.NoError(t, verbs.Connect(b.qp, p.Attr(b.side, a.qp.Num())))
		return a, b
	}
	for _, c := range []struct {
		name string
		op   verbs.WROpcode
		n    int
		recv bool // the peer's receive is used
	}{
		{"write", verbs.WRRDMAWrite, allocSize, false},
		{"inline", verbs.WRRDMAWriteWithImm, 64, true},
		{"padded", verbs.WRRDMAWriteWithImm, allocSize - 3, true},
		{"send", verbs.WRSend, 20000, true},
		{"immediate", verbs.WRSendWithImm, 20000, true},
		{"read", verbs.WRRDMARead, allocSize, false},
		{"atomic", verbs.WRAtomicFetchAndAdd, 8, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := rc()
			allocatesNothing(t, a, b, c.recv, func() { a.post(t, c.op, c.n, b) })
		})
	}
	t.Run("datagram", func(t *testing.T) {
		a, b := newAllocEnd(t, &p.A, verbs.QPTUD), newAllocEnd(t, &p.B, verbs.QPTUD)
		for _, e := range []*allocEnd{a, b} {
			require.NoError(t, verbs.StartUD(e.qp, allocQKey, 0))
		}
		var err error
		a.ah, err = p.A.PD.CreateAH(p.Attr(a.side, 0).AH)
		require.NoError(t, err)
		allocatesNothing(t, a, b, true, func() { a.post(t, verbs.WRSend, 1000, b) })
	})
}

func allocatesNothing(t *testing.T, a, b *allocEnd, recv bool, post func()) {
	round := func() {
		for range 4 {
			if recv {
				b.receive(t)
			}
			post()
		}
		want := 0
		if recv {
			want = 4
		}
		until(t, a, b, 4, want)
	}
	for range 20 { // rings and lists grow to what they need
		round()
	}
	require.Zero(t, testing.AllocsPerRun(50, round))
}
