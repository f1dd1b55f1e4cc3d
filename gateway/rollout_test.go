package gateway

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/lab/wire"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

func (s *fakeSteering) share() ebpf.Share {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rollout.Share
}

// A share set by an operator holds until the configuration is read again.
func TestRolloutInForce(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	next := g.cfg
	next.Rollout = config.Rollout{Percent: 10 * 100}
	require.NoError(t, g.reload(next, nil))
	require.Equal(t, ebpf.ShareOf(10), steer.share())
	for _, bad := range []string{"", "101", "x"} {
		require.ErrorIs(t, g.Set(admin.Setting{Name: admin.SettingShare, Value: bad}), admin.ErrSetting)
	}
	require.NoError(t, g.Set(admin.Setting{Name: admin.SettingShare, Value: "0"}))
	require.Equal(t, ebpf.ShareNone, steer.share())
	require.InDelta(t, 0, g.Snapshot().Share, 0.001)
	require.NoError(t, g.reload(next, nil))
	require.Equal(t, ebpf.ShareOf(10), steer.share(), "the file is in force again")
	require.InDelta(t, 10, g.Policy().Rollout.Percent, 0.001)
}

// A guard that trips makes new connections native, says so, and is reset by on and by a
// reload.
func TestGuard(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	next := g.cfg
	next.Mode = report.ModeEnforce
	next.Guard = config.Guard{Aborted: 50 * 100, Window: time.Minute, Minimum: 2}
	require.NoError(t, g.reload(next, nil))
	ends := func(reason string, n int) {
		for range n {
			g.counters.Ended(new(conn.Flow), report.ConnInfo{Carrier: report.CarrierShm, Side: report.SideClient, End: report.EndAborted, Reason: reason})
		}
	}
	now := time.Now()
	for name, reset := range map[string]func() error{
		"on": func() error { return g.SetOff(false) }, "reload": func() error { return g.reload(next, nil) },
	} {
		ends("app_reset", 10)
		now = now.Add(time.Second)
		g.watchOver(now)
		require.Equal(t, ebpf.ModeEnforce, steer.mode, name)
		ends("peer_dead", 10)
		trips := g.Snapshot().GuardTrips
		g.watchOver(now.Add(time.Second))
		require.Equal(t, ebpf.ModeObserve, steer.mode, name)
		st := g.Status()
		require.Equal(t, report.ModeObserve, st.Mode)
		require.Contains(t, st.Degraded, report.GuardTripped)
		require.Contains(t, st.Notes[len(st.Notes)-1], "reset 10 of 20 connections that ended, carried or in process")
		require.True(t, g.Snapshot().GuardTripped)
		require.Equal(t, trips["aborted"]+1, g.Snapshot().GuardTrips["aborted"])
		require.NoError(t, reset())
		require.Equal(t, ebpf.ModeEnforce, steer.mode, name)
		require.NotContains(t, g.Status().Degraded, report.GuardTripped)
		require.Equal(t, guard.Watching, g.guard.State())
		now = time.Now()
	}
	for _, slower := range []config.Share{50 * 100, config.NoShare} { // connections are compared where a guard looks at that
		next.Guard.Slower = slower
		require.NoError(t, g.reload(next, nil))
		require.Equal(t, slower > 0, steer.compare)
	}
}

// Rules have what they decided, and what connections did that they would carry.
func TestPolicyReport(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	next := g.cfg
	next.Policy = []config.Rule{
		{Name: "bulk", Match: config.Match{Ports: config.Ports(5201)}, Action: report.ActionAccelerate, Percent: 25 * 100},
		{Name: "never", Action: report.ActionPass},
	}
	require.NoError(t, g.reload(next, nil))
	steer.counters.Decided = []ebpf.Decided{{Rule: 0, Accelerate: 5, Pass: 15}, {Rule: 1, Pass: 3}, {Rule: ebpf.NoRule, Pass: 2}}
	g.observed.Add([]ebpf.Seen{{Port: 5201, Rule: 0, Carries: true, Begun: 1, Ended: 1, Sent: 5 << 20, Bulk: 1, BulkBytes: 5 << 20}}, func(int) string { return "bulk" })
	got := g.Policy()
	quarter := 25.0
	require.Equal(t, []report.RuleReport{
		{Name: "bulk", Action: report.ActionAccelerate, Percent: &quarter, Selected: 5, Passed: 15, Bytes: 5 << 20, Bulk: 5 << 20},
		{Name: "never", Action: report.ActionPass, Passed: 3},
		{Name: "default", Action: report.ActionPass, Passed: 2},
	}, got.Rules)
	require.Len(t, got.Observed, 1)
}

// The guard counts from the start of the gateway, not from its first look.
func TestGuardFromTheStart(t *testing.T) {
	p := newGatewayPair(t)
	steer := newFakeSteering()
	cfg := p.g[0].cfg
	cfg.Mode, cfg.Guard = report.ModeEnforce, config.Guard{Aborted: 100, Window: time.Minute, Minimum: 2}
	cfg.ShmDir, cfg.Carriers = t.TempDir(), []report.DeviceKind{report.DeviceShm}
	wire := wire.New(1500, 1)
	defer wire.Close()
	at := &site{localHost: localHost{Steering: steer, Legs: noLegs{}, Link: wire.A(), ID: [16]byte{2}}}
	g, err := newGateway(cfg, at, nil, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer g.close()
	for range 2 {
		g.counters.Ended(new(conn.Flow), report.ConnInfo{Carrier: report.CarrierShm, End: report.EndAborted, Reason: "peer_dead"})
	}
	g.watchOver(time.Now())
	require.Equal(t, ebpf.ModeObserve, steer.mode)
	require.True(t, g.Snapshot().GuardTripped)
}

// adapterProvider is a carrier whose adapter comes and goes.
type adapterProvider struct {
	carrier.Provider
	there bool
}

func (a *adapterProvider) HasAdapter() bool { return a.there }

// TestAutoFollowsAdapters: a rule with action auto carries while an adapter does, also after
// a reload that brings the rule; shared memory and software never make it.
func TestAutoFollowsAdapters(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	action := func() ebpf.Action {
		steer.mu.Lock()
		defer steer.mu.Unlock()
		return steer.policy[0].Action
	}
	next := g.cfg
	next.Policy = []config.Rule{{Name: "a", Action: report.ActionAuto}, {Name: "b", Match: config.Match{Ports: config.Ports(80)}, Action: report.ActionAccelerate}}
	require.NoError(t, g.reload(next, nil))
	require.NotEmpty(t, g.engine().env.Providers)
	require.NoError(t, g.followAdapters())
	require.Equal(t, ebpf.ActionNotWorthIt, action())
	require.True(t, g.auto(0))
	require.False(t, g.auto(1))
	require.False(t, g.auto(ebpf.NoRule))

	before := g.engine().env.Providers
	defer func() { g.engine().env.Providers = before }()
	a := &adapterProvider{before[0], true}
	g.engine().env.Providers = append(slices.Clone(before), a)
	require.NoError(t, g.followAdapters())
	require.Equal(t, ebpf.ActionAccelerate, action())
	a.there = false
	require.NoError(t, g.followAdapters())
	require.Equal(t, ebpf.ActionNotWorthIt, action())
	a.there = true
	require.NoError(t, g.reload(next, nil))
	require.Equal(t, ebpf.ActionAccelerate, action())
}

// TestAutoObserved: a gateway that carries nothing decides by the adapters that the kernel
// tells of, if its configuration has it use them.
func TestAutoObserved(t *testing.T) {
	cfg := config.Config{Mode: report.ModeObserve, Policy: []config.Rule{{Name: "a", Action: report.ActionAuto}}}.WithDefaults()
	g, _ := steeredGateway(t, cfg, retiring{})
	require.False(t, g.adapters())
	g.host.RDMA = func() (sysfs.RDMA, error) { return sysfs.RDMA{}, nil }
	require.False(t, g.adapters())
	g.host.RDMA = func() (sysfs.RDMA, error) { return sysfs.RDMA{Adapters: make([]sysfs.Adapter, 1)}, nil }
	require.True(t, g.adapters())
	cfg.Carriers = []report.DeviceKind{report.DeviceShm}
	g.live.Store(&liveConfig{Config: cfg})
	require.False(t, g.adapters())
}
