package soft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// Flushing waits for room in the CQ: queue pairs that fail together lose no
// completion and harm no other that shares the CQ.
func TestFlushWaitsForRoom(t *testing.T) {
	const pairs, receives, depth = 5, 16, 8
	p := openPair(t, on("127.0.0.1"), on("127.0.0.2"))
	d := p.A.Device
	cq, err := d.CreateCQ(verbs.CQAttr{Depth: depth})
	require.NoError(t, err)
	newQP := func() verbs.QP {
		qp, err := p.A.PD.CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: receives},
		})
		require.NoError(t, err)
		require.NoError(t, verbs.Init(qp, 0))
		t.Cleanup(func() { require.NoError(t, qp.Close()) })
		return qp
	}
	bystander := newQP()
	require.NoError(t, verbs.Connect(bystander, p.Attr(&p.A, 99)))
	want := map[uint64]bool{}
	for i := range uint64(pairs) {
		qp := newQP()
		for j := range uint64(receives) {
			require.NoError(t, qp.PostRecv(&verbs.RecvWR{WRID: i*receives + j}))
			want[i*receives+j] = true
		}
		require.NoError(t, qp.Modify(&verbs.QPAttr{State: verbs.QPSErr}, verbs.QPAttrState))
	}
	for deadline := time.Now().Add(patience); len(want) > 0; {
		require.True(t, time.Now().Before(deadline), "%d completions missing", len(want))
		var wcs [3]verbs.WC
		n, err := cq.Poll(wcs[:])
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
			require.True(t, want[wc.WRID], "completed twice: %d", wc.WRID)
			delete(want, wc.WRID)
		}
		p.A.Driver.Flush()
	}
	require.Equal(t, verbs.QPSRTS, bystander.State())
}

// crowd makes connected queue pairs with posted receives, which share a small completion
// queue.
func crowd(t *testing.T, depth, receives int) (cq verbs.CQ, drv verbs.Driver, member func() *qp) {
	p := openPair(t, on("127.0.0.1"), on("127.0.0.2"))
	cq, err := p.A.Device.CreateCQ(verbs.CQAttr{Depth: depth})
	require.NoError(t, err)
	return cq, p.A.Driver, func() *qp {
		made, err := p.A.PD.CreateQP(&verbs.QPInitAttr{
			SendCQ: cq, RecvCQ: cq, Type: verbs.QPTRC, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: receives},
		})
		require.NoError(t, err)
		require.NoError(t, verbs.Init(made, 0))
		t.Cleanup(func() { require.NoError(t, made.Close()) })
		for i := range receives {
			require.NoError(t, made.PostRecv(&verbs.RecvWR{WRID: uint64(i)}))
		}
		require.NoError(t, verbs.Connect(made, p.Attr(&p.A, 99)))
		return made.(*qp)
	}
}

// polled drives a device until a completion queue has been empty for some turns, and returns
// what came, by queue pair.
func polled(t *testing.T, cq verbs.CQ, drv verbs.Driver) map[uint32][]verbs.WC {
	t.Helper()
	all := map[uint32][]verbs.WC{}
	for empty := 0; empty < 4; {
		var wcs [8]verbs.WC
		n, _ := cq.Poll(wcs[:])
		if empty++; n > 0 {
			empty = 0
		}
		for _, wc := range wcs[:n] {
			all[wc.QPNum] = append(all[wc.QPNum], wc)
		}
		drv.Flush()
		drv.Progress(time.Now())
	}
	return all
}

// Queue pairs whose peer does not answer fail together. A bystander that shares their
// completion queue goes on, and each of them tells its error once, before what is flushed.
func TestFailTogether(t *testing.T) {
	const pairs, receives = 5, 16
	cq, drv, member := crowd(t, 8, receives)
	bystander := member()
	var others []*qp
	for range pairs {
		q := member()
		require.NoError(t, q.PostSend(&verbs.SendWR{WRID: 1000, Opcode: verbs.WRRDMAWrite}))
		others = append(others, q)
	}
	drv.Flush()
	for _, q := range others {
		q.failOldest(verbs.WCRetryExcErr)
	}
	drv.Flush()
	bystander.takeRecv()
	bystander.received(&verbs.WC{Opcode: verbs.WCRecvRDMAWithImm}) // a message comes after them
	require.Equal(t, verbs.QPSRTS, bystander.State())
	all := polled(t, cq, drv)
	require.Equal(t, verbs.QPSRTS, bystander.State())
	require.Len(t, all[bystander.num], 1)
	for _, q := range others {
		require.Len(t, all[q.num], receives+1)
		require.Equal(t, verbs.WCRetryExcErr, all[q.num][0].Status)
		require.EqualValues(t, 1000, all[q.num][0].WRID)
		for _, wc := range all[q.num][1:] {
			require.Equal(t, verbs.WCWRFlushErr, wc.Status)
		}
	}
}

// An overrun takes down the queue pairs of its completion queue, and what they had posted is
// flushed. Those that are made later are taken down by the next one.
func TestOverrunIsHeardOf(t *testing.T) {
	const receives = 16
	cq, drv, member := crowd(t, 8, receives)
	for range 2 {
		q := member()
		for q.state == verbs.QPSRTS { // nothing polls
			require.True(t, q.takeRecv())
			q.received(&verbs.WC{Opcode: verbs.WCRecvRDMAWithImm})
			drv.Flush()
		}
		require.Equal(t, verbs.QPSErr, q.State())
		require.Len(t, polled(t, cq, drv)[q.num], receives-1, "all but the one that was lost")
	}
}
