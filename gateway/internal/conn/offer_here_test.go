package conn

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// lackingProvider cannot offer anything.
type lackingProvider struct {
	carrier.Provider

	err error
}

func (l lackingProvider) Offer(carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	return nil, negotiate.CarrierOffer{}, l.err
}

// TestLackOfOursIsForgotten: what keeps this host from offering a carrier is not remembered
// of the peer, whose connections from other addresses can be carried. That the peer is
// under another kernel is.
func TestLackOfOursIsForgotten(t *testing.T) {
	for _, c := range []struct {
		err    error
		reason negotiate.Reason
		kept   bool
	}{
		{carrier.ErrNoDevice, negotiate.ReasonDeviceFailed, false},
		{carrier.ErrNoAdapter, negotiate.ReasonAddress, false},
		{carrier.ErrFull, negotiate.ReasonFlowLimit, false},
		{loop.ErrNoAnswer, negotiate.ReasonDeviceFailed, false},
		{unix.EMFILE, negotiate.ReasonFlowLimit, false},
		{carrier.ErrNotHere, negotiate.ReasonNoCommonCarrier, true},
		{carrier.ErrNoPath, negotiate.ReasonCarrierUnreachable, false},
		{errors.Join(carrier.ErrNotHere, carrier.ErrNoPath), negotiate.ReasonCarrierUnreachable, false},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			p := newPair(t)
			g := p.g[0]
			for i, prov := range g.Providers {
				g.Providers[i] = lackingProvider{prov, fmt.Errorf("offer: %w", c.err)}
			}
			p.port++
			f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
			t.Cleanup(func() { g.unlink(f) })
			carries, reason := f.makeOffers(&negotiate.Proposal{})
			require.Empty(t, carries)
			require.Equal(t, c.reason, reason)
			hs := negotiate.NewClient(negotiate.ClientConfig{}, negotiate.Proposal{})
			hs.Cancel(time.Now(), reason)
			v, _ := hs.Verdict()
			f.remember(v)
			list, err := p.steer[0].Peers()
			require.NoError(t, err)
			require.Equal(t, c.kept, len(list) > 0, "%+v", list)
		})
	}
}
