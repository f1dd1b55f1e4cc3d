package interop

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/smcgw/smcgw/rsocket/socket"
	"github.com/smcgw/smcgw/tests/interop/guest/remote"
)

// udpongSizes are sizes of messages: the smallest, some of the program's own, and the largest that fits into a packet
// of 1024 bytes beside an IPv6 header.
var udpongSizes = []int{16, 64, 192, 511, 768, 1000}

// udpongModes are modes of the program.
var udpongModes = [][]string{nil, {"-T", "a"}, {"-T", "b"}, {"-T", "n"}}

// udpongTransfers matches what the program prints about a test with that many messages and answers.
func udpongTransfers(size, n int) string { return fmt.Sprintf(`custom +%d +%d `, size, n) }

// serveUdpong answers programs until the returned function is called, which checks that nothing went wrong.
func serveUdpong(t *testing.T, conn *socket.PacketConn) (server *udpongServer, end func()) {
	t.Helper()
	server = &udpongServer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%+v", conn.Stats())
		}
	})
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(2*time.Minute)))
	served := make(chan error, 1)
	go func() { served <- server.serve(conn) }()
	return server, func() {
		require.NoError(t, conn.SetReadDeadline(time.Now()))
		require.NoError(t, <-served)
	}
}

// TestUdpong exchanges datagrams of all sizes, one by one and many at a time.
func TestUdpong(t *testing.T) {
	eachKernel(t, func(t *testing.T, l *lab) {
		for i, path := range l.paths() {
			for j, size := range udpongSizes {
				for k, mode := range udpongModes {
					name := fmt.Sprintf("%s %d %v", path.name, size, mode)
					// The sample has each size with one mode, and each role with one IP version.
					if thorough() || k == j%len(udpongModes) && (i+j)%2 == 0 {
						t.Run(name+" program connects", func(t *testing.T) { udpongConnects(t, l, path, size, mode) })
					}
					if thorough() || k == j%len(udpongModes) && (i+j)%2 == 1 {
						t.Run(name+" program serves", func(t *testing.T) { udpongServes(t, l, path, size, mode) })
					}
				}
			}
			t.Run(path.name+" many", func(t *testing.T) { udpongMany(t, l, path) })
			t.Run(path.name+" restarted", func(t *testing.T) { udpongRestarted(t, l, path) })
		}
	})
}

func udpongConnects(t *testing.T, l *lab, path path, size int, mode []string) {
	n := max(scaled(300), 50)
	args := append([]string{"udpong", "-s", path.our.String(), "-S", strconv.Itoa(size), "-C", strconv.Itoa(n)}, mode...)
	conn := l.stack(t, path).packets(udpongPort)
	server, end := serveUdpong(t, conn)
	program := l.startDatagram(t, append(args, "-T", "e")...)
	ended(t, program)
	require.Regexp(t, udpongTransfers(size, 2*n), program.Output())
	ended(t, l.startDatagram(t, args...))
	end()
	// The program uses UDP until it has resolved the path to us, which may take its whole life.
	st := conn.Stats()
	require.GreaterOrEqual(t, int(st.SentUD), n, "%+v", st)
	require.Zero(t, unwanted(st), "%+v", st)
	require.GreaterOrEqual(t, server.logins, 2)
	require.Len(t, server.counts, 2, "clients' addresses")
	for from := range server.counts {
		require.Equal(t, path.peer, netip.MustParseAddrPort(from).Addr())
	}
}

func udpongServes(t *testing.T, l *lab, path path, size int, mode []string) {
	n := max(scaled(300), 50)
	l.startDatagram(t, append([]string{"udpong", "-b", path.peer.String()}, mode...)...)
	conn := l.stack(t, path).packets(0)
	u := &udpongClient{conn: conn, to: net.UDPAddrFromAddrPort(netip.AddrPortFrom(path.peer, udpongPort))}
	require.NoError(t, u.login())
	got, err := u.play(udpongEcho, size, n)
	require.NoError(t, err)
	require.GreaterOrEqual(t, int(got), n)
	require.LessOrEqual(t, int(got), n+u.again)
	got, err = u.play(udpongData, size, n)
	require.NoError(t, err)
	require.LessOrEqual(t, int(got), n)
	require.NotZero(t, got)
	most := conn.MaxPayload(path.peer)
	require.GreaterOrEqual(t, most, udpongSizes[len(udpongSizes)-1])
	_, err = u.play(udpongEcho, most, 5)
	require.NoError(t, err)
	_, err = conn.WriteTo(make([]byte, most+1), u.to)
	require.ErrorIs(t, err, syscall.EMSGSIZE)
	byQueuePair(t, conn, 2*n)
}

// byQueuePair requires that at least n datagrams, in both directions together, went by queue pair, and that nothing
// went wrong.
func byQueuePair(t *testing.T, conn *socket.PacketConn, n int) {
	t.Helper()
	s := conn.Stats()
	require.GreaterOrEqual(t, int(s.SentUD+s.ReceivedUD), n, "%+v", s)
	require.NotZero(t, s.SentUD, "%+v", s)
	require.NotZero(t, s.ReceivedUD, "%+v", s)
	require.Zero(t, unwanted(s), "%+v", s)
}

// unwanted counts what must not happen.
func unwanted(s socket.PacketStats) uint64 {
	return s.SentPlain + s.ReceivedPlain + s.Malformed + s.Foreign + s.SendErrors + s.CtrlErrors + s.Unresolvable
}

// udpongPeers is how many programs, or sockets of ours, work at once.
const udpongPeers = 4

// udpongMany runs many programs with one of our sockets, many of our sockets with one program, and one of our sockets
// with many programs, which do not use up the guest while they wait.
func udpongMany(t *testing.T, l *lab, path path) {
	n := max(scaled(300), 50)
	s := l.stack(t, path)
	start := func(t *testing.T, i int, args ...string) (*remote.Process, net.Addr) {
		port := udpongPort + uint16(i)
		args = append([]string{"udpong", "-T", "b", "-p", strconv.Itoa(int(port))}, args...)
		return l.startDatagram(t, args...), net.UDPAddrFromAddrPort(netip.AddrPortFrom(path.peer, port))
	}
	t.Run("programs connect", func(t *testing.T) {
		conn := s.packets(udpongPort)
		server, end := serveUdpong(t, conn)
		programs := make([]*remote.Process, udpongPeers)
		for i := range programs {
			programs[i], _ = start(t, 0, "-s", path.our.String(), "-S", "100", "-C", strconv.Itoa(n), "-T", "e")
		}
		for _, p := range programs {
			ended(t, p)
			require.Regexp(t, udpongTransfers(100, 2*n), p.Output())
		}
		end()
		require.Len(t, server.counts, udpongPeers)
		require.GreaterOrEqual(t, int(conn.Stats().SentUD), udpongPeers*n)
		require.Zero(t, unwanted(conn.Stats()), "%+v", conn.Stats())
	})
	t.Run("a program serves", func(t *testing.T) {
		_, to := start(t, 0, "-b", path.peer.String())
		var all errgroup.Group
		for range udpongPeers {
			conn := s.packets(0)
			all.Go(func() error { return playUdpong(conn, to, n) })
			t.Cleanup(func() { byQueuePair(t, conn, n) })
		}
		require.NoError(t, all.Wait())
	})
	t.Run("programs serve", func(t *testing.T) {
		servers := make([]net.Addr, udpongPeers)
		for i := range servers {
			_, servers[i] = start(t, i, "-b", path.peer.String())
		}
		conn := s.packets(0)
		for _, to := range servers {
			require.NoError(t, playUdpong(conn, to, n))
		}
		require.Equal(t, udpongPeers, conn.Stats().Destinations)
		byQueuePair(t, conn, udpongPeers*n)
	})
}

// udpongRestarted replaces the program at the other end, and so its queue pair, while our socket stays.
func udpongRestarted(t *testing.T, l *lab, path path) {
	conn := l.stack(t, path).packets(0)
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(path.peer, udpongPort))
	for range 2 {
		program := l.startDatagram(t, "udpong", "-b", path.peer.String())
		require.NoError(t, playUdpong(conn, to, 20))
		program.Kill()
	}
	require.GreaterOrEqual(t, int(conn.Stats().Resolved), 2)
	byQueuePair(t, conn, 2*2*20)
}

// playUdpong has a server send back n messages.
func playUdpong(conn net.PacketConn, to net.Addr, n int) error {
	u := &udpongClient{conn: conn, to: to}
	if err := u.login(); err != nil {
		return err
	}
	_, err := u.play(udpongEcho, 300, n)
	return err
}
