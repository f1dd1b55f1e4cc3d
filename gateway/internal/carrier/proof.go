package carrier

import (
	"math/rand/v2"
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// proofRepeats is how often a proof is sent within its timeout on a lossy carrier, so that
// the loss of any packet is repaired within that time; the transport's own timer would take
// longer.
const proofRepeats = 4

// Prove connects a client's link and sends the probe, one full path MTU; the endpoint's
// EventProved reports that it has come back. A carrier that has already been proved with this
// peer is warm: nothing is left to prove. done is called once, on the shard, possibly before
// Prove returns.
func (l *Link) Prove(to negotiate.CarrierOffer, timeout time.Duration, done func(warm bool, err error)) {
	l.Connect(to, func(err error) {
		warm := err == nil && l.Warm()
		if err == nil && !warm {
			err = l.probe(timeout)
		}
		done(warm, err)
	})
}

// probe sends the probe.
func (l *Link) probe(timeout time.Duration) error {
	l.seed = rand.Uint64()
	if err := l.EP.Probe(l.probeLen, l.seed); err != nil {
		return err
	}
	if l.Lossy {
		l.repeatProof(timeout / proofRepeats)
	}
	return nil
}

// repeatProof resends the probe until something comes back.
func (l *Link) repeatProof(after time.Duration) {
	l.Shard.After(after, func() {
		l.Shard.WorksFor(l.Owner())
		if !l.isProved && l.phase == linkMade && l.EP.Probe(l.probeLen, l.seed) == nil {
			l.repeatProof(after)
		}
	})
}

// Warm reports whether the carrier has been proved with this peer, so that this link need not
// prove it.
func (l *Link) Warm() bool { return !l.of.Cold && l.ProofHolds() }

// ProofHolds reports whether the carrier has been proved with this peer, by any link.
func (l *Link) ProofHolds() bool { return l.medium.warm(l) }

// Proved records that the proof has come back.
func (l *Link) Proved() {
	l.isProved = true
	l.medium.proved(l)
}

// Unproved records that the proof has not come back and that no proof of another link is
// valid.
func (l *Link) Unproved() { l.medium.unproved(l) }
