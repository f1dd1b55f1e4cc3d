package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/negotiate"
)

// retiring is a datapath that leaves new connections to another.
type retiring struct{ host.Beside }

func (retiring) Retire() error { return nil }

// steeredGateway is a gateway of which only the steering is there, until the test ends.
func steeredGateway(t *testing.T, cfg config.Config, beside host.Beside) (*gateway, *fakeSteering) {
	t.Helper()
	steer := newFakeSteering()
	g, err := newGateway(cfg, &site{localHost: localHost{Steering: steer, Beside: beside}}, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(g.close)
	return g, steer
}

// activated is a datapath that takes new connections.
type activated struct{ retiring }

func (activated) Activate() error { return nil }

func (activated) HasNeighbour() bool { return false }

func (activated) Neighbour() (ebpf.Neighbour, error) { return ebpf.Neighbour{Generation: 1}, nil }

// A reload closes the book of decisions while a scrape is made of it.
func TestDecisionsBesideReload(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	next := g.cfg
	next.Policy = []config.Rule{{Name: "a", Match: config.Match{Ports: config.Ports(7000)}, Action: report.ActionAccelerate}}
	require.NoError(t, g.reload(next, nil))
	set := func(n uint64) {
		steer.mu.Lock()
		defer steer.mu.Unlock()
		steer.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: n}}
	}
	set(10)
	next.Policy = []config.Rule{{Name: "b", Match: config.Match{Ports: config.Ports(7001)}, Action: report.ActionAccelerate}}
	steer.behind = func() {
		set(11) // one more connection
		require.NoError(t, g.reload(next, nil))
	}
	for _, d := range g.Snapshot().Decisions {
		require.LessOrEqual(t, d.Count, uint64(11), "%+v", d)
	}
}

// A reload while what connections did is looked at leaves that with the rule that they had.
func TestForecastBesideReload(t *testing.T) {
	for name, look := range map[string]func(*gateway){"chore": (*gateway).look, "policy": func(g *gateway) { g.Policy() }} {
		first := []config.Rule{{Name: "a", Match: config.Match{Ports: config.Ports(7000)}, Action: report.ActionAccelerate}}
		g, steer := steeredGateway(t, config.Config{Mode: report.ModeObserve, Policy: first}.WithDefaults(), retiring{})
		next := g.cfg
		next.Policy = []config.Rule{{Name: "b", Match: config.Match{Ports: config.Ports(7001)}, Action: report.ActionAccelerate}}
		steer.seen = []ebpf.Seen{{Port: 7000, Rule: 0, Carries: true, Begun: 1}}
		reloaded := make(chan error, 1)
		steer.behind = func() {
			if !g.reloading.TryLock() { // it waits
				go func() { reloaded <- g.reload(next, nil) }()
				return
			}
			g.reloading.Unlock()
			reloaded <- g.reload(next, nil)
		}
		look(g)
		require.NoError(t, <-reloaded)
		list := g.observed.List()
		require.Len(t, list, 1, name)
		require.Equal(t, "a", list[0].Rule, name)
	}
}

// TestLateLeave: a gateway whose successor has gone meanwhile does not leave.
func TestLateLeave(t *testing.T) {
	g, steer := steeredGateway(t, config.Config{Mode: report.ModeObserve}.WithDefaults(), retiring{})
	require.ErrorIs(t, g.Leave(func(bool) error { return errStopping }, 0), errStopping)
	require.Zero(t, steer.refused)
	require.Nil(t, g.Draining())
	for _, off := range []bool{true, false} { // the kill switch goes with it
		require.NoError(t, g.SetOff(off))
		require.NoError(t, g.Leave(func(told bool) error {
			require.Equal(t, off, told)
			return nil
		}, 0))
	}
}

// settled waits until an engine that is not wanted any more has ended.
func settled(t *testing.T, g *gateway) {
	t.Helper()
	require.Eventually(t, func() bool {
		g.settle(time.Now())
		return !g.carries()
	}, patience, 10*time.Millisecond)
}

// claimed begins a takeover of g by another process, which lose ends.
func claimed(t *testing.T, g *gateway) (lose func()) {
	t.Helper()
	near, far := net.Pipe()
	var conversation sync.WaitGroup
	conversation.Go(func() { g.incumbent.Converse(t.Context(), near) })
	_, err := fmt.Fprintln(far, `{"step":"claim"}`)
	require.NoError(t, err)
	_, err = bufio.NewReader(far).ReadString('\n')
	require.NoError(t, err)
	require.True(t, g.incumbent.Busy())
	return func() {
		require.NoError(t, far.Close())
		conversation.Wait()
	}
}

// TestEngineComesAndGoes: a reload of the mode makes the engine, and the end of what it carries
// ends it; opt-ins, the kill switch and what is counted stay, and a drain or a takeover keeps
// the engine.
func TestEngineComesAndGoes(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	g.host.Beside = activated{}
	observe := g.cfg
	observe.Mode, observe.CgroupPath = report.ModeObserve, ""
	require.NoError(t, os.Mkdir(filepath.Join(g.cfg.CgroupPath, "job"), 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(g.cfg.CgroupPath, "job"), &st))
	end, err := g.OptIn(config.OptIn{Cgroup: "/job", ID: st.Ino})
	require.NoError(t, err)
	require.Len(t, steer.policy, 1)

	observe = g.cfg
	observe.Mode = report.ModeObserve
	require.NoError(t, g.reload(observe, nil))
	f := bareFlow(t, g, report.SideServer, 3009)
	time.Sleep(2 * drainGrace)
	g.settle(time.Now())
	require.True(t, g.carries(), "a connection is there")
	f.Cancel(negotiate.ReasonMode)
	gone(t, g, f)
	lose := claimed(t, g)
	g.settle(time.Now())
	require.True(t, g.carries(), "another process takes over")
	lose()
	settled(t, g)
	require.Equal(t, ebpf.ModeObserve, steer.mode)
	require.Empty(t, g.Devices().Devices)
	require.Zero(t, g.ResetFlows())
	_, err = g.Demote(admin.DemoteQuery{Device: "rxe0"})
	require.ErrorIs(t, err, carrier.ErrNoDevice)
	n, err := g.FlushPeers()
	require.NoError(t, err)
	require.Zero(t, n)

	require.NoError(t, g.SetOff(true))
	before := g.engine()
	require.NoError(t, steer.Remember(pairAddrs[1], 7000, uint8(negotiate.ReasonAuthFailed), time.Minute))
	require.NoError(t, g.reload(g.cfg, negotiate.Keys{[]byte("0123456789abcdef")}))
	refused, err := steer.Peers()
	require.NoError(t, err)
	require.Empty(t, refused, "for other keys")
	require.NotSame(t, before, g.engine())
	require.Len(t, g.engine().env.Keys.Load(), 1)
	require.True(t, steer.off)
	require.Len(t, steer.policy, 1)
	end()
	require.Empty(t, steer.policy)
	require.NotEmpty(t, g.Devices().Devices)

	require.NoError(t, g.reload(observe, nil))
	_, err = g.Drain(time.Minute)
	require.NoError(t, err)
	time.Sleep(2 * drainGrace)
	g.settle(time.Now())
	require.True(t, g.carries(), "it drains")
}

// TestEngineThatFails: a reload whose engine cannot be made is refused whole.
func TestEngineThatFails(t *testing.T) {
	cfg := config.Config{Mode: report.ModeObserve}.WithDefaults()
	g, steer := steeredGateway(t, cfg, activated{})
	broken := errors.New("no descriptors")
	wire := wire.New(1500, 1)
	defer wire.Close()
	g.host.Link, g.host.Legs = wire.A(), failingLegs{err: broken}
	next := cfg
	next.Mode = report.ModeEnforce
	next.Policy = []config.Rule{{Name: "web", Match: config.Match{Ports: config.Ports(80)}, Action: report.ActionAccelerate}}
	require.ErrorIs(t, g.reload(next, negotiate.Keys{[]byte("0123456789abcdef")}), broken)
	require.False(t, g.carries())
	require.Empty(t, steer.policy)
	require.Empty(t, g.keys.Load())
	require.Equal(t, report.ModeObserve, g.Status().Mode)
	g.close()
	require.ErrorIs(t, g.reload(next, nil), errStopping)
}

// failingLegs accepts nothing.
type failingLegs struct {
	noLegs
	err error
}

func (l failingLegs) Listen(host.Loop, func(int, host.Tuple)) (host.LegListener, error) {
	return nil, l.err
}

// TestNumbersWithoutAnEngine: what the programs count is told, and every number is there.
func TestNumbersWithoutAnEngine(t *testing.T) {
	g, steer := steeredGateway(t, config.Config{Mode: report.ModeObserve}.WithDefaults(), activated{})
	steer.counters.Datagrams[ebpf.SideClient] = map[uint8]uint64{uint8(negotiate.ReasonMode): 2}
	snap := g.Snapshot()
	require.Equal(t, map[string]uint64{"mode": 2}, snap.UDP.Native)
	require.Contains(t, snap.SharesRefused, string(peers.ResourceMemory))
	require.Contains(t, snap.Memory, "used")
}

// TestDrainWithoutSight: a gateway does not take sockets that it cannot look at for ones that
// have delivered everything, and says so once.
func TestDrainWithoutSight(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	g.host.Beside = activated{}
	var said bytes.Buffer
	g.log = slog.New(slog.NewTextHandler(&said, nil))
	unknown := lingers{err: errors.New("no answer")}
	steer.lingering = []lingers{unknown}
	require.True(t, g.busy())

	steer.lingering = []lingers{unknown, unknown, {n: 3, err: unknown.err}, {n: 2}, {}}
	_, err := g.Drain(time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, g.awaitDrain(t.Context()), errDrained)
	require.Len(t, steer.lingering, 1, "it has looked until nothing lingered")
	require.Equal(t, 1, strings.Count(said.String(), "sockets that linger are not known"), said.String())
}

// someLegs are available, or not.
type someLegs struct {
	noLegs
	missing bool
}

func (l *someLegs) Available() bool { return !l.missing }

// TestLegsComeBack: connections are native while sockets for legs cannot be made, and a
// drain stays one.
func TestLegsComeBack(t *testing.T) {
	p := newGatewayPair(t)
	g, steer, legs := p.g[0], p.steer[0], &someLegs{}
	g.engine().host.Legs = legs
	look := func(missing bool, want negotiate.Reason) {
		t.Helper()
		legs.missing = missing
		g.watchLegs()
		require.Equal(t, uint8(want), steer.refused)
		require.Equal(t, missing, len(g.Status().BlockedLegs) > 0)
	}
	look(false, negotiate.ReasonNone)
	look(true, negotiate.ReasonAppLegBlocked)
	look(false, negotiate.ReasonNone)
	look(true, negotiate.ReasonAppLegBlocked)
	require.NoError(t, g.refusals.Change(func(r *peers.Refusal) { r.Drained = true }))
	require.Equal(t, uint8(negotiate.ReasonDrained), steer.refused)
	look(false, negotiate.ReasonDrained)
}

// TestSiteNeedsACgroup: a cgroup_path elsewhere is refused before anything is attached.
func TestSiteNeedsACgroup(t *testing.T) {
	cfg := config.Config{Mode: report.ModeEnforce, CgroupPath: t.TempDir()}.WithDefaults()
	_, err := openSite(cfg, nil, nil, RunOptions{})
	require.EqualError(t, err, "cgroup_path: "+cfg.CgroupPath+" is no directory of cgroup2")
}
