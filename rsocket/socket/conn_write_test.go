package socket

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket"
)

// A writer whose bytes wait in a small send ring sleeps until that ring has room, though the peer's ring had some since.
func TestWriteSleepsForTheSendRing(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
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

// Whenever the holder of the token looks, the end of a direction goes after the last bytes. The connection has no peer yet:
// what was written stays, and so must the end.
func TestEndStaysBehindTheBytes(t *testing.T) {
	d := shmDuo(t, 1, StackConfig{})
	c, err := d.a.newConn(ConnConfig{}, rsocket.Gateway)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.discard()) })
	tx := &c.tx
	tx.conn = c
	tx.bind(c.ep, 1<<10)
	tx.unfold()
	for round := range 1000 {
		go func() {
			_ = tx.ring.Produce(1)
			tx.sealed.Store(true)
		}()
		for !tx.sealed.Load() {
			c.pump()
		}
		c.pump()
		require.False(t, tx.ended, "the end is in front of a byte, round %d", round)
		tx.ring.Post(1)
		_, err := tx.ring.FreeTo(tx.ring.Posted)
		require.NoError(t, err)
		tx.sealed.Store(false)
	}
}
