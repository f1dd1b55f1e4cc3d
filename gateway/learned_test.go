package gateway

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/negotiate"
)

// carriedByShm has a flow that has nothing look like one that is carried.
func (f *flow) carriedByShm() {
	f.call(func() {
		f.core.CarriedBy(life.ByLink)
		f.show(func(v *view) { v.carrier = config.CarrierShm })
		f.noted()
	})
}

// autoFlow is a carried flow of g to port 80 of a service, selected by auto.
func autoFlow(t *testing.T, g *gateway, port uint16) *flow {
	f := bareFlow(t, g, config.SideClient, port)
	f.auto = true
	f.carriedByShm()
	return f
}

func autoPair(t *testing.T) (*gateway, *fakeSteering) {
	p := newGatewayPair(t)
	g := p.g[0]
	g.cfg.Policy = []config.Rule{{Name: "a", Action: config.ActionAuto}, {Name: "b", Action: config.ActionAccelerate}}
	g.live.Store(&liveConfig{Config: g.cfg})
	g.auto = newAutoBook(g)
	return g, p.steer[0]
}

// TestAutoBook: what flows do reaches the learner once, running ones too, and
// what it decides reaches the steering, status and metrics.
func TestAutoBook(t *testing.T) {
	g, steer := autoPair(t)
	require.True(t, g.learnsFrom(0))
	require.False(t, g.learnsFrom(1))
	require.False(t, g.learnsFrom(ebpf.NoRule))
	require.False(t, g.learnsFrom(7))

	a, b := autoFlow(t, g, 2000), autoFlow(t, g, 2001)
	a.tx.Store(40)
	a.reads.Store(1)
	now := time.Now()
	for range 3 {
		g.learn(now)
	}
	list := g.Services()
	require.Len(t, list, 1)
	require.Equal(t, admin.ServiceInfo{
		Address: netip.MustParseAddr("10.0.0.2"), Port: 80, Verdict: admin.VerdictSampling, Connections: 2, Bytes: 40, Moves: 1,
		BytesPerConnection: 20, BytesPerMove: 40, BytesPerSecond: list[0].BytesPerSecond, Score: list[0].Score, Why: list[0].Why,
	}, list[0])
	a.tx.Add(600)
	a.rx.Add(1200)
	a.reads.Add(300)
	a.writes.Add(300)
	for range 2 {
		g.learn(now.Add(time.Second))
	}
	list = g.Services()
	require.Equal(t, admin.VerdictNative, list[0].Verdict)
	require.Equal(t, "not_worth_it", list[0].Reason)
	require.Positive(t, list[0].ExpiresSeconds)
	require.EqualValues(t, 1840, list[0].Bytes, "nothing is counted twice")
	require.Contains(t, list[0].Why, "601 moves of 2 connections")
	sent, err := steer.Services()
	require.NoError(t, err)
	require.Len(t, sent, 1)
	require.Equal(t, ebpf.ServiceNative, sent[0].State)
	require.Equal(t, map[admin.ServiceVerdict]int{admin.VerdictNative: 1}, g.Snapshot().Services)

	b.rx.Add(1 << 32)
	b.writes.Add(1 << 14)
	b.call(func() { b.do(b.core.Aborts(negotiate.ReasonNone, false)) })
	require.Eventually(t, func() bool { return g.Services()[0].Verdict == admin.VerdictCarry }, 30*time.Second, time.Millisecond, "the end of a flow tells too")
	a.call(func() { a.abort(negotiate.ReasonDrained, false) })
	waitBuried(t, a)

	_, err = g.FlushPeers()
	require.NoError(t, err)
	require.Empty(t, g.Services())
	sent, err = steer.Services()
	require.NoError(t, err)
	require.Empty(t, sent)
}

// TestAutoBookIgnores: servers, flows of other rules, and flows that are not
// carried yet.
func TestAutoBookIgnores(t *testing.T) {
	g, _ := autoPair(t)
	other := bareFlow(t, g, config.SideServer, 2000)
	other.carriedByShm()
	early := bareFlow(t, g, config.SideClient, 2001)
	early.auto = true
	g.learn(time.Now())
	for _, f := range []*flow{other, early} {
		f.call(func() { f.abort(negotiate.ReasonDrained, false) })
		waitBuried(t, f)
	}
	require.Empty(t, g.Services())
	g.auto = nil
	g.learn(time.Now())
	require.Empty(t, g.Services())
	require.NoError(t, g.auto.Flush())
}
