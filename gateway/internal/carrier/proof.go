package carrier

import (
	"math/rand/v2"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// proofRepeats is how often a proof is sent on a carrier that may lose it: often
// enough that the loss of any packet on the way is noticed within the proof's
// time, which the transport's own timer would overstep.
const proofRepeats = 4

// Prove connects a client's link and sends the probe, one full path MTU; the endpoint's
// EventProved says that it has come back. A carrier that has been proved with this peer is
// warm: nothing is left to prove.
func (l *Link) Prove(to negotiate.CarrierOffer, timeout time.Duration) (warm bool, err error) {
	if err := l.Connect(to); err != nil {
		return false, err
	}
	if l.Warm() {
		return true, nil
	}
	l.seed = rand.Uint64()
	if err := l.EP.Probe(l.probeLen, l.seed); err != nil {
		return false, err
	}
	if l.Lossy {
		l.repeatProof(timeout / proofRepeats)
	}
	return false, nil
}

// repeatProof sends the probe again as long as nothing has come back.
func (l *Link) repeatProof(after time.Duration) {
	l.Shard.After(after, func() {
		l.Shard.WorksFor(l.Owner())
		if !l.isProved && l.phase == linkMade && l.EP.Probe(l.probeLen, l.seed) == nil {
			l.repeatProof(after)
		}
	})
}

// Warm reports whether the carrier has been proved with this peer.
func (l *Link) Warm() bool { return l.medium.warm(l) }

// Proved says that the proof has come back.
func (l *Link) Proved() {
	l.isProved = true
	l.medium.proved(l)
}

// Unproved says that the proof has not come back, and that no other link's holds.
func (l *Link) Unproved() { l.medium.unproved(l) }
