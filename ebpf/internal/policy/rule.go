package policy

import "net/netip"

// MaxRules is the number of policy rules: one bit of a mask each.
const MaxRules = 64

// Proto is the protocol a rule is about.
type Proto uint8

// The protocols.
const (
	ProtoTCP Proto = iota
	ProtoUDP
)

// Action is what a policy rule wants.
type Action uint8

// The actions. A connection with ActionNotWorthIt is native as with ActionPass, for a
// reason of its own.
const (
	ActionPass Action = iota
	ActionAccelerate
	ActionNotWorthIt
)

// Direction is that of the dial: by the local application, or by one of the other host.
type Direction uint8

// The directions.
const (
	DirectionBoth Direction = iota
	DirectionClient
	DirectionServer
)

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// Rule is one line of the policy. All lists that are given must match; within a
// list any entry may. A rule with cgroups or users matches outbound connections
// only: an inbound SYN does not tell its application.
type Rule struct {
	// Ports are server ports: the remote port of an outbound connection, the
	// local port of an inbound one. A datagram that leaves is outbound, unless the
	// gateway opened its tuple.
	Ports []uint16
	// Ranges are more of them. What the never-list has is carried only by a rule that
	// names it in Ports.
	Ranges []PortRange
	// Peers are addresses of the other host.
	Peers []netip.Prefix
	// Cgroups are cgroup2 paths below the mount, with path.Match patterns; a
	// cgroup matches with everything below it.
	Cgroups []string
	// UIDs are users: for TCP the real one that calls connect(); for UDP the
	// effective (file system) one that called socket(), which is all that a
	// datagram tells. Cgroups are likewise those of connect() and of socket().
	UIDs []uint32
	// Proto is the protocol; the rule is about no other.
	Proto Proto
	// Direction is that of the connections, seen from this host.
	Direction Direction
	// Share is how many of the matching connections ActionAccelerate is for.
	Share Share
	// Sole: on Ports, rules for the same protocol that are not sole match nothing.
	// Wherever it stands in the list, such a rule decides, and moves no other.
	Sole bool
	// Action is what happens to a matching connection.
	Action Action
}

// asksCaller reports whether the rule asks for something that is known of outbound
// connections only.
func (r Rule) asksCaller() bool { return len(r.Cgroups)+len(r.UIDs) > 0 }

// OutboundOnly reports whether the rule can match outbound connections only.
func (r Rule) OutboundOnly() bool { return r.asksCaller() || r.Direction == DirectionClient }
