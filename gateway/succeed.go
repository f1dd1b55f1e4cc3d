package gateway

import (
	"errors"
	"fmt"
	"maps"

	"github.com/smcgw/smcgw/ebpf"
)

// inherit goes on counting where a gateway has ended in whose place g is to serve. Its
// datapath is still open.
func (g *gateway) inherit(old *gateway) error {
	if err := old.host.Beside.Retire(); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	counts, errCounts := old.counters()
	book, errBook := old.closeDecisions(old.live.Load())
	if err := errors.Join(errCounts, errBook); err != nil {
		return err
	}
	g.past, book.until = &counts, nil
	g.live.Store(&liveConfig{Config: g.cfg, decided: book})
	g.env.Counters, g.env.Closed, g.env.Native = old.env.Counters, old.env.Closed, old.env.Native
	g.forecast, g.guard = old.forecast, old.guard
	old.look()
	g.rollout.Follow(old.rollout)
	g.udp, g.started, g.reloads, g.logDropped = old.udp, old.started, old.reloads, old.logDropped
	g.guard.Configure(g.cfg.Guard, g.totals())
	g.mu.Lock()
	defer g.mu.Unlock()
	g.nextID = old.nextID
	return nil
}

// counters are those of the programs, with those of the gateway before.
func (g *gateway) counters() (ebpf.Counters, error) {
	c, err := g.steer.Counters()
	if err != nil || g.past == nil {
		return c, err
	}
	for side := range c.Native {
		c.Native[side] = added(c.Native[side], g.past.Native[side])
	}
	c.Stats = added(c.Stats, g.past.Stats)
	return c, nil
}

// added returns the sums of two maps.
func added[K comparable](a, b map[K]uint64) map[K]uint64 {
	sum := maps.Clone(a)
	if sum == nil {
		sum = map[K]uint64{}
	}
	for k, n := range b {
		sum[k] += n
	}
	return sum
}
