package gateway

import (
	"slices"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/carrier"
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
	return g.trials.Adapters(g.live.Load().Config, g.adapters())
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

// Policy implements admin.Control.
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
