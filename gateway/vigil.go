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

// vigil watches a peer whose death no hang-up tells. Once a second one flow with
// it writes a KEEPALIVE record on its wire leg. The kernel of a gateway that is
// dead answers with a reset, and then more flows ask, in steps: the reset of one
// flow is nothing unusual, and twenty thousand flows must not all ask whenever
// one is reset. A peer that is cut off answers nothing: there TCP waits, as it
// does natively.
type vigil struct {
	mu    sync.Mutex // guards everything below
	flows map[*carry]bool
	width int  // how many legs the next turn asks
	hit   bool // one that was asked has been lost
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
	delete(v.flows, c)
}

// lost takes note of the loss of a flow's wire leg and tells whether others
// should be asked soon.
func (v *vigil) lost(c *carry) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	asked := v.flows[c]
	delete(v.flows, c)
	if asked && !v.hit {
		v.hit = true
		v.width = min(v.width*vigilStep, vigilMost)
	}
	return asked && len(v.flows) > 0
}

// ask returns the flows whose legs are to be asked now: at a turn some of every
// peer's, in between only those of a peer that seems dead.
func (v *vigil) ask(turn bool) (legs []*wireControl) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !turn && !v.hit {
		return nil
	}
	if !v.hit {
		v.width = 1
	}
	v.hit = false
	for c := range v.flows { // in random order: the next turn asks others
		v.flows[c] = len(legs) < v.width
		if v.flows[c] {
			legs = append(legs, c.f.ctl)
		}
	}
	return legs
}

// watch asks peers for signs of life until the fabric is closed.
func (sf *softFabric) watch() {
	tick := time.NewTicker(vigilTurn)
	defer tick.Stop()
	for {
		turn := false
		select {
		case <-sf.stop:
			return
		case now := <-tick.C:
			sf.forgetIdle(now)
			turn = true
		case <-sf.kick:
			time.Sleep(vigilPause)
		}
		sf.mu.Lock()
		peers := make([]*softPeer, 0, len(sf.peers))
		for _, p := range sf.peers {
			peers = append(peers, p)
		}
		sf.mu.Unlock()
		for _, p := range peers {
			for _, leg := range p.ask(turn) {
				leg.keepalive()
			}
		}
	}
}

// started implements fabric.
func (*softFabric) started(c *carry) { c.peer.(softCarry).watch(c) }

// wireLost implements fabric.
func (sf *softFabric) wireLost(c *carry) {
	if !c.peer.(softCarry).lost(c) {
		return
	}
	select {
	case sf.kick <- struct{}{}:
	default:
	}
}
