package gateway

import (
	"fmt"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// inherit goes on counting where a gateway has ended in whose place g is to serve. Its
// datapath is still open.
func (g *gateway) inherit(old *gateway) error {
	if err := old.host.Beside.Retire(); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	counts, err := old.counters()
	if err != nil {
		return err
	}
	before := old.live.Load()
	g.past = &counts
	g.live.Store(&liveConfig{Config: g.cfg, decided: before.decided.Close(before.Policy, counts.Decided, true)})
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
	return policy.Sum(c, *g.past), nil
}
