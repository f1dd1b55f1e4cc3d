package ebpf

import "net/netip"

// Policy is a compiled rule list.
type Policy struct{}

// CompilePolicy compiles rules, at most MaxRules.
func CompilePolicy(rules []Rule, never []uint16) (*Policy, error) { return &Policy{}, nil }

// Query is a connection to decide.
type Query struct {
	Inbound bool
	Peer    netip.Addr
	Port    uint16 // server port
	UID     uint32
	Cgroup  string // path below the mount
}

// Verdict is the decision of a policy.
type Verdict struct {
	Rule   int // or NoRule
	Action Action
	Reason uint8 // policy or never_list where Action is ActionPass, else 0
}

// Decide evaluates the policy as the programs do.
func (p *Policy) Decide(q Query) Verdict { return Verdict{Rule: NoRule, Reason: ReasonPolicy} }
