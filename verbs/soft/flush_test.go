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
