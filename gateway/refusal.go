package gateway

import (
	"sync"

	"github.com/smcgw/smcgw/negotiate"
)

// refusals is why no connection begins.
type refusals struct {
	mu  sync.Mutex // guards now, and is held while the programs learn it
	now refusal
}

// refusal is what keeps connections from beginning.
type refusal struct {
	drained bool // the gateway ends
	legless bool // there are no sockets for legs
}

func (r refusal) reason() negotiate.Reason {
	switch {
	case r.drained:
		return negotiate.ReasonDrained
	case r.legless:
		return negotiate.ReasonAppLegBlocked
	default:
		return negotiate.ReasonNone
	}
}

// refuse changes what keeps connections from beginning, and tells the programs.
func (g *gateway) refuse(change func(r *refusal)) error {
	g.refusals.mu.Lock()
	defer g.refusals.mu.Unlock()
	change(&g.refusals.now)
	return g.steer.Refuse(uint8(g.refusals.now.reason()))
}
