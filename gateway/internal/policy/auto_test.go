package policy

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// autoConfig has a rule with action auto before one that carries.
func autoConfig() config.Config {
	return config.Config{Policy: []config.Rule{
		{Name: "redis", Match: config.Match{Ports: config.Ports(6379)}, Action: report.ActionAuto},
		{Name: "rings", Match: config.Match{Ports: config.Ports(6380)}, Action: report.ActionAuto, Way: report.WayInProcess},
		{Name: "rest", Action: report.ActionAccelerate},
	}}.WithDefaults()
}

// TestAutoIsARule: without an adapter all that a rule with action auto matches is native, in
// both directions, whatever rules come after it; with one it carries as accelerate does.
func TestAutoIsARule(t *testing.T) {
	peer := netip.MustParseAddr("10.0.0.2")
	for _, inbound := range []bool{false, true} {
		for adapters, want := range map[bool]ebpf.Verdict{
			false: {Rule: 0, Action: ebpf.ActionPass, Reason: ebpf.ReasonNotWorthIt},
			true:  {Rule: 0, Action: ebpf.ActionAccelerate},
		} {
			p, err := ebpf.CompilePolicy(Translate(autoConfig(), adapters, nil).Policy, nil)
			require.NoError(t, err)
			require.Equal(t, want, p.Decide(ebpf.Query{Peer: peer, Port: 6379, Inbound: inbound}))
			require.Equal(t, ebpf.Verdict{Rule: 1, Reason: ebpf.ReasonPolicy}, p.Decide(ebpf.Query{Peer: peer, Port: 6380, Inbound: inbound}))
			require.Equal(t, ebpf.Verdict{Rule: 2, Action: ebpf.ActionAccelerate}, p.Decide(ebpf.Query{Peer: peer, Port: 80, Inbound: inbound}))
		}
	}
}

// TestAutoFollows: adapters that come and go change what the rules do, those of trials stay,
// and a datapath that refuses leaves everything as it was.
func TestAutoFollows(t *testing.T) {
	steer, cfg := &fakePolicy{}, autoConfig()
	ts := NewTrials(cfg, steer)
	end, err := ts.Begin(config.Trial{Peer: trialPeer, Port: 4792, Action: report.ActionAccelerate})
	require.NoError(t, err)
	defer end()
	require.Equal(t, ebpf.ActionNotWorthIt, steer.rules[0].Action)
	steer.refuse = errUnwritten
	require.ErrorIs(t, ts.Adapters(cfg, true), errUnwritten)
	steer.refuse = nil
	require.NoError(t, ts.Adapters(cfg, false))
	require.Equal(t, ebpf.ActionNotWorthIt, steer.rules[0].Action)
	require.NoError(t, ts.Adapters(cfg, true))
	require.Equal(t, ebpf.ActionAccelerate, steer.rules[0].Action)
	require.Len(t, steer.rules, 4)
	require.NoError(t, ts.Configure(cfg))
	require.Equal(t, ebpf.ActionAccelerate, steer.rules[0].Action)
}
