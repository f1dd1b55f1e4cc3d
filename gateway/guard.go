package gateway

import (
	"fmt"
	"sync"
	"time"

	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/guard"
)

// guardTripped is what the gateway is degraded by while its guard keeps connections native.
const guardTripped = "guard_tripped"

// keeper is the guard of the daemon. The zero value is off.
type keeper struct {
	mu    sync.Mutex // guards everything below
	core  guard.Guard
	at    time.Time // of the last trip
	trips uint64
	known bool // core has the configuration
}

// tripped reports whether connections are native for it.
func (k *keeper) tripped() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.core.State() == guard.Tripped
}

// tell adds what has tripped the guard to the status.
func (k *keeper) tell(st *admin.Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.core.State() != guard.Tripped {
		return
	}
	last := k.core.Last()
	st.Degraded = append(st.Degraded, guardTripped)
	st.Notes = append(st.Notes, fmt.Sprintf("guard: tripped at %s: gateways reset %d of %d carried connections that ended; new ones are native until smcgw on or a reload",
		k.at.UTC().Format(time.RFC3339), last.Aborted, last.Ended))
}

// addTo adds the guard's numbers to a snapshot.
func (k *keeper) addTo(s *admin.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.GuardTripped, s.GuardTrips = k.core.State() == guard.Tripped, k.trips
}

// totals are the ends of carried connections.
func (g *gateway) totals() guard.Totals {
	var s admin.Snapshot
	g.env.Counters.AddEnds(&s)
	return guard.TotalsOf(s.Ends)
}

// watchOver has the guard look at the ends of connections. When it trips, new ones are
// native.
func (g *gateway) watchOver(now time.Time) {
	if !g.carries() {
		return
	}
	g.reloading.Lock() // which changes the mode, too
	defer g.reloading.Unlock()
	k, cfg, totals := g.guard, g.live.Load().Guard, g.totals()
	k.mu.Lock()
	if !k.known {
		k.known = true
		k.core.Configure(cfg, now, totals)
	}
	trips := k.core.Tick(now, totals)
	last := k.core.Last()
	if trips {
		k.at = now
		k.trips++
	}
	k.mu.Unlock()
	if !trips {
		return
	}
	g.log.Error("guard tripped: new connections are native until smcgw on or a reload", "aborted", last.Aborted, "ended", last.Ended,
		"share", cfg.Aborted, "window", cfg.Window.String())
	if err := g.applyMode(config.ModeObserve); err != nil {
		g.log.Error("guard: mode not changed", "error", err)
	}
}

// configureGuard begins anew. The mode is that of the configuration, which is in force.
func (g *gateway) configureGuard(cfg config.Guard) {
	totals := g.totals()
	g.guard.mu.Lock()
	defer g.guard.mu.Unlock()
	g.guard.known = true
	g.guard.core.Configure(cfg, time.Now(), totals)
}

// resetGuard lets connections in again that the guard keeps native.
func (g *gateway) resetGuard() error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if !g.guard.tripped() {
		return nil
	}
	totals := g.totals()
	g.guard.mu.Lock()
	g.guard.core.Reset(time.Now(), totals)
	g.guard.mu.Unlock()
	g.log.Info("guard reset")
	return g.applyMode(g.live.Load().Mode)
}
