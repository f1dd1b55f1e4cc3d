package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// Policy is a compiled rule list. For every key that some rule names it has the mask of the rules that could match. The
// programs intersect the masks of one connection; the lowest bit is the first match.
type Policy struct {
	rules []Rule
	never []uint16

	Rollout Rollout // of the connections that rules select

	Any4, Any6        uint64 // rules for an address that no prefix covers
	AnyPort           uint64
	AnyCgroup, AnyUID uint64
	Inbound, Outbound uint64 // rules by direction
	Anyone            uint64 // rules that name no cgroup or user
	Accelerate        uint64 // rules that carry
	NotWorthIt        uint64 // rules that leave native what they match because it is not worth it
	TCP, UDP          uint64 // rules by protocol

	Prefixes map[netip.Prefix]uint64 // each with the rules of the prefixes that cover it
	Ports    map[uint16]PortMask
	UIDs     map[uint32]uint64
	Patterns []Pattern // of cgroups
}

// PortMask is the mask of a port. Excluded are rules that do not pass and that the never-list excludes.
type PortMask struct{ Mask, Excluded uint64 }

// Pattern is a pattern of cgroup paths below the mount.
type Pattern struct {
	Glob string
	Mask uint64
}

// Compile compiles at most MaxRules rules. It reports all problems at once.
func Compile(rules []Rule, never []uint16) (*Policy, error) {
	if len(rules) > MaxRules {
		return nil, fmt.Errorf("policy: %d rules, more than %d", len(rules), MaxRules)
	}
	p := &Policy{rules: slices.Clone(rules), never: slices.Clone(never)}
	var errs []error
	for i, r := range p.rules {
		errs = append(errs, checkRule(i, r))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.compileMasks()
	p.compilePrefixes()
	p.compilePorts()
	p.compileUsers()
	return p, nil
}

// checkRule reports what the masks cannot express.
func checkRule(i int, r Rule) error {
	var errs []error
	for _, q := range r.Peers {
		if !q.IsValid() || q.Addr().Is4In6() || q.Addr().Zone() != "" {
			errs = append(errs, fmt.Errorf("policy[%d].peers: invalid prefix %v", i, q))
		}
	}
	for _, c := range r.Cgroups {
		if _, err := path.Match(c, ""); err != nil || slices.Contains(strings.Split(c, "/"), "..") {
			errs = append(errs, fmt.Errorf("policy[%d].cgroups: invalid pattern %q", i, c))
		}
	}
	if r.Proto > ProtoUDP {
		errs = append(errs, fmt.Errorf("policy[%d].proto: %d is unknown", i, r.Proto))
	}
	if r.Direction > DirectionServer {
		errs = append(errs, fmt.Errorf("policy[%d].direction: %d is unknown", i, r.Direction))
	}
	if r.Direction == DirectionServer && r.asksCaller() {
		errs = append(errs, fmt.Errorf("policy[%d].direction: cgroups and users are not known of connections that come", i))
	}
	if r.Action > ActionNotWorthIt {
		errs = append(errs, fmt.Errorf("policy[%d].action: %d is unknown", i, r.Action))
	}
	return errors.Join(errs...)
}

// rulesWhere returns the mask of the rules for which ok holds.
func (p *Policy) rulesWhere(ok func(Rule) bool) uint64 {
	var m uint64
	for i, r := range p.rules {
		if ok(r) {
			m |= 1 << i
		}
	}
	return m
}

// compileMasks computes the masks that need no key.
func (p *Policy) compileMasks() {
	p.Any4 = p.rulesWhere(func(r Rule) bool { return len(r.Peers) == 0 })
	p.Any6 = p.Any4
	p.AnyPort = p.rulesWhere(func(r Rule) bool { return len(r.Ports)+len(r.Ranges) == 0 })
	p.AnyCgroup = p.rulesWhere(func(r Rule) bool { return len(r.Cgroups) == 0 })
	p.AnyUID = p.rulesWhere(func(r Rule) bool { return len(r.UIDs) == 0 })
	p.Inbound = p.rulesWhere(func(r Rule) bool { return !r.OutboundOnly() })
	p.Outbound = p.rulesWhere(func(r Rule) bool { return r.Direction != DirectionServer })
	p.Anyone = p.rulesWhere(func(r Rule) bool { return !r.asksCaller() })
	p.Accelerate = p.rulesWhere(func(r Rule) bool { return r.Action == ActionAccelerate })
	p.NotWorthIt = p.rulesWhere(func(r Rule) bool { return r.Action == ActionNotWorthIt })
	p.TCP = p.rulesWhere(func(r Rule) bool { return r.Proto == ProtoTCP })
	p.UDP = p.rulesWhere(func(r Rule) bool { return r.Proto == ProtoUDP })
}

// compilePrefixes gives each prefix the rules of all prefixes that cover it. A longest-prefix match returns only one
// entry, so that entry must include all of them.
func (p *Policy) compilePrefixes() {
	p.Prefixes = map[netip.Prefix]uint64{}
	for _, r := range p.rules {
		for _, q := range r.Peers {
			p.Prefixes[q.Masked()] = 0
		}
	}
	for q := range p.Prefixes {
		p.Prefixes[q] = p.Any4 | p.rulesWhere(func(r Rule) bool {
			return slices.ContainsFunc(r.Peers, func(c netip.Prefix) bool { return covers(c, q) })
		})
	}
}

// covers reports whether c contains every address of q.
func covers(c, q netip.Prefix) bool { return c.Bits() <= q.Bits() && c.Contains(q.Addr()) }

// compilePorts computes the masks of each named or never-listed port.
func (p *Policy) compilePorts() {
	named, sole, within := map[uint16]uint64{}, map[uint16]uint64{}, map[uint16]uint64{}
	for i, r := range p.rules {
		for _, port := range r.Ports {
			named[port] |= 1 << i
			if r.Sole {
				sole[port] |= 1 << i
			}
		}
		for _, q := range r.Ranges {
			for port := int(q.First); port <= int(q.Last); port++ {
				within[uint16(port)] |= 1 << i
				named[uint16(port)] |= 0
			}
		}
	}
	for _, port := range p.never {
		named[port] |= 0
	}
	p.Ports = make(map[uint16]PortMask, len(named))
	for port, rules := range named {
		p.Ports[port] = p.solely(sole[port], PortMask{Mask: rules | within[port] | p.AnyPort})
	}
	for _, port := range p.never {
		unnamed := (p.AnyPort | within[port]) &^ named[port]
		m := PortMask{Mask: named[port] | unnamed, Excluded: unnamed & (p.Accelerate | p.NotWorthIt)}
		m.Mask &^= m.Excluded
		p.Ports[port] = p.solely(sole[port], m)
	}
}

// solely leaves a port to the sole rules that name it.
func (p *Policy) solely(sole uint64, m PortMask) PortMask {
	var others uint64
	for _, proto := range []uint64{p.TCP, p.UDP} {
		if sole&proto != 0 {
			others |= proto &^ sole
		}
	}
	return PortMask{Mask: m.Mask &^ others, Excluded: m.Excluded &^ others}
}

// compileUsers computes the masks of users and cgroup patterns.
func (p *Policy) compileUsers() {
	p.UIDs = map[uint32]uint64{}
	patterns := map[string]uint64{}
	for i, r := range p.rules {
		for _, u := range r.UIDs {
			p.UIDs[u] |= p.AnyUID | 1<<i
		}
		for _, c := range r.Cgroups {
			patterns[cleanCgroup(c)] |= 1 << i
		}
	}
	for c, m := range patterns {
		p.Patterns = append(p.Patterns, Pattern{c, m})
	}
	slices.SortFunc(p.Patterns, func(a, b Pattern) int { return strings.Compare(a.Glob, b.Glob) })
}

// cleanCgroup writes a cgroup path or pattern as "/a/b".
func cleanCgroup(c string) string { return path.Clean("/" + c) }
