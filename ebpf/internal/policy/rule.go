package policy

import (
	"fmt"
	"net/netip"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MaxRules is the largest number of policy rules, each of which is one bit of a mask.
const MaxRules = 64

// Proto is the protocol of a rule.
type Proto uint8

// The protocols.
const (
	ProtoTCP Proto = iota
	ProtoUDP
)

// Action is what a policy rule does with a connection.
type Action uint8

// The actions. A connection with ActionNotWorthIt is native, as with ActionPass, but for a reason of its own.
const (
	ActionPass Action = iota
	ActionAccelerate
	ActionNotWorthIt
)

// Direction says who connects: the local application, or one on the other host.
type Direction uint8

// The directions.
const (
	DirectionBoth Direction = iota
	DirectionClient
	DirectionServer
)

// PortRange is the range of ports from First to Last, inclusive.
type PortRange struct{ First, Last uint16 }

// Rule is one rule of the policy. All lists that are not empty must match; a list matches if any of its entries does. A
// rule with cgroups or users matches only outbound connections, because an inbound SYN does not reveal its application.
type Rule struct {
	// Ports are server ports: the remote port of an outbound connection, the local port of an inbound one. A datagram
	// that leaves is outbound, unless the gateway has opened its tuple.
	Ports []uint16
	// Ranges are further ports. A port of the never-list is carried only by a rule that has it in Ports.
	Ranges []PortRange
	// Peers are addresses of the other host.
	Peers []netip.Prefix
	// Cgroups are cgroup2 paths below the mount, as patterns of path.Match. A cgroup includes everything below it.
	Cgroups []string
	// UIDs are users: for TCP the real user that calls connect(), for UDP the effective (file system) user that called
	// socket(), which is all that a datagram reveals. Likewise, Cgroups are those of connect() and of socket().
	UIDs []uint32
	// Proto is the protocol; the rule matches no other.
	Proto Proto
	// Direction is the direction of the connections as seen from this host.
	Direction Direction
	// Share is the share of the matching connections to which ActionAccelerate applies.
	Share Share
	// Sole makes other rules for the same protocol match nothing on Ports, unless they are sole, too. So such a rule
	// decides wherever it is in the list, and moves no other.
	Sole bool
	// Action is what happens to a matching connection.
	Action Action
}

// asksCaller reports whether the rule has conditions that are known only for outbound connections.
func (r Rule) asksCaller() bool { return len(r.Cgroups)+len(r.UIDs) > 0 }

// OutboundOnly reports whether the rule can match only outbound connections.
func (r Rule) OutboundOnly() bool { return r.asksCaller() || r.Direction == DirectionClient }

// cgroupID returns the kernel's id of a cgroup: its inode number.
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// maxCgroups bounds how many cgroups the patterns of a policy may match.
const maxCgroups = 8000

// Cgroups returns the cgroups that the patterns of the policy currently match, each with the mask of the rules that
// name it.
func (p *Policy) Cgroups(mount string) map[uint64]uint64 {
	ids := map[uint64]uint64{}
	for _, pat := range p.Patterns {
		dirs, err := filepath.Glob(filepath.Join(mount, pat.Glob))
		if err != nil {
			continue // checked when the policy was compiled
		}
		for _, dir := range dirs {
			id, err := cgroupID(dir)
			if err == nil && len(ids) < maxCgroups {
				ids[id] |= pat.Mask
			}
		}
	}
	return ids
}
