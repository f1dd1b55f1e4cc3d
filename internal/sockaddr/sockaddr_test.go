package sockaddr

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestThereAndBack(t *testing.T) {
	for text, family := range map[string]int{"127.0.0.1:7": unix.AF_INET, "[::1]:65535": unix.AF_INET6} {
		a := netip.MustParseAddrPort(text)
		require.Equal(t, family, Family(a.Addr()))
		require.Equal(t, a, AddrPort(Of(a)))
	}
	mapped := netip.MustParseAddrPort("[::ffff:10.0.0.1]:7")
	require.Equal(t, netip.MustParseAddrPort("10.0.0.1:7"), AddrPort(Of(mapped)))
	require.Zero(t, AddrPort(&unix.SockaddrUnix{}))
}

func TestSocket(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	to := l.Addr().(*net.TCPAddr).AddrPort()
	require.NoError(t, l.Close())
	fd, err := unix.Socket(Family(to.Addr()), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	require.NoError(t, unix.Bind(fd, Of(netip.AddrPortFrom(to.Addr(), 0))))
	own, err := Local(fd)
	require.NoError(t, err)
	require.Equal(t, to.Addr(), own.Addr())
	_ = unix.Connect(fd, Of(to))
	_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 10_000)
	require.ErrorIs(t, Err(fd), unix.ECONNREFUSED)
	require.NoError(t, Err(fd), "taken")
	_, err = Local(-1)
	require.ErrorIs(t, err, unix.EBADF)
}
