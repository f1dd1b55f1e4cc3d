package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/negotiate"
)

// heldHandshake is what a handshake needs to stay where a fault wants it:
// it takes no notice of anything but the end of its flow and of the gateway.
type heldHandshake struct {
	at   negotiate.Stage // the last that it has come to
	held bool
	kept []func(now time.Time) []negotiate.Action // what happened meanwhile
}

// reached notes the stage that the handshake is at.
func (n *negotiator) reached(s negotiate.Stage) {
	if n.f.env.Faults == nil || s == n.hold.at {
		return
	}
	n.hold.at = s
	switch s {
	case negotiate.StageNegotiating:
		n.hold.held = n.f.step(faults.Negotiating) || n.hold.held
	case negotiate.StageCompleting:
		n.hold.held = n.f.step(faults.Completing) || n.hold.held
	case negotiate.StageAccepted, negotiate.StageOver: // no steps of a handshake
	}
}

// holding reports whether the handshake is being held.
func (n *negotiator) holding() bool {
	if !n.hold.held || n.f.core.Ended() {
		return false
	}
	select {
	case <-n.f.env.Draining:
		return false
	default:
		return true
	}
}

// happened executes what an input says, with what was kept before it.
func (n *negotiator) happened(fn func(now time.Time) []negotiate.Action) {
	if n.holding() {
		n.hold.kept = append(n.hold.kept, fn)
		return
	}
	kept := n.hold.kept
	n.hold.kept = nil
	for _, k := range kept {
		n.do(k(time.Now()))
	}
	n.do(fn(time.Now()))
	n.settle()
}
