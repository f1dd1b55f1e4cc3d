package gateway

import (
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// look takes in what the programs have seen of connections that nothing carries.
func (g *gateway) look() {
	if g.carries() {
		return
	}
	list, err := g.steer.TakeSeen()
	if err != nil {
		g.log.Warn("what connections did", "error", err)
	}
	rules := g.live.Load().Policy
	g.forecast.Add(list, func(i int) string {
		if i >= 0 && i < len(rules) {
			return rules[i].Name
		}
		return policy.NoRule
	})
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
	live.decided.AddTo(&s, live.Policy, c.Decided)
	p := g.forecast.Report(live.Config, g.rollout.Share(), s.Decisions, policy.NoRule)
	p.Mode = g.mode()
	return p
}
