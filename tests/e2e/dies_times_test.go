package e2e

import (
	"errors"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// The times of docs/ARCHITECTURE.md "When the gateway dies". Measured times are logged; required ones leave slack for
// a machine that is busy with other things.
const (
	prompt       = 200 * time.Millisecond // to be native and untouched, or reset
	withRetry    = 1100*time.Millisecond + 2*prompt
	whenComplete = 2100*time.Millisecond + 2*prompt
	stale        = 250 * time.Millisecond // until the programs notice that the heartbeat stopped
	stuck        = 2 * time.Second        // until the guardian kills a stopped daemon
	noHangUp     = 5 * time.Second        // until a peer that no hang-up reports is known to be dead
	slack        = 10 * time.Second
	slowestCall  = 6 * time.Second // of a connect(), including two retransmissions of its own
)

// few returns how many of n attempts may be late on such a machine.
func few(n int) int { return 2 + n/10 }

// passing is a death with what must follow from it.
type passing struct {
	death
	resets time.Duration // when carried connections must have ended, on a host that learns of it
	status int           // exit status of the guardian; -1: killed
	side   string        // side of the gateway that dies
}

// TestDiesInTime checks that, however a gateway ends, on either host, each end of what it carried is reset in time,
// each connect() is as fast as the design says, and nothing is left behind.
func TestDiesInTime(t *testing.T) {
	t.Parallel()
	var cells []passing
	for _, side := range []string{"client", "server"} {
		cells = append(cells,
			passing{deaths[0], prompt, 1, side},
			passing{deaths[1], prompt, -1, side},
			passing{deaths[2], stuck + prompt, 1, side},
			passing{deaths[3], prompt, 0, side},
		)
	}
	for _, p := range matrix.Cells(t, cells, 2) {
		t.Run(p.side+"/"+p.name, func(t *testing.T) { testPassing(t, p) })
	}
}

func testPassing(t *testing.T, d passing) {
	w := newWorld(t, testnet.Config{})
	host := map[string]*testnet.Host{"client": w.h1, "server": w.h2}[d.side]
	before := w.bare(host)
	patient := ownSettings() // otherwise some of the crowd are native on a slow machine
	patient.Handshake = "1s"
	w.upDetached(w.h1, patient)
	w.upDetached(w.h2, patient)
	g := w.gateways[host]
	require.NotEqual(t, before, w.footprint(host))

	people := w.newCrowd(t, ownPort, 24)
	defer people.close()
	calls := w.newCaller(t, ownPort+1)
	natively := w.newCaller(t, ownPort+ownPorts) // the policy does not select its ports
	time.Sleep(400 * time.Millisecond)
	require.Equal(t, 48, people.still(), "%s\n%s\n%s", people.told(), w.gateways[w.h1].dump(), w.gateways[w.h2].dump())
	require.Eventually(t, func() bool { return g.status().Flows[w.via] >= 24 }, 30*time.Second, 50*time.Millisecond)

	died, unable := g.hit(func() { d.do(g) }, d.status == 0)
	ends := people.over(t, max(d.resets, w.knownDead(d))+2*slack)
	time.Sleep(time.Until(died.Add(d.resets + stale + time.Second)))
	require.Eventually(t, func() bool { return calls.since(died.Add(stale)) > 20 }, 30*time.Second, 20*time.Millisecond)
	attempts, native := calls.end(), natively.end()
	g.exited(t, d.status)

	slowest := map[bool]time.Duration{}
	for _, e := range ends {
		require.Contains(t, []string{"ECONNRESET", "EPIPE"}, e.how, "%s", e.side)
		here := (e.side == "client") == (host == w.h1)
		slowest[here] = max(slowest[here], e.at.Sub(died))
	}
	require.Less(t, slowest[true], d.resets+slack, "prompt resets where the gateway died")
	require.Less(t, slowest[false], w.knownDead(d)+slack, "prompt resets at its peer")
	t.Logf("%d ends reset within %v and, at the peer, %v; promised are %v and %v",
		len(ends), slowest[true], slowest[false], d.resets, w.knownDead(d))
	t.Logf("%v until it could carry no more", unable().Sub(died))
	checkAttempts(t, died, unable(), attempts, native)

	require.Eventually(t, func() bool {
		now := w.footprint(host)
		return len(now.programs) == 0 && len(now.links) == len(before.links)
	}, 30*time.Second, 50*time.Millisecond, "what changes traffic is gone: %+v", w.footprint(host))
	w.cleanedUp(t, host, before)
	w.serve(w.h2)
	w.mustApp(w.h1, "ping", "-to", w.h2.AddrPort4(echoPort).String())
	again := w.upDetached(host, patient)
	w.restarted(t, again)
}

// knownDead returns when the peer of a gateway must have reset what both carried. Over shared memory it learns of any
// death. Elsewhere a gateway that ends in order says so, and the peer has to probe for other deaths.
func (w *world) knownDead(d passing) time.Duration {
	if w.via == report.CarrierShm || d.status == 0 {
		return d.resets
	}
	return noHangUp
}

// hit ends a gateway and returns when that began. unable waits until the gateway has ended and returns when it could
// carry no more connections: a killed one when do returned, a stopped one at once, and one that is asked to end when
// it has ended.
func (g *gw) hit(do func(), asked bool) (begun time.Time, unable func() time.Time) {
	begun = time.Now()
	do()
	done := time.Now()
	if !asked {
		return begun, func() time.Time { return done }
	}
	ended := make(chan time.Time, 1)
	go func() {
		<-g.proc.Done()
		ended <- time.Now()
	}()
	return begun, sync.OnceValue(func() time.Time { return <-ended })
}

// wasConnected tells whether an attempt was established and then reset before its caller looked, which TestDiesUnseen
// shows plain TCP does, too. A reset before that gives ECONNREFUSED (tcp_reset in the kernel). A gateway that is
// unable establishes nothing.
func (a attempt) wasConnected(unable time.Time) bool {
	return a.begun.Before(unable) && errors.Is(a.err, syscall.ECONNRESET)
}

// checkAttempts requires that no attempt failed, and that few took too long, not counting as many as did on native
// connections at the same time: then the machine is late.
func checkAttempts(t *testing.T, died, unable time.Time, attempts, native []attempt) {
	t.Helper()
	nativeLate := 0
	for _, a := range native {
		require.NoError(t, a.err, "native, begun %v after the death", a.begun.Sub(died))
		if a.took > 2*prompt {
			nativeLate++
		}
	}
	var slowest, settled time.Duration
	late, lost, after, afterLate, reset := 0, 0, 0, 0, 0
	for _, a := range attempts {
		if a.wasConnected(unable) {
			reset++
			continue
		}
		require.NoError(t, a.err, "begun %v after the death, %v after it was complete", a.begun.Sub(died), a.begun.Sub(unable))
		slowest = max(slowest, a.took)
		if a.took > withRetry {
			late++
		}
		if a.took > whenComplete {
			lost++
		}
		if a.begun.Sub(died) > stale {
			after++
			settled = max(settled, a.took)
			if a.took > 2*prompt {
				afterLate++
			}
		}
	}
	t.Logf("%d attempts, the slowest %v; %d later ones, the slowest %v; native ones: %d, late %d", len(attempts), slowest, after, settled, len(native), nativeLate)
	require.Greater(t, after, 20)
	require.LessOrEqual(t, afterLate, few(after)+nativeLate, "begun when the programs had noticed")
	require.LessOrEqual(t, lost, callers, "longer than anything may take")
	require.Less(t, slowest, slowestCall)
	require.LessOrEqual(t, late, callers+few(len(attempts))/2+nativeLate, "only those that were completing")
	require.LessOrEqual(t, reset, callers, "only those whose caller had not come to look")
}

// exited waits for the guardian and checks its exit status; -1 means that it was killed.
func (g *gw) exited(t *testing.T, status int) {
	t.Helper()
	select {
	case <-g.proc.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the guardian goes on")
	}
	code := 0
	if exit, ok := errors.AsType[*exec.ExitError](g.proc.Wait()); ok {
		code = exit.ExitCode()
	}
	require.Equal(t, status, code)
	require.Eventually(t, func() bool { return len(g.processes()) == 0 }, 10*time.Second, 10*time.Millisecond, "nothing of it runs")
}

// cleanedUp runs cleanup twice and compares the host with what it was before.
func (w *world) cleanedUp(t *testing.T, h *testnet.Host, before footprint) {
	t.Helper()
	for i := range 2 {
		out, err := h.Run(t.Context(), binary, "cleanup", "-c", w.gateways[h].config)
		require.NoError(t, err)
		if i > 0 {
			require.Contains(t, out, "nothing is left")
		}
		require.Equal(t, before, w.footprint(h))
	}
}

// comesToCarry makes connections until one is carried, and returns that one. Just after gateways start on a busy
// machine, the first ones may be late for something. again runs before each retry.
func (w *world) comesToCarry(to string, again func()) apps.Event {
	w.t.Helper()
	ping := func() apps.Event { return w.mustApp(w.h1, "ping", "-count", "20", "-to", to) }
	e := ping()
	for try := 0; try < 10 && !w.wasCarried(e); try++ {
		again()
		e = ping()
	}
	w.carriedBy(e, w.via)
	return e
}

// wasCarried waits until the gateways report a connection that has ended, and tells whether both carried it as they
// should.
func (w *world) wasCarried(e apps.Event) bool {
	w.t.Helper()
	for _, end := range []struct {
		g     *gw
		match func(report.ConnInfo) bool
	}{{w.gateways[w.h1], from(e)}, {w.gateways[w.h2], at(e)}} {
		ended := func() (found []report.ConnInfo) {
			for _, c := range end.g.everything(end.match) {
				if c.End != "" {
					found = append(found, c)
				}
			}
			return found
		}
		for last := time.Now().Add(10 * time.Second); len(ended()) == 0 && time.Now().Before(last); {
			time.Sleep(20 * time.Millisecond)
		}
		if all := ended(); len(all) == 0 || all[0].Carrier != w.via {
			return false
		}
	}
	return true
}

// restarted checks that a gateway that came back carries connections.
func (w *world) restarted(t *testing.T, g *gw) {
	t.Helper()
	_, err := g.h.Run(t.Context(), binary, "cleanup", "-c", g.config)
	require.Error(t, err, "cleanup refuses while a daemon lives")
	for _, g := range w.gateways { // forget what they remember of the death
		g.says("peers", "flush")
	}
	for _, v6 := range []bool{false, true} {
		w.comesToCarry(w.at(w.h2, v6, echoPort).String(), w.flush)
	}
	g.signal(g.proc.Pid(), syscall.SIGTERM)
	g.exited(t, 0)
}
