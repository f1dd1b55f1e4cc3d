package conn

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// lateFabric answers when the test lets it.
type lateFabric struct {
	carrier.Fabric
	answers []func()
}

func (l *lateFabric) Answer(r carrier.Request, from negotiate.CarrierOffer, p *negotiate.Proposal, done carrier.Answered) {
	l.answers = append(l.answers, func() {
		l.Fabric.Answer(r, from, p, done)
	})
}

// fullFabric has no queue pair left.
type fullFabric struct{ carrier.Fabric }

func (fullFabric) Answer(_ carrier.Request, _ negotiate.CarrierOffer, _ *negotiate.Proposal, done carrier.Answered) {
	done(nil, negotiate.CarrierOffer{}, carrier.ErrFull)
}

// TestAnswersComeLate: a server goes on when every carrier has answered, in the order of
// its preference; one that has none left is passed over, and a flow that ended meanwhile
// keeps no link.
func TestAnswersComeLate(t *testing.T) {
	p := newPair(t)
	soft, shm := p.g[1].fabricOf(negotiate.CarrierSoft), p.g[1].fabricOf(negotiate.CarrierSHM)
	late := &lateFabric{Fabric: soft}
	type verdict struct {
		kinds  []negotiate.CarrierKind
		reason negotiate.Reason
	}
	begin := func(fabrics ...carrier.Fabric) (c *pairConn, said chan verdict) {
		a, b := newFakeWires(1<<20, 1<<20)
		c, said = p.begin(t, a, b), make(chan verdict, 2)
		f0, f1 := c.flow[0], c.flow[1]
		proposal := &negotiate.Proposal{HostID: f0.env.HostID}
		for _, kind := range []negotiate.CarrierKind{negotiate.CarrierSHM, negotiate.CarrierSoft} {
			cr, offer, err := f0.offer(p.g[0].fabricOf(kind))
			require.NoError(t, err)
			f0.call(func() { require.True(t, f0.addCarry(cr)) })
			proposal.Carriers = append(proposal.Carriers, offer)
		}
		require.NoError(t, shm.Meet(t.Context(), f1.Peer(), proposal.Carriers[0]))
		f1.call(func() {
			before := f1.env.Fabrics
			f1.env.Fabrics = fabrics
			f1.answerOffers(proposal, nil, func(*carry) func(rsocket.Events) { return nil }, func(offers []negotiate.CarrierOffer, why negotiate.Reason) {
				v := verdict{reason: why}
				for _, o := range offers {
					v.kinds = append(v.kinds, o.Kind)
				}
				said <- v
			})
			f1.env.Fabrics = before
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

	c, said = begin(fullFabric{soft}, shm)
	require.Equal(t, verdict{kinds: []negotiate.CarrierKind{negotiate.CarrierSHM}}, <-said)
	end(c)
	c, said = begin(fullFabric{soft})
	require.Equal(t, verdict{reason: negotiate.ReasonFlowLimit}, <-said)
	end(c)

	c, said = begin(late)
	end(c)
	answer(c)
	require.Equal(t, verdict{reason: negotiate.ReasonClientGone}, <-said)
	c.flow[1].Shard.Call(func() {})
	require.Eventually(t, func() bool { return p.g[0].pool.Stats().Used+p.g[1].pool.Stats().Used == 0 }, patience, 1e6, "no link is left")
	require.Empty(t, said, "once")
}
