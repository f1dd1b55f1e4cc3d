package interop

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
	"github.com/smcgw/smcgw/verbs"
	"github.com/smcgw/smcgw/verbs/soft"
)

// stack is our side of rsockets on the host, on one of its addresses.
type stack struct {
	t     *testing.T
	l     *lab
	path  path
	stack *socket.Stack
	cfg   socket.ConnConfig // for its connections
}

// stack opens one of our devices on our address of a path. At the end nothing may be left of any connection.
func (l *lab) stack(t *testing.T, p path) *stack {
	t.Helper()
	s := &stack{t: t, l: l, path: p}
	dev := l.device(t, p)
	var err error
	s.stack, err = socket.NewStack(dev, socket.StackConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.stack.Close()) })
	return s
}

// device opens one of our devices on our address of a path: the software device or, inside the guest, the kernel's rxe.
func (l *lab) device(t *testing.T, p path) verbs.Device {
	t.Helper()
	if l.inside != nil {
		return l.inside.device(t)
	}
	var dev *soft.Device
	require.NoError(t, l.host.Do(func() (err error) {
		dev, err = soft.Open(soft.Config{Addrs: []netip.Addr{p.our}, Within: l.host.Do})
		return err
	}))
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// dial connects to a program in the guest, which may not listen yet.
func (s *stack) dial(port uint16) *socket.Conn {
	s.t.Helper()
	d := socket.Dialer{Stack: s.stack, Config: s.cfg, Timeout: time.Minute}
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := d.Dial(s.t.Context(), netip.AddrPortFrom(s.path.peer, port))
		if errors.Is(err, syscall.ECONNREFUSED) && time.Now().Before(deadline) {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		require.NoError(s.t, err)
		return conn
	}
}

// listen listens for programs in the guest. The returned function accepts one connection.
func (s *stack) listen(port uint16) (accept func() *socket.Conn) {
	s.t.Helper()
	lc := socket.ListenConfig{Stack: s.stack, Config: s.cfg}
	ln, err := lc.Listen(s.t.Context(), netip.AddrPortFrom(s.path.our, port))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, ln.Close()) })
	return func() *socket.Conn {
		s.t.Helper()
		conn, err := ln.AcceptConn(patience(s.t, time.Minute))
		require.NoError(s.t, err)
		return conn
	}
}

// withProgram connects to a program that is told an address to bind to with -b, or accepts one that is told an
// address to connect to with -s.
func (s *stack) withProgram(port uint16, serves bool, args ...string) (*socket.Conn, *remote.Process) {
	s.t.Helper()
	if serves {
		program := s.l.start(s.t, append(args, "-b", s.path.peer.String())...)
		// It prints that when it listens, and a moment later gives the listener the options for its connections: as a
		// rule before we connect.
		require.NoError(s.t, program.WaitOutput(patience(s.t, time.Minute), "usec/xfer"))
		return s.dial(port), program
	}
	accept := s.listen(port)
	program := s.l.start(s.t, append(args, "-s", s.path.our.String())...)
	return accept(), program
}

// orderly requires that there were n connections and none was lost.
func (s *stack) orderly(n int) {
	s.t.Helper()
	st := s.stack.Stats()
	require.EqualValues(s.t, n, st.Dialed+st.Accepted, "%+v", st)
	require.Zero(s.t, st.Failed+st.Lingered+st.CQErrors, "%+v", st)
}

// packets returns a datagram socket on a port, or on any port if it is 0.
func (s *stack) packets(port uint16) *socket.PacketConn {
	s.t.Helper()
	lc := socket.PacketListenConfig{Stacks: []*socket.Stack{s.stack}}
	var conn *socket.PacketConn
	require.NoError(s.t, s.l.host.Do(func() (err error) {
		conn, err = lc.ListenPacket(context.Background(), netip.AddrPortFrom(s.path.our, port))
		return err
	}))
	s.t.Cleanup(func() { require.NoError(s.t, conn.Close()) })
	return conn
}
