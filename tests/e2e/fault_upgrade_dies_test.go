package e2e

import (
	"errors"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/lab/apps"
	"github.com/smcgw/smcgw/lab/matrix"
	"github.com/smcgw/smcgw/lab/testnet"
)

// upgradeDeath is the death of a process at a step of a takeover.
type upgradeDeath struct {
	step   string // where the successor is; left: it has taken over
	victim string // old or new, and daemon, guardian or both
	host   string
	signal syscall.Signal
}

func (c upgradeDeath) name() string {
	name := strings.ReplaceAll(c.step+"-"+c.victim+"-"+c.host, " ", "-")
	if c.signal != syscall.SIGKILL {
		name += "-" + strings.TrimPrefix(unix.SignalName(c.signal), "SIG")
	}
	return name
}

func upgradeDeaths() (cells []upgradeDeath) {
	for _, step := range []string{"opened", "yielded", "built", "left"} {
		for _, victim := range []string{"old daemon", "old guardian", "old both", "new daemon", "new guardian", "new both"} {
			for _, host := range []string{"h1", "h2"} {
				cells = append(cells, upgradeDeath{step, victim, host, syscall.SIGKILL})
			}
		}
	}
	return append(cells,
		upgradeDeath{"yielded", "new daemon", "h1", syscall.SIGTERM}, upgradeDeath{"built", "new daemon", "h2", syscall.SIGTERM},
		upgradeDeath{"yielded", "new daemon", "h2", syscall.SIGSTOP}, upgradeDeath{"yielded", "old daemon", "h1", syscall.SIGSTOP})
}

// TestFaultHandover checks that, whichever process dies at whatever step of a takeover, no connection attempt fails,
// the connections of the other gateway go on, those of the dead one are reset promptly, one gateway takes new
// connections in the end, or can be started, and nothing is left when all have ended.
func TestFaultHandover(t *testing.T) {
	t.Parallel()
	for _, c := range matrix.Cells(t, upgradeDeaths(), 1) {
		t.Run(c.name(), func(t *testing.T) { upgradeDied(t, c) })
	}
}

// TestFaultHandoverSoft checks that the old gateway takes back what it gave up for a successor that died.
func TestFaultHandoverSoft(t *testing.T) {
	t.Parallel()
	host := []string{"h1", "h2"}[matrix.Rand(t).IntN(2)]
	upgradeDied(t, upgradeDeath{"yielded", "new daemon", host, syscall.SIGKILL})
}

func upgradeDied(t *testing.T, c upgradeDeath) {
	count := newTally(t)
	w := newServed(t)
	h := w.net.Host(c.host)
	rules, err := h.Rules()
	require.NoError(t, err)
	for _, other := range []*testnet.Host{w.h1, w.h2} {
		if other != h {
			w.up(other, settings{})
		}
	}
	old := w.upDetached(h, settings{})
	held := w.holdCarried(t, old, 6)
	var storm []*testnet.Proc
	for _, to := range []string{w.h2.AddrPort4(holdPort).String(), w.h2.AddrPort6(holdPort).String()} {
		p, err := w.h1.StartApp("connect", "-count", "600", "-gap", "2ms", "-to", to)
		require.NoError(t, err)
		storm = append(storm, p)
	}
	var env []string
	reached := "gateway is up"
	if c.step != "left" {
		env, reached = []string{"SMCGW_DEBUG_TAKEOVER=" + c.step}, "takeover held"
	}
	next := old.launchSuccessor(env)
	next.logged(reached)
	nextDaemon := next.daemon()
	start := time.Now()
	who, part, _ := strings.Cut(c.victim, " ")
	g := old
	if who == "new" {
		g = next
	}
	guardian, daemon := g.proc.Pid(), g.daemon()
	if part != "daemon" {
		g.signal(guardian, c.signal)
	}
	if part != "guardian" {
		g.signal(daemon, c.signal)
	}
	count.faults(1)
	oldDies := who == "old" && part != "guardian"
	if oldDies {
		ended := awaitEnded(t, held, 6)
		for _, e := range ended {
			require.Equal(t, "ECONNRESET", e.Errno, "%+v", e)
		}
		t.Logf("connections of the old gateway were reset after %v", time.Since(start))
		require.Less(t, time.Since(start), 12*time.Second)
	}
	if part == "guardian" && c.step != "left" { // no process dies of that, so end it here
		next.signal(nextDaemon, syscall.SIGTERM)
	}
	for _, p := range storm {
		e := result(t, p)
		if e.Failed != 0 { // no attempt may fail
			require.True(t, oldDies && e.Failed == 1 && w.justConnected(h, e), "%+v", e)
			e.OK, e.Failed = e.OK+1, 0
		}
		count.result(e)
		require.Less(t, e.Micros, (8 * time.Second).Microseconds(), "%+v", e)
	}
	if !oldDies {
		pings(t, held, 6) // connections of the old gateway must go on
	}
	w.oneTakesConnections(t, c, old)
	require.NoError(t, held.CloseInput())
	e := result(t, held)
	count.result(e)
	for _, pid := range old.processes() {
		_ = syscall.Kill(pid, syscall.SIGTERM)
	}
	nothingLeft(t, w, w.gateways[h], rules)
	require.Zero(t, count.failed())
}

// holdCarried opens idle connections, all of which are carried. On a busy machine one may be native, and then so are
// those after it: it gives them up and opens others.
func (w *world) holdCarried(t *testing.T, g *gw, n int) (held *testnet.Proc) {
	t.Helper()
	require.Eventually(t, func() bool {
		p, err := w.h1.StartApp("hold", "-count", strconv.Itoa(n), "-to", w.h2.AddrPort6(echoPort).String())
		require.NoError(t, err)
		_, err = p.Ask(t.Context(), "connect")
		require.NoError(t, err)
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if g.status().Flows[w.via] == n {
				held = p
				return true
			}
		}
		leaves(t, p)
		for _, g := range w.gateways {
			g.says("peers", "flush")
		}
		return false
	}, time.Minute, 10*time.Millisecond, "%d connections are carried", n)
	return held
}

// oneTakesConnections checks that in the end one gateway of the host takes new connections, or one that is then
// started.
func (w *world) oneTakesConnections(t *testing.T, c upgradeDeath, old *gw) {
	t.Helper()
	cur := &gw{w: w, h: old.h, proc: old.proc, socket: filepath.Join(w.dir, old.h.Name+".sock"), config: old.config}
	w.gateways[old.h] = cur
	if c.step == "left" && strings.HasPrefix(c.victim, "new") && c.victim != "new guardian" {
		p, err := cur.h.Start(binary, "up", "-c", cur.config)
		require.NoError(t, err)
		cur.proc = p
		cur.ready()
	}
	require.Eventually(t, func() bool {
		for _, g := range w.gateways { // forget what they remember of the death
			if _, err := g.cli("peers", "flush"); err != nil {
				return false
			}
		}
		before := cur.status().FlowsTotal[w.via]
		w.mustApp(w.h1, "ping", "-count", "3", "-to", w.h2.AddrPort4(echoPort).String())
		return cur.status().FlowsTotal[w.via] > before
	}, 30*time.Second, 100*time.Millisecond, "a gateway takes new connections")
}

// awaitEnded waits until connections have ended and returns how.
func awaitEnded(t *testing.T, p *testnet.Proc, n int) []apps.Event {
	t.Helper()
	es, err := p.WaitEvents(t.Context(), n, func(e apps.Event) bool { return e.Event == "ended" })
	require.NoError(t, err)
	return es
}

// TestFaultSuccessorDies kills a gateway that has taken over together with its guardian. The next one, which is of
// the first generation again, must leave nothing of it.
func TestFaultSuccessorDies(t *testing.T) {
	t.Parallel()
	w := newWorld(t, testnet.Config{})
	before := w.bare(w.h1)
	first := w.upDetached(w.h1, settings{})
	alone := w.footprint(w.h1)
	next := first.upgrade()
	first.ended(t)
	daemon := next.daemon()
	for _, pid := range []int{next.proc.Pid(), daemon} {
		next.signal(pid, syscall.SIGKILL)
	}
	require.Eventually(t, func() bool { return errors.Is(unix.Kill(daemon, 0), unix.ESRCH) }, 30*time.Second, time.Millisecond)
	last := w.upDetached(w.h1, settings{})
	require.Equal(t, alone.oneGateway(), w.footprint(w.h1).oneGateway())
	last.signal(last.proc.Pid(), syscall.SIGTERM)
	require.NoError(t, last.proc.Wait())
	require.Equal(t, before, w.footprint(w.h1))
}
