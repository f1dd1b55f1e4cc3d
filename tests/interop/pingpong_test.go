package interop

import (
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/tests/interop/guest"
	"github.com/smcgw/smcgw/verbs"
)

// path is an address family: our address, the guest's, and the index of the guest's GID.
type path struct {
	name      string
	our, peer netip.Addr
	gid       int
}

func (l *lab) paths() []path {
	if in := l.inside; in != nil {
		return []path{{"ipv4", in.addr4, in.addr4, guest.GIDIndex4}, {"ipv6", in.addr6, in.addr6, guest.GIDIndex6}}
	}
	return []path{
		{"ipv4", l.host.Addr4, l.guest.Addr4, guest.GIDIndex4},
		{"ipv6", l.host.Addr6, l.guest.Addr6, guest.GIDIndex6},
	}
}

func TestPingpong(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for _, c := range []struct {
			program string
			kind    verbs.QPType
			many    bool
			size, n int
		}{
			{"ibv_rc_pingpong", verbs.QPTRC, false, 4096, 2000},
			{"ibv_rc_pingpong", verbs.QPTRC, false, 1, 500},
			{"ibv_rc_pingpong", verbs.QPTRC, false, 100001, 200},
			{"ibv_uc_pingpong", verbs.QPTUC, false, 4096, 1000},
			{"ibv_ud_pingpong", verbs.QPTUD, false, 1024, 1000},
			{"ibv_ud_pingpong", verbs.QPTUD, false, 13, 500},
			{"ibv_srq_pingpong", verbs.QPTRC, true, 4096, 3000},
		} {
			for _, p := range l.paths() {
				name := c.program + " " + strconv.Itoa(c.size) + " " + p.name
				args := []string{
					c.program, "-d", guest.Device, "-g", strconv.Itoa(p.gid), "-s", strconv.Itoa(c.size),
					"-n", strconv.Itoa(scaled(c.n)),
				}
				pp := func(t *testing.T) *pingpong {
					pp := &pingpong{e: l.open(t, p.our), kind: c.kind, many: c.many, size: c.size, n: scaled(c.n)}
					pp.prepare()
					return pp
				}
				t.Run(name+" program serves", func(t *testing.T) {
					server := l.start(t, args...)
					pp := pp(t)
					// They listen on IPv4 only.
					conn := l.dial(t, l.guest.Addr4, pingpongPort)
					pp.client(conn)
					pp.play(true)
					require.NoError(t, server.Wait(patience(t, time.Minute)))
					require.Contains(t, server.Output(), "iters in")
				})
				t.Run(name+" program connects", func(t *testing.T) {
					pp := pp(t)
					ln := l.listen(t, p.our, pingpongPort)
					client := l.start(t, append(args, p.our.String())...)
					conn, err := ln.Accept()
					require.NoError(t, err)
					defer func() { _ = conn.Close() }()
					pp.server(conn)
					pp.play(false)
					require.NoError(t, client.Wait(patience(t, time.Minute)))
					require.Contains(t, client.Output(), "iters in")
				})
			}
		}
	})
}

// dial connects to a program in the guest, which may not listen yet.
func (l *lab) dial(t *testing.T, addr netip.Addr, port uint16) net.Conn {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := l.host.Dial(patience(t, 5*time.Second), "tcp", netip.AddrPortFrom(addr, port).String())
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			return conn
		}
		require.True(t, time.Now().Before(deadline), "dial: %v", err)
		time.Sleep(100 * time.Millisecond)
	}
}

// listen listens on the host for programs in the guest.
func (l *lab) listen(t *testing.T, addr netip.Addr, port uint16) net.Listener {
	t.Helper()
	ln, err := l.host.Listen("tcp", netip.AddrPortFrom(addr, port).String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	tcp, ok := ln.(*net.TCPListener)
	require.True(t, ok)
	require.NoError(t, tcp.SetDeadline(time.Now().Add(time.Minute)))
	return ln
}
