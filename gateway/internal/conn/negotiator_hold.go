package conn

import (
	"time"

	"github.com/smcgw/smcgw/gateway/faults"
	"github.com/smcgw/smcgw/negotiate"
)

// heldHandshake is the state of a handshake that a fault holds at a stage: it ignores
// everything but the end of its flow and of the gateway.
type heldHandshake struct {
	at   negotiate.Stage // the last stage reached
	held bool
	kept []func(now time.Time) []negotiate.Action // events that came meanwhile
}

// reached records the stage that the handshake has reached.
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
	case negotiate.StageAccepted, negotiate.StageOver: // not steps of a handshake
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

// happened executes an event, after those that were held back before it.
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
