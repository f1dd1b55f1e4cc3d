package peers

import (
	"sync"

	"github.com/smcgw/smcgw/negotiate"
)

// Refusals is why no connection begins.
type Refusals struct {
	Tell func(reason uint8) error // the programs

	mu  sync.Mutex // guards now, and is held while the programs learn it
	now Refusal
}

// Refusal is what keeps connections from beginning.
type Refusal struct {
	Drained bool // the gateway ends
	Legless bool // there are no sockets for legs
}

func (r Refusal) reason() negotiate.Reason {
	switch {
	case r.Drained:
		return negotiate.ReasonDrained
	case r.Legless:
		return negotiate.ReasonAppLegBlocked
	default:
		return negotiate.ReasonNone
	}
}

// Change changes what keeps connections from beginning, and tells the programs.
func (r *Refusals) Change(change func(now *Refusal)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.now)
	return r.Tell(uint8(r.now.reason()))
}
