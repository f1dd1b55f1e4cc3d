package gateway

import (
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
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
		return noRule
	})
}

// Policy implements admin.Control.
func (g *gateway) Policy() admin.PolicyReport {
	g.look()
	live, share := g.live.Load(), g.rollout.share()
	p := admin.PolicyReport{
		Mode: g.mode(), Observed: g.forecast.List(), Forgotten: g.forecast.Forgotten(),
		Rollout: admin.RolloutReport{Percent: share.Percent(), Seed: live.Rollout.Seed},
	}
	if live.Rollout.Ramp != 0 {
		p.Rollout.Ramp = live.Rollout.Ramp.String()
	}
	for i := range live.Policy {
		p.Rules = append(p.Rules, ruleReport(&live.Policy[i], share))
	}
	if n := len(live.Policy); n == 0 || live.Policy[n-1].Name != noRule {
		p.Rules = append(p.Rules, admin.RuleReport{Name: noRule, Action: config.ActionPass})
	}
	g.addCounts(&p, live)
	return p
}

func ruleReport(r *config.Rule, share config.Share) admin.RuleReport {
	out := admin.RuleReport{Name: r.Name, Action: r.Action, Proto: r.Match.Proto, Direction: r.Match.Direction}
	if r.Action != config.ActionPass {
		if r.Percent != 0 {
			share = r.Percent
		}
		percent := share.Percent()
		out.Percent = &percent
	}
	return out
}

// addCounts adds what the rules decided, and what was seen of their connections.
func (g *gateway) addCounts(p *admin.PolicyReport, live *liveConfig) {
	c, err := g.counters()
	if err != nil {
		g.log.Warn("read counters", "error", err)
		return
	}
	var s admin.Snapshot
	live.addDecisions(&s, c.Decided)
	byName := map[string]*admin.RuleReport{}
	for i := range p.Rules {
		byName[p.Rules[i].Name] = &p.Rules[i]
	}
	for _, d := range s.Decisions {
		switch r := byName[d.Rule]; {
		case r == nil: // a rule that is gone
		case d.Action == config.ActionPass:
			r.Passed += d.Count
		default:
			r.Carried += d.Count
		}
	}
	for _, o := range p.Observed {
		if r := byName[o.Rule]; r != nil && o.Carries {
			r.Bytes += o.Bytes.Tx + o.Bytes.Rx
			r.Bulk += o.BulkBytes
		}
	}
}
