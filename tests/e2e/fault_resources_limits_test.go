package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// fewDescriptors is how many descriptors a gateway reserves for anything but connections.
const fewDescriptors = 256 + 64

func itoa(n int) string { return strconv.Itoa(n) }

// faultDescriptors checks that a gateway that starts with few descriptors reports how many connections it takes, and
// that one whose limit is lowered under load goes on. Operators must get in either way.
func faultDescriptors(t *testing.T, c *tally) {
	rng := matrix.Rand(t)
	w := newServed(t)
	g1, g2 := w.upBoth(settings{NegativeCache: "1s"})
	limited := []*gw{g1, g2}[rng.IntN(2)]
	done := w.watchLeaks(t)

	var old unix.Rlimit
	pid := limited.daemon()
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &old))
	type outcome struct {
		e   apps.Event
		err error
	}
	const conns = 1200
	load := make(chan outcome, 1)
	go func() {
		e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", itoa(conns), "-parallel", "40", "-size", "20000",
			"-limit", "60s", "-to", w.h2.AddrPort4(transferPort).String())
		load <- outcome{e, err}
	}()
	time.Sleep(time.Duration(50+rng.IntN(200)) * time.Millisecond)
	low := fewDescriptors + 10 + uint64(rng.IntN(40))
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: low, Max: old.Max}, nil))
	c.faults(1)
	t.Logf("%s may have %d descriptors now", limited.h.Name, low)
	l := <-load
	c.tried(t, l.e, l.err, conns)

	before := limited.status()
	end := w.holders(t, c, w.h1, 150, w.h2.AddrPort4(echoPort).String())
	s := limited.status()
	require.Less(t, s.FlowLimit.Now, 60, "%+v", s.FlowLimit)
	require.Equal(t, 20000, s.FlowLimit.Configured)
	require.LessOrEqual(t, s.Flows[w.via], s.FlowLimit.Now)
	require.Positive(t, s.Flows[w.via])
	require.Greater(t, s.FallbacksTotal["flow_limit"], before.FallbacksTotal["flow_limit"])
	require.LessOrEqual(t, limited.metrics(t)["process_open_fds"], float64(low))
	out := limited.says("status")
	require.Contains(t, out, "connections instead of 20000")
	end()

	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &old, nil))
	w.flush()
	w.carriedAgain(t, c, 40)
	done()
	w.startWithFew(t, c, limited.h)
}

// startWithFew starts the gateway of a host with few descriptors.
func (w *world) startWithFew(t *testing.T, c *tally, h *testnet.Host) {
	t.Helper()
	w.down(h)
	g := w.upBehind(h, settings{NegativeCache: "1s"}, nil, "prlimit", fmt.Sprintf("--nofile=%d:%d", fewDescriptors+40, fewDescriptors+40), "--")
	c.faults(1)
	require.Equal(t, 40, g.status().FlowLimit.Now)
	end := w.holders(t, c, w.h1, 60, w.h2.AddrPort6(echoPort).String())
	require.LessOrEqual(t, g.status().Flows[w.via], 40)
	end()
	w.quiet(t)
}

// carriedAgain waits until new connections are carried, and counts them.
func (w *world) carriedAgain(t *testing.T, c *tally, n int) {
	t.Helper()
	g := w.gateways[w.h1]
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		before := g.status().FlowsTotal[w.via]
		e, err := w.app(w.h1, time.Minute, "churn", "-count", itoa(n), "-parallel", "4", "-size", "10000",
			"-to", w.h2.AddrPort4(transferPort).String())
		c.tried(t, e, err, n)
		if g.status().FlowsTotal[w.via]-before == uint64(n) {
			return
		}
		if time.Now().After(end) {
			require.Fail(t, "not carried again", "%v", g.status())
		}
	}
}

// faultMemory uses up the memory of rings with idle connections and with some whose application does not read.
// Further ones must be native or relayed, and carried again once there is memory.
func faultMemory(t *testing.T, c *tally) {
	rng := matrix.Rand(t)
	w := newServed(t)
	small := []settings{{NegativeCache: "1s"}, {NegativeCache: "1s"}}
	which := rng.IntN(2)
	small[which].Memory = itoa(2*(4+rng.IntN(5))) + "MiB" // a peer gets half of it
	gs := []*gw{w.up(w.h1, small[0]), w.up(w.h2, small[1])}
	limited := gs[which]
	done := w.watchLeaks(t)
	to := w.h2.AddrPort4(echoPort).String()
	idle := w.holders(t, c, w.h1, 120, to)
	more := w.holders(t, c, w.h1, 120, to)
	c.faults(1)
	e, err := w.app(w.h1, 2*time.Minute, "churn", "-count", "300", "-parallel", "30", "-size", "200000",
		"-limit", "60s", "-to", w.h2.AddrPort4(transferPort).String())
	c.tried(t, e, err, 300)
	s := limited.status()
	require.Positive(t, s.FallbacksTotal["no_memory"], "%+v", s)
	require.LessOrEqual(t, s.Memory.UsedBytes, s.Memory.LimitBytes)
	t.Logf("%s with %s: %d carried, native by %v", limited.h.Name, small[which].Memory, s.Flows[w.via], s.FallbacksTotal)
	idle()
	more()
	w.quiet(t)
	w.flush()
	w.carriedAgain(t, c, 4)
	done()
}
