package policy

import (
	"maps"
	"slices"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/config"
)

// NoRule is the name under which connections are counted that no rule matched: that of a
// last rule which says what happens anyway.
const NoRule = "default"

// Decided is what the policies before this one decided: the programs count by the number of
// the rule, which means another rule now.
type Decided struct {
	past  []admin.DecisionCount // by the rules that there were
	until map[int]ebpf.Decided  // how far the counters are theirs
}

// RuleOf names the rule with a number of the programs, and its action: ahead of those of the
// configuration are the rules of opt-ins, after them those of trials.
func RuleOf(rules []config.Rule, ahead, number int) (name string, action config.Action) {
	switch i := number - ahead; {
	case number < 0:
		return NoRule, config.ActionPass
	case i < 0:
		return OptInRule, config.ActionAccelerate
	case i < len(rules):
		return rules[i].Name, rules[i].Action
	default:
		return TrialRule, config.ActionAccelerate
	}
}

// AddTo adds what the programs decided, by the rules in force, and by those before. A rule
// that carries passes what the never-list takes out of it. Rules in force are there from
// the start: an alert does not see the increase of a series that did not exist before.
func (b *Decided) AddTo(s *admin.Snapshot, rules []config.Rule, ahead int, list []ebpf.Decided) {
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
			s.AddDecision(config.ActionPass, name, n)
		}
	}
}

// Close is the book for the rules after these. anew: the programs count from 0, too.
func (b *Decided) Close(rules []config.Rule, ahead int, list []ebpf.Decided, anew bool) Decided {
	var s admin.Snapshot
	b.AddTo(&s, rules, ahead, list)
	s.Decisions = slices.DeleteFunc(s.Decisions, func(n admin.DecisionCount) bool { return n.Count == 0 })
	next := Decided{past: s.Decisions, until: map[int]ebpf.Decided{}}
	for _, d := range list {
		if !anew {
			next.until[d.Rule] = d
		}
	}
	return next
}

// Sum adds what the programs of a gateway counted to what those of the one before did.
func Sum(c, past ebpf.Counters) ebpf.Counters {
	for side := range c.Native {
		c.Native[side] = added(c.Native[side], past.Native[side])
		c.Datagrams[side] = added(c.Datagrams[side], past.Datagrams[side])
	}
	c.Stats = added(c.Stats, past.Stats)
	return c
}

func added[K comparable](a, b map[K]uint64) map[K]uint64 {
	sum := maps.Clone(a)
	if sum == nil {
		sum = map[K]uint64{}
	}
	for k, n := range b {
		sum[k] += n
	}
	return sum
}
