package ebpf

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/ebpf/internal/policy"
)

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

// activateLocked writes a policy under the unused generation, activates it by a single store, and removes the old one.
func (d *Datapath) activateLocked(p *Policy) error {
	old := d.generation()
	next := old ^ 1
	if err := d.clearPolicy(next); err != nil {
		return err
	}
	cgroups := p.Cgroups(d.cfg.CgroupPath)
	if err := d.writePolicy(p, next, cgroups); err != nil {
		return errors.Join(err, d.clearPolicy(next))
	}
	if err := d.changeControl(func(c *smcgwControl) { c.Policy = next }); err != nil {
		return err
	}
	d.policy, d.cgroups = p, cgroups
	d.noteRolloutLocked()
	// After the policy: a program that sees the new epoch also sees the new policy.
	err := d.changeControl(func(c *smcgwControl) { d.rulesSince = c.nextEpoch() })
	if err := errors.Join(err, d.putDatagramsLocked()); err != nil {
		return err
	}
	return d.clearPolicy(old)
}

// writePolicy fills the maps of a generation.
func (d *Datapath) writePolicy(p *Policy, gen uint32, cgroups map[uint64]uint64) error {
	var errs []error
	for q, mask := range p.Prefixes {
		errs = append(errs, d.putPrefix(q, gen, mask))
	}
	for port, m := range p.Ports {
		k := smcgwPortKey{Policy: gen, Port: wirePort(port)}
		errs = append(errs, d.objs.Ports.Put(k, smcgwPortRule{Mask: m.Mask, Excluded: m.Excluded}))
	}
	for uid, mask := range p.UIDs {
		errs = append(errs, d.objs.UIDs.Put(smcgwUidKey{Policy: gen, Uid: uid}, mask))
	}
	for id, mask := range cgroups {
		errs = append(errs, d.objs.Cgroups.Put(smcgwCgroupKey{Policy: gen, Id: id}, mask))
	}
	head := smcgwPolicyHead{
		Any4: p.Any4, Any6: p.Any6, AnyPort: p.AnyPort, AnyCgroup: p.AnyCgroup, AnyUid: p.AnyUID,
		Inbound: p.Inbound, Outbound: p.Outbound, Anyone: p.Anyone, Accelerate: p.Accelerate, Unworthy: p.NotWorthIt, Tcp: p.TCP, Udp: p.UDP,
		Prefixes4: bit(names(p, netip.Addr.Is4)), Prefixes6: bit(names(p, netip.Addr.Is6)),
		Watch: bit(p.TCP&^p.Anyone != 0), WatchUdp: bit(p.UDP&^p.Anyone != 0), Shares: p.Shares(),
	}
	errs = append(errs, d.objs.Policy.Put(gen, head))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	return nil
}

// names reports whether a rule names addresses of a family.
func names(p *Policy, family func(netip.Addr) bool) bool {
	for q := range p.Prefixes {
		if family(q.Addr()) {
			return true
		}
	}
	return false
}

// generationBits is the length of the part of an LPM key that precedes the address.
const generationBits = 32

// putPrefix adds an entry to an LPM map.
func (d *Datapath) putPrefix(q netip.Prefix, gen uint32, mask uint64) error {
	bits := uint32(generationBits + q.Bits())
	if q.Addr().Is4() {
		return d.objs.LPM4.Put(smcgwLpm4{Prefixlen: bits, Policy: gen, Addr: q.Addr().As4()}, mask)
	}
	return d.objs.LPM6.Put(smcgwLpm6{Prefixlen: bits, Policy: gen, Addr: q.Addr().As16()}, mask)
}

// clearPolicy removes all entries of a generation. It clears the head first, because a program may still be using the
// generation: without a head no rule matches. A missing entry, by contrast, would mean that no rule is about this port
// or peer, so that a later rule, or one that the never-list overrides, would match.
func (d *Datapath) clearPolicy(gen uint32) error {
	err := errors.Join(
		d.objs.Policy.Put(gen, smcgwPolicyHead{}),
		dropWhere(d.objs.LPM4, func(k smcgwLpm4) bool { return k.Policy == gen }),
		dropWhere(d.objs.LPM6, func(k smcgwLpm6) bool { return k.Policy == gen }),
		dropWhere(d.objs.Ports, func(k smcgwPortKey) bool { return k.Policy == gen }),
		dropWhere(d.objs.UIDs, func(k smcgwUidKey) bool { return k.Policy == gen }),
		dropWhere(d.objs.Cgroups, func(k smcgwCgroupKey) bool { return k.Policy == gen }),
	)
	if err != nil {
		return fmt.Errorf("old policy: %w", err)
	}
	return nil
}
