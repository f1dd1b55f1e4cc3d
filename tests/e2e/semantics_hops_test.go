package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/testnet"
)

// hops sets the TTL and the least TTL of a socket.
func hops(fd int, v6 bool, ttl, least int) error {
	if v6 {
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_UNICAST_HOPS, ttl); err != nil {
			return err
		}
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_MINHOPCOUNT, least)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, ttl); err != nil {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MINTTL, least)
}

// TestSemanticsOfHops checks that applications that accept packets only from adjacent hosts (IP_MINTTL,
// IPV6_MINHOPCOUNT) can communicate, whenever they set that option.
func TestSemanticsOfHops(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"native", "carried"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			server := w.h2
			if way == "native" {
				server = w.h3
			}
			w.upBoth(ownSettings())
			families(t, func(t *testing.T, addr func(*testnet.Host, uint16) string) {
				for i, least := range []int{65, 128, 200, 254, 255} {
					for j, when := range []string{"before", "after"} {
						to := netip.MustParseAddrPort(addr(server, ownPort+uint16(2*i+j)))
						what := fmt.Sprintf("%d %s", least, when)
						p := w.dialInTime(server, func() *pair { return hopsPair(t, w.h1, server, to, least, when == "before") })
						for _, way := range [][2]*net.TCPConn{{p.c, p.s}, {p.s, p.c}} {
							require.NoError(t, way[1].SetDeadline(time.Now().Add(slack)))
							_, err := way[0].Write([]byte{1})
							require.NoError(t, err, what)
							_, err = way[1].Read(make([]byte, 1))
							require.NoError(t, err, what)
						}
						if way == "carried" {
							w.carriedNow(t, p)
						}
						p.close()
					}
				}
			})
		})
	}
}

// hopsPair makes a connection whose ends both accept packets from adjacent hosts only, from the beginning or once it
// is established.
func hopsPair(t *testing.T, client, server *testnet.Host, to netip.AddrPort, least int, first bool) *pair {
	t.Helper()
	v6 := to.Addr().Is6()
	set := func(_, _ string, rc syscall.RawConn) (err error) {
		if ctlErr := rc.Control(func(fd uintptr) { err = hops(int(fd), v6, 255, least) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}
	var lc net.ListenConfig
	var d net.Dialer
	if first {
		lc.Control, d.Control = set, set
	}
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	network := map[bool]string{false: "tcp4", true: "tcp6"}[v6]
	var ln net.Listener
	require.NoError(t, server.Do(func() (err error) { ln, err = lc.Listen(ctx, network, to.String()); return err }))
	defer ln.Close()
	var c net.Conn
	require.NoError(t, client.Do(func() (err error) { c, err = d.DialContext(ctx, network, to.String()); return err }))
	s, err := ln.Accept()
	require.NoError(t, err)
	p := &pair{c: c.(*net.TCPConn), s: s.(*net.TCPConn)}
	t.Cleanup(p.close)
	for _, end := range []*net.TCPConn{p.c, p.s} {
		rc, err := end.SyscallConn()
		require.NoError(t, err)
		require.NoError(t, set("", "", rc))
	}
	return p
}

// carriedNow requires a live connection to be carried.
func (w *world) carriedNow(t *testing.T, p *pair) {
	t.Helper()
	local := netip.MustParseAddrPort(p.event().Local)
	require.Eventually(t, func() bool {
		for _, c := range w.gateways[w.h1].conns() {
			if c.Local == local {
				return c.Carrier != report.CarrierNone
			}
		}
		return false
	}, slack, time.Millisecond, w.gateways[w.h1].dump())
}

// TestSemanticsOfSavedSYN checks that a server that looks at the saved SYN finds its client's TTL and TOS.
func TestSemanticsOfSavedSYN(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	w.upBoth(ownSettings())
	const ttl, tos = 99, 0xb8
	for i, server := range []*testnet.Host{w.h3, w.h2} { // native, carried
		saved := net.ListenConfig{Control: control(func(fd int) error {
			return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1)
		})}
		marked := net.Dialer{Timeout: slack, Control: control(func(fd int) error {
			return errors.Join(unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TTL, ttl), unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, tos))
		})}
		to := server.AddrPort4(ownPort + uint16(i)).String()
		var ln net.Listener
		require.NoError(t, server.Do(func() (err error) { ln, err = saved.Listen(t.Context(), "tcp4", to); return err }))
		defer ln.Close()
		p := w.dialInTime(server, func() *pair {
			var c net.Conn
			require.NoError(t, w.h1.Do(func() (err error) { c, err = marked.DialContext(t.Context(), "tcp4", to); return err }))
			s, err := acceptLiving(ln)
			require.NoError(t, err)
			p := &pair{c: c.(*net.TCPConn), s: s}
			t.Cleanup(p.close)
			return p
		})
		rc, err := p.s.SyscallConn()
		require.NoError(t, err)
		var syn []byte
		require.NoError(t, rc.Control(func(fd uintptr) { syn, err = savedSYN(int(fd)) }))
		require.NoError(t, err)
		require.EqualValues(t, []byte{tos, ttl}, []byte{syn[1], syn[8]})
		if server == w.h2 {
			w.carriedNow(t, p)
		}
	}
}

// control returns a Control function that applies fn to a socket before its use.
func control(fn func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) (err error) {
		if ctlErr := rc.Control(func(fd uintptr) { err = fn(int(fd)) }); ctlErr != nil {
			return ctlErr
		}
		return err
	}
}
