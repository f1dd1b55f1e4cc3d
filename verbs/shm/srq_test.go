package shm

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/smcgw/smcgw/verbs"
)

// Several queue pairs take receives from one queue, in the order of posting.
func TestSRQ(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q1, d1 := rc(a, b, r)
	q2, d2 := rc(a, b, r)
	for i := range uint64(8) {
		b.NoError(r.PostRecv(&verbs.RecvWR{WRID: i, SGList: b.sge(int(i)*100, 100)}))
	}
	b.ErrorIs(r.PostRecv(&verbs.RecvWR{}), verbs.ErrQueueFull)
	b.ErrorIs(d1.PostRecv(&verbs.RecvWR{}), verbs.ErrInvalid)
	for i := range 4 {
		copy(a.mr.Bytes(), fmt.Sprintf("message %d", i))
		a.NoError(q1.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.WRSend, SGList: a.sge(0, 9)}))
		a.NoError(q2.PostSend(imm(uint32(i))))
		settle(a, b)
	}
	a.Len(a.send, 8)
	b.Len(b.recv, 8)
	for i, wc := range b.recv {
		b.Equal(verbs.WCSuccess, wc.Status)
		b.Equal(uint64(i), wc.WRID)
		if i%2 == 0 {
			b.Equal([2]uint32{d1.num, q1.num}, [2]uint32{wc.QPNum, wc.SrcQP})
			b.Equal(fmt.Sprintf("message %d", i/2), string(b.mr.Bytes()[i*100:][:wc.ByteLen]))
		} else {
			b.Equal([2]uint32{d2.num, q2.num}, [2]uint32{wc.QPNum, wc.SrcQP})
		}
	}
	b.ErrorIs(r.Close(), verbs.ErrBusy)
	b.ErrorIs(b.p.PD().Close(), verbs.ErrBusy)
	b.NoError(d1.Close())
	b.NoError(d2.Close())
	b.NoError(r.Close())
	b.ErrorIs(r.PostRecv(&verbs.RecvWR{}), verbs.ErrClosed)
}

// Without a receive the entries wait; nothing completes, nothing overtakes.
func TestSRQEmpty(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q, _ := rc(a, b, r)
	a.mr.Bytes()[0] = 9
	a.NoError(q.PostSend(imm(1)))
	a.NoError(q.PostSend(imm(2)))
	a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWrite, SGList: a.sge(0, 1), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
	settle(a, b)
	a.Empty(a.send)
	for i := range 2 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
		settle(a, b)
		b.Len(b.recv, i+1)
		a.Equal(i == 1, b.mr.Bytes()[0] == 9, "the WRITE comes last")
	}
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCSuccess, verbs.WCSuccess}, statuses(a.send))
}

func rnr(retries, timer uint8) func(*verbs.QPAttr) {
	return func(a *verbs.QPAttr) { a.RNRRetry, a.MinRNRTimer = retries, timer }
}

// The sender gives up when its retries are over, and what it has published is
// not delivered afterwards. Other queue pairs go on.
func TestSRQRetriesExceeded(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q, _ := rc(a, b, r, rnr(1, 14)) // 1.28 ms
	other, _ := rc(a, b, r)
	for i := range uint32(3) {
		a.NoError(q.PostSend(imm(i)))
	}
	a.NoError(other.PostSend(imm(77)))
	eventually(t, patience, func() bool { settle(a, b); return len(a.send) == 3 }, "given up")
	a.Equal([]verbs.WCStatus{verbs.WCRNRRetryExcErr, verbs.WCWRFlushErr, verbs.WCWRFlushErr}, statuses(a.send))
	a.Equal(verbs.QPSErr, q.State())
	settle(a, b)
	for range 4 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
	}
	settle(a, b)
	b.Equal([]uint32{77}, imms(b.recv))
	a.Equal(verbs.WCSuccess, a.send[3].Status)
}

// Progress starts the clock again.
func TestSRQClockRestarts(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q, _ := rc(a, b, r, rnr(1, 0)) // 655.36 ms
	for i := range uint32(3) {
		a.NoError(q.PostSend(imm(i)))
	}
	settle(a, b)
	first := q.rnrDeadline
	a.False(first.IsZero())
	time.Sleep(time.Millisecond)
	b.NoError(r.PostRecv(&verbs.RecvWR{}))
	settle(a, b)
	a.Len(a.send, 1)
	a.True(q.rnrDeadline.After(first))
}

// A queue pair with its own receives: the next message has a clock of its own
// although the one before was sent when its time was over.
func TestClockRestartsAtExpiry(t *testing.T) {
	a, b := newSides(t)
	q, d := rc(a, b, nil, rnr(1, 14))
	a.NoError(q.PostSend(imm(1)))
	a.NoError(q.PostSend(imm(2)))
	a.turn()
	a.False(q.rnrDeadline.IsZero())
	time.Sleep(time.Until(q.rnrDeadline))
	b.NoError(d.PostRecv(&verbs.RecvWR{}))
	next := q.vec.expire(time.Now())
	a.Equal(verbs.QPSRTS, q.State())
	a.Equal(q.rnrDeadline, next)
	time.Sleep(time.Until(next))
	a.Zero(q.vec.expire(time.Now()))
	a.Equal(verbs.QPSErr, q.State())
	settle(a, b)
	a.Equal([]verbs.WCStatus{verbs.WCSuccess, verbs.WCRNRRetryExcErr}, statuses(a.send))
}

// The limit event comes once, when the queue falls below, until armed again.
func TestSRQLimit(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q, _ := rc(a, b, r)
	b.NoError(r.Modify(verbs.SRQAttr{Limit: 2}, verbs.SRQAttrLimit))
	for range 4 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
	}
	for i, want := range []int{0, 0, 1, 0} {
		a.NoError(q.PostSend(imm(0)))
		settle(a, b)
		b.Len(b.events(), want, "message %d", i)
	}
	b.Zero(r.Query().Limit)
	b.NoError(r.Modify(verbs.SRQAttr{Limit: 1, MaxWR: 100}, verbs.SRQAttrLimit|verbs.SRQAttrMaxWR))
	for range 100 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
	}
	b.ErrorIs(r.Modify(verbs.SRQAttr{MaxWR: 99}, verbs.SRQAttrMaxWR), verbs.ErrInvalid)
	b.ErrorIs(r.Modify(verbs.SRQAttr{Limit: 101}, verbs.SRQAttrLimit), verbs.ErrInvalid)
	b.Equal(verbs.SRQAttr{MaxWR: 100, MaxSGE: 2, Limit: 1}, r.Query())
}

// ERR flushes only what the queue pair had taken, and says that it is over.
func TestSRQLastWQE(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q, d := rc(a, b, r)
	for i := range uint64(3) {
		b.NoError(r.PostRecv(&verbs.RecvWR{WRID: i, SGList: b.sge(0, 1<<17)}))
	}
	a.NoError(q.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, SGList: a.sge(0, 1<<17)})) // more than is staged at once
	b.turn()
	a.True(d.cur.held)
	b.NoError(d.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	settle(a, b)
	b.Equal([]verbs.WCStatus{verbs.WCWRFlushErr}, statuses(b.recv))
	b.Equal(uint64(0), b.recv[0].WRID)
	b.Equal([]verbs.EventType{verbs.EventQPLastWQEReached}, b.events())
	b.Equal(2, r.queue.Posted())
	a.Equal([]verbs.WCStatus{verbs.WCRetryExcErr}, statuses(a.send))
	b.NoError(d.Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	b.Empty(b.events())
}

// One that closed or failed while it waited is passed over.
func TestSRQWaiterGone(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	for i := range uint32(4) {
		q, _ := rc(a, b, r)
		a.NoError(q.PostSend(imm(i)))
		settle(a, b)
	}
	b.Len(r.waiters, 4)
	b.NoError(r.waiters[0].Close())
	b.NoError(r.waiters[1].Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	b.NoError(r.waiters[2].Modify(&verbs.QPAttr{State: verbs.QPSReset}, verbs.QPAttrState))
	settle(a, b)
	b.NoError(r.PostRecv(&verbs.RecvWR{}))
	settle(a, b)
	b.Equal([]uint32{3}, imms(b.recv))
}

// Waiting queue pairs are served in turn. Those that close, fail or find no
// room for their completion leave their receive to the others.
func TestSRQTurns(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	for i := range 6 {
		q, _ := rc(a, b, r)
		for k := range 5 {
			a.NoError(q.PostSend(imm(uint32(10*i + k))))
		}
	}
	settle(a, b)
	for range 6 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
		settle(a, b)
	}
	b.ElementsMatch([]uint32{0, 10, 20, 30, 40, 50}, imms(b.recv), "each once")
	b.clear()
	first, second := r.waiters[0], r.waiters[1]
	b.NoError(r.PostRecv(&verbs.RecvWR{})) // wakes the first
	b.NoError(first.Close())               // which leaves it to the second
	b.NoError(second.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	settle(a, b)
	b.Len(b.recv, 1)
	for range 8 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
	}
	settle(a, b)
	for range 8 {
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
	}
	settle(a, b)
	b.Len(b.recv, 16, "all of the four")
}

func TestSRQFullCQ(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	q1, _ := rc(a, b, r)
	small, err := b.d.CreateCQ(verbs.CQAttr{Depth: 1})
	b.NoError(err)
	big := b.cq
	b.cq = small
	q2, _ := rc(a, b, r)
	q3, _ := rc(a, b, r)
	b.cq = big
	for i, q := range []*qp{q2, q3, q1} { // the order in which they wait
		a.NoError(q.PostSend(imm(uint32(i))))
		a.turn()
		b.turn()
	}
	for range 2 { // the first fills the CQ; the second finds it full
		b.NoError(r.PostRecv(&verbs.RecvWR{}))
		for range 3 {
			b.turn()
		}
	}
	b.Equal([]uint32{2}, imms(b.recv), "the receive is left to the third")
	b.NoError(r.PostRecv(&verbs.RecvWR{}))
	var wcs [1]verbs.WC
	for i := range uint32(2) {
		n, err := small.Poll(wcs[:])
		b.NoError(err)
		b.Equal(1, n)
		b.Equal(i, wcs[0].ImmData)
		settle(a, b)
	}
}

// A queue pair that waits for room in its CQ does not wait for a receive: no clock runs.
func TestSRQFullCQDoesNotStarve(t *testing.T) {
	a, b := newSides(t)
	r := b.srq(8)
	var err error
	b.cq, err = b.d.CreateCQ(verbs.CQAttr{Depth: 1})
	b.NoError(err)
	q1, _ := rc(a, b, r)
	q2, d2 := rc(a, b, r)
	for _, q := range []*qp{q1, q2} {
		a.NoError(q.PostSend(imm(1)))
		a.turn()
		b.drv.Progress(time.Now())
	}
	b.Equal(uint64(1), d2.blk.starve.Load())
	b.NoError(r.PostRecv(&verbs.RecvWR{}))
	b.NoError(r.PostRecv(&verbs.RecvWR{}))
	b.drv.Progress(time.Now())
	b.Zero(d2.blk.starve.Load())
	settle(a, b)
	b.Len(b.recv, 2)
}

// Random sends, posts, closings and errors: nothing is lost, doubled or
// reordered, all that completes has arrived, and every wait ends.
func TestSRQModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		a, b := newSides(t)
		r := b.srq(4)
		const n = 4
		var qs, ds [n]*qp
		var sent, got [n]uint32
		var bad [n]bool
		index := map[uint32]int{}
		for i := range n {
			qs[i], ds[i] = rc(a, b, r)
			index[ds[i].num] = i
		}
		check := func() {
			a.turn()
			b.turn()
			for _, wc := range b.recv {
				i := index[wc.QPNum]
				if wc.Status == verbs.WCSuccess {
					require.Equal(rt, got[i], wc.ImmData)
					got[i]++
				} else {
					require.True(rt, bad[i])
				}
			}
			b.recv = nil
		}
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			i := rapid.IntRange(0, n-1).Draw(rt, "queue pair")
			switch rapid.IntRange(0, 20).Draw(rt, "action") {
			case 0:
				bad[i] = true
				_ = ds[i].Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState)
			case 1:
				bad[i] = true
				_ = ds[i].Close()
			case 2, 3, 4, 5, 6, 7, 8:
				wr := imm(sent[i])
				if rapid.Bool().Draw(rt, "send") {
					wr.Opcode, wr.SGList = verbs.WRSendWithImm, a.sge(0, rapid.IntRange(0, 100_000).Draw(rt, "size"))
				}
				if sent[i] < 100 && qs[i].PostSend(wr) == nil {
					sent[i]++
				}
			case 9, 10, 11, 12, 13:
				_ = r.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 100_000)})
			default:
				check()
			}
		}
		for range 1000 {
			_ = r.PostRecv(&verbs.RecvWR{SGList: b.sge(0, 100_000)})
			check()
		}
		for i := range n {
			if !bad[i] {
				require.Equal(rt, sent[i], got[i])
				require.Equal(rt, qs[i].sq.Posted(), qs[i].sq.Done)
			}
			_, _ = qs[i].Close(), ds[i].Close()
		}
		require.NoError(rt, r.Close())
		require.NoError(rt, a.drv.Close())
		require.NoError(rt, b.drv.Close())
		require.NoError(rt, a.d.Close())
		require.NoError(rt, b.d.Close())
	})
}

func TestSRQAttributes(t *testing.T) {
	_, b := newSides(t)
	for _, bad := range []verbs.SRQInitAttr{
		{}, {MaxWR: maxWR + 1}, {MaxWR: 1, MaxSGE: maxSGE + 1}, {MaxWR: 1, MaxSGE: -1}, {MaxWR: 1, Limit: 2}, {MaxWR: 1, Vector: 1},
	} {
		_, err := b.p.PD().CreateSRQ(bad)
		b.ErrorIs(err, verbs.ErrInvalid, "%+v", bad)
	}
	r := b.srq(1)
	b.ErrorIs(r.PostRecv(&verbs.RecvWR{SGList: make([]verbs.SGE, 3)}), verbs.ErrInvalid)
	a, _ := newSides(t)
	_, err := a.p.PD().CreateQP(&verbs.QPInitAttr{SendCQ: a.cq, RecvCQ: a.cq, SRQ: r, Type: verbs.QPTRC, Cap: sideCap})
	a.ErrorIs(err, verbs.ErrInvalid, "of another peer")
	b.NoError(b.p.Close())
	_, err = b.p.PD().CreateSRQ(verbs.SRQInitAttr{MaxWR: 1})
	b.ErrorIs(err, verbs.ErrRemoteGone)
}
