package conn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
)

// brokenProvider panics when it is asked for a link.
type brokenProvider struct{ carrier.Provider }

func (brokenProvider) Offer(carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	panic("test")
}

// TestPanicWhileOffering: a panic in one device leaves nothing of what others have made for
// the connection.
func TestPanicWhileOffering(t *testing.T) {
	p := newPair(t)
	a, b := newFakeWires(1<<20, 1<<20)
	c := p.begin(t, a, b)
	g, f := p.g[0], c.flow[0]
	for i, prov := range g.Providers {
		if i > 0 {
			g.Providers[i] = brokenProvider{prov}
		}
	}
	func() {
		defer f.contain()
		f.makeOffers(&negotiate.Proposal{})
	}()
	require.EqualValues(t, 1, g.Panics())
	c.flow[1].call(c.flow[1].replaced)
	c.over(t)
	c.closeApps()
	p.empty(t)
}
