package carrier

import (
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
	"github.com/smcgw/smcgw/verbs"
)

// Software and adapters speak the same RoCEv2 (docs/PROTOCOL.md "Carrier proof"): a queue
// pair of one may answer the offer of the other.

// Answers reports whether a device may answer an offer: one of its own kind, or one for
// both. A host without adapters does not try for them with others.
func Answers(prov Provider, o *negotiate.CarrierOffer) bool {
	if h, ok := prov.(*Hardware); ok && o.Kind != h.Kind() && len(h.open()) == 0 {
		return false
	}
	return prov.Kind() == o.Kind || o.Mixed && prov.Kind().IsRoCE()
}

const (
	// brokenApart is how long the ends of a peer's links are of one kind after a link of both
	// has failed that carried.
	brokenApart = time.Minute
	// unprovedApart is the same after a proof has not come back, in times that the peer is
	// left native for it: what both hosts have of one kind carries in the rest of the time.
	unprovedApart = 6
)

// mayMix reports whether a device of the other kind may be at the other end of a link: the
// device receives where adapters send to.
func (env *Env) mayMix(r *Request, udpPort uint16) bool {
	return env.Config.HW.Mixed == config.SwitchOn && udpPort == verbs.RoCEUDPPort && !env.Peers.Apart(r.peer(), time.Now())
}

// answerTo makes the description of a server's link an answer to a client's offer, and
// returns the offer as one that says what the answer is, not what it might be.
func (l *Link) answerTo(from, own negotiate.CarrierOffer) (to, answer negotiate.CarrierOffer) {
	to, answer = from, own
	to.Mixed = from.Kind != l.Kind
	if answer.Mixed = to.Mixed; answer.Mixed {
		l.offered, answer.Kind, answer.RoCE.PKey = from.Kind, from.Kind, 0
	}
	return to, answer
}

// partMixed has later links with the peer of a link end at devices of one kind, if those of
// now do not.
func (l *Link) partMixed(d time.Duration) {
	if farPeerOf(l).mixed.Load() {
		l.env.Peers.Part(l.of.peer(), time.Now(), d)
	}
}
