package guard

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// Name is what the gateway is degraded by while its guard keeps connections native.
const Name = "guard_tripped"

// Keeper is the guard of a daemon, for all of its goroutines. The zero value is off.
type Keeper struct {
	mu    sync.Mutex // guards everything below
	core  Guard
	at    time.Time // of the last trip
	trips uint64
}

// State is what the guard is at.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.core.State()
}

// Configure is that of the guard.
func (k *Keeper) Configure(cfg config.Guard, totals Totals) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.core.Configure(cfg, time.Now(), totals)
}

// Reset is that of the guard.
func (k *Keeper) Reset(totals Totals) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.core.Reset(time.Now(), totals)
}

// Tick is that of the guard. last is what was counted in the window that tripped it.
func (k *Keeper) Tick(now time.Time, totals Totals) (last Totals, trips bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if trips = k.core.Tick(now, totals); trips {
		k.at = now
		k.trips++
	}
	return k.core.Last(), trips
}

// Tell adds what has tripped the guard to the status.
func (k *Keeper) Tell(st *admin.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.core.State() != Tripped {
		return
	}
	last := k.core.Last()
	st.Degraded = append(st.Degraded, Name)
	st.Notes = append(st.Notes, fmt.Sprintf("guard: tripped at %s: gateways reset %d of %d carried connections that ended; new ones are native until smcgw on or a reload",
		k.at.UTC().Format(time.RFC3339), last.Aborted, last.Ended))
}

// AddTo adds the guard's numbers to a snapshot.
func (k *Keeper) AddTo(s *admin.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.GuardTripped, s.GuardTrips = k.core.State() == Tripped, k.trips
}
