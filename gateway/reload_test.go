package gateway

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestReload: mode, policy and limits change while flows go on, and what was
// decided keeps the name of its rule.
func TestReload(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	require.NoError(t, g.reload(g.cfg, nil))
	next := g.cfg
	next.Mode = report.ModeObserve
	next.Policy = []config.Rule{{Name: "web", Match: config.Match{Ports: config.Ports(80)}, Action: report.ActionAccelerate}}
	next.Limits.MaxFlows, next.Limits.NewFlowsPerSecond, next.Limits.HandshakeTimeout = 7, 9, time.Millisecond
	require.NoError(t, g.reload(next, nil))
	require.Equal(t, ebpf.ModeObserve, steer.mode)
	require.Equal(t, []uint16{80}, steer.policy[0].Ports)
	require.Equal(t, report.ModeObserve, g.Status().Mode)
	require.Equal(t, 7, g.engine().limits.MaxFlows())
	require.Equal(t, 7, g.Totals().Bounds.FlowsConfigured)
	require.Equal(t, 9, g.engine().rate.Burst())

	steer.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 5}}
	require.Contains(t, g.Snapshot().Decisions, report.DecisionCount{Action: report.ActionAccelerate, Rule: "web", Count: 5})
	next.Policy = []config.Rule{{Name: "db", Match: config.Match{Ports: config.Ports(5432)}, Action: report.ActionAccelerate}}
	require.NoError(t, g.reload(next, nil))
	steer.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 6}}
	require.Contains(t, g.Snapshot().Decisions, report.DecisionCount{Action: report.ActionAccelerate, Rule: "web", Count: 5})
	require.Contains(t, g.Snapshot().Decisions, report.DecisionCount{Action: report.ActionAccelerate, Rule: "db", Count: 1})
}

// TestReloadIsRefusedWhole: what cannot come into force leaves everything as it was.
func TestReloadIsRefusedWhole(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	before := g.live.Load()
	for name, edit := range map[string]func(*config.Config){
		"carriers":          func(c *config.Config) { c.Carriers = []report.DeviceKind{report.DeviceSoft} },
		"shm_dir":           func(c *config.Config) { c.ShmDir = "/elsewhere" },
		"limits":            func(c *config.Config) { c.Limits.Memory++ },
		"limits.max_flows":  func(c *config.Config) { c.Limits.MaxFlows++ },
		"handshake_timeout": func(c *config.Config) { c.Limits.HandshakeTimeout++ },
		"carries datagrams": func(c *config.Config) {
			c.Policy = []config.Rule{{Name: "d", Match: config.Match{Proto: report.ProtoUDP, Ports: config.Ports(5353)}, Action: report.ActionAccelerate}}
		},
	} {
		next := g.cfg
		next.Mode = report.ModeEnforce
		edit(&next)
		err := g.reload(next, nil)
		require.ErrorIs(t, err, config.ErrRestart, name)
		require.ErrorContains(t, err, name)
		require.Same(t, before, g.live.Load())
	}
	errFull := errors.New("map full")
	steer.mu.Lock()
	steer.refuse = errFull
	steer.mu.Unlock()
	next := g.cfg
	next.Policy = []config.Rule{{Name: "web", Match: config.Match{Ports: config.Ports(80)}, Action: report.ActionAccelerate}}
	require.ErrorIs(t, g.reload(next, nil), errFull)
	require.Same(t, before, g.live.Load())
	steer.mu.Lock()
	steer.refuse = nil
	steer.mu.Unlock()
	end, err := g.Try(config.Trial{Peer: netip.MustParseAddr("10.0.0.2"), Port: 80, Action: report.ActionAccelerate})
	require.NoError(t, err, "the rules before count for trials")
	end()
}

// TestReloadKeys: keys come with the configuration, and go with it.
func TestReloadKeys(t *testing.T) {
	p := newGatewayPair(t)
	g, keys := p.g[0], negotiate.Keys{[]byte("0123456789abcdef")}
	g.cfg.Security.PSKFile = "/on/a/server/that/does/not/answer"
	require.NoError(t, g.reload(g.cfg, keys))
	require.Equal(t, keys, g.keys.Load())
	require.NoError(t, g.reload(g.cfg, nil))
	require.Empty(t, g.keys.Load())
}

// TestSettings: what is set is in force at once, until the configuration is read again.
func TestSettings(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	var level slog.LevelVar
	g.setLogLevel = level.Set
	set := func(name, value string) error { return g.Set(admin.Setting{Name: name, Value: value}) }
	require.NoError(t, set("log.level", "debug"))
	require.Equal(t, slog.LevelDebug, level.Level())
	require.NoError(t, set("log.access", "carried"))
	require.Equal(t, slog.LevelDebug, level.Level())
	require.Equal(t, config.AccessCarried, g.live.Load().Log.Access)
	require.ErrorContains(t, set("log.level", "loud"), `log.level: "loud" is not one of debug, info, warn or error`)
	require.ErrorContains(t, set("mode", "off"), "mode: takes a restart; at once can be changed: log.level")
	next := g.cfg
	next.Log.Level = config.LogWarn
	require.NoError(t, g.reload(next, nil))
	require.Equal(t, slog.LevelWarn, level.Level())
	require.Equal(t, config.AccessOff, g.live.Load().Log.Access)
	next.Log.Format = config.LogJSON
	require.ErrorContains(t, g.reload(next, nil), "log: takes a restart")
}

// TestAdminSocketStays: no gateway takes over at another admin socket, where it would not
// find this one.
func TestAdminSocketStays(t *testing.T) {
	p := newGatewayPair(t)
	g, next := p.g[0], p.g[0].cfg
	next.Admin = filepath.Join(t.TempDir(), "other.sock")
	at := g.cfg
	at.Admin = filepath.Join(t.TempDir(), "a.sock")
	server, err := admin.Listen(at, "1", nil)
	require.NoError(t, err)
	defer server.Close()
	d := &daemon{cfg: at, admin: server, log: g.log, opts: RunOptions{
		Program: &process.Program{Path: "/bin/false"}, Load: func() (config.Config, error) { return next, nil },
	}}
	d.equip(g)
	_, err = g.Renew(t.Context(), true)
	require.ErrorIs(t, err, config.ErrStop)
	require.Contains(t, g.Status().Degraded, "config_refused")
}

// Changed keys are in force for what begins then, and only what was remembered for
// the old ones is forgotten.
func TestSetKeys(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	require.NoError(t, steer.Remember(a, 7000, uint8(negotiate.ReasonAuthFailed), time.Minute))
	require.NoError(t, steer.Remember(b, 7000, uint8(negotiate.ReasonPolicy), time.Minute))
	now := time.Now()
	first := g.engine().peers.Strike(a, 7000, negotiate.ReasonAuthFailed, g.engine().env.Policy, now)
	keys := negotiate.Keys{[]byte("0123456789abcdef")}
	require.NoError(t, g.setKeys(keys))
	require.Equal(t, keys, g.keys.Load())
	left, err := steer.Peers()
	require.NoError(t, err)
	require.Equal(t, []ebpf.Peer{{Addr: b, Port: 7000, Reason: uint8(negotiate.ReasonPolicy), TTL: time.Minute}}, left)
	require.Equal(t, first, g.engine().peers.Strike(a, 7000, negotiate.ReasonAuthFailed, g.engine().env.Policy, now), "as if it were the first")

	require.NoError(t, steer.Remember(a, 7000, uint8(negotiate.ReasonAuthFailed), time.Minute))
	require.NoError(t, g.setKeys(negotiate.Keys{[]byte("0123456789abcdef")}), "no change")
	left, err = steer.Peers()
	require.NoError(t, err)
	require.Len(t, left, 2)
}
