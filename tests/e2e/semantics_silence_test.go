package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// silence is an application that finds out that its peer is gone.
type silence struct {
	name    string
	server  bool // the application is the one that accepted the connection
	keep    int  // number of probes of SO_KEEPALIVE, after 1 s
	timeout time.Duration
	few     bool // its host retransmits a segment three times only (tcp_retries2)
	waits   bool // it has sent a question before
	writes  bool // it sends afterwards
	unread  bool // its peer's application does not read, and all windows are full
}

var silences = []silence{
	{name: "idle client", keep: 3},
	{name: "idle server", server: true, keep: 3},
	{name: "one probe", keep: 1},
	{name: "one probe of the server", server: true, keep: 1},
	{name: "client that waits", keep: 3, waits: true},
	{name: "client with a timeout that writes", timeout: 3 * time.Second, writes: true},
	{name: "server with a timeout that writes", server: true, timeout: 3 * time.Second, writes: true},
	{name: "client with both that writes", keep: 9, timeout: 3 * time.Second, writes: true},
	{name: "server of few repetitions that writes", server: true, few: true, writes: true},
	{name: "client of a slow reader", keep: 3, unread: true},
}

// silenceAfter is how long the network works first, silenceSlack how much longer than natively applications may take
// to find out.
const (
	silenceAfter = 5 * time.Second
	silenceSlack = 2 * time.Second
	// fewRepetitions: a kernel that retransmits a segment three times gives up after the retransmission that follows
	// 3 s, which may be 6.2 s after the first one.
	fewRepetitions = 6500 * time.Millisecond
)

// silent is a connection with the way in which its end was seen.
type silent struct {
	silence
	*pair
	who   *net.TCPConn
	read  atomic.Int64 // bytes, until the end
	ended chan struct{}
	at    time.Time
	err   error
}

// pause is the time between two probes. If there is only one it is longer: on a busy machine its answer takes the
// work of two gateways.
func (s *silence) pause() time.Duration {
	if s.keep == 1 {
		return 2 * time.Second
	}
	return time.Second
}

// silencesOf makes a connection for each silence.
func (w *world) silencesOf(t *testing.T, server *testnet.Host) map[string]*silent {
	t.Helper()
	all := map[string]*silent{}
	for i, c := range silences {
		all[c.name] = w.silenceOf(t, server, c, uint16(i))
	}
	return all
}

// silenceOf makes a connection to the nth port.
func (w *world) silenceOf(t *testing.T, server *testnet.Host, c silence, n uint16) *silent {
	t.Helper()
	w.flush() // a client whose accept was lost is remembered
	p := w.pairInTime(t, server, netip.AddrPortFrom(server.Addr4, ownPort+n))
	t.Cleanup(p.close)
	s := &silent{silence: c, pair: p, who: p.c, ended: make(chan struct{})}
	if c.server {
		s.who = p.s
	}
	s.begin(t)
	return s
}

func (s *silent) begin(t *testing.T) {
	require.NoError(t, s.who.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: s.keep > 0, Idle: time.Second, Interval: s.pause(), Count: max(s.keep, 1),
	}))
	rc, err := s.who.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, rc.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(s.timeout.Milliseconds()))
	}))
	require.NoError(t, err)
	for _, way := range [][2]*net.TCPConn{{s.c, s.s}, {s.s, s.c}} {
		_, err = way[0].Write([]byte{1})
		require.NoError(t, err)
		_, err = way[1].Read(make([]byte, 1))
		require.NoError(t, err)
	}
	if s.waits {
		_, err = s.who.Write([]byte("question"))
		require.NoError(t, err)
	}
	go s.watch()
}

// watch waits for the end.
func (s *silent) watch() {
	var err error
	for b := make([]byte, flightBytes); err == nil; {
		var n int
		n, err = s.who.Read(b)
		s.read.Add(int64(n))
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		err = errno
	}
	s.err, s.at = err, time.Now()
	close(s.ended)
}

func (s *silent) alive() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

// TestSemanticsOfSilence checks that applications that ask for it learn that their peer, or the path to it, is gone
// at the same time and by the same error as natively, whatever carries, and not before it is gone.
func TestSemanticsOfSilence(t *testing.T) {
	t.Parallel()
	silentWays(t, func(t *testing.T, w *world, server *testnet.Host, way string) {
		require.NoError(t, server.SetSysctl("net.ipv4.tcp_retries2", "3"))
		all := w.silencesOf(t, server)
		w.demoted(t, way, len(all))
		for _, s := range all {
			if s.unread {
				n, _ := fillUp(s.who)
				require.Positive(t, n)
			}
		}
		time.Sleep(silenceAfter)
		w.carryAll(t, way, len(all))
		for name, s := range all {
			require.True(t, s.alive(), "%s: %v", name, s.err)
		}
		require.NoError(t, w.net.SetBox(testnet.Box{Blackhole: true}))
		cut := time.Now()
		for _, s := range all {
			if s.writes {
				_, err := s.who.Write([]byte{1})
				require.NoError(t, err)
			}
		}
		for name, s := range all {
			s.knows(t, fmt.Sprintf("%s, %s", way, name), cut)
		}
	})
}

// silentWays runs a test of connections that are native, and of some of the other ways. The test mostly waits, so all
// ways wait at once, and take the place of one test among those that run in parallel.
func silentWays(t *testing.T, test func(t *testing.T, w *world, server *testnet.Host, way string)) {
	var all sync.WaitGroup
	for _, way := range append([]string{"native"}, matrix.Cells(t, []string{"rdma-shm", "rdma-soft", "demoted", "raw"}, 2)...) {
		all.Go(func() { t.Run(way, func(t *testing.T) { silentWay(t, way, test) }) })
	}
	all.Wait()
}

func silentWay(t *testing.T, way string, test func(t *testing.T, w *world, server *testnet.Host, way string)) {
	w := newWorld(t, testnet.Config{})
	via, server := report.CarrierSoft, w.h2
	switch way {
	case "native":
		server = w.h3
	case "rdma-shm":
		via = report.CarrierShm
	}
	w.upBoth(ownSettings().with(via))
	if way == "raw" {
		require.NoError(t, w.h2.SetBox(testnet.Box{StripSYNACK: true}))
	}
	test(t, w, server, way)
}

// demoted demotes n connections, if that is the way.
func (w *world) demoted(t *testing.T, way string, n int) {
	t.Helper()
	if way == "demoted" {
		require.Eventually(t, func() bool { return len(w.gateways[w.h1].conns()) == n }, slack, time.Millisecond)
		w.gateways[w.h1].says("demote", "--all")
	}
}

// knows requires a connection to end in time with the right error.
func (s *silent) knows(t *testing.T, what string, cut time.Time) {
	t.Helper()
	latest := time.Second + time.Duration(s.keep)*s.pause()
	if s.timeout > 0 {
		latest = s.timeout + 500*time.Millisecond // the last retransmission before it has backed off
	}
	if s.few {
		latest = fewRepetitions
	}
	if s.unread { // the kernel probes a closed window for fifteen minutes
		require.True(t, s.alive(), what)
		return
	}
	select {
	case <-s.ended:
	case <-time.After(latest + silenceSlack + time.Second):
	}
	require.False(t, s.alive(), "%s: not within %s", what, time.Since(cut))
	took := s.at.Sub(cut)
	t.Logf("%s: %s after %s", what, s.err, took)
	require.LessOrEqual(t, took, latest+silenceSlack, what)
	if s.timeout == 0 && !s.few || s.keep > 0 {
		require.ErrorIs(t, s.err, syscall.ETIMEDOUT, what)
		return
	}
	require.True(t, errors.Is(s.err, syscall.ETIMEDOUT) || errors.Is(s.err, syscall.ECONNRESET), "%s: %v", what, s.err)
}

// carryAll requires n connections to be carried in this way.
func (w *world) carryAll(t *testing.T, way string, n int) {
	t.Helper()
	by := report.Carrier(way)
	switch way {
	case "native":
		n = 0
	case "demoted", "raw":
		by = report.CarrierRelay
	}
	require.Eventually(t, func() bool {
		conns := w.gateways[w.h2].conns()
		for _, c := range conns {
			if c.Carrier != by {
				return false
			}
		}
		return len(conns) == n
	}, slack, time.Millisecond, "%s: %s", way, w.gateways[w.h2].dump())
}
