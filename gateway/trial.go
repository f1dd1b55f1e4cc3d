package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/smcgw/smcgw/ebpf"
)

// Trial is a rule about one service of one peer that counts for as long as
// somebody holds it: for measurements, which want to have a connection carried
// by this carrier, or by none, whatever the policy says.
//
// While it counts, its port belongs to it: no other rule is asked about TCP
// connections with that server port. It can only make less or the same of the
// mode, the kill switch and the limits, and nothing that its connections are
// refused is remembered about the peer. That a path eats the option is.
type Trial struct {
	// Peer is the other host, Port the server's port, on either side. Ports of
	// the never-list, and ports that a rule of the policy names, are refused.
	Peer netip.Addr `json:"peer"`
	Port uint16     `json:"port"`
	// Action is pass or accelerate.
	Action Action `json:"action"`
	// Carrier is the only one that a client offers; empty: all there are, in the
	// order of the configuration. A server takes what the client offers.
	Carrier Carrier `json:"carrier,omitempty"`
}

// ErrTrialHeld says that somebody else tries something on the same port.
var ErrTrialHeld = errors.New("port is on trial already")

// TrialError is returned for a trial that makes no sense or is not allowed.
type TrialError struct {
	// Field is the part of the Trial that is wrong, Problem what is wrong
	// with it.
	Field, Problem string
}

// Error implements error.
func (e *TrialError) Error() string { return fmt.Sprintf("trial: %s: %s", e.Field, e.Problem) }

// maxTrials bounds the trials of a gateway.
const maxTrials = 8

// trialRule is the name under which connections of trials are counted.
const trialRule = "trial"

// trials are those of a gateway. The rules of the configuration keep their
// numbers, by which decisions are counted: trials come behind them.
type trials struct {
	steer Steering

	mu    sync.Mutex  // of changes, to write a policy takes a while; guards what follows
	rules []ebpf.Rule // of the configuration
	never []uint16
	named map[uint16]string // ports that belong to a rule, with its name

	held atomic.Pointer[[]*Trial]
}

func newTrials(cfg Config, steer Steering) *trials {
	t := &trials{steer: steer}
	t.held.Store(new([]*Trial))
	t.takeLocked(cfg)
	return t
}

// takeLocked takes the rules of a configuration over.
func (ts *trials) takeLocked(cfg Config) {
	ts.rules, ts.never, ts.named = steeringConfig(cfg, nil).Policy, cfg.NeverPorts(), map[uint16]string{}
	for _, r := range cfg.Policy {
		for _, p := range r.Match.Ports {
			if _, ok := ts.named[p]; !ok && r.Match.Proto != ProtoUDP {
				ts.named[p] = r.Name
			}
		}
	}
}

// configure puts the rules of a configuration in force, with those of the trials
// under way behind them. Where that fails those before stay.
func (ts *trials) configure(cfg Config) error {
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

// begin makes a trial count. end may be called more than once.
func (ts *trials) begin(t Trial) (end func(), err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if err := ts.checkLocked(&t); err != nil {
		return nil, err
	}
	held := *ts.held.Load()
	if len(held) >= maxTrials || len(ts.rules)+len(held) >= ebpf.MaxRules {
		return nil, &TrialError{"policy", "no room for one more rule"}
	}
	if slices.ContainsFunc(held, func(h *Trial) bool { return h.Port == t.Port }) {
		return nil, ErrTrialHeld
	}
	if err := ts.holdLocked(append(slices.Clone(held), &t)); err != nil {
		ts.held.Store(&held)
		return nil, err
	}
	return func() { ts.end(&t) }, nil
}

// checkLocked refuses what would change more than the trial's own connections.
func (ts *trials) checkLocked(t *Trial) error {
	if t.Peer = t.Peer.Unmap(); !t.Peer.IsValid() || t.Peer.Zone() != "" || t.Peer.IsUnspecified() || t.Peer.IsMulticast() {
		return &TrialError{"peer", fmt.Sprintf("%q is no address of a host", t.Peer)}
	}
	switch {
	case t.Port == 0:
		return &TrialError{"port", "there is none"}
	case slices.Contains(ts.never, t.Port):
		return &TrialError{"port", fmt.Sprintf("%d is on the never-list", t.Port)}
	case ts.named[t.Port] != "":
		return &TrialError{"port", fmt.Sprintf("%d belongs to the rule %s", t.Port, ts.named[t.Port])}
	case t.Action != ActionPass && t.Action != ActionAccelerate:
		return &TrialError{"action", fmt.Sprintf("%q is neither pass nor accelerate", t.Action)}
	case t.Carrier != CarrierNone && !slices.ContainsFunc(DeviceKinds(), func(k DeviceKind) bool { return k.Carrier() == t.Carrier }):
		return &TrialError{"carrier", fmt.Sprintf("%q is none that can be chosen", t.Carrier)}
	}
	return nil
}

// end takes a trial back. A policy that cannot be written leaves a rule behind
// that concerns a port nobody else uses; the next trial writes it again.
func (ts *trials) end(t *Trial) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	held := *ts.held.Load()
	if i := slices.Index(held, t); i >= 0 {
		_ = ts.holdLocked(slices.Delete(slices.Clone(held), i, i+1)) // the datapath is gone with the gateway
	}
}

// holdLocked makes these the trials in force.
func (ts *trials) holdLocked(held []*Trial) error {
	ts.held.Store(&held)
	rules := slices.Clone(ts.rules)
	for _, t := range held {
		rules = append(rules, ebpf.Rule{
			Ports: []uint16{t.Port}, Peers: []netip.Prefix{netip.PrefixFrom(t.Peer, t.Peer.BitLen())},
			Action: steeringAction(t.Action), Sole: true,
		})
	}
	return ts.steer.SetPolicy(rules)
}

// of returns the trial that a connection which begins belongs to, or nil. It does
// not wait: packets are dispatched meanwhile.
func (ts *trials) of(side Side, tuple Tuple) *Trial {
	service := servicePort(tuple, side)
	for _, t := range *ts.held.Load() {
		if t.Port == service && t.Peer == tuple.Remote.Addr().Unmap() {
			return t
		}
	}
	return nil
}

// admits reports whether a client's flow of the trial may be offered a carrier;
// one of no trial may.
func (t *Trial) admits(c Carrier) bool {
	return t == nil || t.Carrier == CarrierNone || t.Carrier == c
}

// servicePort is the server's port of a connection.
func servicePort(t Tuple, side Side) uint16 {
	if side == SideServer {
		return t.Local.Port()
	}
	return t.Remote.Port()
}
