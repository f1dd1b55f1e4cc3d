package rsocket

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/verbs"
)

// TestLeave: after it nothing that completes counts, what the peer may write to is quarantined, and the bytes it has not
// consumed are still there, wherever they lie.
func TestLeave(t *testing.T) {
	for _, copies := range []bool{false, true} {
		a, b, w := gatewayEndpoints(t, copies, copies)
		for range 5 { // beyond the end of the ring
			a.write(defaultRing / 3)
			settleOwners(a, b)
		}
		require.Equal(t, 1000, a.write(1000))
		for a.qp.transfer() {
		}
		for b.poll() {
		}
		unread := b.ReceivedOffset() - b.ConsumedOffset()
		require.EqualValues(t, 1000, unread)
		a.qp.down()
		a.Leave()
		a.Leave()
		require.Zero(t, a.HandleWC(&verbs.WC{WRID: RecvID, Status: verbs.WCWRFlushErr}))
		require.Empty(t, a.WriteSpan())
		checkTail(t, a)
		require.NotZero(t, w.pool.Stats().Quarantined)
		before := w.pool.Stats().Used
		require.NoError(t, a.ReleaseRings())
		require.NoError(t, a.ReleaseRings())
		require.Zero(t, w.pool.Stats().Quarantined)
		require.Less(t, w.pool.Stats().Used, before)
		checkTail(t, a)
		if copies { // the memory may go although the bytes are needed
			a.DetachSent()
			clear(a.send.Bytes())
		}
		checkTail(t, a)
		require.NoError(t, a.ReleaseSent())
		w.close(t, a, b)
	}
}
