package gateway

import (
	"slices"
	"sync"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
	"github.com/smcgw/smcgw/gateway/internal/guard"
	"github.com/smcgw/smcgw/gateway/process"
	"github.com/smcgw/smcgw/gateway/report"
)

// auto reports whether the rule with this number has action auto.
func (g *gateway) auto(rule int) bool {
	_, action := g.live.Load().rule(rule)
	return action == report.ActionAuto
}

// followAdapters makes rules with action auto carry while an RDMA adapter does, and stops
// them when none is left.
func (g *gateway) followAdapters() error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	return g.followAdaptersLocked()
}

// followAdaptersLocked is followAdapters. The caller holds g.reloading.
func (g *gateway) followAdaptersLocked() error {
	return g.rules.Adapters(g.live.Load().Config, g.adapters())
}

// adapters reports whether an RDMA adapter carries (or would, while nothing is carried) for
// rules with action auto. It is false without such a rule.
func (g *gateway) adapters() bool {
	live := g.live.Load()
	switch {
	case !slices.ContainsFunc(live.Policy, func(r config.Rule) bool { return r.Action == report.ActionAuto }):
		return false
	case g.carries():
		return slices.ContainsFunc(g.engine().env.Providers, carrier.HasAdapter)
	case !live.UsesAdapters() || g.host.RDMA == nil:
		return false
	}
	h, err := g.host.RDMA()
	return err == nil && len(h.Adapters) > 0
}

// look collects what the programs have observed and attributes it to the rules in effect at
// that time.
func (g *gateway) look() {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.lookLocked()
}

// lookLocked is look. The caller holds g.reloading.
func (g *gateway) lookLocked() {
	if g.carries() {
		return
	}
	list, err := g.steer.TakeSeen()
	if err != nil {
		g.log.Warn("what connections did", "error", err)
	}
	g.observed.Add(list, g.live.Load().ruleName)
}

func (g *gateway) Policy() report.PolicyReport {
	g.look()
	live := g.live.Load()
	var s report.Snapshot
	c, err := g.steer.Counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
	}
	live.addDecisions(&s, c.Decided)
	p := g.observed.Report(live.Config, g.rollout.Share(), s.Decisions)
	p.Mode = g.mode()
	compared, promoted := g.guard.Compared(), g.host.promotion.Promoted()
	for i := range p.Rules {
		p.Rules[i].Promoted = promoted[p.Rules[i].Name]
		if c, ok := compared[p.Rules[i].Name]; ok {
			p.Rules[i].Compared = &c
		}
	}
	return p
}

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
	g.guard.Reset(time.Now(), g.totals())
	g.log.Info("guard reset")
	return g.setMode(g.live.Load().Mode)
}

// OptIn implements admin.Control. It shifts the rules by one, so what the programs have
// counted by rule number is recorded first.
func (g *gateway) OptIn(o config.OptIn) (end func(), err error) {
	mount := g.cfg.CgroupPath
	if mount == "" {
		if mount, err = process.CgroupMount(); err != nil {
			return nil, err
		}
	}
	var leave func()
	if err := g.moveRules(func() (err error) {
		leave, err = g.rules.OptIn(o, mount)
		return err
	}); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		if err := g.moveRules(func() error { leave(); return nil }); err != nil {
			g.log.Warn("end of an opt-in", "cgroup", o.Cgroup, "error", err)
			leave()
		}
	}), nil
}

// moveRules makes a change to the opt-ins, after recording what was counted.
func (g *gateway) moveRules(change func() error) error {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.lookLocked()
	live := g.live.Load()
	book, err := g.closeDecisions(live)
	if err != nil {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	g.live.Store(&liveConfig{Config: live.Config, since: live.since, decided: book, ahead: g.rules.Ahead()})
	return nil
}
