package gateway

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
)

var errUnwritten = errors.New("map update: no such file")

var trialPeer = netip.MustParseAddr("10.0.0.2")

func testTrials(steer *fakeSteering) *trials {
	return newTrials(config.Config{Policy: []config.Rule{
		{Name: "redis", Match: config.Match{Ports: []uint16{6379}}, Action: config.ActionAccelerate},
		{Name: "dns", Match: config.Match{Proto: config.ProtoUDP, Ports: []uint16{5000}}, Action: config.ActionAccelerate},
		{Name: "rest"},
	}}.WithDefaults(), steer)
}

func TestTrialComesBehindTheRules(t *testing.T) {
	steer := newFakeSteering()
	ts := testTrials(steer)
	end, err := ts.begin(admin.Trial{Peer: netip.MustParseAddr("::ffff:10.0.0.2"), Port: 4792, Action: config.ActionAccelerate, Carrier: config.CarrierSoft})
	require.NoError(t, err)
	rules := steer.rules()
	require.Len(t, rules, 4)
	require.Equal(t, ebpf.Rule{
		Ports: []uint16{4792}, Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/32")}, Action: ebpf.ActionAccelerate, Sole: true,
	}, rules[3])

	// The programs find it although a rule before it matches everything.
	p, err := ebpf.CompilePolicy(rules, nil)
	require.NoError(t, err)
	require.Equal(t, ebpf.Verdict{Rule: 3, Action: ebpf.ActionAccelerate}, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4792}))
	require.Equal(t, 2, p.Decide(ebpf.Query{Peer: trialPeer, Port: 4793}).Rule)

	_, err = ts.begin(admin.Trial{Peer: netip.MustParseAddr("10.0.0.3"), Port: 4792, Action: config.ActionPass})
	require.ErrorIs(t, err, admin.ErrTrialHeld)
	end()
	end()
	require.Len(t, steer.rules(), 3)
	again, err := ts.begin(admin.Trial{Peer: trialPeer, Port: 4792, Action: config.ActionPass})
	require.NoError(t, err)
	again()
}

func TestTrialsAreRefused(t *testing.T) {
	steer := newFakeSteering()
	ts := testTrials(steer)
	good := admin.Trial{Peer: trialPeer, Port: 4792, Action: config.ActionAccelerate}
	for field, edits := range map[string][]func(*admin.Trial){
		"peer": {
			func(t *admin.Trial) { t.Peer = netip.Addr{} },
			func(t *admin.Trial) { t.Peer = netip.MustParseAddr("fe80::1%eth0") },
			func(t *admin.Trial) { t.Peer = netip.MustParseAddr("0.0.0.0") },
			func(t *admin.Trial) { t.Peer = netip.MustParseAddr("ff02::1") },
		},
		"port":    {func(t *admin.Trial) { t.Port = 0 }, func(t *admin.Trial) { t.Port = 22 }, func(t *admin.Trial) { t.Port = 6379 }},
		"action":  {func(t *admin.Trial) { t.Action = "" }, func(t *admin.Trial) { t.Action = config.ActionAuto }},
		"carrier": {func(t *admin.Trial) { t.Carrier = config.CarrierRelay }, func(t *admin.Trial) { t.Carrier = "shm" }},
	} {
		for _, edit := range edits {
			bad := good
			edit(&bad)
			_, err := ts.begin(bad)
			var te *admin.TrialError
			require.ErrorAs(t, err, &te)
			require.Equal(t, field, te.Field)
		}
	}
	require.Nil(t, steer.rules())

	good.Port = 5000 // a rule for datagrams is about no connection
	end, err := ts.begin(good)
	require.NoError(t, err)
	end()
	steer.refuse = errUnwritten
	_, err = ts.begin(good)
	require.ErrorIs(t, err, errUnwritten)
	steer.refuse = nil
	var ends []func()
	for i := range maxTrials {
		good.Port = uint16(8000 + i)
		end, err := ts.begin(good)
		require.NoError(t, err)
		ends = append(ends, end)
	}
	good.Port++
	_, err = ts.begin(good)
	require.ErrorContains(t, err, "no room")
	for _, end := range ends {
		end()
	}
}

// TestTrialOffersOneCarrier: a client's flow on trial is offered by the carrier
// of the trial only, others by all; what becomes of it is not remembered.
func TestTrialOffersOneCarrier(t *testing.T) {
	p := newGatewayPair(t)
	g, steer := p.g[0], p.steer[0]
	flowTo := func(port uint16) *flow {
		p.port++
		f, fresh := g.newFlow(config.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], port)}, 7)
		require.True(t, fresh)
		t.Cleanup(func() { g.unlink(f) })
		return f
	}
	offers := func(f *flow) (kinds []negotiate.CarrierKind) {
		var pr negotiate.Proposal
		f.makeOffers(&pr)
		for _, o := range pr.Carriers {
			kinds = append(kinds, o.Kind)
		}
		f.mu.Lock()
		carries := f.carries
		f.mu.Unlock()
		done := make(chan struct{})
		f.closeCarries(carries, func() { close(done) })
		<-done
		return kinds
	}
	for carrier, kind := range map[config.Carrier]negotiate.CarrierKind{config.CarrierShm: negotiate.CarrierSHM, config.CarrierSoft: negotiate.CarrierSoft} {
		end, err := g.Try(admin.Trial{Peer: pairAddrs[1], Port: 4792, Action: config.ActionAccelerate, Carrier: carrier})
		require.NoError(t, err)
		require.Equal(t, []negotiate.CarrierKind{kind}, offers(flowTo(4792)))
		require.Len(t, offers(flowTo(80)), 2)
		refused := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoCommonCarrier, Remote: true}
		f := flowTo(4792)
		end() // what its connections meet may come to light afterwards
		g.remember(f, refused)
		require.Empty(t, steer.peers)
	}
	g.remember(flowTo(4792), negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoCommonCarrier, Remote: true})
	require.NotEmpty(t, steer.peers)
	require.Len(t, offers(flowTo(4792)), 2)
}
