package gateway

import (
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// bareFlow is a flow of g that has nothing yet.
func bareFlow(t *testing.T, g *gateway, side config.Side, port uint16) *flow {
	tuple := host.Tuple{
		Local:  netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port),
		Remote: netip.MustParseAddrPort("10.0.0.2:80"),
	}
	f, fresh := g.newFlow(side, tuple, 7)
	require.True(t, fresh)
	return f
}

func fallbacks(g *gateway) map[string]uint64 {
	out := map[string]uint64{}
	for _, fb := range g.Snapshot().Fallbacks {
		out[fb.Reason+"/"+string(fb.Side)] = fb.Count
	}
	return out
}

// TestFallbacksAreCountedOnce: one connection, one side, one number, the first
// reason, and who decided.
func TestFallbacksAreCountedOnce(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	verdict := func(o negotiate.Outcome, r negotiate.Reason, remote bool) negotiate.Verdict {
		return negotiate.Verdict{Outcome: o, Reason: r, Remote: remote}
	}
	for i, tc := range []struct {
		side   config.Side
		end    func(f *flow)
		want   string // reason/side, empty for none
		reason string
		remote bool
	}{
		{config.SideClient, func(f *flow) { f.release(verdict(negotiate.OutcomeReleased, negotiate.ReasonAppRefused, true)) }, "app_refused/client", "app_refused", true},
		{config.SideClient, func(f *flow) { f.release(verdict(negotiate.OutcomeReleased, negotiate.ReasonNoMemory, false)) }, "no_memory/client", "no_memory", false},
		{config.SideServer, func(f *flow) { f.vanish(negotiate.ReasonFlowLimit) }, "flow_limit/server", "flow_limit", false},
		{config.SideServer, func(f *flow) { f.replaced() }, "client_gone/server", "client_gone", true},
		{config.SideServer, func(f *flow) { f.drain(negotiate.ReasonDrained) }, "drained/server", "drained", false},
		{config.SideServer, func(f *flow) {
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeDeclined, negotiate.ReasonAppUnreachable, false)})
		}, "app_unreachable/server", "app_unreachable", false},
		{config.SideServer, func(f *flow) {
			f.do(f.core.LosesAccept())
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeAborted, negotiate.ReasonAppRefused, false)})
		}, "accept_lost/server", "accept_lost", false},
		{config.SideClient, func(f *flow) {
			f.abortVerdict(negotiate.Abort{Verdict: verdict(negotiate.OutcomeAborted, negotiate.ReasonWireReset, true)})
		}, "", "wire_reset", true},
		{config.SideServer, func(f *flow) { f.core.CarriedBy(life.ByRaw); f.replaced() }, "", "client_gone", true},
	} {
		before := fallbacks(g)
		f := bareFlow(t, g, tc.side, uint16(2000+i))
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
		info := f.info(time.Now())
		require.Equal(t, tc.reason, info.Reason)
		require.Equal(t, decidedBy(tc.remote), info.DecidedBy, tc.reason)
	}
	require.Equal(t, 9, len(g.closed.List())+len(g.native.List()))
	require.Empty(t, g.all())
}

// TestReleaseLosesAgainstANewerSYN: the entry of another connection is not
// touched, and nothing is sent on it.
func TestReleaseLosesAgainstANewerSYN(t *testing.T) {
	p := newGatewayPair(t)
	f := bareFlow(t, p.g[0], config.SideClient, 3000)
	newer := ebpf.Flow{Tuple: ebpf.Tuple(f.tuple), ISN: 8, State: ebpf.StateOffered}
	p.steer[0].put(newer)
	f.call(func() {
		f.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonHandshakeTimeout})
	})
	waitBuried(t, f)
	e, err := p.steer[0].Flow(newer.Tuple)
	require.NoError(t, err)
	require.Equal(t, newer, e)
	require.Empty(t, p.steer[0].injected)
}

// TestWireOfAnEndedFlow: who comes too late with it has to end it.
func TestWireOfAnEndedFlow(t *testing.T) {
	p := newGatewayPair(t)
	f := bareFlow(t, p.g[0], config.SideClient, 3001)
	f.call(func() {
		f.replaced()
		a, _ := newFakeWires(1, 1)
		require.False(t, f.setWire(a))
		require.False(t, f.setLeg(&appLeg{}))
		require.False(t, f.addCarry(&carry{}))
		f.carryBy(negotiate.CarrierRelay)
		f.records(nil)
	})
	require.Equal(t, life.Released, f.getState())
}

// TestNewerFlowComesBehind: what happens to a connection happens behind the end of the one
// that had its tuple, and an operator who resets all counts each once.
func TestNewerFlowComesBehind(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	older := bareFlow(t, g, config.SideServer, 3003)
	newer, fresh := g.newFlow(config.SideServer, older.tuple, older.isn+1)
	require.True(t, fresh)
	newer.call(func() { require.True(t, older.core.Ended()) })
	waitBuried(t, older)
	require.Same(t, newer, g.find(newer.tuple))

	c := p.dial(t, negotiate.CarrierSHM)
	require.Equal(t, 1, g.ResetFlows(), "one is carried")
	c.closeApps()
	c.over(t)
	waitBuried(t, newer)
	require.Empty(t, g.all())
}

// TestOverloadForgetsTheFlow: netstack has no room for a flow it was to begin.
func TestOverloadForgetsTheFlow(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	tuple := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.2:80"), Remote: netip.MustParseAddrPort("10.0.0.1:4000")}
	p.steer[0].put(ebpf.Flow{Tuple: ebpf.Tuple(tuple), ISN: 9, State: ebpf.StateWire, Side: ebpf.SideServer})
	syn := netstack.SYN{Tuple: netstack.Tuple(tuple), ISN: 9, Offer: true, Proved: true}
	for range 2 { // the second one is repeated
		_, ok := g.Proved(syn)
		require.True(t, ok)
	}
	require.Len(t, g.all(), 1)
	f := g.all()[0]
	g.NotAccepted(syn, netstack.ErrOverload)
	waitBuried(t, f)
	require.Empty(t, g.all())
	require.EqualValues(t, 1, fallbacks(g)["rate_limit/server"])
	_, err := p.steer[0].Flow(ebpf.Tuple(tuple))
	require.ErrorIs(t, err, ebpf.ErrNoFlow, "the kernel resets what comes next")
	require.Empty(t, p.steer[0].injected, "there is no SYN to give back")
	_, ok := g.Proved(syn)
	require.False(t, ok, "not steered to us")
}

// TestRoomForPeers: programs answer no offers while there is no room for what they
// would lead to.
func TestRoomForPeers(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	shed := func() negotiate.Reason {
		steer.mu.Lock()
		defer steer.mu.Unlock()
		return negotiate.Reason(steer.shed)
	}
	next := g.live.Load().Config
	next.Limits.MaxFlows = 2
	require.NoError(t, g.reload(next))
	a := bareFlow(t, g, config.SideClient, 3100)
	require.Equal(t, negotiate.ReasonNone, shed())
	bareFlow(t, g, config.SideClient, 3101)
	require.Equal(t, negotiate.ReasonFlowLimit, shed())
	a.post(a.replaced)
	require.Eventually(t, func() bool { return shed() == negotiate.ReasonNone }, patience, time.Millisecond)
	var waiting [peers.HandshakeLimit]peers.Share
	stranger := netip.MustParseAddr("10.9.9.9")
	for i := range waiting {
		waiting[i].Begin(g.peers, stranger, time.Now())
	}
	g.noteRoom()
	require.Equal(t, negotiate.ReasonRateLimit, shed())
	for i := range waiting {
		waiting[i].End(g.peers, stranger)
	}
	g.noteRoom()
	require.Equal(t, negotiate.ReasonNone, shed())
}

// TestNumbersOfStatus: what an operator and his scripts read.
func TestNumbersOfStatus(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	g.peers.Proven(netip.MustParseAddr("10.0.0.9"), config.CarrierShm)
	require.NoError(t, p.steer[0].Remember(netip.MustParseAddr("10.0.0.8"), 0, uint8(negotiate.ReasonOptionBlackholed), time.Hour))
	p.steer[0].counters.Native[0] = map[uint8]uint64{uint8(negotiate.ReasonPeerNoOption): 4}
	c := p.dial(t, negotiate.CarrierSHM)
	_, err := c.app[0].Write(make([]byte, 1000))
	require.NoError(t, err)
	_, err = c.app[1].Read(make([]byte, 1000))
	require.NoError(t, err)
	r := bareFlow(t, g, config.SideClient, 3002)
	r.call(func() {
		r.release(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoMemory})
	})
	waitBuried(t, r)

	b, err := json.Marshal(g.Status())
	require.NoError(t, err)
	var st struct {
		Mode      string                       `json:"mode"`
		Flows     map[string]int               `json:"flows"`
		Total     map[string]int               `json:"flows_total"`
		Fallbacks map[string]int               `json:"fallbacks_total"`
		Bytes     map[string]map[string]uint64 `json:"bytes_total"`
		Memory    struct {
			Used  uint64 `json:"used_bytes"`
			Limit uint64 `json:"limit_bytes"`
		} `json:"memory"`
	}
	require.NoError(t, json.Unmarshal(b, &st), string(b))
	require.Equal(t, 1, st.Flows["rdma-shm"], string(b))
	require.Equal(t, 1, st.Total["rdma-shm"])
	require.Equal(t, map[string]int{"no_memory": 1, "peer_no_option": 4}, st.Fallbacks)
	require.EqualValues(t, 64<<20, st.Memory.Limit)
	require.Positive(t, st.Memory.Used)
	snap := g.Snapshot()
	require.Equal(t, map[admin.PeerState]int{admin.PeerCapable: 2, admin.PeerBlackholed: 1}, snap.Peers)
	require.EqualValues(t, 1000, snap.BytesTotal[config.CarrierShm].Tx)
	require.NoError(t, g.SetOff(true))
	require.Equal(t, config.ModeOff, g.Status().Mode)

	c.closeApps()
	c.over(t)
	require.EqualValues(t, 1000, g.Snapshot().BytesTotal[config.CarrierShm].Tx, "ended flows still count")
	n, err := g.FlushPeers()
	require.NoError(t, err)
	require.Equal(t, 1, n)
}
