package guard

import (
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/negotiate"
)

// State is what a guard is at.
//
//	off ◄── configured ──► watching ── too many resets ──► tripped
//	                           ▲                              │
//	                           └── reset, configured ─────────┘
type State uint8

// The states.
const (
	Off State = iota
	Watching
	Tripped
)

// Totals count carried connections since the start.
type Totals struct {
	// Ended are all that have ended, Aborted those of them that a gateway has reset.
	Ended, Aborted uint64
}

// TotalsOf adds up the ends of a gateway. What an application or an operator has reset is
// no harm.
func TotalsOf(ends []admin.EndCount) (t Totals) {
	for _, e := range ends {
		t.Ended += e.Count
		if harm[e.Reason] {
			t.Aborted += e.Count
		}
	}
	return t
}

var harm = map[string]bool{
	negotiate.ReasonWireReset.String(): true, negotiate.ReasonPeerDead.String(): true, negotiate.ReasonDeviceFailed.String(): true,
	negotiate.ReasonLostBytes.String(): true, negotiate.ReasonStalled.String(): true, negotiate.ReasonProtocolError.String(): true,
	negotiate.ReasonInternalError.String(): true,
}

// slots is how many samples there are in a window.
const slots = 16

// sample is the totals at a time.
type sample struct {
	at time.Time
	of Totals
}

// Guard watches the totals. The zero value is off.
type Guard struct {
	cfg   config.Guard
	state State
	// past has a sample per slot of the window, and one from before it.
	past []sample
	last Totals // in the window that tripped it
}

// Configure begins anew with a configuration.
func (g *Guard) Configure(cfg config.Guard, now time.Time, totals Totals) {
	g.cfg, g.state = cfg, Off
	if cfg.On() {
		g.state = Watching
	}
	g.begin(now, totals)
}

// Reset ends Tripped, and counts from now on.
func (g *Guard) Reset(now time.Time, totals Totals) {
	if g.state == Tripped {
		g.state = Watching
		g.begin(now, totals)
	}
}

func (g *Guard) begin(now time.Time, totals Totals) {
	g.past, g.last = append(g.past[:0], sample{now, totals}), Totals{}
}

// State is what the guard is at; Last what was counted in the window that tripped it.
func (g *Guard) State() State { return g.state }

// Last is what was counted in the window that tripped the guard.
func (g *Guard) Last() Totals { return g.last }

// Tick takes the totals of now and reports whether they trip the guard. It is due more
// often than the window has slots; between two the window is longer by up to one.
func (g *Guard) Tick(now time.Time, totals Totals) bool {
	if g.state != Watching {
		return false
	}
	for len(g.past) > 1 && now.Sub(g.past[1].at) >= g.cfg.Window {
		g.past = g.past[1:]
	}
	base := g.past[0].of
	in := Totals{Ended: totals.Ended - base.Ended, Aborted: totals.Aborted - base.Aborted}
	if now.Sub(g.past[len(g.past)-1].at) >= g.cfg.Window/slots {
		g.past = append(g.past, sample{now, totals})
	}
	if in.Aborted < uint64(g.cfg.Minimum) || float64(in.Aborted)*100 < g.cfg.Aborted.Percent()*float64(in.Ended) {
		return false
	}
	g.state, g.last = Tripped, in
	return true
}
