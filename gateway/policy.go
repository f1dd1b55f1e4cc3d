package gateway

import (
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// look takes in what the programs have seen, by the rules that they had then.
func (g *gateway) look() {
	g.reloading.Lock()
	defer g.reloading.Unlock()
	g.lookLocked()
}

// lookLocked is look; g.reloading is held.
func (g *gateway) lookLocked() {
	if g.carries() {
		return
	}
	list, err := g.steer.TakeSeen()
	if err != nil {
		g.log.Warn("what connections did", "error", err)
	}
	g.forecast.Add(list, g.live.Load().ruleName)
}

// Policy implements admin.Control.
func (g *gateway) Policy() admin.PolicyReport {
	g.look()
	live := g.live.Load()
	var s admin.Snapshot
	c, err := g.counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
	}
	live.addDecisions(&s, c.Decided)
	p := g.forecast.Report(live.Config, g.rollout.Share(), s.Decisions, policy.NoRule)
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
