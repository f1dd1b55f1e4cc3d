package peers

import (
	"sync"

	"github.com/smcgw/smcgw/negotiate"
)

// Refusals keeps the programs informed of why no connection may begin.
type Refusals struct {
	Tell func(reason uint8) error // tells the programs

	mu  sync.Mutex // guards now; also held while the programs are told
	now Refusal
}

// Refusal is what keeps connections from beginning.
type Refusal struct {
	Drained bool // the gateway is ending
	Legless bool // there are no sockets for app legs
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

// Change applies change to the current Refusal, and tells the programs.
func (r *Refusals) Change(change func(now *Refusal)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.now)
	return r.Tell(uint8(r.now.reason()))
}
