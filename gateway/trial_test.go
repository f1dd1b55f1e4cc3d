package gateway

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/negotiate"
)

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
		carries, _ := f.makeOffers(&pr)
		for _, o := range pr.Carriers {
			kinds = append(kinds, o.Kind)
		}
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
