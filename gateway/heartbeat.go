package gateway

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/process"
)

const (
	// beatInterval is how often the gateway says that it lives; the programs
	// take it for gone after 200 ms.
	beatInterval = 40 * time.Millisecond
	// chores is how often the gateway looks after what has no time of its own.
	chores = time.Second
	// sweepEvery is how many chores pass between two sweeps of the maps, which
	// look at every flow, unless the last one has found something to remove: an
	// entry takes five seconds to become stale.
	sweepEvery = 5
)

// lagging is what the heartbeat asks of a loop: by how much its next turn is late, 0
// for one that rests and is not to turn yet. One that is late for loop.StuckAfter hangs.
type lagging interface {
	Late(now time.Time) time.Duration
}

// beatLoop writes the heartbeat as long as every shard turns
// (docs/ARCHITECTURE.md "Shards"), until ctx ends.
func (g *gateway) beatLoop(ctx context.Context) {
	loops := g.loops()
	tick := time.NewTicker(beatInterval)
	defer tick.Stop()
	for {
		g.beatOnce(loops, time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// loops are those that have to turn for the gateway to live.
func (g *gateway) loops() (loops []lagging) {
	for _, s := range g.shards {
		loops = append(loops, s)
	}
	return loops
}

func (g *gateway) beatOnce(loops []lagging, now time.Time) {
	for _, l := range loops {
		if l.Late(now) >= loop.StuckAfter {
			return
		}
	}
	if err := g.steer.Heartbeat(); err != nil {
		g.log.Error("heartbeat", "error", err)
		return
	}
	g.pulse.Beat(now)
}

// choreLoop removes stale entries from the steering and looks after garbage and
// what is learned, until ctx ends.
func (g *gateway) choreLoop(ctx context.Context) {
	tick := time.NewTicker(chores)
	defer tick.Stop()
	var collector process.Garbage
	var awake conn.Awake
	for rest := 0; ; rest-- {
		collector.Tune()
		if collector.Due(g.pool.Stats().Released, time.Now()) {
			debug.FreeOSMemory()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		g.watchLegs()
		if rest <= 0 {
			n, err := g.steer.Sweep(ebpf.SweepLimits{Stuck: g.stuck})
			if err != nil {
				g.log.Warn("sweep", "error", err)
			}
			if n == 0 {
				rest = sweepEvery
			}
		}
		g.noteRoom()
		g.rollout.Grow(time.Now())
		g.look()
		g.watchOver(time.Now())
		g.learn(time.Now())
		awake.Tick(time.Now(), g.all)
	}
}

// watchLegs keeps new connections native while sockets for them cannot be made. Those
// that are carried have theirs.
func (g *gateway) watchLegs() {
	if !g.carries() {
		return
	}
	missing := !g.legs.Available()
	if g.stopping.Load() || missing == g.legless.Load() {
		return
	}
	g.legless.Store(missing)
	if missing {
		g.log.Error("keeper of the legs' namespace does not answer: new connections are native until it does; if it is gone, until a restart")
	} else {
		g.log.Info("keeper of the legs' namespace answers again")
	}
	if err := g.refuse(func(r *refusal) { r.legless = missing }); err != nil {
		g.log.Warn("refuse new connections", "error", err)
	}
}
