package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// shortage is something that a gateway has too little of, or gets too much of. test causes it, counts what the
// applications see, and looks for what is left afterwards.
type shortage struct {
	name string
	test func(t *testing.T, c *tally)
}

// TestFaultResources checks that, whatever runs out, connections are carried or native, no application sees an error,
// and connections are carried again when there is enough. Two cells run only in whole matrices: each takes the
// machine for a minute.
func TestFaultResources(t *testing.T) {
	testnet.Require(t, "root", "bpf")
	cells := []shortage{
		{"descriptors", faultDescriptors},
		{"memory", faultMemory},
		{"log", faultLog},
		{"queues", faultQueues},
		{"slow readers", faultSlowReaders},
		{"silent peers", faultSilentPeers},
		{"at once", faultAtOnce},
	}
	run := matrix.Cells(t, cells, 1)
	if matrix.Whole() {
		run = append(run, shortage{"all at once", faultAtOnceWhole}, shortage{"rate", faultRate})
	}
	for _, cell := range run {
		t.Run(cell.name, func(t *testing.T) {
			c := newTally(t)
			cell.test(t, c)
			require.Zero(t, c.failed(), "%v", c)
		})
	}
}

// leakPatience is how long what a connection has left may stay. If every reset of its client is lost, a server learns
// of the end only once the client's kernel has forgotten the connection, too: one TIME_WAIT later, with the next
// retransmission.
const leakPatience = 4 * time.Minute

// leaks tells whether a gateway has more than before of what does not go away by itself. The number of legs made
// ahead of need varies.
func (u usage) leaks(before usage) bool {
	return u.descriptors > before.descriptors+8+2*process.LegBatch || u.goroutines > before.goroutines+8
}

// watchLeaks makes the gateways carry a little and records their usage. The returned function waits until they use no
// more than that.
func (w *world) watchLeaks(t *testing.T) (done func()) {
	t.Helper()
	w.mustApp(w.h1, "churn", "-count", "60", "-parallel", "12", "-size", "4096", "-to", w.h2.AddrPort4(transferPort).String())
	before := map[*gw]usage{}
	for _, g := range w.gateways {
		before[g] = w.settled(t, g)
	}
	return func() {
		t.Helper()
		for g, b := range before {
			after := w.usage(t, g)
			leaks := func() bool { return after.entries > 0 || after.memory > 0 || after.leaks(b) }
			for end := time.Now().Add(leakPatience); leaks() && time.Now().Before(end); after = w.usage(t, g) {
				time.Sleep(200 * time.Millisecond)
			}
			t.Logf("%s: before %+v, after %+v", g.h.Name, b, after)
			if leaks() {
				conns, _ := g.cli("conns")
				require.Fail(t, "leak", "%s: %v\n%s", g.h.Name, g.counters(t), conns)
			}
		}
	}
}

// counters returns the gateway's metrics that are not zero.
func (g *gw) counters(t *testing.T) (list []string) {
	t.Helper()
	for name, v := range g.metrics(t) {
		if v != 0 && strings.HasPrefix(name, "smcgw_") && !strings.Contains(name, "_bucket") {
			list = append(list, fmt.Sprintf("%s %g", name[len("smcgw_"):], v))
		}
	}
	slices.Sort(list)
	return list
}

// tried counts the result of a client. Connections that did not end in time count as errors.
func (c *tally) tried(t *testing.T, e apps.Event, err error, want int) {
	t.Helper()
	c.result(e)
	if missing := want - e.OK - e.Failed; missing > 0 {
		c.add(0, 0, int64(missing))
	}
	if err != nil || e.Failed > 0 {
		t.Errorf("%v: %+v", err, e)
	}
}

// holders opens connections that stay. They exchange bytes once, and again before they end.
func (w *world) holders(t *testing.T, c *tally, from *testnet.Host, n int, to string) (end func()) {
	t.Helper()
	p, err := from.StartApp("hold", "-count", itoa(n), "-size", "512", "-to", to)
	require.NoError(t, err)
	ask := func() {
		t.Helper()
		e, err := p.Ask(patience(t), "ping")
		require.NoError(t, err)
		c.add(int64(e.OK+e.Failed), int64(e.OK)*1024, int64(e.Failed))
		require.Equal(t, n, e.OK, "%+v", e)
	}
	ask()
	return func() {
		t.Helper()
		ask()
		leaves(t, p)
	}
}

// upBehind starts a gateway through a program that sets limits and then executes it, or with a log of its own.
func (w *world) upBehind(h *testnet.Host, s settings, log *os.File, before ...string) *gw {
	w.t.Helper()
	g := w.configure(h, s)
	args := append(before, binary, "up", "-c", g.config)
	cmd := h.Command(context.Background(), args[0], args[1:]...)
	if log != nil {
		cmd.Stdout, cmd.Stderr = log, log
	}
	var err error
	g.proc, err = h.StartCmd(cmd)
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		_, err := g.client().Status(w.t.Context())
		return err == nil
	}, 30*time.Second, 20*time.Millisecond)
	time.Sleep(150 * time.Millisecond) // the programs must have seen a beat
	w.t.Cleanup(func() {
		if w.t.Failed() {
			w.t.Logf("gateway of %s:\n%s", h.Name, tail(g.proc.Output(), 12000))
		}
	})
	return g
}
