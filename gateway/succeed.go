package gateway

import (
	"fmt"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/admin"
	"github.com/smcgw/smcgw/gateway/internal/policy"
)

// inherit goes on counting where a gateway has ended in whose place g is to serve. Its
// datapath is still open.
func (g *gateway) inherit(old *gateway) error {
	if err := old.host.Beside.Retire(); err != nil {
		return fmt.Errorf("counters: %w", err)
	}
	old.reloading.Lock() // what opt-ins and trials change
	defer old.reloading.Unlock()
	counts, err := old.counters()
	if err != nil {
		return err
	}
	if err := old.trials.Move(g.steer, g.cfg, g.adapters()); err != nil {
		return fmt.Errorf("policy: %w", err)
	}
	g.trials, old.heir, g.drainer = old.trials, g, old.drainer
	if g.drainer.Draining() { // it was asked to while another one took its place
		if err := g.refuseDrained(); err != nil {
			return err
		}
	}
	before := old.live.Load()
	g.past = &counts
	g.live.Store(&liveConfig{Config: g.cfg, since: time.Now(), decided: before.decided.Close(before.Policy, before.ahead, counts.Decided, true), ahead: g.trials.Ahead()})
	g.env.Counters, g.env.Closed, g.env.Native = old.env.Counters, old.env.Closed, old.env.Native
	g.observed, g.guard, g.feed, g.env.Feed, g.env.Lines = old.observed, old.guard, old.feed, old.feed, old.env.Lines
	old.lookLocked()
	old.times.Succeed(g.shards)
	g.times = old.times
	g.tally.End(func(s *admin.Snapshot) {
		old.tally.Sum(s, old.parts)
		s.Devices = old.devices()
	})
	g.rollout.Follow(old.rollout)
	g.udp, g.started, g.reloads, g.renewal = old.udp, old.started, old.reloads, old.renewal
	g.logDropped, g.setLogLevel = old.logDropped, old.setLogLevel
	g.applyLog(g.cfg.Log)
	g.guard.Configure(g.cfg.Guard, g.totals())
	if err := g.SetOff(old.off.Load()); err != nil { // on a full disk there is no file to tell
		return fmt.Errorf("off switch: %w", err)
	}
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
