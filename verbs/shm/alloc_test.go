package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/verbstest"
)

func TestNoAllocations(t *testing.T) { verbstest.Allocations(t, openPair) }

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
