package gateway

import (
	"hash/maphash"
	"time"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/host"
	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// shardFor says which shard serves a flow, for life.
func (g *gateway) shardFor(t host.Tuple) *loop.Shard {
	return g.shards[int(maphash.Comparable(g.seed, t)%uint64(len(g.shards)))]
}

// newFlow enters a flow into the table; false when the same connection is
// there already or the gateway is going down. A flow of an older connection on
// the tuple is ended first.
func (g *gateway) newFlow(side config.Side, t host.Tuple, isn uint32) (*conn.Flow, bool) {
	for {
		g.mu.Lock()
		old := g.flows[t]
		if g.down || old != nil && old.ISN == isn {
			g.mu.Unlock()
			return old, false
		}
		if old == nil {
			g.nextID++
			f := g.env.New(conn.Opening{
				ID: g.nextID, Side: side, Tuple: t, ISN: isn, Shard: g.shardFor(t),
				Trial: g.trials.Of(t.Remote.Addr().Unmap(), conn.ServicePort(t, side)),
			})
			g.flows[t] = f
			g.mu.Unlock()
			g.noteRoom()
			return f, true
		}
		delete(g.flows, t)
		g.mu.Unlock()
		old.Replaced()
	}
}

// hold keeps close from finishing until g.wg.Done; false means that the gateway
// is going down: then the last Wait has begun. A handshake begins behind it.
func (g *gateway) hold() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.down {
		g.wg.Add(1)
	}
	return !g.down
}

// find returns the live flow of a tuple, or nil.
func (g *gateway) find(t host.Tuple) *conn.Flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flows[t]
}

// unlink takes a flow out of the table.
func (g *gateway) unlink(f *conn.Flow) {
	g.mu.Lock()
	if g.flows[f.Tuple] == f {
		delete(g.flows, f.Tuple)
		f.EndShare()
	}
	g.mu.Unlock()
	g.noteRoom()
}

// all returns the live flows.
func (g *gateway) all() []*conn.Flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	fs := make([]*conn.Flow, 0, len(g.flows))
	for _, f := range g.flows {
		fs = append(fs, f)
	}
	return fs
}

// admit decides whether the gateway has room for a flow that is in the table.
func (g *gateway) admit(f *conn.Flow) negotiate.Reason {
	g.mu.Lock()
	n := len(g.flows)
	g.mu.Unlock()
	switch {
	case g.stopping.Load():
		return negotiate.ReasonDrained
	case n > g.flowLimit():
		return negotiate.ReasonFlowLimit
	}
	if f.Side == config.SideServer {
		now := time.Now()
		scarce := g.rate.TokensAt(now) < float64(g.rate.Burst()-g.peers.PerPeer())
		if r := g.peers.Admit(f.Peer(), scarce, now); r != negotiate.ReasonNone {
			return r
		}
	}
	if !g.rate.Allow() {
		return negotiate.ReasonRateLimit
	}
	return negotiate.ReasonNone
}

// containAbout is deferred by callbacks about a tuple: a panic ends the flow that it is
// about.
func (g *gateway) containAbout(t host.Tuple) {
	r := recover()
	if r == nil {
		return
	}
	f := g.find(t)
	if f == nil {
		panic(r)
	}
	f.Panicked(r)
}
