package policy

import (
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// NoRule is the name under which connections are counted that no rule matched: that of a
// last rule which says what happens anyway.
const NoRule = "default"

// Decided is what the policies before this one decided: the programs count by the number of
// the rule, which means another rule now.
type Decided struct {
	past  []report.DecisionCount // by the rules that there were
	until map[int]ebpf.Decided   // how far the counters are theirs
}

// RuleOf names the rule with a number of the programs, and its action: ahead of those of the
// configuration are the rules of opt-ins, after them those of trials.
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

// AddTo adds what the programs decided, by the rules in force, and by those before. A rule
// that carries passes what the never-list takes out of it. Rules in force are there from
// the start: an increase from a series that is not there is none to an alert.
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

// Close is the book for the rules after these.
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
