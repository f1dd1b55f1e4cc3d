package netstack

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/nettest"
)

// hosts are two plain hosts on a wire.
func hosts(t *testing.T, transparent bool) (c, s *Host, w *link.Wire) {
	t.Helper()
	w = link.NewWire(testMTU, 1)
	c, err := NewHost(HostConfig{Link: w.A(), Addrs: []netip.Addr{client4, client6}, Transparent: transparent})
	require.NoError(t, err)
	s, err = NewHost(HostConfig{Link: w.B(), Addrs: []netip.Addr{server4, server6}, Transparent: transparent})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		w.Close()
	})
	return c, s, w
}

func pair(t *testing.T, c, s *Host, v6 bool) (a, b *HostConn) {
	t.Helper()
	l, err := s.Listen(serverAddr(v6))
	require.NoError(t, err)
	defer l.Close()
	a, err = c.Dial(t.Context(), netip.AddrPort{}, serverAddr(v6))
	require.NoError(t, err)
	b, err = l.AcceptHost()
	require.NoError(t, err)
	return a, b
}

func TestHostConnIsNetConn(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		c, s, _ := hosts(t, false)
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			a, b := pair(t, c, s, v6)
			return a, b, func() { a.Close(); b.Close() }, nil
		})
	}
}

func TestHostErrors(t *testing.T) {
	c, s, w := hosts(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := c.Dial(ctx, netip.AddrPort{}, serverAddr(false))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	a, b := pair(t, c, s, false)
	require.Equal(t, a.LocalAddr().String(), b.RemoteAddr().String())
	a.Abort()
	_, err = b.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, a.Close(), net.ErrClosed)
	require.NoError(t, b.Close())

	a, b = pair(t, c, s, true)
	require.NoError(t, a.CloseWrite())
	_, err = b.Read(make([]byte, 1))
	require.Equal(t, io.EOF, err)
	_, err = b.Write([]byte("still here"))
	require.NoError(t, err)
	got, err := io.ReadFull(a, make([]byte, 10))
	require.NoError(t, err)
	require.Equal(t, 10, got)
	require.NoError(t, a.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	var ne net.Error
	require.True(t, errors.As(err, &ne) && ne.Timeout())
	a.Close()
	b.Close()

	w.A().Impair(link.Impairment{Loss: 1})
	short, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err = c.Dial(short, netip.AddrPort{}, serverAddr(false))
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// A transparent host dials from and accepts for addresses that are not its own.
func TestTransparentHost(t *testing.T) {
	c, s, _ := hosts(t, true)
	l, err := s.ListenAll()
	require.NoError(t, err)
	_, err = s.ListenAll()
	require.Error(t, err)
	for _, foreign := range []struct{ from, to string }{
		{"198.51.100.7:1234", "203.0.113.9:80"},
		{"[2001:db8::7]:1234", "[2001:db8::9]:443"},
	} {
		from, to := netip.MustParseAddrPort(foreign.from), netip.MustParseAddrPort(foreign.to)
		a, err := c.Dial(t.Context(), from, to)
		require.NoError(t, err)
		b, err := l.AcceptHost()
		require.NoError(t, err)
		require.Equal(t, foreign.from, b.RemoteAddr().String())
		require.Equal(t, foreign.to, b.LocalAddr().String())
		_, err = a.Write([]byte("hi"))
		require.NoError(t, err)
		_, err = io.ReadFull(b, make([]byte, 2))
		require.NoError(t, err)
		a.Close()
		b.Close()
	}
	require.NoError(t, l.Close())
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = c.Dial(t.Context(), netip.MustParseAddrPort("198.51.100.7:1235"), netip.MustParseAddrPort("203.0.113.9:80"))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestHostLossAndRetransmission(t *testing.T) {
	c, s, w := hosts(t, false)
	a, b := pair(t, c, s, false)
	w.A().Impair(link.Impairment{Loss: 0.05})
	go func() {
		_, _ = a.Write(make([]byte, 500000))
		_ = a.CloseWrite()
	}()
	n, err := io.Copy(io.Discard, b)
	require.NoError(t, err)
	require.EqualValues(t, 500000, n)
	again, bad := c.Stats()
	require.NotZero(t, again)
	require.Zero(t, bad)
	a.Close()
	b.Close()
}
