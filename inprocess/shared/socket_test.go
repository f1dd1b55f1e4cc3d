package shared_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/inprocess/shared"
)

// TestCloseSocket: a program's SO_LINGER holds up nobody, however many such sockets there are, and what is left to send arrives.
func TestCloseSocket(t *testing.T) {
	const sockets, unread = 100, 1 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	var peers []net.Conn
	closed := make(chan struct{})
	fds := make([]int, sockets)
	var wrote [sockets]int
	for i := range fds {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		p, err := l.Accept()
		require.NoError(t, err)
		peers = append(peers, p)
		f, err := c.(*net.TCPConn).File()
		require.NoError(t, err)
		require.NoError(t, c.Close())
		fds[i], err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.NoError(t, unix.SetNonblock(fds[i], true))
		for wrote[i] < 16*unread {
			n, err := unix.Write(fds[i], make([]byte, unread))
			if err != nil {
				break
			}
			wrote[i] += n
		}
		require.NoError(t, unix.SetsockoptLinger(fds[i], unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	}
	go func() {
		defer close(closed)
		for i := range fds {
			shared.CloseSocket(&fds[i])
		}
	}()
	select {
	case <-closed:
	case <-time.After(30 * time.Second):
		t.Fatal("it waits")
	}
	for i, p := range peers {
		require.Equal(t, -1, fds[i])
		n := 0
		for b := make([]byte, unread); ; {
			k, err := p.Read(b)
			n += k
			if err != nil {
				break
			}
		}
		require.Equal(t, wrote[i], n)
		require.NoError(t, p.Close())
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
