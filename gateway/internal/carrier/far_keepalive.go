package carrier

import (
	"sync"
	"time"
)

const (
	// KeepaliveTurn is how often a peer is probed for a sign of life.
	KeepaliveTurn = time.Second
	// keepaliveStep is the factor by which more legs are probed after a probed leg was lost;
	// keepalivePause is how long the answers of the previous step may take.
	keepaliveStep  = 8
	keepalivePause = 20 * time.Millisecond
	// keepaliveMost bounds the legs probed at once.
	keepaliveMost = 1 << 20
	// LegPatience is how long a peer may be silent before its wire legs are given up. A
	// network that answers nothing is no sign of death: TCP then waits as long as the
	// kernel's own keepalive does by default.
	LegPatience = 2 * time.Hour
)

// WireLeg is what a peer's keepalive sees of a link: the connection's wire leg, which shows
// besides the queue pair whether the peer is alive. Its methods do not block and may be
// called from any goroutine. Values for the same link are equal.
type WireLeg interface {
	// Ending reports whether the connection is about to end. What its wire leg hears from
	// then on says nothing about the peer gateway.
	Ending() bool
	// KeepAlive makes TCP probe the peer.
	KeepAlive(every time.Duration, probes int)
	// Ask asks the peer for one sign of life.
	Ask()
}

// keepalive detects the death of a peer that no hang-up reports. The wire leg of one flow with
// the peer, the leader, is probed by TCP once a second. If the gateway is dead, its kernel
// answers with a reset. Then other flows probe too, with KEEPALIVE records, in growing steps:
// the reset of a single flow is nothing unusual, and twenty thousand flows must not all probe
// whenever one is reset.
//
// A peer that is cut off answers nothing. TCP then waits, as it does natively, but not for ever:
// otherwise the gateway would keep the flows of a host that lost power or of a path that was cut
// permanently. When the leader has been silent for LegPatience, all others probe. Those that get
// no answer either end when TCP gives up on their record.
//
// The leader does not write records: a record lost while no kernel is there to answer would be
// retransmitted at growing intervals.
type keepalive struct {
	mu     sync.Mutex // guards everything below
	flows  map[WireLeg]bool
	leader WireLeg
	width  int  // number of legs that the next step probes
	hit    bool // a leg that was probed has been lost
}

func newKeepalive() keepalive { return keepalive{flows: map[WireLeg]bool{}, width: 1} }

// watch adds a flow that is carried.
func (v *keepalive) watch(l WireLeg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.flows[l] = false
}

// unwatch removes a flow.
func (v *keepalive) unwatch(l WireLeg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgetLocked(l)
}

func (v *keepalive) forgetLocked(l WireLeg) {
	delete(v.flows, l)
	if v.leader == l {
		v.leader = nil
	}
}

// lost records that a flow's wire leg was lost, or was silent for too long, and reports
// whether others should be probed soon.
func (v *keepalive) lost(l WireLeg, silent bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.flows[l] || v.leader == l
	v.forgetLocked(l)
	switch {
	case asked && silent:
		v.hit, v.width = true, keepaliveMost
	case asked:
		v.widenLocked()
	}
	return asked && len(v.flows) > 0
}

// suspect records that the peer has not answered a queue pair.
func (v *keepalive) suspect() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.widenLocked()
}

func (v *keepalive) widenLocked() {
	if !v.hit {
		v.hit = true
		v.width = min(v.width*keepaliveStep, keepaliveMost)
	}
}

// lead resets the step width if nothing was lost, and returns a flow that becomes the leader,
// or nil if there is a leader or none is needed.
func (v *keepalive) lead() WireLeg {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hit {
		v.width = 1
	}
	if v.leader != nil && !v.leader.Ending() {
		return nil
	}
	next := v.leader
	for l := range v.flows {
		if carries := !l.Ending(); carries || next == nil {
			next = l
			if carries {
				break
			}
		}
	}
	if next == v.leader { // there is no better one
		return nil
	}
	v.leader = next
	return next
}

// step returns the flows to probe because another has been lost.
func (v *keepalive) step() (legs []WireLeg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hit {
		return nil
	}
	v.hit = false
	for l := range v.flows {
		v.flows[l] = len(legs) < v.width
		if v.flows[l] {
			legs = append(legs, l)
		}
	}
	return legs
}

// turn keeps one flow alive and probes others if one has been lost.
func (v *keepalive) turn() {
	if l := v.lead(); l != nil {
		l.KeepAlive(KeepaliveTurn, int(LegPatience/KeepaliveTurn))
	}
	for _, l := range v.step() {
		l.Ask()
	}
}
