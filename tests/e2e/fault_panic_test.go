package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// panicStep is a step at which the work on a connection panics.
type panicStep struct {
	step string
	// connects: the connection is made all the same, and works. Otherwise it is reset, and must never look as if it
	// had ended. either: both may happen.
	connects, either bool
}

// panicSteps returns the steps of the client's or the server's gateway.
func panicSteps(host string, via report.Carrier) (steps []panicStep) {
	if host == "h1" {
		steps = []panicStep{{"accepted", true, false}, {"negotiating", true, false}, {"handover", true, false}}
	} else {
		steps = []panicStep{{"offered", true, false}, {"accepted", true, false}, {"negotiating", true, false}}
	}
	steps = append(steps, panicStep{"completing", false, true})
	if via == report.CarrierRelay {
		return append(steps, panicStep{"relay", false, false})
	}
	return append(steps, panicStep{"carrying", false, false}, panicStep{"closing", false, true})
}

// TestFaultPanic checks that a panic in the work on one connection, at whatever step, ends or releases that one only;
// the others go on, and so does the daemon.
func TestFaultPanic(t *testing.T) {
	t.Parallel()
	var cells []processCell
	for _, c := range processCells() {
		if c.name == processFaults[0].name {
			c.processFault = processFault{name: "panic"}
			cells = append(cells, c)
		}
	}
	total := newTally(t)
	for _, c := range matrix.Cells(t, cells, 1) {
		t.Run(c.String(), func(t *testing.T) { testFaultPanic(t, c, total) })
	}
}

func testFaultPanic(t *testing.T, c processCell, total *tally) {
	w := newWorld(t, testnet.Config{})
	f := &faultWorld{world: w, tally: total, c: c, host: w.net.Host(c.host)}
	require.NoError(t, w.net.SetBox(f.box()))
	w.via = c.via
	s := ownSettings().with(c.via)
	s.NegativeCache = "1s" // a panic is remembered like any refusal
	const first = ownPort + 30
	steps := panicSteps(c.host, c.via)
	var points []string
	for i, p := range steps {
		points = append(points, fmt.Sprintf("%s:%d:1", p.step, first+i))
	}
	for _, h := range []*testnet.Host{w.h1, w.h2} {
		own := s
		if h == f.host {
			own.Env = []string{"SMCGW_DEBUG_PANIC=" + strings.Join(points, ",")}
		}
		w.upDetached(h, own)
	}
	f.g = w.gateways[f.host]
	f.daemon = f.g.daemon()
	carried := f.carry(t)
	load := f.newLoad(t, loadPort, 3)
	for i, p := range steps {
		f.flush()
		f.panics(t, p, f.echoAt(t, uint16(first+i)))
		total.faults(1)
	}
	load.stop(t)
	for _, c := range carried {
		require.True(t, c.alive(), "%s", c.name)
		total.add(1, c.bytes.Load(), 0)
		c.close()
	}
	require.Equal(t, f.daemon, f.g.daemon())
	require.EqualValues(t, len(steps), f.g.metrics(t)[panicsTotal])
	require.Eventually(t, func() bool { return len(f.g.conns()) == 0 }, 30*time.Second, 50*time.Millisecond, "%+v", f.g.conns())
	for _, g := range w.gateways {
		g.signal(g.proc.Pid(), syscall.SIGTERM)
		g.exited(t, 0)
	}
}

// panics makes the connection whose work panics. On a machine without a processor to spare one may be native, and
// work; then panics makes another.
func (f *faultWorld) panics(t *testing.T, p panicStep, to netip.AddrPort) {
	t.Helper()
	before := f.g.metrics(t)[panicsTotal]
	for end := time.Now().Add(time.Minute); !f.panicking(t, p, to, before); f.flush() {
		require.True(t, time.Now().Before(end), "%s: no panic", p.step)
	}
}

const panicsTotal = "smcgw_panics_total"

// panicked waits a moment for the count of panics to exceed before.
func (f *faultWorld) panicked(t *testing.T, before float64) bool {
	t.Helper()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f.g.metrics(t)[panicsTotal] > before {
			return true
		}
	}
	return false
}

// panicking makes a connection, and tells whether the work on it has panicked.
func (f *faultWorld) panicking(t *testing.T, p panicStep, to netip.AddrPort, before float64) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), socketPatience)
	defer cancel()
	begun := time.Now()
	conn, err := f.h1.Dial(ctx, "tcp", to.String())
	if p.either && errors.Is(err, syscall.ECONNRESET) { // established, then reset before its caller looked
		return f.panicked(t, before)
	}
	require.NoError(t, err, p.step)
	defer conn.Close()
	took := time.Since(begun)
	_ = conn.SetDeadline(time.Now().Add(socketPatience))
	const n = 100_000
	err = ask(conn, n)
	if err == nil && p.step == "closing" {
		require.NoError(t, conn.(*net.TCPConn).CloseWrite())
		_, err = conn.Read(make([]byte, 1))
		require.Contains(t, []string{"EOF", "ECONNRESET"}, errno(err), p.step)
		return f.panicked(t, before)
	}
	if err == nil && !f.panicked(t, before) {
		return false
	}
	if err == nil && !p.connects && !p.either { // everything arrived before the first turn ended
		_, err = conn.Read(make([]byte, 1))
	}
	switch {
	case p.connects:
		require.NoError(t, err, p.step)
	case !p.either || err != nil:
		require.Contains(t, []string{"ECONNRESET", "EPIPE"}, errno(err), "%s: %v", p.step, err)
	}
	f.tally.add(1, 2*n, 0)
	t.Logf("%s: a panic at %s: connected after %v, then %v", f.c, p.step, took, err)
	return f.panicked(t, before)
}
