package gateway

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/smcgw/smcgw/ebpf"
)

// TestDecisionsByName: rules have their names, what no rule matched counts with
// a last rule that says so, and no two series are the same.
func TestDecisionsByName(t *testing.T) {
	c := &liveConfig{Config: Config{Policy: []Rule{
		{Name: "redis", Action: ActionAccelerate}, {Name: "bulk", Action: ActionAuto}, {Name: "default", Action: ActionPass},
	}}}
	var s Snapshot
	c.addDecisions(&s, []ebpf.Decided{
		{Rule: 0, Accelerate: 5, Pass: 1}, {Rule: 1, Accelerate: 2}, {Rule: 2, Pass: 3}, {Rule: ebpf.NoRule, Pass: 4},
	})
	require.ElementsMatch(t, []DecisionCount{
		{ActionAccelerate, "redis", 5},
		{ActionPass, "redis", 1},
		{ActionAuto, "bulk", 2},
		{ActionPass, "default", 7},
	}, s.Decisions)
}
