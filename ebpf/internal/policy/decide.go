package policy

import (
	"math/bits"
	"net/netip"
	"path"
)

// Reasons to pass a connection, with the numbers of docs/PROTOCOL.md "Reasons".
const (
	ReasonPolicy     uint8 = 2
	ReasonNeverList  uint8 = 3
	ReasonCanary     uint8 = 9
	ReasonNotWorthIt uint8 = 50
)

// NoRule is the index of a decision when no rule matched.
const NoRule = -1

// Query is a connection, or a tuple of datagrams, to decide about.
type Query struct {
	// Proto is the protocol.
	Proto Proto
	// Inbound says that the local application is the server.
	Inbound bool
	// Peer is the address of the other host, and Port the server's port.
	Peer netip.Addr
	Port uint16
	// UID and Cgroup (a path below the mount) are those of the caller of connect(), or of the creator of the datagram
	// socket. They are ignored for inbound connections.
	UID    uint32
	Cgroup string
	// Local and Remote are the ends, from which the share is computed; zero skips the share.
	Local, Remote netip.AddrPort
}

// Verdict is the decision of a policy.
type Verdict struct {
	// Rule is the index of the rule that decided, or NoRule.
	Rule int
	// Action is that of the rule, or pass if no rule matched.
	Action Action
	// Reason is policy, never_list, canary or not_worth_it if Action is ActionPass, and 0 otherwise.
	Reason uint8
}

// Decide evaluates the policy as the programs do, from the same masks.
func (p *Policy) Decide(q Query) Verdict {
	allowed := p.Inbound
	if !q.Inbound {
		allowed = p.Outbound & p.userMask(q.UID) & p.cgroupMask(q.Cgroup)
	}
	if q.Proto == ProtoUDP {
		allowed &= p.UDP
	} else {
		allowed &= p.TCP
	}
	pm, ok := p.Ports[q.Port]
	if !ok {
		pm.Mask = p.AnyPort
	}
	rest := allowed & p.peerMask(q.Peer.Unmap().WithZone("")) // no prefix contains an address with a zone
	match, taken := rest&pm.Mask, rest&pm.Excluded
	v := Verdict{Rule: NoRule, Reason: ReasonPolicy}
	first := MaxRules
	if match != 0 {
		first = bits.TrailingZeros64(match)
		v.Rule, v.Action = first, p.rules[first].Action
	}
	switch v.Action {
	case ActionAccelerate:
		v.Reason = 0
		if !p.inside(&p.rules[first], &q) {
			v.Action, v.Reason = ActionPass, ReasonCanary
		}
		return v
	case ActionNotWorthIt:
		v.Action, v.Reason = ActionPass, ReasonNotWorthIt
	case ActionPass:
	}
	if taken != 0 && bits.TrailingZeros64(taken) < first {
		v.Rule, v.Reason = bits.TrailingZeros64(taken), ReasonNeverList
	}
	return v
}

// peerMask returns what the programs' longest-prefix match returns.
func (p *Policy) peerMask(a netip.Addr) uint64 {
	best, mask := -1, p.Any4
	for q, m := range p.Prefixes {
		if q.Contains(a) && q.Bits() > best {
			best, mask = q.Bits(), m
		}
	}
	return mask
}

// userMask returns what the programs' lookup of the user returns.
func (p *Policy) userMask(uid uint32) uint64 {
	if m, ok := p.UIDs[uid]; ok {
		return m
	}
	return p.AnyUID
}

// cgroupMask returns the union of the masks of a cgroup and its ancestors.
func (p *Policy) cgroupMask(cgroup string) uint64 {
	m := p.AnyCgroup
	for c := cleanCgroup(cgroup); ; c = path.Dir(c) {
		for _, pat := range p.Patterns {
			if ok, _ := path.Match(pat.Glob, c); ok {
				m |= pat.Mask
			}
		}
		if c == "/" {
			return m
		}
	}
}

// Carries reports whether some rule may carry connections with a host in prefix q.
func (p *Policy) Carries(q netip.Prefix) bool {
	for i := range p.rules {
		r := &p.rules[i]
		if r.Action == ActionPass {
			continue
		}
		if len(r.Peers) == 0 {
			return true
		}
		for _, peer := range r.Peers {
			if peer.Overlaps(q) {
				return true
			}
		}
	}
	return false
}
