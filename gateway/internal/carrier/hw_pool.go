package carrier

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/gateway/internal/loop"
)

const (
	// poolMost bounds the pairs pooled for one peer on one shard.
	poolMost = 8
	// poolIdle is how long they wait for the next connection.
	poolIdle = 10 * time.Second
)

// hwPeer is a peer of one adapter with the pairs pooled for its next connections. A queue
// pair reaches only the memory of its domain, so no peer can use the pairs of another.
type hwPeer struct {
	*farPeer // guarded by adapter.mu
	a        *adapter
	pools    []pool // by shard; guarded by adapter.mu
}

// pool holds the pairs of a peer on one shard that wait for a connection.
type pool struct {
	ready []*hwPair
	want  int       // target size; doubled whenever the pool was empty
	under int       // pairs being made
	taken time.Time // when one was last taken
}

// hwPair is a pair that was admitted to a lane.
type hwPair struct {
	*pair
	lane *loop.Lane
}

// linkNeed is the room that the queue pair of a link takes in a lane.
func linkNeed() int { return loop.LaneNeed(linkCap()) }

// take returns a pair for a connection: a pooled one, or a new one, for which it may block. A
// pair with memory of the connection's own is always new.
func (p *hwPeer) take(s *loop.Shard, own *Memory) (*hwPair, error) {
	if own != nil {
		return p.make(s, own)
	}
	a := p.a
	a.mu.Lock()
	l := &p.pools[s.ID()]
	l.taken = time.Now()
	var made *hwPair
	if n := len(l.ready); n > 0 {
		made, l.ready = l.ready[n-1], l.ready[:n-1]
		a.stats.PoolHits++
	} else {
		l.want = min(max(2*l.want, 1), poolMost)
		a.stats.PoolMisses++
	}
	a.mu.Unlock()
	a.refill(p, s)
	if made != nil {
		return made, nil
	}
	return p.make(s, nil)
}

// make makes a new pair. It may block.
func (p *hwPeer) make(s *loop.Shard, own *Memory) (*hwPair, error) {
	a := p.a
	made, err := loop.Make(a.calls, func() (*hwPair, error) {
		ln, err := a.lanes.Admit(s, linkNeed())
		if err != nil {
			return nil, err
		}
		made, err := a.env.newPair(ln.Queue, nil, p.pd, p.arena, linkCap(), a.env.newRings(false), own)
		if err != nil {
			ln.Leave(s, linkNeed())
			return nil, err
		}
		a.count(func(st *hwStats) { st.PairsMade++ })
		return &hwPair{made, ln}, nil
	}, func(made *hwPair) { a.discard(s, []*hwPair{made}) })
	return made, a.explain(err)
}

// refill requests another pair if the pool is below its target.
func (a *adapter) refill(p *hwPeer, s *loop.Shard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := &p.pools[s.ID()]
	if a.leaving || len(l.ready)+l.under >= l.want || !a.env.Pool.Stats().MayGrow(2*farRing) {
		return
	}
	select {
	case a.fill <- filling{p, s}:
		l.under++
	default: // the next connection asks again
	}
}

// filling is a request for one pooled pair.
type filling struct {
	p *hwPeer
	s *loop.Shard
}

// fillPools makes pairs until the adapter closes.
func (a *adapter) fillPools() {
	for {
		select {
		case <-a.ctx.Done():
			return
		case f := <-a.fill:
			made, err := f.p.make(f.s, nil)
			if err != nil {
				a.env.Log.Debug("queue pair in advance", "device", a.name, "error", err)
			}
			if a.pooled(f, made) {
				a.refill(f.p, f.s)
			}
		}
	}
}

// pooled accounts for the result of a filling, nil for none, and reports whether more may be
// made.
func (a *adapter) pooled(f filling, made *hwPair) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := &f.p.pools[f.s.ID()]
	l.under--
	if made == nil {
		return false
	}
	if a.leaving || l.want == 0 {
		a.discard(f.s, []*hwPair{made})
		return false
	}
	l.ready = append(l.ready, made)
	return true
}

// discard makes the reaper close pooled pairs.
func (a *adapter) discard(s *loop.Shard, pairs []*hwPair) {
	for _, made := range pairs {
		a.reaper.Put(func() {
			if err := made.close(); err != nil { // then it keeps its room in the lane
				a.env.Log.Warn("close queue pair", "device", a.name, "error", fmt.Errorf("in advance: %w", err))
				return
			}
			made.lane.Leave(s, linkNeed())
		})
	}
}

// drainPools discards the pairs that have waited too long, or all of them.
func (a *adapter) drainPools(now time.Time, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.peers {
		for i := range p.pools {
			l := &p.pools[i]
			if all || now.Sub(l.taken) >= poolIdle {
				a.discard(a.env.Shards[i], l.ready)
				l.ready, l.want = nil, 0
			}
		}
	}
}
