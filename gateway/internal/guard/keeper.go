package guard

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Keeper is a Guard that is safe for concurrent use. The zero value is off.
type Keeper struct {
	mu    sync.Mutex // guards everything below
	core  Guard
	at    time.Time // of the last trip
	trips map[Cause]uint64
}

// State returns the guard's state.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.core.State()
}

// Configure calls [Guard.Configure].
func (k *Keeper) Configure(cfg config.Guard, totals Totals) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.core.Configure(cfg, time.Now(), totals)
}

// Reset calls [Guard.Reset].
func (k *Keeper) Reset(totals Totals) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.core.Reset(time.Now(), totals)
}

// Tick calls [Guard.Compare], then [Guard.Tick]. If the guard trips, last is what was counted in the window.
func (k *Keeper) Tick(now time.Time, totals Totals, list []ebpf.Compared, rule func(int) string) (last Trip, trips bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.core.Compare(now, list, rule)
	if trips = k.core.Tick(now, totals); !trips {
		return Trip{}, false
	}
	k.at, last = now, k.core.Last()
	if k.trips == nil {
		k.trips = map[Cause]uint64{}
	}
	k.trips[last.Cause]++
	return last, true
}

// Compared calls [Guard.Compared].
func (k *Keeper) Compared() map[string]report.Compared {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.core.Compared()
}

// Tell adds to the status what has tripped the guard.
func (k *Keeper) Tell(st *report.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.core.State() != Tripped {
		return
	}
	st.Degraded = append(st.Degraded, report.GuardTripped)
	st.Notes = append(st.Notes, fmt.Sprintf("guard: tripped at %s: %v; new ones are native until smcgw on or a reload",
		k.at.UTC().Format(time.RFC3339), k.core.Last()))
}

// AddTo adds the guard's numbers to a snapshot.
func (k *Keeper) AddTo(s *report.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.GuardTripped, s.GuardTrips = k.core.State() == Tripped, map[string]uint64{}
	for _, c := range []Cause{CauseAborted, CauseSlower} {
		s.GuardTrips[string(c)] = k.trips[c]
	}
	_, s.Compared, _ = worst(k.core.Compared(), 0)
}
