package gateway

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/verbs/hw/sysfs"
)

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
