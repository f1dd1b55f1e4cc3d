package conn

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// lateProvider answers when the test lets it.
type lateProvider struct {
	carrier.Provider
	answers []func()
}

func (l *lateProvider) Answer(r carrier.Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done carrier.Answered) {
	l.answers = append(l.answers, func() {
		l.Provider.Answer(r, from, p, done)
	})
}

// fullProvider has no queue pair left.
type fullProvider struct{ carrier.Provider }

func (fullProvider) Answer(_ carrier.Request, _ negotiate.CarrierOffer, _ *negotiate.Proposal, done carrier.Answered) {
	done(nil, negotiate.CarrierOffer{}, carrier.ErrFull)
}

// TestAnswersComeLate: a server goes on when every carrier has answered, in the order of
// its preference; one that has none left is passed over, and a flow that ended meanwhile
// keeps no link.
func TestAnswersComeLate(t *testing.T) {
	p := newPair(t)
	soft, shm := p.g[1].providerOf(negotiate.CarrierSoft), p.g[1].providerOf(negotiate.CarrierSHM)
	late := &lateProvider{Provider: soft}
	type verdict struct {
		kinds  []negotiate.CarrierKind
		reason negotiate.Reason
	}
	begin := func(providers ...carrier.Provider) (c *pairConn, said chan verdict) {
		a, b := newFakeWires(1<<20, 1<<20)
		c, said = p.begin(t, a, b), make(chan verdict, 2)
		f0, f1 := c.flow[0], c.flow[1]
		proposal := &negotiate.Proposal{HostID: f0.env.HostID}
		for _, kind := range []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft} {
			cr, offer, err := f0.offer(p.g[0].providerOf(kind))
			require.NoError(t, err)
			f0.call(func() { assert.True(t, f0.addCarry(cr)) })
			proposal.Carriers = append(proposal.Carriers, offer)
		}
		require.NoError(t, shm.Meet(t.Context(), f1.Peer(), proposal.Carriers[0]))
		f1.call(func() {
			before := f1.env.Providers
			f1.env.Providers = providers
			f1.answerOffers(proposal, nil, func(*carry) func(rsocket.Events) { return nil }, func(offers []negotiate.CarrierOffer, why negotiate.Reason) {
				v := verdict{reason: why}
				for _, o := range offers {
					v.kinds = append(v.kinds, o.Kind)
				}
				said <- v
			})
			assert.Empty(t, said, "it is posted")
			f1.env.Providers = before
		})
		return c, said
	}
	answer := func(c *pairConn) {
		c.flow[1].Shard.Call(func() {
			c.flow[1].Shard.WorksFor(c.flow[1])
			late.answers[0]()
			late.answers = nil
		})
	}
	end := func(c *pairConn) {
		for _, f := range c.flow {
			f.call(func() { f.abort(negotiate.ReasonOff, false) })
		}
		c.over(t)
		for _, app := range c.app {
			require.NoError(t, app.Close())
		}
	}

	c, said := begin(late, shm)
	require.Empty(t, said, "one has not answered")
	answer(c)
	require.Equal(t, verdict{kinds: []negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierSHM}}, <-said)
	end(c)

	c, said = begin(fullProvider{soft}, shm)
	require.Equal(t, verdict{kinds: []negotiate.CarrierKind{negotiate.CarrierSHM}}, <-said)
	end(c)
	c, said = begin(fullProvider{soft})
	require.Equal(t, verdict{reason: negotiate.ReasonFlowLimit}, <-said)
	end(c)

	c, said = begin(fullProvider{soft}, soft, shm)
	require.Equal(t, verdict{kinds: []negotiate.CarrierKind{negotiate.CarrierSoft, negotiate.CarrierSHM}}, <-said, "the next device that can")
	end(c)

	c, said = begin(late)
	end(c)
	answer(c)
	require.Equal(t, verdict{reason: negotiate.ReasonClientGone}, <-said)
	c.flow[1].Shard.Call(func() {})
	require.Eventually(t, func() bool { return p.g[0].pool.Stats().Used+p.g[1].pool.Stats().Used == 0 }, patience, 1e6, "no link is left")
	require.Empty(t, said, "once")
}

// kindProvider is a device of a kind, which is not asked for anything.
type kindProvider struct {
	carrier.Provider
	kind negotiate.CarrierKind
}

func (k kindProvider) Kind() negotiate.CarrierKind { return k.kind }

// TestWaysToAnswer: which devices may answer what a client offers, in the order of the
// server's preference.
func TestWaysToAnswer(t *testing.T) {
	const shm, soft, hw, ib = negotiate.CarrierSHM, negotiate.CarrierSoft, negotiate.CarrierHW, negotiate.CarrierIB
	type kinds = []negotiate.CarrierKind
	f := newPair(t).g[1]
	for _, c := range []struct {
		name          string
		offered, have kinds
		apart         bool // the client does not want mixed ends
		failed        kinds
		order         kinds
		by            []kinds
	}{
		{name: "the same", offered: kinds{shm, hw, soft}, have: kinds{shm, hw, soft}, order: kinds{shm, hw, soft}, by: []kinds{{shm}, {hw, soft}, {soft}}},
		{name: "no adapter here", offered: kinds{hw, soft}, have: kinds{shm, soft}, order: kinds{hw, soft}, by: []kinds{{soft}, {soft}}},
		{name: "no adapter there", offered: kinds{soft}, have: kinds{shm, hw, soft}, order: kinds{soft}, by: []kinds{{hw, soft}}},
		{name: "soft preferred", offered: kinds{soft}, have: kinds{soft, hw}, order: kinds{soft}, by: []kinds{{soft, hw}}},
		{name: "only one each", offered: kinds{hw}, have: kinds{soft}, order: kinds{hw}, by: []kinds{{soft}}},
		{name: "apart", apart: true, offered: kinds{hw, soft}, have: kinds{soft}, order: kinds{soft}, by: []kinds{{soft}}},
		{name: "apart altogether", apart: true, offered: kinds{soft}, have: kinds{hw}},
		{name: "InfiniBand to one without", offered: kinds{ib, hw}, have: kinds{hw, soft}, order: kinds{hw}, by: []kinds{{hw, soft}}},
		{name: "InfiniBand on both", offered: kinds{hw, ib, soft}, have: kinds{ib, soft}, order: kinds{ib, hw, soft}, by: []kinds{{ib}, {soft}, {soft}}},
		{name: "failed", offered: kinds{soft}, have: kinds{hw, soft}, failed: kinds{hw}, order: kinds{soft}, by: []kinds{{soft}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := &Env{Peers: f.Peers, Log: f.Log}
			for _, k := range c.have {
				env.Providers = append(env.Providers, kindProvider{kind: k})
			}
			p := &negotiate.Proposal{}
			for _, k := range c.offered {
				p.Carriers = append(p.Carriers, negotiate.CarrierOffer{Kind: k, Mixed: !c.apart && (k == soft || k == hw)})
			}
			failed := map[negotiate.CarrierKind]error{}
			for _, k := range c.failed {
				failed[k] = carrier.ErrNotHere
			}
			a := answers{f: &Flow{env: env}}
			var order kinds
			var by []kinds
			for _, w := range a.ways(p, failed) {
				order = append(order, w.from.Kind)
				var list kinds
				for _, prov := range w.by {
					list = append(list, prov.Kind())
				}
				by = append(by, list)
			}
			require.Equal(t, c.order, order)
			require.Equal(t, c.by, by)
		})
	}
}

// TestKeyring: a change is one only where keys differ, messages have a random part where
// there are keys, and the log tells of other keys once in a while.
func TestKeyring(t *testing.T) {
	var log bytes.Buffer
	r := NewKeyring(slog.New(slog.NewTextHandler(&log, nil)))
	require.Empty(t, r.Load())
	require.Zero(t, r.random())
	require.False(t, r.Set(nil))
	keys := negotiate.Keys{[]byte("0123456789abcdef")}
	require.True(t, r.Set(keys))
	require.False(t, r.Set(negotiate.Keys{[]byte("0123456789abcdef")}))
	require.Equal(t, keys, r.Load())
	require.NotZero(t, r.random())
	require.NotEqual(t, r.random(), r.random())
	for range 3 {
		r.NoCommonKey(netip.MustParseAddr("10.0.0.2"), report.SideServer)
	}
	require.Equal(t, 1, strings.Count(log.String(), "no key in common"), log.String())
}
