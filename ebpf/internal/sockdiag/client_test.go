package sockdiag

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
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
		state, err := c.State(local, remote, 0)
		require.NoError(t, err)
		require.Equal(t, Established, state)
		require.NoError(t, far.(*net.TCPConn).CloseWrite())
		require.Eventually(t, func() bool {
			state, err := c.State(local, remote, 0)
			return err == nil && state == CloseWait
		}, 30*time.Second, time.Millisecond)
		require.NoError(t, near.Close())
		require.NoError(t, far.Close())
		require.NoError(t, ln.Close())
		require.Eventually(t, func() bool {
			state, err := c.State(local, remote, 0)
			return err == nil && (state == None || state == TimeWait)
		}, 30*time.Second, time.Millisecond)
	}
}

// A socket that is bound to a device is found by it, and by no other.
func TestStateByDevice(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = ln.Close() }()
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var bound error
		return errors.Join(raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), "lo") }), bound)
	}}
	near, err := d.Dial("tcp4", ln.Addr().String())
	require.NoError(t, err)
	defer func() { _ = near.Close() }()
	local, remote := addrs(near)
	for device, want := range map[uint32]State{0: None, uint32(lo.Index): Established, uint32(lo.Index) + 100000: None} {
		state, err := c.State(local, remote, device)
		require.NoError(t, err)
		require.Equal(t, want, state, "device %d", device)
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
	state, err := c.State(local, remote, 0)
	require.NoError(t, err)
	require.Equal(t, Listen, state)
	gone, err := c.Destroy(local, remote, 0, func(s State) bool { return s != Listen })
	require.NoError(t, err)
	require.False(t, gone)
	require.NoError(t, ln.Close())
	require.Eventually(t, func() bool {
		state, err := c.State(local, remote, 0)
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
