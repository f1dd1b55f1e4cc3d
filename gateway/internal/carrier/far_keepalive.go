package carrier

import (
	"sync"
	"time"
)

const (
	// KeepaliveTurn is how often a peer is asked for a sign of life.
	KeepaliveTurn = time.Second
	// keepaliveStep is by how much more legs are asked when one that was asked has
	// been lost; keepalivePause is how long the answers of those before may take.
	keepaliveStep  = 8
	keepalivePause = 20 * time.Millisecond
	// keepaliveMost bounds the legs asked at once.
	keepaliveMost = 1 << 20
	// LegPatience is for how long nothing is heard of a peer before its wire legs are
	// given up. A network that answers nothing is no sign of death: TCP waits there for as
	// long as the kernel's own keepalive does by default.
	LegPatience = 2 * time.Hour
)

// WireLeg is a link as its peer sees it: what tells of the peer's life beside the queue pair, the
// connection's wire leg. Its methods do not block, and any goroutine may call them. Values of
// one link are equal.
type WireLeg interface {
	// Ending reports whether the connection is about to end: what its wire leg hears
	// then says nothing about the peer's gateway.
	Ending() bool
	// KeepAlive has TCP probe the peer.
	KeepAlive(every time.Duration, probes int)
	// Ask asks the peer for a sign of life, once.
	Ask()
}

// keepalive watches a peer whose death no hang-up tells. The wire leg of one flow
// with it, the leader, is kept alive by TCP once a second. The kernel of a gateway
// that is dead answers with a reset. Then other flows ask too, by KEEPALIVE records,
// in steps: the reset of one flow is nothing unusual, and twenty thousand flows must
// not all ask whenever one is reset.
//
// A peer that is cut off answers nothing. There TCP waits, as it does natively, but
// not for ever: the gateway would keep the flows of a host that lost its power, or of
// a path that was cut for good. When the leader has been silent for LegPatience all
// others ask. Those that are not answered either end when TCP gives their record up.
//
// The leader does not write records: one that is lost while no kernel is there to
// answer would be sent again later and later.
type keepalive struct {
	mu     sync.Mutex // guards everything below
	flows  map[WireLeg]bool
	leader WireLeg
	width  int  // how many legs the next step asks
	hit    bool // one that was asked has been lost
}

func newKeepalive() keepalive { return keepalive{flows: map[WireLeg]bool{}, width: 1} }

// watch enters a flow that is carried.
func (v *keepalive) watch(l WireLeg) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.flows[l] = false
}

// unwatch forgets a flow.
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

// lost takes note of the loss of a flow's wire leg, or that it was silent for too
// long, and tells whether others should be asked soon.
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

// suspect takes note that the peer has not answered a queue pair.
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

// lead ends a series of steps and returns a flow that is leader from now on, nil
// if there is one or none is needed.
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
	if next == v.leader { // there is none better
		return nil
	}
	v.leader = next
	return next
}

// step returns the flows that are to ask because another has been lost.
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

// turn has one flow kept alive, and others ask where one has been lost.
func (v *keepalive) turn() {
	if l := v.lead(); l != nil {
		l.KeepAlive(KeepaliveTurn, int(LegPatience/KeepaliveTurn))
	}
	for _, l := range v.step() {
		l.Ask()
	}
}
