package conn

import (
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/process"
)

// TestLegEndsAsPlanned: reset until it is clean, and once.
func TestLegEndsAsPlanned(t *testing.T) {
	for _, clean := range []bool{false, true} {
		app, fd := legPair(t)
		leg := newAppLeg(fd, host.Tuple{})
		fd, err := leg.take()
		require.NoError(t, err)
		require.GreaterOrEqual(t, fd, process.LegFloor)
		_, err = unix.Write(fd, []byte("x"))
		require.NoError(t, err)
		if clean {
			leg.clean()
			leg.reset()
		} else {
			leg.reset()
			leg.clean()
		}
		b, err := io.ReadAll(app)
		if clean {
			require.NoError(t, err)
			require.Equal(t, "x", string(b))
		} else {
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
		_, err = leg.take()
		require.ErrorIs(t, err, errLegClosed)
		_ = app.Close()
	}
}

// TestResetComesLast: the application gets what was written to its leg before the reset, even
// what the kernel has held back.
func TestResetComesLast(t *testing.T) {
	app, fd := legPair(t)
	defer app.Close()
	leg := newAppLeg(fd, host.Tuple{})
	require.NoError(t, unix.SetsockoptInt(leg.fd, unix.SOL_TCP, unix.TCP_CORK, 1))
	_, err := unix.Write(leg.fd, []byte("last"))
	require.NoError(t, err)
	leg.reset()
	b, err := io.ReadAll(app)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "last", string(b))
}

// TestEndAheadOfAReset: an application that ends its direction and then resets is seen to do both,
// whatever a write has found before.
func TestEndAheadOfAReset(t *testing.T) {
	for _, ends := range []bool{true, false} {
		for _, spent := range []bool{true, false} {
			app, fd := legPair(t)
			leg, edges := newAppLeg(fd, host.Tuple{}), legEdges{readable: true, writable: true}
			_, err := app.Write([]byte("last"))
			require.NoError(t, err)
			if ends {
				require.NoError(t, app.CloseWrite())
			}
			require.NoError(t, app.SetLinger(0))
			require.NoError(t, app.Close())
			require.Eventually(t, func() bool { return legDelivered(leg.fd) }, patience, time.Millisecond)
			if spent {
				require.Zero(t, edges.write(leg.fd, []byte("x")))
			}
			edges.take(unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR)
			b := make([]byte, 10)
			n, got := edges.read(leg.fd, b, time.Now())
			require.Equal(t, legBytes, got)
			require.Equal(t, "last", string(b[:n]))
			_, got = edges.read(leg.fd, b, time.Now())
			require.Equal(t, map[bool]legRead{true: legEnd, false: legReset}[ends], got, "error spent: %t", spent)
			require.True(t, edges.failed)
			leg.reset()
		}
	}
}

// TestResetWhoseErrorIsSpent: the end that reads find after a write that has taken
// the error is none.
func TestResetWhoseErrorIsSpent(t *testing.T) {
	fresh := legEdges{readable: true, writable: true}
	b := make([]byte, 10)
	app, fd := legPair(t)
	leg, edges := newAppLeg(fd, host.Tuple{}), fresh
	require.NoError(t, app.SetLinger(0))
	require.NoError(t, app.Close())
	require.Eventually(t, func() bool { return edges.write(leg.fd, []byte("x")) == 0 && edges.failed }, patience, time.Millisecond)
	require.True(t, edges.readable, "what came before the reset is still read")
	_, got := edges.read(leg.fd, b, time.Now())
	require.Equal(t, legReset, got)
	leg.reset()

	app, fd = legPair(t)
	leg, edges = newAppLeg(fd, host.Tuple{}), fresh
	_, err := app.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, app.CloseWrite())
	require.Eventually(t, func() bool {
		n, got := edges.read(leg.fd, b, time.Now())
		return got == legBytes && string(b[:n]) == "last"
	}, patience, time.Millisecond)
	edges.take(unix.EPOLLIN | unix.EPOLLRDHUP)
	_, got = edges.read(leg.fd, b, time.Now())
	require.Equal(t, legEnd, got, "half closed")
	require.False(t, legDelivered(leg.fd))
	require.NoError(t, unix.Shutdown(leg.fd, unix.SHUT_WR))
	_, _ = io.ReadAll(app)
	require.NoError(t, app.Close())
	require.Eventually(t, func() bool { return legDelivered(leg.fd) }, patience, time.Millisecond)
	edges.take(unix.EPOLLIN | unix.EPOLLHUP)
	_, got = edges.read(leg.fd, b, time.Now())
	require.Equal(t, legEnd, got, "closed in order")
	require.False(t, edges.failed)
	leg.clean()
}
