package gateway

import (
	"encoding/json"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
)

// bareFlow is a flow of g that has nothing yet.
func bareFlow(t *testing.T, g *gateway, side report.Side, port uint16) *conn.Flow {
	tuple := host.Tuple{
		Local:  netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port),
		Remote: netip.MustParseAddrPort("10.0.0.2:80"),
	}
	f, fresh := g.engine().newFlow(side, tuple, 7)
	require.True(t, fresh)
	return f
}

func fallbacks(g *gateway) map[string]uint64 {
	out := map[string]uint64{}
	for _, prov := range g.Snapshot().Fallbacks {
		out[prov.Reason+"/"+string(prov.Side)] = prov.Count
	}
	return out
}

// gone waits until a connection has left the table.
func gone(t *testing.T, g *gateway, f *conn.Flow) {
	require.Eventually(t, func() bool { return !slices.Contains(g.engine().all(), f) }, patience, time.Millisecond)
	require.True(t, f.Ended())
}

// TestNewerFlowComesBehind: what happens to a connection happens after the end of the
// one that had its tuple, and a reset of all ends each.
func TestNewerFlowComesBehind(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	older := bareFlow(t, g, report.SideServer, 3003)
	same, fresh := g.engine().newFlow(report.SideServer, older.Tuple, older.ISN)
	require.False(t, fresh)
	require.Same(t, older, same)
	newer, fresh := g.engine().newFlow(report.SideServer, older.Tuple, older.ISN+1)
	require.True(t, fresh)
	newer.Shard.Call(func() {})
	require.True(t, older.Ended())
	require.Same(t, newer, g.engine().find(newer.Tuple))
	g.engine().unlink(older)
	require.Same(t, newer, g.engine().find(newer.Tuple))
	require.Zero(t, g.ResetFlows(), "none is carried")
	gone(t, g, newer)
	require.Empty(t, g.engine().all())
}

// TestEventsReachTheirConnection: what the programs tell of another connection on the tuple
// is none of its business.
func TestEventsReachTheirConnection(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	f := bareFlow(t, g, report.SideClient, 3004)
	g.onEvent(ebpf.Event{Kind: ebpf.EventReplaced, Tuple: ebpf.Tuple(f.Tuple), ISN: f.ISN + 1})
	f.Shard.Call(func() {})
	require.False(t, f.Ended())
	g.onEvent(ebpf.Event{Kind: ebpf.EventReplaced, Tuple: ebpf.Tuple(f.Tuple), ISN: f.ISN})
	gone(t, g, f)
}

// TestTrialOfAConnection: a connection that begins while a trial runs belongs to it.
func TestTrialOfAConnection(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	trial := config.Trial{Peer: netip.MustParseAddr("10.0.0.2"), Port: 80, Action: report.ActionAccelerate, Carrier: report.CarrierShm}
	end, err := g.Try(trial)
	require.NoError(t, err)
	require.Equal(t, &trial, bareFlow(t, g, report.SideClient, 3005).Trial)
	end()
	require.Nil(t, bareFlow(t, g, report.SideClient, 3006).Trial)
}

// TestCloseTakesNothingNew: a gateway that went down has no connections and begins none.
func TestCloseTakesNothingNew(t *testing.T) {
	p := newGatewayPair(t)
	g, e := p.g[1], p.g[1].engine()
	f := bareFlow(t, g, report.SideServer, 3007)
	g.close()
	require.True(t, f.Ended())
	require.Empty(t, e.all())
	require.False(t, e.hold())
	e.mu.Lock()
	e.flows[f.Tuple] = f // one that has not left yet
	e.mu.Unlock()
	other, fresh := e.newFlow(report.SideClient, f.Tuple, f.ISN+1)
	require.False(t, fresh)
	require.Nil(t, other, "it is another connection")
	e.mu.Lock()
	delete(e.flows, f.Tuple)
	e.mu.Unlock()
	g.close() // again
}

// TestOverloadForgetsTheFlow: netstack has no room for a flow it was to begin.
func TestOverloadForgetsTheFlow(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	tuple := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.2:80"), Remote: netip.MustParseAddrPort("10.0.0.1:4000")}
	p.steer[0].Put(ebpf.Flow{Tuple: ebpf.Tuple(tuple), ISN: 9, State: ebpf.StateWire, Side: ebpf.SideServer})
	syn := netstack.SYN{Tuple: netstack.Tuple(tuple), ISN: 9, Offer: true, Proved: true}
	for range 2 { // the second one is repeated
		_, ok := g.engine().desk.Proved(syn)
		require.True(t, ok)
	}
	require.Len(t, g.engine().all(), 1)
	f := g.engine().all()[0]
	g.engine().desk.NotAccepted(syn, netstack.ErrOverload)
	gone(t, g, f)
	require.Empty(t, g.engine().all())
	require.EqualValues(t, 1, fallbacks(g)["rate_limit/server"])
	_, err := p.steer[0].Flow(ebpf.Tuple(tuple))
	require.ErrorIs(t, err, ebpf.ErrNoFlow, "the kernel resets what comes next")
	require.Empty(t, p.steer[0].TakeInjected(), "there is no SYN to give back")
	_, ok := g.engine().desk.Proved(syn)
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
	require.NoError(t, g.reload(next, nil))
	a := bareFlow(t, g, report.SideClient, 3100)
	require.Equal(t, negotiate.ReasonNone, shed())
	bareFlow(t, g, report.SideClient, 3101)
	require.Equal(t, negotiate.ReasonFlowLimit, shed())
	a.Replaced()
	require.Eventually(t, func() bool { return shed() == negotiate.ReasonNone }, patience, time.Millisecond)
	var waiting [peers.HandshakeLimit]peers.Share
	stranger := netip.MustParseAddr("10.9.9.9")
	for i := range waiting {
		waiting[i].Begin(g.engine().peers, stranger, time.Now())
	}
	g.engine().room.Note()
	require.Equal(t, negotiate.ReasonRateLimit, shed())
	for i := range waiting {
		waiting[i].End()
	}
	g.engine().room.Note()
	require.Equal(t, negotiate.ReasonNone, shed())
}

// TestOneAddressLeavesRoom: connections of an address beyond its share take no room that
// others want, wait to be declined as far as a few of them may, and are turned away.
func TestOneAddressLeavesRoom(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	limits := g.live.Load().Limits
	limits.MaxFlows, limits.PeerShare = 40, 50*100
	next := g.live.Load().Config
	next.Limits.MaxFlows = limits.MaxFlows
	require.NoError(t, g.reload(next, nil))
	g.engine().peers.Configure(limits)
	proved := func(from string, port uint16) bool {
		tuple := host.Tuple{Local: netip.MustParseAddrPort("10.0.0.2:80"), Remote: netip.AddrPortFrom(netip.MustParseAddr(from), port)}
		steer.Put(ebpf.Flow{Tuple: ebpf.Tuple(tuple), ISN: 9, State: ebpf.StateWire, Side: ebpf.SideServer})
		_, ok := g.engine().desk.Proved(netstack.SYN{Tuple: netstack.Tuple(tuple), ISN: 9, Offer: true, Proved: true})
		if !ok {
			_, err := steer.Flow(ebpf.Tuple(tuple))
			require.ErrorIs(t, err, ebpf.ErrNoFlow, "the kernel resets what comes next")
		}
		return ok
	}
	heard := 0
	for port := range uint16(200) {
		if proved("10.0.0.66", 4000+port) {
			heard++
		}
	}
	g.engine().shards[0].Call(func() {}) // what was turned away has left
	require.Equal(t, 20+64, heard)
	require.Eventually(t, func() bool { return len(g.engine().all()) == heard }, patience, time.Millisecond)
	require.Equal(t, negotiate.ReasonNone, g.engine().limits.Lacking())
	require.Eventually(t, func() bool { // the programs hear of it after the table
		steer.mu.Lock()
		defer steer.mu.Unlock()
		return negotiate.Reason(steer.shed) == negotiate.ReasonNone
	}, patience, time.Millisecond)
	require.True(t, proved("10.0.0.67", 4000))
	require.Equal(t, 1, g.engine().peers.Use()[netip.MustParseAddr("10.0.0.67")].Flows)
	require.Eventually(t, func() bool { return fallbacks(g)["flow_limit/server"] >= uint64(200-heard) }, patience, time.Millisecond)
	require.EqualValues(t, 200-heard, fallbacks(g)["flow_limit/server"], "the others are told first")
}

// TestNumbersOfStatus: what an operator and his scripts read.
func TestNumbersOfStatus(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	g.engine().peers.Proven(netip.MustParseAddr("10.0.0.9"), report.CarrierShm)
	require.NoError(t, p.steer[0].Remember(netip.MustParseAddr("10.0.0.8"), 0, uint8(negotiate.ReasonOptionBlackholed), time.Hour))
	p.steer[0].counters.Native[0] = map[uint8]uint64{uint8(negotiate.ReasonPeerNoOption): 4}
	r := bareFlow(t, g, report.SideServer, 3002)
	r.Cancel(negotiate.ReasonDrained)
	gone(t, g, r)
	b, err := json.Marshal(g.Status())
	require.NoError(t, err)
	var st struct {
		Fallbacks map[string]int `json:"fallbacks_total"`
		Memory    struct {
			Limit uint64 `json:"limit_bytes"`
		} `json:"memory"`
	}
	require.NoError(t, json.Unmarshal(b, &st), string(b))
	require.Equal(t, map[string]int{"drained": 1, "peer_no_option": 4}, st.Fallbacks)
	require.EqualValues(t, 64<<20, st.Memory.Limit)
	require.Equal(t, map[report.PeerState]int{report.PeerCapable: 1, report.PeerBlackholed: 1}, g.Snapshot().Peers)
	require.NoError(t, g.SetOff(true))
	require.Equal(t, report.ModeOff, g.Status().Mode)
	n, err := g.FlushPeers()
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// As many wire legs as may be open linger, however they end.
func TestWireLimits(t *testing.T) {
	for maxFlows, dead := range map[int]int{1: 8192, 8192: 8192, 20_000: 20_000, 1_000_000: 1_000_000} {
		l := wireLimits(maxFlows)
		require.Equal(t, dead, l.Dead)
		require.Equal(t, 2*maxFlows, l.Flows)
	}
}

// TestListOfAFilter: connections that are not asked for are not described further.
func TestListOfAFilter(t *testing.T) {
	p := newGatewayPair(t)
	g := p.g[0]
	for port := range uint16(3 * detailBatch) {
		bareFlow(t, g, report.SideServer, 3000+port)
	}
	q := report.ConnQuery{Details: true}
	require.Len(t, g.engine().conns(q), 3*detailBatch)
	q.Filter.Port = 3007
	list := g.engine().conns(q)
	require.Len(t, list, 1)
	require.EqualValues(t, 3007, list[0].Local.Port())
	g.ResetFlows()
}
