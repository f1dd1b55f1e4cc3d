package policy

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// maxTrials bounds the trials of a gateway.
const maxTrials = 8

// TrialRule is the name under which connections of trials are counted.
const TrialRule = "trial"

// Steering is the part of the datapath that applies the rules.
type Steering interface {
	SetPolicy(rules []ebpf.Rule) error
}

// Rules are the rules in force: those of opt-ins, then those of the configuration, then those of trials. Decisions are
// counted by the number of a rule, so trials come last, and [Rules.Ahead] tells how many opt-ins there are.
type Rules struct {
	steer Steering

	mu         sync.Mutex   // held while a policy is written, which takes a while; guards the fields below
	ahead      []*ebpf.Rule // of opt-ins
	configured []ebpf.Rule
	never      []uint16
	named      map[uint16]string // the rule that names each port
	fast       bool              // whether an RDMA adapter carries

	held atomic.Pointer[[]*config.Trial]
}

// NewRules returns the rules of a configuration, without writing them.
func NewRules(cfg config.Config, steer Steering) *Rules {
	rs := &Rules{steer: steer}
	rs.held.Store(new([]*config.Trial))
	rs.takeLocked(cfg)
	return rs
}

// takeLocked takes over the rules of a configuration, without writing them.
func (rs *Rules) takeLocked(cfg config.Config) {
	rs.configured, rs.never, rs.named = Translate(cfg, rs.fast, nil).Policy, cfg.NeverPorts(), map[uint16]string{}
	for _, r := range cfg.Policy {
		for _, p := range r.Match.Ports {
			for port := int(p.First()); r.Match.Proto != report.ProtoUDP && port <= int(p.Last()); port++ {
				if _, ok := rs.named[uint16(port)]; !ok {
					rs.named[uint16(port)] = r.Name
				}
			}
		}
	}
}

// Adapters applies whether an RDMA adapter carries, on which rules with action auto depend. If the datapath refuses the
// rules, the previous ones stay.
func (rs *Rules) Adapters(cfg config.Config, carry bool) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if carry == rs.fast {
		return nil
	}
	before := rs.configured
	rs.fast = carry
	rs.takeLocked(cfg)
	if err := rs.holdLocked(*rs.held.Load()); err != nil {
		rs.configured, rs.fast = before, !carry
		return err
	}
	return nil
}

// Configure applies the rules of a configuration, followed by those of the trials in force. If that fails, the previous
// ones stay.
func (rs *Rules) Configure(cfg config.Config) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rules, never, named := rs.configured, rs.never, rs.named
	rs.takeLocked(cfg)
	if err := rs.holdLocked(*rs.held.Load()); err != nil {
		rs.configured, rs.never, rs.named = rules, never, named
		return err
	}
	return nil
}

// Try puts a trial in force. end may be called more than once.
func (rs *Rules) Try(t config.Trial) (end func(), err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if err := rs.checkLocked(&t); err != nil {
		return nil, err
	}
	held := *rs.held.Load()
	if len(held) >= maxTrials || len(rs.ahead)+len(rs.configured)+len(held) >= ebpf.MaxRules {
		return nil, &config.TrialError{Field: "policy", Problem: "no room for one more rule"}
	}
	if slices.ContainsFunc(held, func(h *config.Trial) bool { return h.Port == t.Port }) {
		return nil, config.ErrTrialHeld
	}
	if err := rs.holdLocked(append(slices.Clone(held), &t)); err != nil {
		rs.held.Store(&held)
		return nil, err
	}
	return func() { rs.end(&t) }, nil
}

// checkLocked refuses a trial that would affect more than its own connections. It also normalizes the peer.
func (rs *Rules) checkLocked(t *config.Trial) error {
	if t.Peer = t.Peer.Unmap(); !t.Peer.IsValid() || t.Peer.Zone() != "" || t.Peer.IsUnspecified() || t.Peer.IsMulticast() {
		return &config.TrialError{Field: "peer", Problem: fmt.Sprintf("%q is no address of a host", t.Peer)}
	}
	switch {
	case t.Port == 0:
		return &config.TrialError{Field: "port", Problem: "there is none"}
	case slices.Contains(rs.never, t.Port):
		return &config.TrialError{Field: "port", Problem: fmt.Sprintf("%d is on the never-list", t.Port)}
	case rs.named[t.Port] != "":
		return &config.TrialError{Field: "port", Problem: fmt.Sprintf("%d belongs to the rule %s", t.Port, rs.named[t.Port])}
	case t.Action != report.ActionPass && t.Action != report.ActionAccelerate:
		return &config.TrialError{Field: "action", Problem: fmt.Sprintf("%q is neither pass nor accelerate", t.Action)}
	case t.Carrier != report.CarrierNone && !slices.ContainsFunc(report.DeviceKinds(), func(k report.DeviceKind) bool { return k.Carrier() == t.Carrier }):
		return &config.TrialError{Field: "carrier", Problem: fmt.Sprintf("%q is none that can be chosen", t.Carrier)}
	case t.Way != "" && t.Way != report.WayInProcess && t.Way != report.WaySteered:
		return &config.TrialError{Field: "way", Problem: fmt.Sprintf("%q is neither in-process nor steered", t.Way)}
	}
	return nil
}

// end ends a trial. If the policy cannot be written its rule stays behind, but it affects only the trial's port, and
// the next write removes it.
func (rs *Rules) end(t *config.Trial) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	held := *rs.held.Load()
	if i := slices.Index(held, t); i >= 0 {
		_ = rs.holdLocked(slices.Delete(slices.Clone(held), i, i+1)) // the datapath is gone, with the gateway
	}
}

// holdLocked makes held the trials in force, and writes the policy.
func (rs *Rules) holdLocked(held []*config.Trial) error {
	rs.held.Store(&held)
	rules := make([]ebpf.Rule, 0, len(rs.ahead)+len(rs.configured)+len(held))
	for _, r := range rs.ahead {
		rules = append(rules, *r)
	}
	rules = append(rules, rs.configured...)
	for _, t := range held {
		rules = append(rules, ebpf.Rule{
			Ports: []uint16{t.Port}, Peers: []netip.Prefix{netip.PrefixFrom(t.Peer, t.Peer.BitLen())},
			Action: steeringAction(config.Rule{Action: t.Action, Way: t.Way}, false), Sole: true, Share: ebpf.ShareAll,
		})
	}
	return rs.steer.SetPolicy(rules)
}

// Trials returns the trials in force. The slice and the trials are not modified afterwards.
func (rs *Rules) Trials() []*config.Trial { return *rs.held.Load() }

// TrialOf returns the trial that a new connection belongs to, or nil. It takes no lock, since it is called while packets are
// dispatched.
func (rs *Rules) TrialOf(peer netip.Addr, service uint16) *config.Trial {
	for _, t := range rs.Trials() {
		if t.Port == service && t.Peer == peer {
			return t
		}
	}
	return nil
}

// Admits reports whether a client's flow of trial t may be offered carrier c. A flow of no trial (nil) may be offered
// any.
func Admits(t *config.Trial, c report.Carrier) bool {
	return t == nil || t.Carrier == report.CarrierNone || t.Carrier == c
}

// Cold reports whether a flow of trial t must not use what its gateway has learned about the peer.
func Cold(t *config.Trial) bool { return t != nil && t.Cold }

// OptInRule is the name under which connections of opt-ins are counted.
const OptInRule = "run"

// maxOptIns bounds the concurrent opt-ins.
const maxOptIns = 8

// literal escapes the special characters of cgroup patterns.
var literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// OptIn puts the rule of an opt-in in force, ahead of all others, until end is called. mount is where this gateway has
// cgroup2 mounted.
func (rs *Rules) OptIn(o config.OptIn, mount string) (end func(), err error) {
	if !path.IsAbs(o.Cgroup) || path.Clean(o.Cgroup) != o.Cgroup || o.Cgroup == "/" {
		return nil, fmt.Errorf("%w: %q is not the path of a cgroup", config.ErrOptIn, o.Cgroup)
	}
	var st unix.Stat_t
	if err := unix.Stat(path.Join(mount, o.Cgroup), &st); err != nil || st.Ino != o.ID {
		return nil, fmt.Errorf("%w: the gateway does not see the cgroup %s: it runs in another cgroup namespace, or has cgroup_path", config.ErrOptIn, o.Cgroup)
	}
	rule := &ebpf.Rule{Cgroups: []string{literal.Replace(o.Cgroup)}, Action: ebpf.ActionAccelerate, Share: ebpf.ShareAll}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	held := *rs.held.Load()
	if len(rs.ahead) >= maxOptIns || len(rs.ahead)+len(rs.configured)+len(held) >= ebpf.MaxRules {
		return nil, fmt.Errorf("%w: no room for one more rule", config.ErrOptIn)
	}
	before := rs.ahead
	rs.ahead = append(slices.Clone(before), rule)
	if err := rs.holdLocked(held); err != nil {
		rs.ahead = before
		return nil, err
	}
	return func() {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		rs.ahead = slices.DeleteFunc(slices.Clone(rs.ahead), func(r *ebpf.Rule) bool { return r == rule })
		_ = rs.holdLocked(*rs.held.Load()) // on failure the datapath is gone, with the gateway
	}, nil
}

// Ahead returns how many rules of opt-ins precede those of the configuration.
func (rs *Rules) Ahead() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return len(rs.ahead)
}
