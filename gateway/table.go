package gateway

import (
	"hash/maphash"

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
// there already or, with nil, the gateway is going down. A flow of an older connection on
// the tuple is ended first.
func (g *gateway) newFlow(side config.Side, t host.Tuple, isn uint32) (*conn.Flow, bool) {
	for {
		g.mu.Lock()
		old := g.flows[t]
		switch {
		case old != nil && old.ISN == isn:
			g.mu.Unlock()
			return old, false
		case g.down:
			g.mu.Unlock()
			return nil, false
		}
		if old == nil {
			g.nextID++
			f := g.env.New(conn.Opening{
				ID: g.nextID, Side: side, Tuple: t, ISN: isn, Shard: g.shardFor(t),
				Trial: g.trials.Of(t.Remote.Addr().Unmap(), conn.ServicePort(t, side)),
			})
			g.flows[t] = f
			g.mu.Unlock()
			g.room.Note()
			return f, true
		}
		delete(g.flows, t)
		g.mu.Unlock()
		old.Replaced()
	}
}

// hold keeps close from finishing until g.wg.Done; false means that the gateway
// is going down: then the last Wait has begun. A handshake begins after it.
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
		f.Share.End()
	}
	g.mu.Unlock()
	g.room.Note()
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
func (g *gateway) admit(f *conn.Flow) (shed negotiate.Reason, declines bool) {
	if g.stopping.Load() {
		return negotiate.ReasonDrained, true
	}
	return g.limits.Admit(f.Side, f.Peer(), &f.Share)
}

// count returns how many live flows there are.
func (g *gateway) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.flows)
}
