package ebpf

import "net/netip"

// MaxRules is the number of policy rules: one bit of a mask each.
const MaxRules = 64

// Rule is one line of the policy. All lists that are given must match; within a
// list any entry may. A rule with cgroups or users matches outbound connections
// only: nobody knows the application of an inbound SYN.
type Rule struct {
	// Ports are server ports: the remote port of an outbound connection, the
	// local port of an inbound one.
	Ports []uint16
	// Peers are addresses of the other host.
	Peers []netip.Prefix
	// Cgroups are cgroup2 paths below the mount, with path.Match patterns; a
	// cgroup matches with everything below it.
	Cgroups []string
	// UIDs are the (real) users that call connect().
	UIDs []uint32
	// Action is what happens to a matching connection.
	Action Action
}

// OutboundOnly reports whether the rule can match outbound connections only.
func (r Rule) OutboundOnly() bool { return len(r.Cgroups)+len(r.UIDs) > 0 }
