package legs

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRoom: a leg is as it began until it has carried much in a short time, and
// takes more from then on.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		in   time.Duration // 32 MiB are read
		wide bool
	}{
		{"burst", 100 * time.Millisecond, true},
		{"steady", 2 * wideWithin, true},
		{"slow", 5 * wideWithin, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer ln.Close()
			conn, err := net.Dial("tcp", ln.Addr().String())
			require.NoError(t, err)
			defer conn.Close()
			raw, err := conn.(*net.TCPConn).SyscallConn()
			require.NoError(t, err)
			require.NoError(t, raw.Control(func(fd uintptr) {
				held := func() int {
					n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
					require.NoError(t, err)
					return n
				}
				before := held()
				var r Room
				const piece, all = 64 << 10, 32 << 20
				now := time.Now()
				for n := 0; n < all; n += piece {
					r.Read(int(fd), piece, now)
					now = now.Add(c.in * piece / all)
				}
				if c.wide {
					require.Greater(t, held(), 3*before)
				} else {
					require.Equal(t, before, held())
				}
			}))
		})
	}
}
