package conn

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// shyProvider is a device whose peers take their time to be met.
type shyProvider struct {
	carrier.Provider
	met  chan context.Context
	come chan struct{}
}

func (*shyProvider) Met(negotiate.CarrierOffer, *negotiate.Proposal) bool { return false }

func (s *shyProvider) Meet(ctx context.Context, _ netip.Addr, _ negotiate.CarrierOffer) error {
	s.met <- ctx
	<-s.come
	return context.Cause(ctx)
}

// The first rendezvous with a peer is not that of one connection: others wait for it, and
// go on when that one has ended.
func TestRendezvousOutlivesItsFlow(t *testing.T) {
	p := newPair(t)
	g := p.g[1]
	shy := &shyProvider{Provider: g.providerOf(negotiate.CarrierSHM), met: make(chan context.Context, 1), come: make(chan struct{})}
	real := g.Providers
	g.Providers = []carrier.Provider{shy}
	t.Cleanup(func() { g.Providers = real })
	f := g.open(report.SideServer, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[1], 80), Remote: netip.AddrPortFrom(pairAddrs[0], 999)}, nil)
	t.Cleanup(func() { g.unlink(f) })
	s := &server{hs: negotiate.NewServer(negotiate.ServerConfig{}, 1)}
	s.f, s.s, s.negotiator.hs = f, f.Shard, s.hs
	f.call(func() {
		s.meet(&negotiate.Proposal{Carriers: []negotiate.CarrierOffer{{Kind: negotiate.CarrierSHM}}})
	})
	ctx := <-shy.met
	f.call(s.stopDial)
	s.left.Store(true)
	ended := ctx.Err()
	close(shy.come)
	g.work.Wait()
	require.NoError(t, ended)
}

// A server that has not met the client's gateway in time, or whose device has not answered its
// offer, does not put that down to its application, which was not asked.
func TestSlowCarrierIsNotTheApplications(t *testing.T) {
	for _, kind := range rdmaCarriers {
		t.Run(kind.String(), func(t *testing.T) {
			p := newPair(t)
			a, b := newFakeWires(1<<20, 1<<20)
			c := p.begin(t, a, b)
			c.meet(t, kind)
			client := negotiate.NewClient(negotiate.ClientConfig{HandshakeTimeout: 10 * time.Millisecond}, negotiate.Proposal{Carriers: []negotiate.CarrierOffer{c.offer}})
			proposal := client.Start(time.Now(), 0)[0].(negotiate.Send)
			f := c.flow[1]
			shy := &shyProvider{Provider: p.g[1].providerOf(kind), met: make(chan context.Context, 1), come: make(chan struct{})}
			real := p.g[1].Providers
			if p.g[1].Providers = []carrier.Provider{shy}; kind != negotiate.CarrierSHM { // whose peers are met
				p.g[1].Providers = []carrier.Provider{&lateProvider{Provider: shy.Provider}}
			}
			t.Cleanup(func() { p.g[1].Providers = real })
			f.env.Datagrams = noDatagrams{}
			hs := negotiate.NewServer(negotiate.ServerConfig{}, 0)
			f.env.Work.Add(1)
			f.call(func() {
				s := f.newServer(hs)
				f.setNegotiator(&s.negotiator)
				s.begin(append(hs.Start(time.Now(), 0, negotiate.ConfirmedYes), hs.Receive(time.Now(), proposal.Bytes)...))
			})
			var v negotiate.Verdict
			require.Eventually(t, func() (decided bool) {
				f.call(func() { v, decided = hs.Verdict() })
				return decided
			}, patience, time.Millisecond)
			require.Equal(t, negotiate.Verdict{Outcome: negotiate.OutcomeDeclined, Reason: negotiate.ReasonHandshakeTimeout}, v)
			close(shy.come)
			for _, f := range c.flow {
				f.call(f.replaced)
			}
			c.over(t)
			c.closeApps()
			p.empty(t)
		})
	}
}

// A path is taken for a narrow one when full packets were sent on it and none came back:
// not when the proof could not be sent, when the gateway was too late to look, nor when
// another connection's proof holds, though one of a cold trial proves the path again.
func TestPathIsNarrowedByItsLossesOnly(t *testing.T) {
	p := newPair(t)
	g := p.g[0]
	prov := g.providerOf(negotiate.CarrierSoft)
	var trial *config.Trial
	flow := func() *Flow {
		p.port++
		f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, trial)
		t.Cleanup(func() { g.unlink(f) })
		return f
	}
	offer := func(f *Flow) (*carry, negotiate.CarrierOffer) {
		c, o, err := f.offer(prov)
		require.NoError(t, err)
		t.Cleanup(func() { f.call(c.close) })
		return c, o
	}
	unproved := func(sent bool) {
		f := flow()
		cr, _ := offer(f)
		c := &client{hs: negotiate.NewClient(negotiate.ClientConfig{}, negotiate.Proposal{})}
		c.f, c.s, c.negotiator.hs = f, f.Shard, c.hs
		c.left.Store(true) // it takes no more
		f.call(func() {
			assert.True(t, f.addCarry(cr))
			to := negotiate.CarrierOffer{Kind: negotiate.CarrierSoft}
			if sent {
				c.proofs, c.proving, c.silent = 1, 200*time.Millisecond, []*carry{cr}
			} else {
				c.prove(negotiate.Prove{Offer: to, Timeout: time.Second})
			}
			c.rememberProof()
		})
	}
	mtu := func() uint16 {
		_, o := offer(flow())
		return o.RoCE.MTU
	}
	wide := mtu()
	require.Greater(t, wide, uint16(1024))
	unproved(false)
	require.Equal(t, wide, mtu(), "no proof was sent")
	g.Pulse = new(loop.Pulse)
	g.Pulse.Late(time.Now().Add(time.Hour), loop.StuckAfter)
	unproved(true)
	require.Equal(t, wide, mtu(), "the gateway was late")
	g.Pulse = &g.pulse
	trial = &config.Trial{Cold: true}
	other, _ := offer(flow())
	other.f.call(other.Proved)
	unproved(true)
	require.Equal(t, wide, mtu(), "another proof holds")
	other.f.call(func() { other.Reason(rsocket.ErrConnection) })
	unproved(true)
	require.Equal(t, uint16(1024), mtu())
}
