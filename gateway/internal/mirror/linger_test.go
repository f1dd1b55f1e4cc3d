package mirror

import (
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

// TestLingers: what a program has written and closed reaches a slow peer that sends meanwhile.
func TestLingers(t *testing.T) {
	s, err := loop.New(0, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	s.Start()
	hub := NewHub(s)
	defer s.CloseFDs()
	defer s.Halt()
	defer hub.Stop()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	raw, err := client.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, client.SetWriteDeadline(time.Now().Add(200*time.Millisecond)))
	written := 0
	for err = nil; err == nil; { // until the kernel is full
		var n int
		n, err = client.Write(make([]byte, 1<<20))
		written += n
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, raw.Control(func(fd uintptr) {
		dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Shutdown(dup, unix.SHUT_WR))
		s.Post(func() { hub.linger(dup, new(aside)) })
	}))
	require.NoError(t, client.Close())
	_, err = server.Write([]byte("a frame"))
	require.NoError(t, err)
	got, err := io.Copy(io.Discard, server)
	require.NoError(t, err)
	require.EqualValues(t, written, got)
	require.Eventually(t, func() (none bool) {
		s.Call(func() { none = len(hub.lingering) == 0 })
		return none
	}, 10*time.Second, 10*time.Millisecond)
}

// TestLooksAtMany: however many sockets linger, the shard has time for others.
func TestLooksAtMany(t *testing.T) {
	require.Equal(t, lingerLook, pause(1))
	for n := range mostLingering {
		looks := float64(n) / pause(n).Seconds()
		require.Less(t, looks, 6500.0, "%d: a second, of 3 us each", n)
	}
	require.Less(t, pause(mostLingering), time.Second)
}
