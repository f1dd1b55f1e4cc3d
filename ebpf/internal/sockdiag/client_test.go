package sockdiag

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// addrs are the addresses of a connection.
func addrs(c net.Conn) (local, remote netip.AddrPort) {
	return c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
}

// A client finds a socket by its addresses, of either family, in the state it is in.
func TestState(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	for _, network := range []string{"tcp4", "tcp6"} {
		ln, err := net.Listen(network, map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network])
		if err != nil && network == "tcp6" {
			continue // a machine without IPv6
		}
		require.NoError(t, err)
		near, err := net.Dial(network, ln.Addr().String())
		require.NoError(t, err)
		far, err := ln.Accept()
		require.NoError(t, err)
		local, remote := addrs(near)
		state, err := c.State(local, remote)
		require.NoError(t, err)
		require.Equal(t, Established, state)
		require.True(t, state.In(Connected))
		require.False(t, state.In(Lingering))
		require.NoError(t, far.(*net.TCPConn).CloseWrite())
		require.Eventually(t, func() bool {
			state, err := c.State(local, remote)
			return err == nil && state == CloseWait
		}, 30*time.Second, time.Millisecond)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, ln.Close())
		require.Eventually(t, func() bool {
			state, err := c.State(local, remote)
			return err == nil && !state.In(Connected)
		}, 30*time.Second, time.Millisecond)
	}
}

// A lookup of what is not there finds the listener, which is not meant, and without one
// nothing.
func TestListenerIsNotMeant(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	local := ln.Addr().(*net.TCPAddr).AddrPort()
	remote := netip.MustParseAddrPort("127.0.0.9:9")
	state, err := c.State(local, remote)
	require.NoError(t, err)
	require.Equal(t, Listen, state)
	gone, err := c.Destroy(local, remote, func(s State) bool { return s != Listen })
	require.NoError(t, err)
	require.False(t, gone)
	require.NoError(t, ln.Close())
	require.Eventually(t, func() bool {
		state, err := c.State(local, remote)
		return err == nil && state == None
	}, 30*time.Second, time.Millisecond)
}

// Count finds at least the listener of the test.
func TestCount(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	n, err := c.Count(1 << Listen)
	require.NoError(t, err)
	require.Positive(t, n)
}
