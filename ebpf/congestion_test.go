package ebpf

import (
	"context"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// congestionOf returns the congestion control of a TCP connection.
func congestionOf(c net.Conn) (name string, err error) {
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return "", err
	}
	if cerr := rc.Control(func(fd uintptr) {
		name, err = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	}); cerr != nil {
		return "", cerr
	}
	return name, err
}

// chosen is what the programs of this test choose, whatever the host's default is.
const chosen = "cubic"

func chooseCongestion(_, _ string, rc syscall.RawConn) (err error) {
	if cerr := rc.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, chosen)
	}); cerr != nil {
		return cerr
	}
	return err
}

// connectChoosing is connect of a program that chooses its congestion control.
func (h *host) connectChoosing(addr string) (c net.Conn, err error) {
	d := net.Dialer{Timeout: patience, Control: chooseCongestion}
	d.SetMultipathTCP(false)
	h.do(func() { c, err = d.Dial("tcp", addr) })
	return c, err
}

// tellCongestion serves the name of its own congestion control to every client.
func (h *host) tellCongestion(port string) {
	h.t.Helper()
	var ln net.Listener
	var err error
	lc := net.ListenConfig{Control: chooseCongestion}
	lc.SetMultipathTCP(false)
	h.do(func() { ln, err = lc.Listen(context.Background(), "tcp", ":"+port) })
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			name, err := congestionOf(c)
			if err != nil {
				name = err.Error()
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
}

// What applications of a carried connection send goes to the gateway beside them: their
// congestion control does not look for the capacity of a network. Other
// connections keep theirs.
func TestLocalLegsArePlain(t *testing.T) {
	t.Parallel()
	requireRoot(t)
	for _, v := range []struct{ name, network, addr string }{
		{"v4", "tcp4", "10.77.0.2"}, {"v6", "tcp6", "fd77::2"},
	} {
		t.Run(v.name, func(t *testing.T) {
			h1, h2 := newPair(t)
			h2.tellCongestion("6379")
			h2.tellCongestion("6380")
			d1, d2 := h1.open(config(accelerate(6379))), h2.open(config(accelerate(6379)))
			ln := h1.listen(d1, v.network)

			target := net.JoinHostPort(v.addr, "6379")
			app := make(chan asyncConn, 1)
			go func() {
				c, err := h1.connectChoosing(target)
				app <- asyncConn{c, err}
			}()
			f1, _, back := met(t, d1, d2)
			require.NoError(t, d2.Transition(back, f1.ISN, StateServing, StateWire))
			dial := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(f1.Tuple.Local), Control: gatewaySocket(v.network)}
			dial.SetMultipathTCP(false)
			var leg2 net.Conn
			var err error
			legsOf(t, d2).do(func() { leg2, err = dial.Dial(v.network, target) })
			require.NoError(t, err)
			require.Equal(t, "reno", told(t, leg2), "the server")

			require.NoError(t, d1.Transition(f1.Tuple, f1.ISN, StateCompleting, StateNegotiating))
			require.NoError(t, d1.InjectApp(f1.SYN))
			require.NoError(t, ln.SetDeadline(time.Now().Add(patience)))
			leg1, err := ln.AcceptTCP()
			require.NoError(t, err)
			defer func() { _ = leg1.Close() }()
			a := <-app
			require.NoError(t, a.err)
			defer func() { _ = a.c.Close() }()
			name, err := congestionOf(a.c)
			require.NoError(t, err)
			require.Equal(t, "reno", name, "the client")

			native, err := h1.connectChoosing(net.JoinHostPort(v.addr, "6380"))
			require.NoError(t, err)
			name, err = congestionOf(native)
			require.NoError(t, err)
			require.Equal(t, chosen, name)
			require.Equal(t, chosen, told(t, native))
		})
	}
}

// told returns all that a connection says, and closes it.
func told(t *testing.T, c net.Conn) string {
	t.Helper()
	defer func() { _ = c.Close() }()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(b)
}
