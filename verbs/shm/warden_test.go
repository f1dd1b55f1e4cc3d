package shm

import (
	"encoding/binary"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/verbs"
)

// plug makes a write to an eventfd block, as only its owner and the peer can.
func plug(t testing.TB, fd int) {
	t.Helper()
	require.NoError(t, unix.SetNonblock(fd, false))
	b := binary.NativeEndian.AppendUint64(nil, math.MaxUint64-1)
	_, err := unix.Write(fd, b)
	require.NoError(t, err)
}

// within runs fn, which must come back.
func within(t testing.TB, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		require.FailNow(t, what+" does not come back")
	}
}

// A peer that plugs its bell ends itself, and the loop that rang goes on, also while
// the garbage collector wants every thread to stop.
func TestPluggedBell(t *testing.T) {
	h := newHostilePair(t)
	plug(t, h.pb.bells[0])
	h.pb.own.word(h.pb.ownLayout.area(0) + areaArmed).Store(1)
	require.NoError(t, h.qb.PostRecv(&verbs.RecvWR{}))
	require.NoError(t, h.qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm}))
	var collector sync.WaitGroup
	defer collector.Wait()
	collector.Go(func() {
		for h.qa.vec.ringing.at.Load() == nil && h.pa.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		runtime.GC()
	})
	within(t, "the loop", h.da.Flush)
	require.ErrorIs(t, h.pa.Err(), ErrViolation)
	h.da.Progress(time.Now())
	require.Equal(t, verbs.QPSErr, h.qa.State())
}

// The same for the janitor, which serves all peers: the memory of the others is
// still recycled.
func TestPluggedBellOfAGrace(t *testing.T) {
	a, b, pa, pb := met(t)
	drive(t, a, 0)
	drive(t, b, 0)
	plug(t, pb.bells[0])
	pb.own.word(pb.ownLayout.area(0) + areaArmed).Store(1)
	mr, err := pa.PD().AllocMR(4096, verbs.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, mr.Close())
	eventually(t, patience, func() bool { return pa.Err() != nil }, "the peer is down")
	require.ErrorIs(t, pa.Err(), ErrViolation)
	done := make(chan struct{})
	a.janitor.post(func() { close(done) })
	within(t, "the janitor", func() { <-done })
}

// A bell that is only slow, or rung by many, is no violation.
func TestWardenLeavesOthersAlone(t *testing.T) {
	h := newHostilePair(t)
	for range 30 {
		require.NoError(t, h.qb.PostRecv(&verbs.RecvWR{}))
		h.pb.own.word(h.pb.ownLayout.area(0) + areaArmed).Store(1)
		require.NoError(t, h.qa.PostSend(&verbs.SendWR{Opcode: verbs.WRRDMAWriteWithImm}))
		h.turn()
		h.qa.vec.ringing.at.Store(&h.pa.targets[0]) // as if it took long
		time.Sleep(wardenTurn / 10)
	}
	time.Sleep(3 * wardenTurn)
	h.qa.vec.ringing.at.Store(nil)
	require.NoError(t, h.pa.Err())
}
