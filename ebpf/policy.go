package ebpf

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// Policy is a compiled rule list: for every key that some rule names, the set
// of rules that could match, as a mask. The programs intersect the masks of one
// connection; the lowest bit is the first match.
type Policy struct {
	rules []Rule
	never []uint16

	anyPeer4, anyPeer6 uint64 // rules for an address no prefix covers
	anyPort            uint64
	anyCgroup, anyUID  uint64
	inbound            uint64 // rules that ask for no cgroup or user
	accelerate         uint64 // rules whose action is not pass
	automatic          uint64 // rules whose action is auto
	tcp, udp           uint64 // rules by protocol

	prefixes map[netip.Prefix]uint64 // each with the rules of its covering prefixes
	ports    map[uint16]portMask
	uids     map[uint32]uint64
	patterns []cgroupPattern
}

// portMask: excluded are accelerating rules the never-list takes out.
type portMask struct{ mask, excluded uint64 }

type cgroupPattern struct {
	pattern string
	mask    uint64
}

// CompilePolicy compiles rules, at most MaxRules. All problems are reported at
// once.
func CompilePolicy(rules []Rule, never []uint16) (*Policy, error) {
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
		if _, err := path.Match(c, ""); err != nil || strings.Contains(c, "..") {
			errs = append(errs, fmt.Errorf("policy[%d].cgroups: invalid pattern %q", i, c))
		}
	}
	if r.Proto > ProtoUDP {
		errs = append(errs, fmt.Errorf("policy[%d].proto: %d is unknown", i, r.Proto))
	}
	if r.Action > ActionAuto {
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

// compileMasks computes the sets that need no key.
func (p *Policy) compileMasks() {
	p.anyPeer4 = p.rulesWhere(func(r Rule) bool { return len(r.Peers) == 0 })
	p.anyPeer6 = p.anyPeer4
	p.anyPort = p.rulesWhere(func(r Rule) bool { return len(r.Ports) == 0 })
	p.anyCgroup = p.rulesWhere(func(r Rule) bool { return len(r.Cgroups) == 0 })
	p.anyUID = p.rulesWhere(func(r Rule) bool { return len(r.UIDs) == 0 })
	p.inbound = p.rulesWhere(func(r Rule) bool { return !r.OutboundOnly() })
	p.accelerate = p.rulesWhere(func(r Rule) bool { return r.Action != ActionPass })
	p.automatic = p.rulesWhere(func(r Rule) bool { return r.Action == ActionAuto })
	p.tcp = p.rulesWhere(func(r Rule) bool { return r.Proto == ProtoTCP })
	p.udp = p.rulesWhere(func(r Rule) bool { return r.Proto == ProtoUDP })
}

// compilePrefixes gives each prefix the rules of all prefixes that cover it: a
// longest-prefix match finds one entry only, so it must stand for all of them.
func (p *Policy) compilePrefixes() {
	p.prefixes = map[netip.Prefix]uint64{}
	for _, r := range p.rules {
		for _, q := range r.Peers {
			p.prefixes[q.Masked()] = 0
		}
	}
	for q := range p.prefixes {
		p.prefixes[q] = p.anyPeer4 | p.rulesWhere(func(r Rule) bool {
			return slices.ContainsFunc(r.Peers, func(c netip.Prefix) bool { return covers(c, q) })
		})
	}
}

// covers reports whether every address of q is in c.
func covers(c, q netip.Prefix) bool { return c.Bits() <= q.Bits() && c.Contains(q.Addr()) }

// compilePorts gives each named or never-listed port its rules.
func (p *Policy) compilePorts() {
	p.ports = map[uint16]portMask{}
	for _, r := range p.rules {
		for _, port := range r.Ports {
			p.ports[port] = portMask{}
		}
	}
	for _, port := range p.never {
		p.ports[port] = portMask{}
	}
	for port := range p.ports {
		named := p.rulesWhere(func(r Rule) bool { return slices.Contains(r.Ports, port) })
		m := portMask{mask: named | p.anyPort}
		if slices.Contains(p.never, port) {
			m.excluded = p.anyPort & p.accelerate
			m.mask &^= m.excluded
		}
		p.ports[port] = p.solely(port, m)
	}
}

// solely leaves a port to the sole rules that name it.
func (p *Policy) solely(port uint16, m portMask) portMask {
	sole := p.rulesWhere(func(r Rule) bool { return r.Sole && slices.Contains(r.Ports, port) })
	var others uint64
	for _, proto := range []uint64{p.tcp, p.udp} {
		if sole&proto != 0 {
			others |= proto &^ sole
		}
	}
	return portMask{mask: m.mask &^ others, excluded: m.excluded &^ others}
}

// compileUsers gives users and cgroup patterns their rules.
func (p *Policy) compileUsers() {
	p.uids = map[uint32]uint64{}
	patterns := map[string]uint64{}
	for i, r := range p.rules {
		for _, u := range r.UIDs {
			p.uids[u] |= p.anyUID | 1<<i
		}
		for _, c := range r.Cgroups {
			patterns[cleanCgroup(c)] |= 1 << i
		}
	}
	for c, m := range patterns {
		p.patterns = append(p.patterns, cgroupPattern{c, m})
	}
	slices.SortFunc(p.patterns, func(a, b cgroupPattern) int { return strings.Compare(a.pattern, b.pattern) })
}

// cleanCgroup writes a cgroup path or pattern as "/a/b".
func cleanCgroup(c string) string { return path.Clean("/" + c) }

// Query is a connection, or a tuple of datagrams, to decide.
type Query struct {
	// Proto is the protocol.
	Proto Proto
	// Inbound: the local application is the server.
	Inbound bool
	// Peer is the address of the other host, Port the server's port.
	Peer netip.Addr
	Port uint16
	// UID and Cgroup (a path below the mount) are those of the caller of
	// connect(), or of the maker of the datagram socket; ignored for inbound
	// connections.
	UID    uint32
	Cgroup string
}

// Verdict is the decision of a policy.
type Verdict struct {
	// Rule is the index of the rule that decided, or NoRule.
	Rule int
	// Action is what it wants; pass where no rule matched.
	Action Action
	// Reason is policy or never_list where Action is ActionPass, else 0.
	Reason uint8
}

// Decide evaluates the policy as the programs do, from the same masks.
func (p *Policy) Decide(q Query) Verdict {
	allowed := p.inbound
	if !q.Inbound {
		allowed = p.userMask(q.UID) & p.cgroupMask(q.Cgroup)
	}
	if q.Proto == ProtoUDP {
		allowed &= p.udp
	} else {
		allowed &= p.tcp
	}
	pm, ok := p.ports[q.Port]
	if !ok {
		pm.mask = p.anyPort
	}
	rest := allowed & p.peerMask(q.Peer.Unmap())
	match, taken := rest&pm.mask, rest&pm.excluded
	v := Verdict{Rule: NoRule, Reason: ReasonPolicy}
	first := MaxRules
	if match != 0 {
		first = bits.TrailingZeros64(match)
		v.Rule, v.Action = first, p.rules[first].Action
	}
	if v.Action != ActionPass {
		v.Reason = 0
		return v
	}
	if taken != 0 && bits.TrailingZeros64(taken) < first {
		v.Rule, v.Reason = bits.TrailingZeros64(taken), ReasonNeverList
	}
	return v
}

// peerMask is what the longest-prefix match yields.
func (p *Policy) peerMask(a netip.Addr) uint64 {
	best, mask := -1, p.anyPeer4
	for q, m := range p.prefixes {
		if q.Contains(a) && q.Bits() > best {
			best, mask = q.Bits(), m
		}
	}
	return mask
}

// userMask is what the user map yields.
func (p *Policy) userMask(uid uint32) uint64 {
	if m, ok := p.uids[uid]; ok {
		return m
	}
	return p.anyUID
}

// cgroupMask is the union over a cgroup and its ancestors.
func (p *Policy) cgroupMask(cgroup string) uint64 {
	m := p.anyCgroup
	for c := cleanCgroup(cgroup); ; c = path.Dir(c) {
		for _, pat := range p.patterns {
			if ok, _ := path.Match(pat.pattern, c); ok {
				m |= pat.mask
			}
		}
		if c == "/" {
			return m
		}
	}
}
