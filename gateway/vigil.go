package gateway

import (
	"sync"
	"time"
)

const (
	// vigilTurn is how often a peer is asked for a sign of life.
	vigilTurn = time.Second
	// vigilStep is by how much more legs are asked when one that was asked has
	// been lost; vigilPause is how long the answers of those before may take.
	vigilStep  = 8
	vigilPause = 20 * time.Millisecond
	// vigilMost bounds the legs asked at once.
	vigilMost = 1 << 20
)

// vigil watches a peer whose death no hang-up tells. The wire leg of one flow
// with it, the leader, is kept alive by TCP once a second. The kernel of a
// gateway that is dead answers with a reset, and then other flows ask too, by
// KEEPALIVE records, in steps: the reset of one flow is nothing unusual, and
// twenty thousand flows must not all ask whenever one is reset. A peer that is
// cut off answers nothing: there TCP waits, as it does natively, but not for ever:
// a host that lost its power, or a path that was cut for good, would leave flows
// behind of which the gateway hears nothing any more. When the leader has been
// silent for legPatience all others ask, and those that are not answered either end
// when TCP gives their record up.
//
// The leader does not write records: one that is lost while nobody is there to
// answer would be sent again later and later.
type vigil struct {
	mu     sync.Mutex // guards everything below
	flows  map[*carry]bool
	leader *carry
	width  int  // how many legs the next step asks
	hit    bool // one that was asked has been lost
}

func newVigil() vigil { return vigil{flows: map[*carry]bool{}, width: 1} }

// watch enters a flow that is carried.
func (v *vigil) watch(c *carry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.flows[c] = false
}

// unwatch forgets a flow.
func (v *vigil) unwatch(c *carry) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.forgetLocked(c)
}

func (v *vigil) forgetLocked(c *carry) {
	delete(v.flows, c)
	if v.leader == c {
		v.leader = nil
	}
}

// lost takes note of the loss of a flow's wire leg, or that it was silent for too
// long, and tells whether others should be asked soon.
func (v *vigil) lost(c *carry, silent bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.flows[c] || v.leader == c
	v.forgetLocked(c)
	switch {
	case asked && silent:
		v.hit, v.width = true, vigilMost
	case asked:
		v.widenLocked()
	}
	return asked && len(v.flows) > 0
}

// suspect takes note that the peer has not answered a queue pair.
func (v *vigil) suspect() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.widenLocked()
}

func (v *vigil) widenLocked() {
	if !v.hit {
		v.hit = true
		v.width = min(v.width*vigilStep, vigilMost)
	}
}

// lead ends a series of steps and returns a flow that is leader from now on, nil
// if there is one or none is needed.
func (v *vigil) lead() *carry {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hit {
		v.width = 1
	}
	if v.leader != nil && !v.leader.f.ending() {
		return nil
	}
	next := v.leader
	for c := range v.flows {
		if carries := !c.f.ending(); carries || next == nil {
			next = c
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

// ending: the client's kernel may answer for the tuple, from TIME_WAIT, which says
// nothing about its gateway.
func (f *flow) ending() bool { return f.getState() > StateCarrying }

// step returns the flows that are to ask because another has been lost.
func (v *vigil) step() (legs []*wireControl) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.hit {
		return nil
	}
	v.hit = false
	for c := range v.flows {
		v.flows[c] = len(legs) < v.width
		if v.flows[c] {
			legs = append(legs, c.f.ctl)
		}
	}
	return legs
}

// watch keeps an eye on all peers until the fabric is closed.
func (sf *softFabric) watch() {
	tick := time.NewTicker(vigilTurn)
	defer tick.Stop()
	for {
		select {
		case <-sf.stop:
			return
		case now := <-tick.C:
			sf.forgetIdle(now)
		case <-sf.kick:
			time.Sleep(vigilPause)
		}
		for _, p := range sf.known() {
			if c := p.lead(); c != nil {
				_ = c.f.wire.SetKeepalive(vigilTurn, vigilTurn, int(legPatience/vigilTurn))
			}
			for _, leg := range p.step() {
				leg.keepalive()
			}
		}
	}
}

// known returns the peers.
func (sf *softFabric) known() []*softPeer {
	sf.mu.Lock()
	defer sf.mu.Unlock()
	peers := make([]*softPeer, 0, len(sf.peers))
	for _, p := range sf.peers {
		peers = append(peers, p)
	}
	return peers
}

// started implements fabric.
func (*softFabric) started(c *carry) { c.peer.(softCarry).watch(c) }

// wireLost implements fabric.
func (sf *softFabric) wireLost(c *carry, silent bool) {
	if c.peer.(softCarry).lost(c, silent) {
		sf.askSoon()
	}
}

// askSoon has watch go on before its next turn. It never blocks.
func (sf *softFabric) askSoon() {
	select {
	case sf.kick <- struct{}{}:
	default:
	}
}
