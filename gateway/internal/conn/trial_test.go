package conn

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// TestTrialOffersOneCarrier: a client's flow on trial is offered by the carrier
// of the trial only, others by all; what becomes of it is not remembered.
func TestTrialOffersOneCarrier(t *testing.T) {
	p := newPair(t)
	g, steer := p.g[0], p.steer[0]
	remembered := func() []ebpf.Peer {
		list, err := steer.Peers()
		require.NoError(t, err)
		return list
	}
	flowTo := func(port uint16, trial *config.Trial) *Flow {
		p.port++
		f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], port)}, trial)
		t.Cleanup(func() { g.unlink(f) })
		return f
	}
	offers := func(f *Flow) (kinds []negotiate.CarrierKind) {
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
	refused := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNoCommonCarrier, Remote: true}
	for carrier, kind := range map[report.Carrier]negotiate.CarrierKind{report.CarrierShm: negotiate.CarrierSHM, report.CarrierSoft: negotiate.CarrierSoft} {
		trial := &config.Trial{Peer: pairAddrs[1], Port: 4792, Action: report.ActionAccelerate, Carrier: carrier}
		require.Equal(t, []negotiate.CarrierKind{kind}, offers(flowTo(4792, trial)))
		require.Len(t, offers(flowTo(80, nil)), 2)
		flowTo(4792, trial).remember(refused)
		require.Empty(t, remembered())
	}
	require.True(t, flowTo(4792, &config.Trial{Cold: true}).request(nil).Cold)
	require.False(t, flowTo(4792, &config.Trial{}).request(nil).Cold)
	require.False(t, flowTo(4792, nil).request(nil).Cold)
	flowTo(4792, nil).remember(refused)
	require.NotEmpty(t, remembered())
	require.Len(t, offers(flowTo(4792, nil)), 2)
}
