package netstack

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/netstack/internal/segment"

	"github.com/smcgw/smcgw/packet"
)

// behindGap sends n segments of one byte to s that it has to keep. The first has it grow.
func behindGap(t *testing.T, w *world, s *Conn, n int) {
	t.Helper()
	tup, seq, ack := s.Tuple(), s.f.awaited.Load()+1, s.f.sent.Load()
	opts := packet.AppendTimestamps(nil, s.f.serve.proof.Ask.TSVal+1000, 0)
	for i := range n {
		w.wire.A().Send(segmentOf(tup.Remote, tup.Local, seq+uint32(i%3)*2, ack, packet.FlagACK, opts, []byte("x")))
		if i == 0 {
			within(t, "it has an endpoint", func() bool { return s.f.state() == legWhole })
		}
	}
}

// The receive buffer of a leg is small until it relays.
func TestLegBuffer(t *testing.T) {
	w := newWorld(t, worldOptions{})
	_, s := w.minis()
	behindGap(t, w, s, 1)
	o := s.whole.ep.SocketOptions()
	require.EqualValues(t, legBuffer, o.GetReceiveBufferSize())
	s.QuickACK()
	require.EqualValues(t, defaultBuffer, o.GetReceiveBufferSize())
}

// One leg pins no more than its part of the memory for what is out of order, and leaves nothing of it behind.
func TestOutOfOrderIsBounded(t *testing.T) {
	w := newWorld(t, worldOptions{})
	_, s := w.minis()
	behindGap(t, w, s, 1000)
	within(t, "some are dropped", func() bool { return w.srv.Stats().ReorderDropped > 0 })
	used := w.srv.reorder.Used()
	require.Positive(t, used)
	require.LessOrEqual(t, used, int64(segment.HeldLeg))
	s.Abort()
	require.Zero(t, w.srv.reorder.Used())
}

// Without memory for what is out of order, what is lost arrives all the same.
func TestTransferWithoutReordering(t *testing.T) {
	w := newWorld(t, worldOptions{seed: 4})
	c, s := w.minis()
	c.grown(t)
	s.grown(t)
	var full [5]segment.Ahead
	for i := range full {
		full[i].Take(&w.srv.reorder, segment.Arrived{Seq: 2, End: 3, Cost: segment.HeldTotal / 4}, 1, true)
	}
	w.wire.A().Impair(wire.Impairment{Loss: 0.01})
	transfer(t, c, s, 1<<20)
	require.NotZero(t, w.srv.Stats().ReorderDropped)
	for i := range full {
		full[i].End(&w.srv.reorder)
	}
	within(t, "nothing is counted", func() bool { return w.srv.reorder.Used() == 0 })
}
