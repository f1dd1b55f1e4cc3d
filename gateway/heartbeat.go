package gateway

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/smcgw/smcgw/ebpf"
)

const (
	// beatInterval is how often the gateway says that it lives; the programs
	// take it for gone after 200 ms.
	beatInterval = 40 * time.Millisecond
	// stuckAfter is how long a loop may go without a turn before the heartbeat
	// stops for all: new connections are native until it turns again.
	stuckAfter = 150 * time.Millisecond
	// sweepInterval is how often stale entries are removed from the maps.
	sweepInterval = time.Second
)

// pulse watches one loop by its counter of turns.
type pulse struct {
	ticks func() uint64
	last  uint64
	at    time.Time
}

// alive reports whether the counter has moved within stuckAfter.
func (p *pulse) alive(now time.Time) bool {
	if t := p.ticks(); t != p.last || p.at.IsZero() {
		p.last, p.at = t, now
	}
	return now.Sub(p.at) < stuckAfter
}

// beatLoop writes the heartbeat as long as every shard turns
// (docs/ARCHITECTURE.md "Shards"), until ctx ends.
func (g *gateway) beatLoop(ctx context.Context) {
	var pulses []pulse
	for _, s := range g.shards {
		pulses = append(pulses, pulse{ticks: s.ticks.Load})
	}
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		g.beatOnce(pulses, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (g *gateway) beatOnce(pulses []pulse, now time.Time) {
	for i := range pulses {
		if !pulses[i].alive(now) {
			return
		}
	}
	if err := g.steer.Heartbeat(); err != nil {
		g.log.Error("heartbeat", "error", err)
		return
	}
	g.beat.Store(now.UnixNano())
}

// sweepLoop removes stale entries from the steering, until ctx ends.
func (g *gateway) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(sweepInterval)
	defer tick.Stop()
	var collector garbage
	for {
		collector.tune()
		if collector.due(g.pool.Stats().Released, time.Now()) {
			debug.FreeOSMemory()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if _, err := g.steer.Sweep(ebpf.SweepLimits{}); err != nil {
			g.log.Warn("sweep", "error", err)
		}
		g.auto.tick(time.Now())
	}
}
