package policy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// TestRulesAreCountedFromTheStart: the first decision of a rule is an increase. Rules that
// are gone and decided nothing are not kept.
func TestRulesAreCountedFromTheStart(t *testing.T) {
	var b Decided
	var s report.Snapshot
	web, old := []config.Rule{{Name: "web", Action: report.ActionAccelerate}}, []config.Rule{{Name: "old", Action: report.ActionAuto}}
	b = b.Close(old, 0, nil)
	b.AddTo(&s, web, 0, nil)
	require.Equal(t, []report.DecisionCount{{Action: report.ActionAccelerate, Rule: "web"}}, s.Decisions)
}

// TestDecisionsByName: rules have their names, what no rule matched counts with
// a last rule that says so, and no two series are the same.
func TestDecisionsByName(t *testing.T) {
	rules := []config.Rule{
		{Name: "redis", Action: report.ActionAccelerate}, {Name: "bulk", Action: report.ActionAuto}, {Name: "default", Action: report.ActionPass},
	}
	var b Decided
	var s report.Snapshot
	b.AddTo(&s, rules, 1, []ebpf.Decided{
		{Rule: 0, Accelerate: 8}, {Rule: 1, Accelerate: 5, Pass: 1}, {Rule: 2, Accelerate: 2}, {Rule: 3, Pass: 3}, {Rule: 4, Accelerate: 9}, {Rule: ebpf.NoRule, Pass: 4},
	})
	require.ElementsMatch(t, []report.DecisionCount{
		{Action: report.ActionAccelerate, Rule: OptInRule, Count: 8},
		{Action: report.ActionAccelerate, Rule: TrialRule, Count: 9},
		{Action: report.ActionAccelerate, Rule: "redis", Count: 5},
		{Action: report.ActionPass, Rule: "redis", Count: 1},
		{Action: report.ActionAuto, Rule: "bulk", Count: 2},
		{Action: report.ActionPass, Rule: "default", Count: 7},
	}, s.Decisions)
}
