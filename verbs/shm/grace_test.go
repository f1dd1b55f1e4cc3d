package shm

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

// lone is a pair whose drivers move only when the test says so.
func lone(t *testing.T) (h *hostilePair) {
	h = newHostilePair(t)
	h.turn()
	return h
}

func (h *hostilePair) progressA() { h.da.Progress(time.Now()); h.da.Flush() }
func (h *hostilePair) progressB() { h.db.Progress(time.Now()); h.db.Flush() }

// Memory of a closed region is not used again before the peer's loop has passed
// a Progress.
func TestRegionWaitsForPeer(t *testing.T) {
	h := lone(t)
	mr, err := h.pa.PD().AllocMR(4<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	mr.Bytes()[5] = 1
	addr := mr.Addr()
	require.NoError(t, mr.Close())
	for range 10 {
		h.progressA() // our own loop does not count
	}
	require.Equal(t, uint64(4<<20), h.pa.Stats().QuarantinedBytes)
	_, err = h.pa.PD().AllocMR(8<<20, verbs.AccessLocalWrite)
	require.ErrorIs(t, err, verbs.ErrNoMemory)
	h.progressB()
	require.Zero(t, h.pa.Stats().QuarantinedBytes)
	settled(h.pa)
	mr, err = h.pa.PD().AllocMR(4<<20, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.Equal(t, addr, mr.Addr())
	require.Zero(t, mr.Bytes()[5], "zeroed")
	require.NoError(t, mr.Close())
}

// What is closed while a grace period is under way waits for the next one.
func TestGraceDoesNotCoverLater(t *testing.T) {
	h := lone(t)
	alloc := func() verbs.MR {
		mr, err := h.pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
		require.NoError(t, err)
		return mr
	}
	m1, m2 := alloc(), alloc()
	require.NoError(t, m1.Close())
	require.NoError(t, m2.Close())
	require.Equal(t, uint64(8192), h.pa.Stats().QuarantinedBytes)
	h.progressB()
	require.Equal(t, uint64(4096), h.pa.Stats().QuarantinedBytes)
	h.progressB()
	require.Zero(t, h.pa.Stats().QuarantinedBytes)
}

// A queue pair whose partner was closed has forgotten the block by the time it
// is recycled, idle or not.
func TestBlockForgottenBeforeRecycling(t *testing.T) {
	h := lone(t)
	require.NoError(t, h.qb.Close())
	require.True(t, h.qa.rem.bound)
	require.NotZero(t, h.pb.Stats().QuarantinedBytes)
	h.progressA()
	require.False(t, h.qa.rem.bound)
	require.True(t, h.qa.rem.gone)
	require.Zero(t, h.pb.Stats().QuarantinedBytes)
}

// The same for a queue pair in ERR.
func TestBlockForgottenInErr(t *testing.T) {
	h := lone(t)
	require.NoError(t, h.qa.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	h.turn()
	require.NoError(t, h.qb.Close())
	h.turn()
	require.False(t, h.qa.rem.bound)
	require.Zero(t, h.pb.Stats().QuarantinedBytes)
}

// A queue pair closed in INIT, after the peer has connected to it, still tells it.
func TestOrphanTellsClaimant(t *testing.T) {
	a, b, pa, pb := met(t)
	da, db := drive(t, a, 0), drive(t, b, 0)
	ha, hb := bareQP(t, a, pa), bareQP(t, b, pb)
	require.NoError(t, verbs.Connect(ha, verbs.ConnectAttr(hb.num)))
	require.NoError(t, hb.Close())
	require.True(t, ha.rem.bound)
	require.NotPanics(t, func() { db.Progress(time.Now()); db.Flush(); da.Progress(time.Now()) })
	require.True(t, ha.rem.gone)
	require.NoError(t, ha.Close())
}

func bareQP(t testing.TB, d *Device, p *Peer) *qp {
	cq, err := d.CreateCQ(verbs.CQAttr{Depth: 16})
	require.NoError(t, err)
	q, err := p.PD().CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	require.NoError(t, err)
	require.NoError(t, verbs.Init(q, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	return q.(*qp)
}

// The first partner connects; a second one, and a mismatch, are refused.
func TestOnePartnerOnly(t *testing.T) {
	a, b, pa, pb := met(t)
	drive(t, a, 0)
	drive(t, b, 0)
	q1, q2, target, other := bareQP(t, a, pa), bareQP(t, a, pa), bareQP(t, b, pb), bareQP(t, b, pb)
	require.NoError(t, verbs.Connect(q1, verbs.ConnectAttr(target.num)))
	require.ErrorIs(t, verbs.Connect(q2, verbs.ConnectAttr(target.num)), verbs.ErrRemoteGone)
	require.ErrorIs(t, verbs.Connect(target, verbs.ConnectAttr(q2.num)), verbs.ErrRemoteGone)
	require.NoError(t, verbs.Connect(target, verbs.ConnectAttr(q1.num)))
	require.NoError(t, verbs.Connect(q2, verbs.ConnectAttr(other.num)), "a refused one can try again")
	for _, q := range []*qp{q1, q2, target, other} {
		require.NoError(t, q.Close())
	}
}

// AnyQPN: the first that connects is the partner; what was sent before waits.
func TestAnyQPN(t *testing.T) {
	a, b, pa, pb := met(t)
	da, db := drive(t, a, 0), drive(t, b, 0)
	qa, qb := bareQP(t, a, pa), bareQP(t, b, pb)
	require.NoError(t, qa.PostRecv(&verbs.RecvWR{WRID: 4}))
	require.NoError(t, verbs.Connect(qb, verbs.ConnectAttr(AnyQPN)))
	require.NoError(t, qb.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm, ImmData: 3}))
	db.Progress(time.Now())
	require.NoError(t, verbs.Connect(qa, verbs.ConnectAttr(qb.num)))
	for range 4 {
		for _, d := range []verbs.Driver{da, db} {
			d.Progress(time.Now())
			d.Flush()
		}
	}
	wcs := make([]verbs.WC, 4)
	n, err := qa.rcq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, uint32(3), wcs[0].ImmData)
	require.Equal(t, qb.num, wcs[0].SrcQP)
	require.NoError(t, qa.Close())
	require.NoError(t, qb.Close())
}

// Slots, blocks and regions are bounded by the quota and come back, however
// many queue pairs come and go.
func TestChurn(t *testing.T) {
	a, b, pa, pb := met(t)
	da, db := drive(t, a, 0), drive(t, b, 0)
	for i := range 3000 {
		qa, qb := bareQP(t, a, pa), bareQP(t, b, pb)
		mr, err := pa.PD().AllocMR(65536, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		require.NoError(t, err, "round %d", i)
		require.NoError(t, verbs.Connect(qa, verbs.ConnectAttr(qb.num)))
		require.NoError(t, verbs.Connect(qb, verbs.ConnectAttr(qa.num)))
		require.NoError(t, qb.PostSend(&verbs.SendWR{
			Opcode: verbs.WRRDMAWrite, Flags: verbs.SendInline, Inline: nil, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
		}))
		require.NoError(t, qa.Close())
		require.NoError(t, mr.Close())
		require.NoError(t, qb.Close())
		da.Progress(time.Now())
		db.Progress(time.Now())
		settled(pa, pb)
	}
	for range 3 {
		da.Progress(time.Now())
		db.Progress(time.Now())
		pa.Stats()
		pb.Stats()
	}
	settled(pa, pb)
	require.Zero(t, pa.Stats().QuarantinedBytes)
	require.Zero(t, pa.Stats().UsedBytes)
	require.Zero(t, pb.Stats().UsedBytes)
	require.Zero(t, a.Stats().QPs)
	require.NoError(t, pa.PD().Close())
}

func TestAfterGrace(t *testing.T) {
	h := lone(t)
	var ran atomic.Int32
	h.pa.AfterGrace(func() { ran.Add(1) })
	time.Sleep(20 * time.Millisecond)
	require.Zero(t, ran.Load(), "the peer has not passed a Progress")
	h.progressB()
	eventually(t, patience, func() bool { return ran.Load() == 1 }, "ran")
	h.pa.AfterGrace(func() { ran.Add(1) })
	h.pa.AfterGrace(func() { ran.Add(1) }) // of the next grace period
	require.NoError(t, h.pb.Close())
	eventually(t, patience, func() bool { return ran.Load() == 3 }, "ran when the peer went down")
	h.turn()

	d, _ := listening(t)
	p := offer(t, d)
	p.AfterGrace(func() { ran.Add(1) })
	eventually(t, patience, func() bool { return ran.Load() == 4 }, "ran for a pending peer")
}

// An undriven vector holds no references and is not waited for; one that is
// given up with queue pairs still is.
func TestUndrivenVectors(t *testing.T) {
	h := lone(t)
	require.NoError(t, h.db.Close())
	mr, err := h.pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	require.Equal(t, uint64(4096), h.pa.Stats().QuarantinedBytes, "its queue pair may refer to our memory")
	db, err := h.pb.dev.Drive(0, verbstest.Deaf{})
	require.NoError(t, err)
	_, err = h.pb.dev.Drive(0, verbstest.Deaf{})
	require.ErrorIs(t, err, verbs.ErrBusy)
	h.db = db
	h.progressB()
	require.Zero(t, h.pa.Stats().QuarantinedBytes)
	require.NoError(t, h.qb.Close())
	require.NoError(t, h.db.Close())
	require.NoError(t, h.db.Close(), "closing again")
	mr, err = h.pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	require.Zero(t, h.pa.Stats().QuarantinedBytes)
}

// A peer that has yet to notice that it was sent away finds the blocks of closed queue
// pairs as they were: what they say is no breach of the rules.
func TestBlocksStayBehindHangUp(t *testing.T) {
	a, _, pa, _ := met(t)
	drive(t, a, 0)
	kept, err := pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	var blocks []*blockWords
	var qps []*qp
	for range maxWarm + 1 {
		q := bareQP(t, a, pa)
		q.blk.cons.Store(5)
		blocks, qps = append(blocks, q.blk.blockWords), append(qps, q)
	}
	require.NoError(t, pa.Close())
	for _, q := range qps {
		require.NoError(t, q.Close())
	}
	for _, b := range blocks {
		require.EqualValues(t, lifeDead, b.status.Load()&0xff)
		require.EqualValues(t, 5, b.cons.Load())
	}
	require.Zero(t, pa.Stats().QuarantinedBytes)
	require.NoError(t, kept.Close())
}

// What a partner has sent before it was closed and finds no room is received later.
func TestReceivedBehindAClosedPartner(t *testing.T) {
	a, b := newSides(t)
	var err error
	b.cq, err = b.d.CreateCQ(verbs.CQAttr{Depth: 2})
	b.NoError(err)
	qa, qb := rc(a, b)
	for i := range 8 {
		b.NoError(qb.PostRecv(&verbs.RecvWR{WRID: uint64(i)}))
	}
	for i := range 5 {
		a.NoError(qa.PostSend(imm(uint32(i))))
	}
	a.turn()
	b.drv.Progress(time.Now())
	a.NoError(qa.Close())
	b.drv.Progress(time.Now())
	a.Zero(a.p.Stats().QuarantinedBytes)
	settled(a.p)
	for range 4 {
		b.turn()
	}
	b.Equal([]uint32{0, 1, 2, 3, 4}, imms(b.recv))
}
