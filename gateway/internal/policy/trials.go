package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/report"
)

// maxTrials bounds the trials of a gateway.
const maxTrials = 8

// TrialRule is the name under which connections of trials are counted.
const TrialRule = "trial"

// Steering is the part of the datapath that is told the rules.
type Steering interface {
	SetPolicy(rules []ebpf.Rule) error
}

// Trials are those of a gateway. The rules of the configuration keep their
// numbers, by which decisions are counted: trials come after them.
type Trials struct {
	steer Steering

	mu    sync.Mutex   // Of changes, to write a policy takes a while; guards what follows
	ahead []*ebpf.Rule // of opt-ins, which decide first
	rules []ebpf.Rule  // of the configuration
	never []uint16
	named map[uint16]string // ports that belong to a rule, with its name
	fast  bool              // an RDMA adapter carries

	held atomic.Pointer[[]*config.Trial]
}

// NewTrials returns the trials beside the rules of a configuration: none yet.
func NewTrials(cfg config.Config, steer Steering) *Trials {
	t := &Trials{steer: steer}
	t.held.Store(new([]*config.Trial))
	t.takeLocked(cfg)
	return t
}

// takeLocked takes the rules of a configuration over.
func (ts *Trials) takeLocked(cfg config.Config) {
	ts.rules, ts.never, ts.named = Translate(cfg, ts.fast, nil).Policy, cfg.NeverPorts(), map[uint16]string{}
	for _, r := range cfg.Policy {
		for _, p := range r.Match.Ports {
			for port := int(p.First()); r.Match.Proto != report.ProtoUDP && port <= int(p.Last()); port++ {
				if _, ok := ts.named[uint16(port)]; !ok {
					ts.named[uint16(port)] = r.Name
				}
			}
		}
	}
}

// Adapters tells whether an RDMA adapter carries, on which rules with action auto depend.
// Where the datapath refuses the rules those before stay.
func (ts *Trials) Adapters(cfg config.Config, carry bool) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if carry == ts.fast {
		return nil
	}
	before := ts.rules
	ts.fast = carry
	ts.takeLocked(cfg)
	if err := ts.holdLocked(*ts.held.Load()); err != nil {
		ts.rules, ts.fast = before, !carry
		return err
	}
	return nil
}

// Configure puts the rules of a configuration in force, with those of the trials
// under way after them. Where that fails those before stay.
func (ts *Trials) Configure(cfg config.Config) error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	rules, never, named := ts.rules, ts.never, ts.named
	ts.takeLocked(cfg)
	if err := ts.holdLocked(*ts.held.Load()); err != nil {
		ts.rules, ts.never, ts.named = rules, never, named
		return err
	}
	return nil
}

// Begin makes a trial count. end may be called more than once.
func (ts *Trials) Begin(t config.Trial) (end func(), err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if err := ts.checkLocked(&t); err != nil {
		return nil, err
	}
	held := *ts.held.Load()
	if len(held) >= maxTrials || len(ts.ahead)+len(ts.rules)+len(held) >= ebpf.MaxRules {
		return nil, &config.TrialError{Field: "policy", Problem: "no room for one more rule"}
	}
	if slices.ContainsFunc(held, func(h *config.Trial) bool { return h.Port == t.Port }) {
		return nil, config.ErrTrialHeld
	}
	if err := ts.holdLocked(append(slices.Clone(held), &t)); err != nil {
		ts.held.Store(&held)
		return nil, err
	}
	return func() { ts.end(&t) }, nil
}

// checkLocked refuses what would change more than the trial's own connections.
func (ts *Trials) checkLocked(t *config.Trial) error {
	if t.Peer = t.Peer.Unmap(); !t.Peer.IsValid() || t.Peer.Zone() != "" || t.Peer.IsUnspecified() || t.Peer.IsMulticast() {
		return &config.TrialError{Field: "peer", Problem: fmt.Sprintf("%q is no address of a host", t.Peer)}
	}
	switch {
	case t.Port == 0:
		return &config.TrialError{Field: "port", Problem: "there is none"}
	case slices.Contains(ts.never, t.Port):
		return &config.TrialError{Field: "port", Problem: fmt.Sprintf("%d is on the never-list", t.Port)}
	case ts.named[t.Port] != "":
		return &config.TrialError{Field: "port", Problem: fmt.Sprintf("%d belongs to the rule %s", t.Port, ts.named[t.Port])}
	case t.Action != report.ActionPass && t.Action != report.ActionAccelerate:
		return &config.TrialError{Field: "action", Problem: fmt.Sprintf("%q is neither pass nor accelerate", t.Action)}
	case t.Carrier != report.CarrierNone && !slices.ContainsFunc(report.DeviceKinds(), func(k report.DeviceKind) bool { return k.Carrier() == t.Carrier }):
		return &config.TrialError{Field: "carrier", Problem: fmt.Sprintf("%q is none that can be chosen", t.Carrier)}
	case t.Way != "" && t.Way != report.WayInProcess && t.Way != report.WaySteered:
		return &config.TrialError{Field: "way", Problem: fmt.Sprintf("%q is neither in-process nor steered", t.Way)}
	}
	return nil
}

// end takes a trial back. A policy that cannot be written leaves a rule behind.
// It concerns only the port of the trial; the next trial writes the policy
// again.
func (ts *Trials) end(t *config.Trial) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	held := *ts.held.Load()
	if i := slices.Index(held, t); i >= 0 {
		_ = ts.holdLocked(slices.Delete(slices.Clone(held), i, i+1)) // the datapath is gone with the gateway
	}
}

// holdLocked makes these the trials in force.
func (ts *Trials) holdLocked(held []*config.Trial) error {
	ts.held.Store(&held)
	rules := make([]ebpf.Rule, 0, len(ts.ahead)+len(ts.rules)+len(held))
	for _, r := range ts.ahead {
		rules = append(rules, *r)
	}
	rules = append(rules, ts.rules...)
	for _, t := range held {
		rules = append(rules, ebpf.Rule{
			Ports: []uint16{t.Port}, Peers: []netip.Prefix{netip.PrefixFrom(t.Peer, t.Peer.BitLen())},
			Action: steeringAction(config.Rule{Action: t.Action, Way: t.Way}, false), Sole: true, Share: ebpf.ShareAll,
		})
	}
	return ts.steer.SetPolicy(rules)
}

// Held returns the trials under way. They are not changed any more.
func (ts *Trials) Held() []*config.Trial { return *ts.held.Load() }

// Of returns the trial that a connection which begins belongs to, or nil. It does
// not wait: packets are dispatched meanwhile.
func (ts *Trials) Of(peer netip.Addr, service uint16) *config.Trial {
	for _, t := range ts.Held() {
		if t.Port == service && t.Peer == peer {
			return t
		}
	}
	return nil
}

// Admits reports whether a client's flow of the trial may be offered a carrier;
// one of no trial may.
func Admits(t *config.Trial, c report.Carrier) bool {
	return t == nil || t.Carrier == report.CarrierNone || t.Carrier == c
}

// Cold reports whether a flow of the trial uses nothing that its gateway has found out
// about the peer.
func Cold(t *config.Trial) bool { return t != nil && t.Cold }
