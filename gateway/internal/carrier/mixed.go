package carrier

import (
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// Software and adapters speak the same RoCEv2 (docs/PROTOCOL.md "Carrier proof"), so a queue
// pair of one may answer the offer of the other.

// Answers reports whether a device may answer offer i: one of its own kind, or one for both
// kinds. An adapter does not answer an offer of soft if the peer has also offered an adapter,
// nor any offer of another kind on a host without adapters; soft answers for an adapter that
// this host lacks.
func Answers(prov Provider, offers []negotiate.CarrierOffer, i int) bool {
	o, kind := &offers[i], prov.Kind()
	if o.Kind == kind {
		return true
	}
	if h, ok := prov.(*Hardware); ok && len(h.open()) == 0 || kind == negotiate.CarrierHW && negotiate.FindCarrier(offers, kind) != nil {
		return false
	}
	return o.Mixed && kind.IsRoCE()
}

const (
	// brokenApart is how long a peer's links join devices of one kind only, after a carrying
	// link between different kinds has failed.
	brokenApart = time.Minute
	// unprovedApart is the same after a proof did not come back, as a multiple of the time
	// that the peer is left native for it. During the rest, devices of the same kind can
	// carry.
	unprovedApart = 6
)

// mayMix reports whether a device of the other kind may be at the other end of a link: this
// device must receive on the port that adapters send to.
func (env *Env) mayMix(r *Request, udpPort uint16) bool {
	return env.Config.HW.Mixed == config.SwitchOn && udpPort == verbs.RoCEUDPPort && !env.Peers.Apart(r.peer(), time.Now())
}

// answerTo turns the description of a server's link (own) into an answer to a client's offer
// (from). In the returned offer to, Mixed says what the answer is rather than what it might
// be.
func (l *Link) answerTo(from, own negotiate.CarrierOffer) (to, answer negotiate.CarrierOffer) {
	to, answer = from, own
	to.Mixed = from.Kind != l.Kind
	if answer.Mixed = to.Mixed; answer.Mixed {
		l.offered, answer.Kind, answer.RoCE.PKey = from.Kind, from.Kind, 0
	}
	return to, answer
}

// partMixed makes later links with the link's peer join devices of one kind only, if the
// present ones do not.
func (l *Link) partMixed(d time.Duration) {
	if farPeerOf(l).mixed.Load() {
		l.env.Peers.Part(l.of.peer(), time.Now(), d)
	}
}
