package conn

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// bareFlow is a flow of g that has nothing yet.
func bareFlow(g *fakeGateway, side report.Side, port uint16) *Flow {
	tuple := host.Tuple{
		Local:  netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port),
		Remote: netip.MustParseAddrPort("10.0.0.2:80"),
	}
	return g.open(side, tuple, nil)
}

func fallbacks(g *fakeGateway) map[string]uint64 {
	out := map[string]uint64{}
	for _, prov := range g.snapshot().Fallbacks {
		out[prov.Reason+"/"+string(prov.Side)] = prov.Count
	}
	return out
}

// TestFallbacksAreCountedOnce: one connection, one side, one number, the first
// reason, and the side that decided.
func TestFallbacksAreCountedOnce(t *testing.T) {
	p := newPair(t)
	g := p.g[0]
	verdict := func(o negotiate.Outcome, r negotiate.Reason, remote bool) negotiate.Verdict {
		return negotiate.Verdict{Outcome: o, Reason: r, Remote: remote}
	}
	for i, tc := range []struct {
		side   report.Side
		end    func(f *Flow)
		want   string // reason/side, empty for none
		reason string
		remote bool
	}{
		{report.SideClient, func(f *Flow) { f.release(verdict(negotiate.OutcomeReleased, negotiate.ReasonAppRefused, true)) }, "app_refused/client", "app_refused", true},
		{report.SideClient, func(f *Flow) { f.release(verdict(negotiate.OutcomeReleased, negotiate.ReasonNoMemory, false)) }, "no_memory/client", "no_memory", false},
		{report.SideServer, func(f *Flow) { f.vanish(negotiate.ReasonFlowLimit) }, "flow_limit/server", "flow_limit", false},
		{report.SideServer, func(f *Flow) { f.replaced() }, "client_gone/server", "client_gone", true},
		{report.SideServer, func(f *Flow) { f.drain(negotiate.ReasonDrained) }, "drained/server", "drained", false},
		{report.SideServer, func(f *Flow) {
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeDeclined, negotiate.ReasonAppUnreachable, false)})
		}, "app_unreachable/server", "app_unreachable", false},
		{report.SideServer, func(f *Flow) {
			f.do(f.core.LosesAccept())
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeAborted, negotiate.ReasonAppRefused, false)})
		}, "accept_lost/server", "accept_lost", false},
		{report.SideClient, func(f *Flow) {
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeAborted, negotiate.ReasonWireReset, true)})
		}, "", "wire_reset", true},
		{report.SideServer, func(f *Flow) { f.core.CarriedBy(life.ByRaw); f.replaced() }, "", "client_gone", true},
	} {
		before := fallbacks(g)
		f := bareFlow(g, tc.side, uint16(2000+i))
		for range 2 {
			f.call(func() { tc.end(f) })
		}
		f.call(func() { f.abort(negotiate.ReasonPeerDead, true) })
		waitBuried(t, f)
		after := fallbacks(g)
		if tc.want != "" {
			require.Equal(t, before[tc.want]+1, after[tc.want], tc.want)
			before[tc.want]++
		}
		require.Equal(t, before, after)
		info := f.Info(time.Now())
		require.Equal(t, tc.reason, info.Reason)
		require.Equal(t, report.DecidedBy(tc.remote), info.DecidedBy, tc.reason)
	}
	require.Equal(t, 9, len(g.Closed.List())+len(g.Native.List()))
	require.Empty(t, g.all())
}

// TestReleaseLosesAgainstANewerSYN: the entry of another connection is not
// touched, and nothing is sent on it.
func TestReleaseLosesAgainstANewerSYN(t *testing.T) {
	p := newPair(t)
	f := bareFlow(p.g[0], report.SideClient, 3000)
	newer := ebpf.Flow{Tuple: ebpf.Tuple(f.Tuple), ISN: 8, State: ebpf.StateOffered}
	p.steer[0].Put(newer)
	f.call(func() {
		f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonHandshakeTimeout})
	})
	waitBuried(t, f)
	e, err := p.steer[0].Flow(newer.Tuple)
	require.NoError(t, err)
	require.Equal(t, newer, e)
	require.Empty(t, p.steer[0].TakeInjected())
}

// TestWireOfAnEndedFlow: a caller that comes too late with it has to end it.
func TestWireOfAnEndedFlow(t *testing.T) {
	p := newPair(t)
	f := bareFlow(p.g[0], report.SideClient, 3001)
	f.call(func() {
		f.replaced()
		a, _ := newFakeWires(1, 1)
		assert.False(t, f.setWire(a))
		assert.False(t, f.setLeg(&appLeg{}))
		assert.False(t, f.addCarry(&carry{}))
		f.carryBy(negotiate.CarrierRelay)
		f.records(nil)
	})
	require.Equal(t, life.Released, f.state())
}
