package ebpf

import "github.com/smcgw/smcgw/ebpf/internal/policy"

// Rule is one rule of the policy.
type Rule = policy.Rule

// PortRange is a range of ports of a rule.
type PortRange = policy.PortRange

// Policy is a compiled list of rules. It decides as the programs do.
type Policy = policy.Policy

// Query is a connection, or a tuple of datagrams, to decide about.
type Query = policy.Query

// Verdict is the decision of a policy.
type Verdict = policy.Verdict

// Proto is the protocol of a rule, or of a connection.
type Proto = policy.Proto

// The protocols.
const (
	ProtoTCP = policy.ProtoTCP
	ProtoUDP = policy.ProtoUDP
)

// Share is a share of the connections of a rule.
type Share = policy.Share

// Rollout selects the connections of a share.
type Rollout = policy.Rollout

// The shares with special meanings.
const (
	ShareDefault = policy.ShareDefault
	ShareNone    = policy.ShareNone
	ShareAll     = policy.ShareAll
)

// ShareOf returns the share for a percentage, 0 to 100.
func ShareOf(percent float64) Share { return policy.ShareOf(percent) }

// Direction is the direction in which connections are made.
type Direction = policy.Direction

// The directions.
const (
	DirectionBoth   = policy.DirectionBoth
	DirectionClient = policy.DirectionClient
	DirectionServer = policy.DirectionServer
)

// Action is what a policy rule does.
type Action = policy.Action

// The actions.
const (
	ActionPass       = policy.ActionPass
	ActionAccelerate = policy.ActionAccelerate
	ActionNotWorthIt = policy.ActionNotWorthIt
)

const (
	// MaxRules is the largest number of policy rules.
	MaxRules = policy.MaxRules
	// NoRule is the rule index of a connection that no rule matched.
	NoRule = policy.NoRule
)

// CompilePolicy compiles at most MaxRules rules. It reports all problems at once.
func CompilePolicy(rules []Rule, never []uint16) (*Policy, error) {
	return policy.Compile(rules, never)
}
