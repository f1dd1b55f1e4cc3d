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

// TestLingers: what a program has written reaches a slow peer that sends meanwhile, whether it closed its socket or was
// killed; not if it wanted a reset.
func TestLingers(t *testing.T) {
	for _, tc := range []struct {
		name           string
		closes, resets bool
	}{{"closes", true, false}, {"is killed", false, false}, {"is killed and resets", false, true}} {
		t.Run(tc.name, func(t *testing.T) {
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
			sent := make(chan bool, 1)
			require.NoError(t, raw.Control(func(fd uintptr) {
				dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
				require.NoError(t, err)
				if tc.resets {
					require.NoError(t, unix.SetsockoptLinger(dup, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
				}
				if tc.closes {
					require.NoError(t, unix.Shutdown(dup, unix.SHUT_WR))
					s.Post(func() { hub.linger(dup, new(aside), nil) })
				} else {
					s.Post(func() { hub.linger(dup, new(aside), func(all bool) { sent <- all }) })
				}
			}))
			if tc.resets {
				require.False(t, <-sent)
			}
			require.NoError(t, client.Close())
			if !tc.resets {
				_, err = server.Write([]byte("a frame"))
				require.NoError(t, err)
			}
			got, err := io.Copy(io.Discard, server)
			if tc.resets {
				require.ErrorIs(t, err, unix.ECONNRESET)
			} else {
				require.NoError(t, err)
				require.EqualValues(t, written, got)
				require.True(t, tc.closes || <-sent)
			}
			require.Eventually(t, func() (none bool) {
				s.Call(func() { none = len(hub.lingering) == 0 })
				return none
			}, 10*time.Second, 10*time.Millisecond)
		})
	}
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
