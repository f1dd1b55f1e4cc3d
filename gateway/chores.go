package gateway

import (
	"context"
	"runtime/debug"
	"time"

	"github.com/smcgw/smcgw/ebpf"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/peers"
	"github.com/smcgw/smcgw/gateway/process"
)

const (
	// chores is the interval of the periodic work that has no timer of its own.
	chores = time.Second
	// sweepEvery is the number of chores between two sweeps of the maps, which look at every
	// flow; it does not apply after a sweep that removed something. An entry takes five
	// seconds to become stale.
	sweepEvery = 5
	// portsEvery is the number of chores between two attempts to get a port that another
	// process has.
	portsEvery = 5
)

// choreLoop removes stale entries from the steering, tunes garbage collection, and does other
// periodic work until ctx ends.
func (g *gateway) choreLoop(ctx context.Context) {
	tick := time.NewTicker(chores)
	defer tick.Stop()
	var collector process.Garbage
	var awake conn.Awake
	for rest, turn := 0, 1; ; rest, turn = rest-1, turn+1 {
		collector.Tune()
		if e := g.engine(); e != nil {
			if err := e.pool.Trim(time.Now()); err != nil {
				g.log.Warn("give memory back", "error", err)
			}
			if collector.Due(e.pool.Stats().Released, time.Now()) {
				debug.FreeOSMemory()
			}
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
		if turn%portsEvery == 0 {
			g.engine().reopenDatagrams()
			g.engine().settleBeyond()
		}
		if e := g.engine(); e != nil {
			e.room.Note()
		}
		if err := g.followAdapters(); err != nil {
			g.log.Warn("rules with action auto", "error", err)
		}
		g.host.promotion.Share(g.shareNow())
		g.look()
		g.watchOver(time.Now())
		if g.feed.Watched() || g.lines.WantsNative() { // reading the counters takes a thousand system calls
			g.tellMissed()
		}
		awake.Tick(g.engine().all())
		g.settle(time.Now())
	}
}

// watchLegs keeps new connections native while sockets for their app legs cannot be made.
// Carried connections have theirs already.
func (g *gateway) watchLegs() {
	e := g.engine()
	missing := e != nil && !e.host.Legs.Available()
	if g.stopping.Load() || missing == g.legless.Load() {
		return
	}
	g.legless.Store(missing)
	if missing {
		g.log.Error("keeper of the legs' namespace does not answer: new connections are native until it does; if it and its spare are gone, until a restart")
	} else {
		g.log.Info("keeper of the legs' namespace answers again")
	}
	if err := g.refusals.Change(func(r *peers.Refusal) { r.Legless = missing }); err != nil {
		g.log.Warn("refuse new connections", "error", err)
	}
}

// stuck passes a stuck entry to the engine.
func (g *gateway) stuck(f ebpf.Flow) {
	if e := g.engine(); e != nil {
		e.desk.Stuck(f)
	}
}
