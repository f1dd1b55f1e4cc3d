package policy

import (
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// Report returns the policy document for the rules of a configuration, the current share, and the decisions counted.
func (b *Observed) Report(c config.Config, share config.Share, decided []report.DecisionCount) report.PolicyReport {
	p := report.PolicyReport{
		Observed: b.List(), Forgotten: b.lost(),
		Rollout: report.RolloutReport{Percent: share.Percent()},
	}
	for i := range c.Policy {
		p.Rules = append(p.Rules, ruleReport(&c.Policy[i], share))
	}
	if n := len(c.Policy); n == 0 || c.Policy[n-1].Name != NoRule {
		p.Rules = append(p.Rules, report.RuleReport{Name: NoRule, Action: report.ActionPass})
	}
	addCounts(&p, decided)
	return p
}

func ruleReport(r *config.Rule, share config.Share) report.RuleReport {
	out := report.RuleReport{Name: r.Name, Action: r.Action, Proto: r.Match.Proto, Direction: r.Match.Direction}
	if r.Action != report.ActionPass {
		if r.Percent != 0 {
			share = r.Percent
		}
		percent := share.Percent()
		out.Percent = &percent
	}
	return out
}

// addCounts adds what the rules decided, and what was observed of their connections.
func addCounts(p *report.PolicyReport, decided []report.DecisionCount) {
	byName := map[string]*report.RuleReport{}
	for i := range p.Rules {
		byName[p.Rules[i].Name] = &p.Rules[i]
	}
	for _, d := range decided {
		switch r := byName[d.Rule]; {
		case r == nil: // a rule that is gone
		case d.Action == report.ActionPass:
			r.Passed += d.Count
		default:
			r.Selected += d.Count
		}
	}
	for i := range p.Observed {
		o := &p.Observed[i]
		if r := byName[o.Rule]; r != nil && o.Carries {
			r.Bytes += o.Bytes.Tx + o.Bytes.Rx
			r.Bulk += o.BulkBytes
		}
	}
}
