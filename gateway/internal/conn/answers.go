package conn

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/rsocket"
)

// answerOffers prepares and connects a carrier for each of the client's offers that this host
// can answer, in this host's order of preference. report returns the function that receives
// the events of a carrier from then on. Carriers in failed are left out. then is posted: it
// runs once, on the shard, after answerOffers has returned.
func (f *Flow) answerOffers(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error, report func(*carry) func(rsocket.Events), then func([]negotiate.CarrierOffer, negotiate.Reason)) {
	a := answers{f: f, reason: negotiate.ReasonNoCommonCarrier, then: then}
	ways := a.ways(p, failed)
	a.offers, a.under = make([]negotiate.CarrierOffer, len(ways)), len(ways)
	for at, w := range ways {
		a.answer(*w.from, w.by, at, p, report)
	}
	if len(ways) == 0 {
		f.post(a.finish)
	}
}

// way is one offer of the client with the devices that may answer it, best first.
type way struct {
	from *negotiate.CarrierOffer
	by   []carrier.Provider
}

// ways returns the offers that can be answered, in this host's order of preference.
func (a *answers) ways(p *negotiate.Proposal, failed map[negotiate.CarrierKind]error) (list []way) {
	for _, prov := range a.f.env.Providers {
		for i := range p.Carriers {
			from := &p.Carriers[i]
			switch {
			case !a.f.admits(prov.Kind()), !carrier.Answers(prov, p.Carriers, i):
			case a.f.resting(prov.Kind()):
				a.reason = carrier.MoreLocal(a.reason, negotiate.ReasonCarrierUnreachable)
			case failed[prov.Kind()] != nil:
				a.failed(prov.Kind(), failed[prov.Kind()])
			default:
				at := slices.IndexFunc(list, func(w way) bool { return w.from == from })
				if at < 0 {
					at, list = len(list), append(list, way{from: from})
				}
				list[at].by = append(list[at].by, prov)
			}
		}
	}
	return list
}

// answers collects a server's answers to the offers of a client.
type answers struct {
	f      *Flow
	offers []negotiate.CarrierOffer // by preference; CarrierRelay marks one that failed
	reason negotiate.Reason         // why there is no carrier
	under  int                      // carriers that have not answered yet
	then   func([]negotiate.CarrierOffer, negotiate.Reason)
}

// answer tries the devices in by, in order, until one answers the offer. at is the position
// of the answer in the ACCEPT.
func (a *answers) answer(from negotiate.CarrierOffer, by []carrier.Provider, at int, p *negotiate.Proposal, report func(*carry) func(rsocket.Events)) {
	a.f.answer(by[0], from, p, report, func(offer negotiate.CarrierOffer, err error) {
		switch {
		case err == nil:
			a.offers[at] = offer
		case len(by) > 1 && !a.f.core.Ended():
			a.failed(by[0].Kind(), err)
			a.answer(from, by[1:], at, p, report)
			return
		default:
			a.failed(by[0].Kind(), err)
		}
		if a.under--; a.under == 0 {
			a.f.post(a.finish)
		}
	})
}

// failed records that a carrier is unavailable.
func (a *answers) failed(kind negotiate.CarrierKind, err error) {
	a.f.debug("answer", "carrier", kind, "error", err)
	a.reason = carrier.MoreLocal(a.reason, carrier.AnswerReason(err))
}

// finish calls then once every carrier has answered.
func (a *answers) finish() {
	offers := slices.DeleteFunc(a.offers, func(o negotiate.CarrierOffer) bool { return o.Kind == negotiate.CarrierRelay })
	switch {
	case a.f.core.Ended():
		a.then(nil, negotiate.ReasonClientGone)
	case len(offers) == 0:
		a.then(nil, a.f.notWorthIt(a.reason))
	default:
		a.then(offers, negotiate.ReasonNone)
	}
}
