package conn

import (
	"time"

	"github.com/smcgw/smcgw/negotiate"
)

// heldHandshake is what a handshake needs to stay where a fault wants it:
// it takes no notice of anything but the end of its flow and of the gateway.
type heldHandshake struct {
	at   string // the step it has reached
	held bool
	kept []func(now time.Time) []negotiate.Action // what happened meanwhile
}

// reached notes the step that the handshake is at.
func (n *negotiator) reached(step string) {
	if n.f.env.Faults == nil || step == n.hold.at {
		return
	}
	n.hold.at = step
	n.hold.held = n.f.step(step) || n.hold.held
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
