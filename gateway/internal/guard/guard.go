package guard

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// State is the state of a guard.
//
//	off ◄── configured ──► watching ── does harm ──► tripped
//	                           ▲                         │
//	                           └── reset, configured ────┘
type State uint8

// The states.
const (
	Off State = iota
	Watching
	Tripped
)

// Totals count carried and promoted connections since the start.
type Totals struct {
	// Ended counts all that have ended, Aborted those of them that a gateway or a library has reset.
	Ended, Aborted uint64
}

// TotalsOf adds up the ends of a gateway. A reset by an application or an operator is no harm.
func TotalsOf(ends []report.EndCount) (t Totals) {
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

// slots is the number of samples in a window.
const slots = 16

// sample is the totals at one time.
type sample struct {
	at time.Time
	of Totals
}

// Cause is what trips a guard.
type Cause string

// The causes, as the metric names them.
const (
	CauseAborted Cause = "aborted"
	CauseSlower  Cause = "slower"
)

// Trip is what was counted in the window that tripped a guard.
type Trip struct {
	Cause Cause
	Totals
	// Rule and Compared are set for CauseSlower only.
	Rule     string
	Compared report.Compared
}

// String describes the trip.
func (t Trip) String() string {
	if t.Cause == CauseSlower {
		return fmt.Sprintf("%d of %d connections of rule %s that were offered took longer than 95%% of %d native ones of their size",
			t.Compared.Slower, t.Compared.Offered, t.Rule, t.Compared.Native)
	}
	return fmt.Sprintf("smcgw reset %d of %d connections that ended, carried or in process", t.Aborted, t.Ended)
}

// Guard watches the totals and the comparison. The zero value is off. It is safe for concurrent use.
type Guard struct {
	mu    sync.Mutex // guards everything below
	cfg   config.Guard
	state State
	// past has a sample for each slot of the window, and one from before it.
	past     []sample
	compared comparison
	rules    map[string]report.Compared // as of the last tick
	last     Trip
	at       time.Time // of the last trip
	trips    map[Cause]uint64
}

// State returns the guard's state.
func (g *Guard) State() State {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.state
}

// Configure starts afresh with a configuration.
func (g *Guard) Configure(cfg config.Guard, now time.Time, totals Totals) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cfg, g.state = cfg, Off
	if cfg.On() {
		g.state = Watching
	}
	g.beginLocked(now, totals)
}

// Reset returns from Tripped to Watching, and counts from now on.
func (g *Guard) Reset(now time.Time, totals Totals) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state == Tripped {
		g.state = Watching
		g.beginLocked(now, totals)
	}
}

func (g *Guard) beginLocked(now time.Time, totals Totals) {
	g.past, g.last = append(g.past[:0], sample{now, totals}), Trip{}
	g.compared, g.rules = comparison{}, nil
}

// Compared returns how the connections of each rule compared at the last tick.
func (g *Guard) Compared() map[string]report.Compared {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rules
}

// Tick takes the current totals, and connections that have ended since the last tick; rule returns the name of the rule
// with a number of the policy in force. If they trip the guard, last is what was counted in the window. Call it more
// often than once per slot: the window is longer than configured by up to one slot.
func (g *Guard) Tick(now time.Time, totals Totals, list []ebpf.Compared, rule func(int) string) (last Trip, trips bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Watching {
		return Trip{}, false
	}
	in := g.slide(now, totals)
	if g.cfg.Compares() {
		g.compared.add(now, g.cfg.Window, list, rule)
		g.rules = g.compared.rules()
	}
	switch name, c, found := worst(g.rules, uint64(g.cfg.Minimum)); {
	case g.harms(g.cfg.Aborted, in.Aborted, in.Ended):
		g.last = Trip{Cause: CauseAborted, Totals: in}
	case found && g.harms(g.cfg.Slower, c.Slower, c.Offered):
		g.last = Trip{Cause: CauseSlower, Totals: in, Rule: name, Compared: c}
	default:
		return Trip{}, false
	}
	g.state, g.at = Tripped, now
	if g.trips == nil {
		g.trips = map[Cause]uint64{}
	}
	g.trips[g.last.Cause]++
	return g.last, true
}

// slide moves the window on, and returns the totals within it.
func (g *Guard) slide(now time.Time, totals Totals) Totals {
	for len(g.past) > 1 && now.Sub(g.past[1].at) >= g.cfg.Window {
		g.past = g.past[1:]
	}
	base := g.past[0].of
	if now.Sub(g.past[len(g.past)-1].at) >= g.cfg.Window/slots {
		g.past = append(g.past, sample{now, totals})
	}
	return Totals{Ended: totals.Ended - base.Ended, Aborted: totals.Aborted - base.Aborted}
}

// harms reports whether bad of all reaches the limit, if there is one.
func (g *Guard) harms(limit config.Share, bad, all uint64) bool {
	return limit > 0 && bad >= uint64(g.cfg.Minimum) && float64(bad)*100 >= limit.Percent()*float64(all)
}

// Tell adds to the status what has tripped the guard.
func (g *Guard) Tell(st *report.Status) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.state != Tripped {
		return
	}
	st.Degraded = append(st.Degraded, report.GuardTripped)
	st.Notes = append(st.Notes, fmt.Sprintf("guard: tripped at %s: %v; new ones are native until smcgw on or a reload",
		g.at.UTC().Format(time.RFC3339), g.last))
}

// AddTo adds the guard's numbers to a snapshot.
func (g *Guard) AddTo(s *report.Snapshot) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s.GuardTripped, s.GuardTrips = g.state == Tripped, map[string]uint64{}
	for _, c := range []Cause{CauseAborted, CauseSlower} {
		s.GuardTrips[string(c)] = g.trips[c]
	}
	_, s.Compared, _ = worst(g.rules, 0)
}
