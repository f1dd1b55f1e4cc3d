package conn

import (
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// makeOffers prepares one queue pair per carrier for the PROPOSAL. A carrier that cannot be
// prepared is left out. It may block, so a shard calls it only if offersAtOnce allows that.
func (f *Flow) makeOffers(p *negotiate.Proposal) (carries []*carry, reason negotiate.Reason) {
	reason = negotiate.ReasonNoCommonCarrier
	panics := true
	defer func() {
		if !panics {
			return
		}
		for _, c := range carries { // the flow does not own them yet
			c.Shard.Post(c.close)
		}
	}()
	for _, prov := range f.env.Providers {
		if !f.admits(prov.Kind()) {
			continue
		}
		if f.resting(prov.Kind()) {
			reason = carrier.MoreLocal(reason, negotiate.ReasonCarrierUnreachable)
			continue
		}
		c, offer, err := f.offer(prov)
		if err != nil {
			f.debug("offer", "carrier", prov.Kind(), "error", err)
			reason = carrier.MoreLocal(reason, carrier.OfferReason(err))
			continue
		}
		carries = append(carries, c)
		p.Carriers = append(p.Carriers, offer)
		if c.Warm() { // proven with this peer: no alternative is needed
			break
		}
	}
	panics = false
	return carries, f.notWorthIt(reason)
}

// admits reports whether devices of this kind may carry the flow.
func (f *Flow) admits(kind negotiate.CarrierKind) bool {
	return policy.Admits(f.Trial, report.Carrier(kind.String())) && (!f.auto || kind.OfAdapter())
}

// notWorthIt replaces the reason for a lack of carriers if it is that the rule has action
// auto and no adapter may carry the flow.
func (f *Flow) notWorthIt(reason negotiate.Reason) negotiate.Reason {
	if f.auto && (reason == negotiate.ReasonNoCommonCarrier || reason == negotiate.ReasonAddress) {
		return negotiate.ReasonNotWorthIt
	}
	return reason
}

// notWorth remembers that no adapter of this host leads to the service, so that the next
// connection to it does not try.
func (f *Flow) notWorth() {
	f.remember(negotiate.Verdict{Outcome: negotiate.OutcomeReleased, Reason: negotiate.ReasonNotWorthIt, Shown: true})
}

// offersAtOnce reports whether makeOffers would not block.
func (f *Flow) offersAtOnce() bool {
	r := f.request(nil)
	for _, prov := range f.env.Providers {
		if prompt, ok := prov.(carrier.Prompt); !ok || !prompt.OffersAtOnce(&r) {
			return false
		}
	}
	return true
}

// request returns the request for a link of the flow.
func (f *Flow) request(user carrier.User) carrier.Request {
	return carrier.Request{
		User: user, Shard: f.Shard, ID: f.ID, Local: f.Tuple.Local.Addr(), Remote: f.Tuple.Remote.Addr(), Cold: policy.Cold(f.Trial),
	}
}

// offer creates a link on one device for a client's flow.
func (f *Flow) offer(prov carrier.Provider) (c *carry, offer negotiate.CarrierOffer, err error) {
	c = f.newCarry()
	c.Link, offer, err = prov.Offer(f.request(c))
	return c, offer, err
}

// answer creates a link on one device for a server's flow and connects it to the client's.
// report returns the function that receives its events from then on. done is called once,
// possibly before answer returns.
func (f *Flow) answer(prov carrier.Provider, from negotiate.CarrierOffer, p *negotiate.Proposal, report func(*carry) func(rsocket.Events), done func(negotiate.CarrierOffer, error)) {
	c := f.newCarry()
	prov.Answer(f.request(c), from, p, func(l *carrier.Link, offer negotiate.CarrierOffer, err error) {
		if err == nil {
			c.Link = l
			c.report = report(c)
			if !f.addCarry(c) {
				c.Shard.Post(c.close)
				err = errLegClosed
			}
		}
		done(offer, err)
	})
}

// resting reports whether the carrier is in backoff with the flow's peer. Flows of a trial
// ignore backoff, so that the carrier is measured as it is.
func (f *Flow) resting(kind negotiate.CarrierKind) bool {
	return f.Trial == nil && f.env.Peers.Resting(f.Peer(), kind, time.Now())
}

// unmet returns the devices that need a rendezvous with the peer before they can answer.
func (f *Flow) unmet(p *negotiate.Proposal) (list []carrier.Provider) {
	for _, prov := range f.env.Providers {
		if from := negotiate.FindCarrier(p.Carriers, prov.Kind()); from != nil && f.admits(prov.Kind()) && !prov.Met(*from, p) {
			list = append(list, prov)
		}
	}
	return list
}

// carryBy starts carrying with one of the prepared carriers and closes the others.
func (f *Flow) carryBy(kind negotiate.CarrierKind) {
	picked, by, carriedBy := f.carryOf(kind), life.ByRelay, report.CarrierRelay
	if picked != nil {
		by, carriedBy = life.ByLink, report.Carrier(picked.Kind.String())
	}
	if !f.core.CarriedBy(by) {
		return
	}
	others := slices.DeleteFunc(f.carries, func(c *carry) bool { return c == picked })
	f.picked, f.carries, f.ctl = picked, nil, newWireControl(f)
	if picked != nil {
		f.carries = []*carry{picked}
	} else {
		f.relay = newRelay(f, f.ctl)
	}
	f.begins(carriedBy)
	f.env.Peers.Proven(f.Tuple.Remote.Addr(), carriedBy)
	if picked != nil {
		f.contradicted()
	}
	f.wire.MarkCarrying()
	f.closeCarries(others, func() {})
	if picked == nil {
		return // the relay starts when records begin
	}
	// A server that waited for the last word had set it; from now on the device detects a
	// dead peer.
	_ = f.wire.SetKeepalive(0, 0, 0)
	leg := f.leg
	f.post(func() {
		if fd, err := leg.take(); err == nil { // otherwise the flow has ended
			picked.start(fd)
		}
	})
}

// records switches the wire leg from CLC messages to records.
func (f *Flow) records(rest []byte) {
	ctl, leg := f.ctl, f.leg
	if f.core.Ended() || ctl == nil {
		return
	}
	rest = append([]byte(nil), rest...)     // rest points into the caller's buffer
	f.post(func() { ctl.begin(leg, rest) }) // after picked.start, if there is a queue pair
}
