package conn

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// adapterProvider is a soft device that says it is an adapter, or an adapter of which none is
// on the address of a connection.
type adapterProvider struct {
	carrier.Provider
	absent bool
}

func (adapterProvider) Kind() negotiate.CarrierKind { return negotiate.CarrierHW }

func (a adapterProvider) Offer(r carrier.Request) (*carrier.Link, negotiate.CarrierOffer, error) {
	if a.absent {
		return nil, negotiate.CarrierOffer{}, carrier.ErrNoAdapter
	}
	l, o, err := a.Provider.Offer(r)
	if err == nil {
		l.Kind, o.Kind = negotiate.CarrierHW, negotiate.CarrierHW
	}
	return l, o, err
}

// useProviders has a gateway use others until the test ends.
func (g *fakeGateway) useProviders(t *testing.T, list ...carrier.Provider) {
	t.Helper()
	before := g.Providers
	g.Providers = list
	t.Cleanup(func() { g.Providers = before })
}

// TestAutoOffersAdapters: a client's connection of a rule with action auto is offered by
// adapters alone. Where none has its address it is native, and so are the next ones to the
// service for a while. With action accelerate both are offered by all there is.
func TestAutoOffersAdapters(t *testing.T) {
	p := newPair(t)
	g, steer := p.g[0], p.steer[0]
	shm, soft := g.providerOf(negotiate.CarrierSHM), g.providerOf(negotiate.CarrierSoft)
	offers := func(auto bool) (kinds []negotiate.CarrierKind, reason negotiate.Reason) {
		p.port++
		f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
		defer g.unlink(f)
		f.auto = auto
		var pr negotiate.Proposal
		carries, reason := f.makeOffers(&pr)
		for _, o := range pr.Carriers {
			kinds = append(kinds, o.Kind)
		}
		done := make(chan struct{})
		f.closeCarries(carries, func() { close(done) })
		<-done
		return kinds, reason
	}
	for name, list := range map[string][]carrier.Provider{
		"no adapter": {shm, soft}, "none on the address": {shm, adapterProvider{soft, true}, soft},
	} {
		g.useProviders(t, list...)
		kinds, reason := offers(true)
		require.Empty(t, kinds, name)
		require.Equal(t, negotiate.ReasonNotWorthIt, reason, name)
		kinds, _ = offers(false)
		require.Equal(t, rdmaCarriers, kinds, name)
	}
	g.useProviders(t, shm, adapterProvider{soft, false})
	kinds, _ := offers(true)
	require.Equal(t, []negotiate.CarrierKind{negotiate.CarrierHW}, kinds)
	kinds, _ = offers(false)
	require.Equal(t, []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierHW}, kinds)

	list, err := steer.Peers()
	require.NoError(t, err)
	require.Empty(t, list)
	f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], 1), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
	defer g.unlink(f)
	f.call(f.notWorth)
	list, err = steer.Peers()
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.EqualValues(t, negotiate.ReasonNotWorthIt, list[0].Reason)
	require.EqualValues(t, 80, list[0].Port)
	require.Greater(t, list[0].TTL, time.Minute)
}

// TestAutoAnswersAdapters: a server's connection of a rule with action auto answers the
// offers of adapters alone, and declines others in words of its own.
func TestAutoAnswersAdapters(t *testing.T) {
	p := newPair(t)
	for _, auto := range []bool{true, false} {
		p.port++
		ends := [2]host.Tuple{}
		for i := range ends {
			ends[i] = host.Tuple{Local: netip.AddrPortFrom(pairAddrs[i], p.port), Remote: netip.AddrPortFrom(pairAddrs[1-i], p.port)}
		}
		client, server := p.g[0].open(report.SideClient, ends[0], nil), p.g[1].open(report.SideServer, ends[1], nil)
		server.auto = auto
		pr := negotiate.Proposal{GatewayID: p.g[0].GatewayID, HostID: p.g[0].HostID}
		carries, _ := client.makeOffers(&pr)
		require.NotEmpty(t, carries)
		if auto {
			require.Empty(t, server.unmet(&pr), "nobody is met for what is declined")
		}
		var a answers
		a.f = server
		require.Equal(t, auto, len(a.ways(&pr, nil)) == 0)
		if auto {
			reasons := make(chan negotiate.Reason, 1)
			server.call(func() {
				server.answerOffers(&pr, nil, func(*carry) func(rsocket.Events) { return nil }, func(o []negotiate.CarrierOffer, r negotiate.Reason) {
					assert.Empty(t, o)
					reasons <- r
				})
			})
			require.Equal(t, negotiate.ReasonNotWorthIt, <-reasons)
		}
		done := make(chan struct{})
		client.closeCarries(carries, func() { close(done) })
		<-done
		p.g[0].unlink(client)
		p.g[1].unlink(server)
	}
}
