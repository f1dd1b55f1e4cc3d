package gateway

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
)

// retiring is a datapath that leaves new connections to another.
type retiring struct{ host.Beside }

func (retiring) Retire() error { return nil }

// steeredGateway is a gateway of which only the steering is there, until the test ends.
func steeredGateway(t *testing.T, cfg config.Config, beside host.Beside) (*gateway, *fakeSteering) {
	t.Helper()
	steer := newFakeSteering()
	g, err := newGateway(cfg, Host{Steering: steer, Beside: beside}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(g.close)
	return g, steer
}

// Opt-ins and readers stay with the gateway that takes the place of another, and what is
// counted keeps its rule.
func TestInheritOptIns(t *testing.T) {
	cfg := config.Config{
		CgroupPath: t.TempDir(), Mode: config.ModeObserve,
		Policy: []config.Rule{{Name: "web", Match: config.Match{Ports: config.Ports(80)}, Action: config.ActionAccelerate}},
	}.WithDefaults()
	old, before := steeredGateway(t, cfg, retiring{})
	next, after := steeredGateway(t, cfg, retiring{})
	require.NoError(t, os.Mkdir(filepath.Join(cfg.CgroupPath, "job"), 0o700))
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(cfg.CgroupPath, "job"), &st))
	end, err := old.OptIn(admin.OptIn{Cgroup: "/job", ID: st.Ino})
	require.NoError(t, err)
	require.Len(t, before.policy, 2)
	before.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 3}, {Rule: 1, Accelerate: 5}}

	require.NoError(t, next.inherit(old))
	require.Same(t, old.Feed(), next.Feed())
	require.Same(t, old.env.Lines, next.env.Lines)
	require.Same(t, old.renewal, next.renewal)
	require.Same(t, old.reloads, next.reloads)
	require.Equal(t, before.policy, after.policy)
	after.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 1}, {Rule: 1, Accelerate: 2}}
	counts := []admin.DecisionCount{
		{Action: config.ActionAccelerate, Rule: "run", Count: 4}, {Action: config.ActionAccelerate, Rule: "web", Count: 7},
	}
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
	end()
	require.Len(t, after.policy, 1)
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
	after.counters.Decided[0].Accelerate = 2
	counts[1].Count = 8
	require.ElementsMatch(t, counts, next.Snapshot().Decisions)
}

// A drain that is asked for while another gateway takes the place of one, before or after
// the moment it inherits, is that one's.
func TestDrainWhileReplaced(t *testing.T) {
	cfg := config.Config{Mode: config.ModeObserve}.WithDefaults()
	begin := func() *gateway {
		g, _ := steeredGateway(t, cfg, retiring{})
		return g
	}
	old, next := begin(), begin() // it is over before another one takes the place
	over, err := old.Drain(time.Second)
	require.NoError(t, err)
	require.ErrorIs(t, old.awaitDrain(t.Context()), errDrained)
	<-over
	require.NoError(t, next.inherit(old))
	require.ErrorIs(t, next.awaitDrain(t.Context()), errDrained)
	for _, late := range []bool{false, true} {
		old, next := begin(), begin()
		var board admin.Board
		board.Hang(old)
		loops, stop := context.WithCancel(t.Context())
		stop()
		require.NoError(t, old.awaitDrain(loops), "it ends with the loops")
		if late {
			require.NoError(t, next.inherit(old))
		}
		over, err := board.Drain(time.Second)
		require.NoError(t, err)
		if !late {
			require.NoError(t, next.inherit(old))
		}
		board.Hang(next)
		require.True(t, board.Draining() != nil)
		require.ErrorIs(t, next.awaitDrain(t.Context()), errDrained)
		<-over
		require.EqualValues(t, negotiate.ReasonDrained, next.steer.(*fakeSteering).refused)
	}
}

// activated is a datapath that takes new connections.
type activated struct{ retiring }

func (activated) Activate() error { return nil }

func (activated) HasNeighbour() bool { return false }

// The kill switch of a gateway is that of the one in whose place it is, whatever the file said
// when its datapath was opened: it is not there where the disk is full, and an operator may
// remove it. What is asked of the one before counts for it.
func TestInheritOff(t *testing.T) {
	for _, off := range []bool{true, false} {
		cfg := config.Config{Mode: config.ModeObserve, StateDir: t.TempDir()}.WithDefaults()
		old, _ := steeredGateway(t, cfg, activated{})
		next, steer := steeredGateway(t, cfg, activated{})
		require.NoError(t, old.SetOff(off))
		require.NoError(t, steer.SetOff(!off))
		require.NoError(t, next.inherit(old))
		d := &daemon{cfg: cfg, log: old.log}
		require.NoError(t, d.open(t.Context(), &posting{site: new(site), gateway: next}))
		require.Equal(t, off, next.off.Load())
		require.Equal(t, off, steer.off)

		require.NoError(t, old.SetOff(!off), "until the next one is on the board")
		require.Equal(t, !off, next.off.Load())
		require.Equal(t, !off, steer.off)
	}
}

// hookedCounters runs something between a look at the counters and its use.
type hookedCounters struct {
	*fakeSteering
	behind func()
}

func (s *hookedCounters) Counters() (ebpf.Counters, error) {
	c, err := s.fakeSteering.Counters()
	if f := s.behind; f != nil {
		s.behind = nil
		f()
	}
	return c, err
}

// A reload closes the book of decisions while a scrape is made of it.
func TestDecisionsBesideReload(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	next := g.cfg
	next.Policy = []config.Rule{{Name: "a", Match: config.Match{Ports: config.Ports(7000)}, Action: config.ActionAccelerate}}
	require.NoError(t, g.reload(next, nil))
	set := func(n uint64) {
		steer.mu.Lock()
		defer steer.mu.Unlock()
		steer.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: n}}
	}
	set(10)
	next.Policy = []config.Rule{{Name: "b", Match: config.Match{Ports: config.Ports(7001)}, Action: config.ActionAccelerate}}
	g.steer = &hookedCounters{steer, func() {
		set(11) // one more connection
		require.NoError(t, g.reload(next, nil))
	}}
	for _, d := range g.Snapshot().Decisions {
		require.LessOrEqual(t, d.Count, uint64(11), "%+v", d)
	}
}

// hookedSeen runs something between a look at what connections did and its use.
type hookedSeen struct {
	*fakeSteering
	behind func()
}

func (s *hookedSeen) TakeSeen() ([]ebpf.Seen, error) {
	list, err := s.fakeSteering.TakeSeen()
	if f := s.behind; f != nil {
		s.behind = nil
		f()
	}
	return list, err
}

// A reload while what connections did is looked at leaves that with the rule that they had.
func TestForecastBesideReload(t *testing.T) {
	for name, look := range map[string]func(*gateway){"chore": (*gateway).look, "policy": func(g *gateway) { g.Policy() }} {
		first := []config.Rule{{Name: "a", Match: config.Match{Ports: config.Ports(7000)}, Action: config.ActionAccelerate}}
		g, steer := steeredGateway(t, config.Config{Mode: config.ModeObserve, Policy: first}.WithDefaults(), retiring{})
		next := g.cfg
		next.Policy = []config.Rule{{Name: "b", Match: config.Match{Ports: config.Ports(7001)}, Action: config.ActionAccelerate}}
		steer.seen = []ebpf.Seen{{Port: 7000, Rule: 0, Carries: true, Begun: 1}}
		reloaded := make(chan error, 1)
		g.steer = &hookedSeen{steer, func() {
			if !g.reloading.TryLock() { // it waits
				go func() { reloaded <- g.reload(next, nil) }()
				return
			}
			g.reloading.Unlock()
			reloaded <- g.reload(next, nil)
		}}
		look(g)
		require.NoError(t, <-reloaded)
		list := g.observed.List()
		require.Len(t, list, 1, name)
		require.Equal(t, "a", list[0].Rule, name)
	}
}

// TestLateLeave: a gateway whose successor has gone meanwhile does not leave.
func TestLateLeave(t *testing.T) {
	g, steer := steeredGateway(t, config.Config{Mode: config.ModeObserve}.WithDefaults(), retiring{})
	_, err := g.Leave(func() error { return errStopping }, time.Second, 0)
	require.ErrorIs(t, err, errStopping)
	require.Zero(t, steer.refused)
	require.Nil(t, g.Draining())
	for _, off := range []bool{true, false} { // the kill switch goes with it
		require.NoError(t, g.SetOff(off))
		told, err := g.Leave(func() error { return nil }, time.Second, 0)
		require.NoError(t, err)
		require.Equal(t, off, told)
	}
}
