package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/testnet"
)

// Ports of the sockets of the tests themselves, beside those of the test servers.
const (
	ownPort  = 7100
	ownPorts = 100
)

// ownSettings returns settings whose policy has the ports of the tests' own sockets.
func ownSettings() settings {
	s := settings{}.withDefaults("") // the carrier is that of the world
	var b strings.Builder
	b.WriteString(s.Ports)
	for p := range ownPorts {
		fmt.Fprintf(&b, ", %d", ownPort+p)
	}
	s.Ports = b.String()
	return s
}

// quickSettings returns ownSettings with the default handshake timeout.
func quickSettings() settings {
	s := ownSettings()
	s.Handshake = quick
	return s
}

// pair is a connection between two hosts, both ends of which the test holds. It records what each end sees.
type pair struct {
	c, s *net.TCPConn
	mu   sync.Mutex
	saw  []string
}

// note records what happened.
func (p *pair) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.saw = append(p.saw, fmt.Sprintf(format, args...))
}

func (p *pair) close() {
	_ = p.c.Close()
	_ = p.s.Close()
}

// event describes the connection as apps do.
func (p *pair) event() apps.Event { return connEvent(p.c) }

func connEvent(c net.Conn) apps.Event {
	return apps.Event{Local: plain(c.LocalAddr()), Remote: plain(c.RemoteAddr())}
}

func plain(a net.Addr) string {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port()).String()
}

// socketPatience bounds every read and write of the tests' own sockets.
const socketPatience = time.Minute

// errDial marks an error of connect(2) or accept(2) for callers that count errors.
var errDial = errors.New("dial")

// newPair connects from client to a new listener on server.
func newPair(client, server *testnet.Host, addr netip.AddrPort) (*pair, error) {
	network := "tcp4"
	if addr.Addr().Is6() {
		network = "tcp6"
	}
	ln, err := server.Listen(network, addr.String())
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	return dialPair(client, ln, addr)
}

// pairInTime is newPair from h1. A connection with the other host with a gateway is made again if it finds a gateway late.
func (w *world) pairInTime(t *testing.T, server *testnet.Host, addr netip.AddrPort) *pair {
	t.Helper()
	return w.dialInTime(server, func() *pair {
		p, err := newPair(w.h1, server, addr)
		require.NoError(t, err)
		return p
	})
}

// dialInTime is pairInTime for a connection that is made in a given way.
func (w *world) dialInTime(server *testnet.Host, dial func() *pair) (p *pair) {
	w.t.Helper()
	w.inTime(func() bool {
		if p != nil {
			p.close()
		}
		p = dial()
		return server != w.h2 || !w.foundLate(p.event())
	})
	return p
}

// dialPair connects to a listener that has no other client, from a given local address if there is one.
func dialPair(client *testnet.Host, ln net.Listener, addr netip.AddrPort, local ...netip.AddrPort) (*pair, error) {
	ctx, cancel := context.WithTimeout(context.Background(), socketPatience)
	defer cancel()
	d := net.Dialer{Control: reuseAddr}
	if len(local) > 0 {
		d.LocalAddr = net.TCPAddrFromAddrPort(local[0])
	}
	var c net.Conn
	err := client.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp", addr.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDial, err)
	}
	_ = ln.(*net.TCPListener).SetDeadline(time.Now().Add(socketPatience))
	s, err := acceptLiving(ln)
	if err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("%w: accept: %w", errDial, err)
	}
	p := &pair{c: c.(*net.TCPConn), s: s}
	_ = p.c.SetDeadline(time.Now().Add(socketPatience))
	_ = p.s.SetDeadline(time.Now().Add(socketPatience))
	return p, nil
}

// acceptLiving accepts a connection that has not ended. A gateway whose handshake has timed out may have dialed
// before, and its reset connection precedes the client's.
func acceptLiving(ln net.Listener) (*net.TCPConn, error) {
	for {
		s, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		if conn := s.(*net.TCPConn); tcpInfo(conn).State != tcpClose {
			return conn, nil
		}
		_ = s.Close()
	}
}

// tcpInfo returns what the kernel reports of a connection; a socket that is closed here counts as TCP_CLOSE.
func tcpInfo(conn syscall.Conn) (info unix.TCPInfo) {
	info.State = tcpClose
	rc, err := conn.SyscallConn()
	if err != nil {
		return info
	}
	_ = rc.Control(func(fd uintptr) {
		if now, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			info = *now
		}
	})
	return info
}

// reuseAddr allows a tuple to be used again.
func reuseAddr(_, _ string, c syscall.RawConn) error {
	var err error
	ctlErr := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(ctlErr, err)
}

// errno names the result of a read or write: EOF, the system's error, or ok.
func errno(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, io.EOF):
		return "EOF"
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return unix.ErrnoName(e)
	}
	return err.Error()
}

// pattern fills b with bytes that depend on their position, the first of which is off.
func pattern(b []byte, off int) {
	for i := range b {
		n := off + i
		b[i] = byte(n ^ n>>8 ^ n>>16)
	}
}

// send writes n bytes of the pattern.
func send(c *net.TCPConn, n int) error {
	buf := make([]byte, 64<<10)
	for off := 0; off < n; {
		b := buf[:min(len(buf), n-off)]
		pattern(b, off)
		m, err := c.Write(b)
		off += m
		if err != nil {
			return err
		}
	}
	return nil
}

// receive reads to the end and returns how many bytes of the pattern came and how it ended.
func receive(c *net.TCPConn) string {
	buf, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for off := 0; ; {
		n, err := c.Read(buf)
		pattern(want[:n], off)
		if string(buf[:n]) != string(want[:n]) {
			return fmt.Sprintf("wrong bytes after %d", off)
		}
		off += n
		if err != nil {
			return fmt.Sprintf("%d bytes, %s", off, errno(err))
		}
	}
}

// readN reads the first n bytes of the pattern.
func readN(c *net.TCPConn, n int) string {
	buf, want := make([]byte, n), make([]byte, n)
	k, err := io.ReadFull(c, buf)
	pattern(want[:k], 0)
	if string(buf[:k]) != string(want[:k]) {
		return "wrong bytes"
	}
	return fmt.Sprintf("%d bytes, %s", k, errno(err))
}

// awaitUnread waits until a socket has this many unread bytes.
func awaitUnread(c *net.TCPConn, want int) {
	rc, err := c.SyscallConn()
	if err != nil {
		return
	}
	have := 0
	for end := time.Now().Add(socketPatience); have < want && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		_ = rc.Control(func(fd uintptr) { have, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
	}
}

// both runs two functions at the same time.
func both(a, b func()) {
	var all sync.WaitGroup
	all.Go(a)
	all.Go(b)
	all.Wait()
}

// quiet waits until the gateways have no flow left, and no memory of one.
func (w *world) quiet(t *testing.T) {
	t.Helper()
	for _, g := range w.gateways {
		require.Eventually(t, func() bool {
			s := g.status()
			return s.Flows[w.via]+s.Flows[report.CarrierRelay] == 0 && s.Memory.UsedBytes == 0
		}, 30*time.Second, 100*time.Millisecond, "%s: not quiet", g.h.Name)
	}
}
