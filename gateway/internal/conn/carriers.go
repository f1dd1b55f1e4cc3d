package conn

import (
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/policy"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rmb"
	"github.com/smcgw/smcgw/rsocket"
	"github.com/smcgw/smcgw/verbs"
)

// makeOffers prepares a queue pair per carrier for the PROPOSAL. A carrier
// that cannot be prepared is left out. Any goroutine may call it.
func (f *Flow) makeOffers(p *negotiate.Proposal) (carries []*carry, reason negotiate.Reason) {
	reason = negotiate.ReasonNoCommonCarrier
	for _, fb := range f.env.Fabrics {
		if !policy.Admits(f.Trial, config.Carrier(fb.Kind().String())) {
			continue
		}
		if f.resting(fb.Kind()) {
			reason = moreLocal(reason, negotiate.ReasonCarrierUnreachable)
			continue
		}
		c, offer, err := f.offer(fb)
		if err != nil {
			f.env.Log.Debug("offer", "flow_id", f.ID, "carrier", fb.Kind(), "error", err)
			reason = moreLocal(reason, carrierReason(err))
			continue
		}
		carries = append(carries, c)
		p.Carriers = append(p.Carriers, offer)
		if c.Warm() { // works with this peer: no second one is needed
			break
		}
	}
	return carries, reason
}

// offer makes the link of one fabric for a client's flow.
func (f *Flow) offer(fb carrier.Fabric) (c *carry, offer negotiate.CarrierOffer, err error) {
	c = f.newCarry()
	c.Link, offer, err = fb.Offer(c.request())
	return c, offer, err
}

// answer makes the link of one fabric for a server's flow and connects it to the
// client's; report is told of what happens on it from then on.
func (f *Flow) answer(fb carrier.Fabric, from negotiate.CarrierOffer, p *negotiate.Proposal, report func(*carry) func(rsocket.Events)) (offer negotiate.CarrierOffer, err error) {
	c := f.newCarry()
	if c.Link, offer, err = fb.Answer(c.request(), from, p); err != nil {
		return offer, err
	}
	if !f.addCarry(c) {
		c.Shard.Post(c.close)
		return offer, errLegClosed
	}
	c.report = report(c)
	if err = c.Connect(from); err != nil {
		f.dropCarry(c)
	}
	return offer, err
}

// moreLocal returns which of two reasons for the lack of carriers counts: one that says
// nothing about the peer, if there is one.
func moreLocal(a, b negotiate.Reason) negotiate.Reason {
	if a == negotiate.ReasonNoCommonCarrier || a == negotiate.ReasonCarrierUnreachable {
		return b
	}
	return a
}

// resting reports whether a carrier is left alone with the flow's peer. One that is
// on trial is measured as it is.
func (f *Flow) resting(kind negotiate.CarrierKind) bool {
	return f.Trial == nil && f.env.Peers.Resting(f.Peer(), kind, time.Now())
}

// strangers are the fabrics by which the peer has to be met before they can answer.
func (f *Flow) strangers(p *negotiate.Proposal) (list []carrier.Fabric) {
	for _, fb := range f.env.Fabrics {
		if from := negotiate.FindCarrier(p.Carriers, fb.Kind()); from != nil && !fb.Met(*from, p) {
			list = append(list, fb)
		}
	}
	return list
}

// answerOffers prepares what the client offered and we can do, in the order of
// our own preference, and connects it; report makes what is told of what happens
// on it from then on. Carriers that failed already are left out.
func (f *Flow) answerOffers(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error, report func(*carry) func(rsocket.Events)) ([]negotiate.CarrierOffer, negotiate.Reason) {
	reason := negotiate.ReasonNoCommonCarrier
	var offers []negotiate.CarrierOffer
	for _, fb := range f.env.Fabrics {
		from := negotiate.FindCarrier(p.Carriers, fb.Kind())
		if from == nil {
			continue
		}
		if f.resting(fb.Kind()) {
			reason = moreLocal(reason, negotiate.ReasonCarrierUnreachable)
			continue
		}
		var offer negotiate.CarrierOffer
		err := failed[fb.Kind()]
		if err == nil {
			offer, err = f.answer(fb, *from, p, report)
		}
		if f.core.Ended() {
			return nil, negotiate.ReasonClientGone
		}
		if err != nil {
			f.env.Log.Debug("answer", "flow_id", f.ID, "carrier", fb.Kind(), "error", err)
			reason = moreLocal(reason, carrierReason(err))
			continue
		}
		offers = append(offers, offer)
	}
	if len(offers) > 0 {
		reason = negotiate.ReasonNone
	}
	return offers, reason
}

// carrierReason is why a queue pair could not be had.
func carrierReason(err error) negotiate.Reason {
	switch short := shortage(err); {
	case short != negotiate.ReasonNone:
		return short
	case errors.Is(err, rmb.ErrNoMemory), errors.Is(err, verbs.ErrNoMemory):
		return negotiate.ReasonNoMemory
	case errors.Is(err, carrier.ErrYielded): // it is not remembered
		return negotiate.ReasonDrained
	case errors.Is(err, carrier.ErrNotHere), errors.Is(err, fs.ErrNotExist): // no rendezvous here: another kernel, another shm_dir
		return negotiate.ReasonNoCommonCarrier
	default:
		return negotiate.ReasonDeviceFailed
	}
}

// carryBy starts carrying by one of the prepared carriers and closes the
// others.
func (f *Flow) carryBy(kind negotiate.CarrierKind) {
	picked, by := f.carryOf(kind), life.ByRelay
	if picked != nil {
		by = life.ByLink
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
	f.show(func(v *view) { v.carrier = config.Carrier(kind.String()) })
	f.noted()
	f.env.Counters.carried(config.Carrier(kind.String()), time.Since(f.start))
	f.env.Peers.Proven(f.Tuple.Remote.Addr(), config.Carrier(kind.String()))
	if picked != nil {
		f.contradicted()
	}
	f.wire.MarkCarrying()
	f.closeCarries(others, func() {})
	if picked == nil {
		return // the relay starts with the records
	}
	_ = f.wire.SetKeepalive(0, 0, 0) // of a server that waited for the last word; the fabric knows better now
	leg := f.leg
	f.post(func() {
		if fd, err := leg.take(); err == nil { // else the flow has ended
			picked.start(fd)
		}
	})
}

// records hands the wire leg over from CLC to records.
func (f *Flow) records(rest []byte) {
	ctl, leg := f.ctl, f.leg
	if f.core.Ended() || ctl == nil {
		return
	}
	rest = append([]byte(nil), rest...)     // the caller's buffer
	f.post(func() { ctl.begin(leg, rest) }) // behind the start of a queue pair
}
