package socket

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A writer whose bytes wait in a small send ring sleeps until that ring has room, though the peer's ring had some since.
func TestWriteSleepsForTheSendRing(t *testing.T) {
	d := managedDuo(t)
	const ring = 64 << 10
	a, b := d.pair(ConnConfig{SendBuffer: 16 << 10, RecvBuffer: ring})
	soon(t, a, b)
	_, err := a.Write(make([]byte, ring)) // fills the peer's ring
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := a.Write(make([]byte, ring-1))
		done <- err
	}()
	require.Eventually(t, a.tx.waiting.Load, patience, time.Millisecond)
	_, err = b.Read(make([]byte, 9000))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return a.tx.ring.FreedTo() > 0 && a.tx.ring.Free() == 0 && a.tx.waiting.Load()
	}, patience, time.Millisecond, "the writer never sleeps")
	require.NoError(t, a.Close())
	require.ErrorIs(t, <-done, net.ErrClosed)
	require.NoError(t, b.Close())
}
