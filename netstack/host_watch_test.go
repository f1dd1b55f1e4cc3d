package netstack

import (
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestResetToldOnce: whichever call hears of a reset first, a reader never takes
// it for the end of the stream.
func TestResetToldOnce(t *testing.T) {
	c, s, _ := hosts(t, false)
	l, err := s.Listen(netip.AddrPortFrom(server4, 80))
	require.NoError(t, err)
	a, err := c.Dial(t.Context(), netip.AddrPort{}, netip.AddrPortFrom(server4, 80))
	require.NoError(t, err)
	defer a.Close()
	b, err := l.AcceptHost()
	require.NoError(t, err)
	b.Abort()
	require.Eventually(t, a.Over, 30*time.Second, time.Millisecond)
	_, err = a.Write([]byte{1})
	require.ErrorIs(t, err, syscall.ECONNRESET)
	for range 2 {
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

// TestHostWatch: what a host says about the sockets on a tuple.
func TestHostWatch(t *testing.T) {
	c, s, _ := hosts(t, false)
	at, stranger := netip.AddrPortFrom(server4, 80), netip.AddrPortFrom(client4, 1)
	require.False(t, s.Listening(at, stranger))
	l, err := s.Listen(at)
	require.NoError(t, err)
	require.True(t, s.Listening(at, stranger))
	a, err := c.Dial(t.Context(), netip.AddrPort{}, at)
	require.NoError(t, err)
	b, err := l.AcceptHost()
	require.NoError(t, err)
	defer b.Close()
	from := a.local
	require.False(t, s.Listening(at, from), "the connection comes first")
	require.False(t, a.Over() || b.Over())
	require.False(t, s.Destroy(at, stranger), "not the listener")
	require.NoError(t, a.CloseWrite())
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.True(t, s.Destroy(at, from))
	require.Eventually(t, func() bool { return a.Over() && b.Over() }, 30*time.Second, time.Millisecond)
	require.True(t, s.Listening(at, from))
	require.NoError(t, a.Close())
}
