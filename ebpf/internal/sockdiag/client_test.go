package sockdiag

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
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

// leaveUnread sends a request whose answers are left in the socket, but for so many.
func leaveUnread(t *testing.T, c *Client, req request, read int) {
	t.Helper()
	require.NoError(t, unix.Sendto(c.fd, req[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	for range read {
		_, _, err := unix.Recvfrom(c.fd, make([]byte, 4096), 0)
		require.NoError(t, err)
	}
}

// listeners makes so many, and returns their addresses.
func listeners(t *testing.T, n int) (all []netip.AddrPort) {
	t.Helper()
	for range n {
		ln, err := net.Listen("tcp4", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ln.Close()) })
		all = append(all, ln.Addr().(*net.TCPAddr).AddrPort())
	}
	return all
}

// A dump that ended in the middle changes nothing for the next one.
func TestCountBehindADumpThatFailed(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	const several = 200 // more than fit into a datagram
	listeners(t, several)
	leaveUnread(t, c, newRequest(kindByFamily, unix.NLM_F_DUMP, unix.AF_INET, 1<<Listen), 1)
	n, err := c.Count(1 << Listen)
	require.NoError(t, err)
	require.GreaterOrEqual(t, n, several)
}

// The answer to another request is not taken for that of the own one.
func TestStateBehindARequestThatFailed(t *testing.T) {
	c, err := Open()
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	at, from := listeners(t, 1)[0], netip.MustParseAddrPort("127.0.0.9:9")
	leaveUnread(t, c, socketRequest(kindByFamily, at, from, 0, anyCookie), 0)
	state, err := c.State(netip.MustParseAddrPort("127.0.0.9:1"), from, 0)
	require.NoError(t, err)
	require.Equal(t, None, state)
}

// message is one of a dump.
func message(kind uint16, seq uint32, data ...byte) []byte {
	b := make([]byte, headerLen, headerLen+len(data))
	binary.NativeEndian.PutUint32(b, uint32(headerLen+len(data)))
	binary.NativeEndian.PutUint16(b[headerKind:], kind)
	binary.NativeEndian.PutUint32(b[headerSeq:], seq)
	return append(b, data...)
}

// code is how an answer tells an error.
func code(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }

// A dump ends with an error where the kernel says so, also in the message that ends it.
func TestCountSockets(t *testing.T) {
	join := func(msgs ...[]byte) (b []byte) {
		for _, m := range msgs {
			b = append(b, m...)
		}
		return b
	}
	socket := message(kindByFamily, 7)
	for name, test := range map[string]struct {
		b    []byte
		n    int
		more bool
		err  error
	}{
		"sockets":            {join(socket, socket), 2, true, nil},
		"end":                {join(socket, message(unix.NLMSG_DONE, 7, code(0)...)), 1, false, nil},
		"error":              {message(unix.NLMSG_ERROR, 7, code(unix.EBUSY)...), 0, false, unix.EBUSY},
		"error at the end":   {join(socket, message(unix.NLMSG_DONE, 7, code(unix.ENOMEM)...)), 1, false, unix.ENOMEM},
		"another dump":       {message(kindByFamily, 6), 0, true, nil},
		"end of another":     {message(unix.NLMSG_DONE, 6, code(0)...), 0, true, nil},
		"error of another":   {message(unix.NLMSG_ERROR, 6, code(unix.EBUSY)...), 0, true, nil},
		"nothing in no dump": {nil, 0, true, nil},
	} {
		n, more, err := countSockets(test.b, 7)
		require.ErrorIs(t, err, test.err, name)
		require.Equal(t, test.n, n, name)
		require.Equal(t, test.more, more, name)
	}
	for cut := headerLen; cut < headerLen+4; cut++ {
		_, _, err := countSockets(message(unix.NLMSG_DONE, 7, code(0)...)[:cut], 7)
		require.Error(t, err, cut)
	}
	_, _, err := countSockets(message(unix.NLMSG_DONE, 7), 7)
	require.Error(t, err, "an end without a word about errors")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
