package conn

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/netstack"
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

// TestDeclineOfOneCarrier: a server that declines what was offered alone, since it had been
// proved, may be full there or have lost its device. The next connection is offered all, and
// what declines that is remembered of the service. Reasons of another kind change nothing.
func TestDeclineOfOneCarrier(t *testing.T) {
	of := map[negotiate.Reason]bool{negotiate.ReasonAppRefused: false}
	for _, r := range negotiate.Reasons() {
		if r.OfCarriers() {
			of[r] = true
		}
	}
	require.Contains(t, of, negotiate.ReasonFlowLimit)
	require.Contains(t, of, negotiate.ReasonNoMemory)
	for reason, ofCarriers := range of {
		t.Run(reason.String(), func(t *testing.T) {
			p := newPair(t)
			g := p.g[0]
			shm, soft := g.providerOf(negotiate.CarrierSHM), g.providerOf(negotiate.CarrierSoft)
			g.Providers = []carrier.Provider{soft, shm}
			t.Cleanup(func() { g.Providers = []carrier.Provider{shm, soft} })
			// connect offers a connection what there is, and has the server decline that.
			connect := func(also func(*carry)) (offered int, remembered bool) {
				p.port++
				f := g.open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
				defer g.unlink(f)
				carries, _ := f.makeOffers(&negotiate.Proposal{})
				require.NotEmpty(t, carries)
				v := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: reason, Remote: true}
				f.call(func() {
					f.carries = carries
					(&client{negotiator: negotiator{f: f}}).declined(v)
					also(carries[0])
					f.remember(v)
					f.carries = nil
					closeAll(carries)
				})
				list, err := p.steer[0].Peers()
				require.NoError(t, err)
				for _, peer := range list {
					require.NoError(t, p.steer[0].Forget(peer.Addr, peer.Port))
				}
				g.Peers.Flush()
				return len(carries), len(list) > 0
			}
			nothing := func(*carry) {}
			check := func(what string, offers int, remembers bool, also func(*carry)) {
				t.Helper()
				offered, remembered := connect(also)
				require.Equal(t, offers, offered, what)
				require.Equal(t, remembers, remembered, what)
			}
			check("of no carrier it is known that it works", 2, true, func(c *carry) { c.Proved() })
			check("soft works", 1, !ofCarriers, nothing)
			if ofCarriers {
				check("soft has been declined", 2, true, nothing)
			} else {
				check("soft works still", 1, true, nothing)
			}
		})
	}
}

// TestNothingProposedByAGatewayThatEnds: what it would have to wait for is not begun. The
// application goes on natively, and the server's program is not dialled.
func TestNothingProposedByAGatewayThatEnds(t *testing.T) {
	for _, ends := range []bool{false, true} {
		p := newPair(t)
		p.port++
		f := p.g[0].open(report.SideClient, host.Tuple{Local: netip.AddrPortFrom(pairAddrs[0], p.port), Remote: netip.AddrPortFrom(pairAddrs[1], 80)}, nil)
		t.Cleanup(func() { p.g[0].unlink(f) })
		var offer negotiate.Proposal
		carries, _ := f.makeOffers(&offer)
		t.Cleanup(func() { f.call(func() { closeAll(carries) }) })
		if ends {
			p.g[0].drained.Do(func() { close(p.g[0].draining) })
		}
		client := negotiate.NewClient(negotiate.ClientConfig{}, offer)
		server := negotiate.NewServer(negotiate.ServerConfig{}, 0)
		require.Empty(t, server.Start(time.Now(), 0, negotiate.ConfirmedYes))
		served := false
		for _, a := range f.firstWord(client, negotiate.ReasonNone) {
			if said, ok := a.(negotiate.Send); ok {
				for _, a := range server.Receive(time.Now(), said.Bytes) {
					_, serves := a.(negotiate.Serve)
					served = served || serves
				}
			}
		}
		require.Equal(t, !ends, served)
		v, decided := client.Verdict()
		require.Equal(t, ends, decided)
		if ends {
			require.Equal(t, negotiate.OutcomeReleased, v.Outcome)
			require.Equal(t, negotiate.ReasonDrained, v.Reason)
		}
	}
}

// TestOwnLatenessIsNotRemembered: what was waited for in vain is the peer's fault only
// where this gateway was in time. What the peer has said or shown is remembered whatever
// the gateway did meanwhile, and what this host lacks never.
func TestOwnLatenessIsNotRemembered(t *testing.T) {
	silent := negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonHandshakeTimeout, Waited: 2 * time.Second}
	raw := negotiate.Verdict{Outcome: negotiate.OutcomeRaw, Reason: negotiate.ReasonAcceptLost, Waited: 20 * time.Millisecond}
	shown, said := raw, silent
	shown.Waited, shown.Shown = 0, true
	said.Waited, said.Remote = 0, true
	remember := func(v negotiate.Verdict) func(*Flow) { return func(f *Flow) { f.remember(v) } }
	for name, c := range map[string]struct {
		late time.Duration
		what func(f *Flow)
		want bool
	}{
		"silence":                    {0, remember(silent), true},
		"silence, late for a little": {20 * time.Millisecond, remember(silent), true},
		"silence, stood still":       {loop.StuckAfter, remember(silent), false},
		"no PROPOSAL":                {0, remember(raw), true},
		"no PROPOSAL, late":          {5 * time.Millisecond, remember(raw), false},
		"native bytes, late":         {5 * time.Millisecond, remember(shown), true},
		"declined, late":             {loop.StuckAfter, remember(said), true},
		"own packet":                 {0, func(f *Flow) { f.adopted(nil, netstack.ErrOverload) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t)
			g := p.g[0]
			f := bareFlow(g, report.SideClient, 4000)
			g.Pulse = new(loop.Pulse)
			g.Pulse.Late(f.start.Add(time.Nanosecond), c.late)
			f.call(func() { c.what(f) })
			list, err := p.steer[0].Peers()
			require.NoError(t, err)
			require.Equal(t, c.want, len(list) > 0)
			f.call(func() { f.abort(negotiate.ReasonDrained, false) })
			waitBuried(t, f)
			g.Pulse = &g.pulse
		})
	}
}

// TestDialReasons: what the application or the host's rules answer is remembered about the service; a tuple that a socket of the gateway
// has is not.
func TestDialReasons(t *testing.T) {
	for errno, want := range map[unix.Errno]struct {
		reason negotiate.Reason
		scope  negotiate.Scope
	}{
		unix.ECONNREFUSED:  {negotiate.ReasonAppRefused, negotiate.ScopeService},
		unix.ETIMEDOUT:     {negotiate.ReasonAppUnreachable, negotiate.ScopeService},
		unix.EHOSTUNREACH:  {negotiate.ReasonAppUnreachable, negotiate.ScopeService},
		unix.EMFILE:        {negotiate.ReasonFlowLimit, negotiate.ScopeService},
		unix.EADDRINUSE:    {negotiate.ReasonAppLegBlocked, negotiate.ScopeNone},
		unix.EADDRNOTAVAIL: {negotiate.ReasonAppLegBlocked, negotiate.ScopeNone},
	} {
		r := dialReason(fmt.Errorf("dial the application: %w", errno))
		require.Equal(t, want.reason, r, errno)
		require.Equal(t, want.scope, negotiate.CachePolicy{}.ScopeOf(r), errno)
	}
}
