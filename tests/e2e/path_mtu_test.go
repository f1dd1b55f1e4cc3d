package e2e

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// blackHole is a path that silently drops packets of more than bytes bytes.
type blackHole struct {
	name   string
	bytes  int
	way    string // of the bytes: up, down, duplex
	v6     bool
	before bool // the connection begins under it
	soft   bool // RoCE packets pass if they are small enough
}

var blackHoles = []blackHole{
	{name: "1400 before", bytes: 1400, way: "duplex", before: true},
	{name: "1400 before, up", bytes: 1400, way: "up", before: true},
	{name: "1400 before, down", bytes: 1400, way: "down", before: true},
	{name: "1400 during", bytes: 1400, way: "duplex"},
	{name: "1000 before", bytes: 1000, way: "duplex", before: true},
	{name: "1000 during", bytes: 1000, way: "duplex"},
	{name: "1400 v6 before", bytes: 1400, way: "duplex", v6: true, before: true},
	{name: "1400 v6 during", bytes: 1400, way: "duplex", v6: true},
	{name: "soft, 1000 before", bytes: 1000, way: "duplex", soft: true, before: true},
	{name: "soft, 1000 during", bytes: 1000, way: "duplex", soft: true},
	{name: "soft, 1000 during, up", bytes: 1000, way: "up", soft: true},
	{name: "soft, 1000 during, down", bytes: 1000, way: "down", soft: true},
}

// native is how long plain TCP took with tcp_mtu_probing=1 when measured; beside the test it may take longer.
func (b blackHole) native() time.Duration {
	if b.bytes < 1076 {
		return 13 * time.Second
	}
	return 6500 * time.Millisecond
}

// demotes is how much longer a connection on soft may take: until its queue pair is known to be broken.
const demotes = 5 * time.Second

// TestPathMTUBlackHole checks that, where the network drops large packets without ICMP, carried connections go on,
// up, down and both ways, no later than plain TCP between hosts that probe for it.
func TestPathMTUBlackHole(t *testing.T) {
	if !matrix.Whole() { // beside the floods of whole matrices even plain TCP takes minutes
		t.Parallel()
	}
	for _, b := range matrix.Cells(t, blackHoles, 2) {
		t.Run(b.name, b.run)
	}
}

func (b blackHole) run(t *testing.T) {
	w := newWorld(t, testnet.Config{NoOffload: true})
	for _, h := range w.net.Hosts() {
		require.NoError(t, h.SetSysctl("net.ipv4.tcp_mtu_probing", "1"))
	}
	s := ownSettings()
	s.Carriers = "soft"
	w.upBoth(s)
	require.True(t, w.inTime(func() bool { return b.passed(t, w) }))
}

// passed measures once. It returns false if the carried connection took too long, and its gateways had to wait for a processor,
// which hardly concerns the native one.
func (b blackHole) passed(t *testing.T, w *world) bool {
	t.Helper()
	b.dig(t, w, b.before)
	ours, plain := b.open(t, w, w.h2), b.open(t, w, w.h3)
	defer ours.close()
	defer plain.close()
	if !b.before {
		b.carried(t, w, map[bool]report.Carrier{false: report.CarrierRelay, true: report.CarrierSoft}[b.soft])
		require.NoError(t, exchange(ours, "duplex", 1<<20))
		require.NoError(t, exchange(plain, "duplex", 1<<20))
		b.dig(t, w, true)
	}
	waited := w.waitedForCPU()
	var took, native time.Duration
	both(func() { took = durationOf(t, ours, b.way) }, func() { native = durationOf(t, plain, b.way) })
	t.Logf("carried: %v, native beside it: %v", took, native)
	b.carried(t, w, report.CarrierRelay)
	limit := max(b.native(), native)
	if b.soft {
		limit += demotes
	}
	if took >= limit && w.waitedForCPU()-waited > stale {
		return false
	}
	require.Less(t, took, limit)
	return true
}

// dig starts or stops dropping packets.
func (b blackHole) dig(t *testing.T, w *world, on bool) {
	t.Helper()
	box := testnet.Box{}
	if on {
		box.PathMTU = testnet.PathMTU{Bytes: b.bytes, Silent: true}
	}
	if !b.soft {
		box.UDP = testnet.Datagrams{Port: rdmaPort, Loss: 1000}
	}
	for _, h := range w.net.Hosts() {
		require.NoError(t, h.SetBox(box))
	}
}

func (b blackHole) open(t *testing.T, w *world, server *testnet.Host) *pair {
	t.Helper()
	ln, err := server.Listen("tcp", w.at(server, b.v6, ownPort).String())
	require.NoError(t, err)
	defer ln.Close()
	var p *pair
	w.inTime(func() bool {
		if p != nil {
			p.close()
		}
		return w.noneLate(func() {
			p, err = dialPair(w.h1, ln, w.at(server, b.v6, ownPort))
			require.NoError(t, err)
		})
	})
	return p
}

func (b blackHole) carried(t *testing.T, w *world, by report.Carrier) {
	t.Helper()
	w.gateways[w.h1].awaitConn(fmt.Sprint(by), func(c report.ConnInfo) bool {
		return c.State == "carrying" && c.Carrier == by && strings.HasSuffix(c.Remote.String(), fmt.Sprintf(":%d", ownPort))
	}, "--all")
}

// durationOf returns how long it takes to move some bytes.
func durationOf(t *testing.T, p *pair, way string) time.Duration {
	start := time.Now()
	if err := exchange(p, way, 2<<20); err != nil {
		t.Errorf("%s after %v: %v", way, time.Since(start), err)
	}
	return time.Since(start)
}

// exchange sends n bytes of the pattern one way or both, and checks them.
func exchange(p *pair, way string, n int) error {
	var errs [2]error
	pass := func(i int, from, to *net.TCPConn) {
		both(func() { errs[i] = send(from, n) }, func() {
			if got, want := readN(to, n), fmt.Sprintf("%d bytes, ok", n); got != want {
				errs[i] = errors.New(got) //nolint:err113 // a report
			}
		})
	}
	var all sync.WaitGroup
	if way != "down" {
		all.Go(func() { pass(0, p.c, p.s) })
	}
	if way != "up" {
		all.Go(func() { pass(1, p.s, p.c) })
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// narrowed is how long a connection on soft may take when the kernel knows that the path has become narrower: far less
// than until a silent queue pair is known to be broken.
const narrowed = 2 * time.Second

// TestPathMTUOfTheHost checks that a connection on soft goes on at once when the host's own device or route takes only
// shorter packets from some time on.
func TestPathMTUOfTheHost(t *testing.T) {
	if !matrix.Whole() {
		t.Parallel()
	}
	for _, c := range []struct {
		name, way string
		command   func(w *world) string
	}{
		{"device", "up", func(w *world) string { return "link set mtu 1000 dev " + w.h1.Device }},
		{"route", "duplex", func(w *world) string {
			return fmt.Sprintf("route add %s dev %s mtu 1000", w.h2.Addr4, w.h1.Device)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testnet.Config{})
			s := ownSettings()
			s.Carriers = "soft"
			w.upBoth(s)
			b := blackHole{soft: true}
			p := b.open(t, w, w.h2)
			defer p.close()
			b.carried(t, w, report.CarrierSoft)
			require.NoError(t, exchange(p, "duplex", 1<<20))
			waited := w.waitedForCPU()
			out, err := w.h1.Run(t.Context(), "ip", strings.Fields(c.command(w))...)
			require.NoError(t, err, out)
			took := durationOf(t, p, c.way)
			b.carried(t, w, report.CarrierRelay)
			if w.waitedForCPU()-waited < stale {
				require.Less(t, took, narrowed)
			}
		})
	}
}
