package legs

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRoom: a leg is as it began until it has carried much at a good pace, and takes more
// from then on.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		in    time.Duration // 32 MiB are read
		every int           // a pause of 3 s after each so many bytes
		wide  bool
	}{
		{"burst", 100 * time.Millisecond, 0, true},
		{"steady", 6 * time.Second, 0, true},
		{"slow", 10 * time.Second, 0, false},
		{"bursts", 100 * time.Millisecond, 8 << 20, false},
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
					if c.every > 0 && (n+piece)%c.every == 0 {
						now = now.Add(3 * time.Second)
					}
				}
				if c.wide {
					require.Equal(t, max(before, 2*min(wideRoom, mostRoom())), held())
				} else {
					require.Equal(t, before, held())
				}
			}))
		})
	}
}
