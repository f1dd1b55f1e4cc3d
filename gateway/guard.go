package gateway

import (
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/report"
)

// totals returns the ends of carried and of promoted connections.
func (g *gateway) totals() guard.Totals {
	var s report.Snapshot
	g.counters.AddEnds(&s)
	t := guard.TotalsOf(s.Ends)
	p := g.host.promotion.Totals(false)
	t.Ended += p.ConnectionsTotal - min(p.ConnectionsTotal, uint64(p.Connections))
	t.Aborted += p.Broken
	return t
}

// compared returns the connections that have ended since the last call, if the configuration
// compares them.
func (g *gateway) compared(live *liveConfig) []ebpf.Compared {
	if !live.Guard.Compares() {
		return nil
	}
	list, err := g.steer.TakeCompared()
	if err != nil {
		g.log.Warn("how long connections took", "error", err)
	}
	return list
}

// watchOver lets the guard check the ends of connections. If it trips, new connections are
// native.
func (g *gateway) watchOver(now time.Time) {
	if !g.carries() && g.host.promotion == nil {
		return
	}
	g.reloading.Lock() // reloads change the mode, too
	defer g.reloading.Unlock()
	live := g.live.Load()
	last, trips := g.guard.Tick(now, g.totals(), g.compared(live), live.ruleName)
	if !trips {
		return
	}
	g.log.Error("guard tripped: new connections are native until smcgw on or a reload", "cause", last.Cause, "counted", last.String())
	if err := g.setMode(report.ModeObserve); err != nil {
		g.log.Error("guard: mode not changed", "error", err)
	}
	g.settlePromotion()
}

// resetGuard lets in connections again that a tripped guard keeps native. The caller holds
// g.reloading.
func (g *gateway) resetGuard() error {
	if g.guard.State() != guard.Tripped {
		return nil
	}
	g.guard.Reset(g.totals())
	g.log.Info("guard reset")
	return g.setMode(g.live.Load().Mode)
}
