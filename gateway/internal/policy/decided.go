package policy

import (
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// NoRule is the name under which connections are counted that no rule matched. It is also the name of a final rule that
// merely states this default.
const NoRule = "default"

// Decided holds what earlier policies decided. The programs count by rule number, and a number may stand for another
// rule after a change.
type Decided struct {
	past  []report.DecisionCount // by the rules of those policies
	until map[int]ebpf.Decided   // the counters up to which decisions are theirs
}

// RuleOf returns the name and action of the rule to which the programs give a number. The rules of opt-ins precede
// those of the configuration, those of trials follow them.
func RuleOf(rules []config.Rule, ahead, number int) (name string, action report.Action) {
	switch i := number - ahead; {
	case number < 0:
		return NoRule, report.ActionPass
	case i < 0:
		return OptInRule, report.ActionAccelerate
	case i < len(rules):
		return rules[i].Name, rules[i].Action
	default:
		return TrialRule, report.ActionAccelerate
	}
}

// AddTo adds the decisions of the programs, by the rules in force and by earlier ones. An accelerating rule also counts
// as pass what the never-list takes out of it. Rules in force are added even with a count of 0: an alert would miss the
// first increase of a series that does not exist before.
func (b *Decided) AddTo(s *report.Snapshot, rules []config.Rule, ahead int, list []ebpf.Decided) {
	for _, p := range b.past {
		s.AddDecision(p.Action, p.Rule, p.Count)
	}
	for i := range rules {
		s.AddDecision(rules[i].Action, rules[i].Name, 0)
	}
	for _, d := range list {
		name, action := RuleOf(rules, ahead, d.Rule)
		before := b.until[d.Rule]
		if n := d.Accelerate - before.Accelerate; n > 0 {
			s.AddDecision(action, name, n)
		}
		if n := d.Pass - before.Pass; n > 0 {
			s.AddDecision(report.ActionPass, name, n)
		}
	}
}

// Close returns the Decided for the policy that replaces this one.
func (b *Decided) Close(rules []config.Rule, ahead int, list []ebpf.Decided) Decided {
	var s report.Snapshot
	b.AddTo(&s, rules, ahead, list)
	s.Decisions = slices.DeleteFunc(s.Decisions, func(n report.DecisionCount) bool { return n.Count == 0 })
	next := Decided{past: s.Decisions, until: map[int]ebpf.Decided{}}
	for _, d := range list {
		next.until[d.Rule] = d
	}
	return next
}
