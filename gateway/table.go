package gateway

import (
	"hash/maphash"

	"github.com/smcgw/smcgw/gateway/internal/conn"
	"github.com/smcgw/smcgw/gateway/internal/host"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// shardFor returns the shard that serves a flow for its whole life.
func (e *engine) shardFor(t host.Tuple) *loop.Shard {
	return e.shards[int(maphash.Comparable(e.seed, t)%uint64(len(e.shards)))]
}

// newFlow enters a flow into the table. It returns false if the same connection is already
// there or, with a nil flow, if the engine is shutting down. A flow of an older connection on
// the tuple is ended first.
func (e *engine) newFlow(side report.Side, t host.Tuple, isn uint32) (*conn.Flow, bool) {
	for {
		e.mu.Lock()
		old := e.flows[t]
		switch {
		case old != nil && old.ISN == isn:
			e.mu.Unlock()
			return old, false
		case e.down:
			e.mu.Unlock()
			return nil, false
		}
		if old == nil {
			f := e.env.New(conn.Opening{
				ID: e.g.nextID.Add(1), Side: side, Tuple: t, ISN: isn, Shard: e.shardFor(t),
				Trial: e.g.rules.TrialOf(t.Remote.Addr().Unmap(), conn.ServicePort(t, side)),
			})
			e.flows[t] = f
			e.mu.Unlock()
			e.room.Note()
			return f, true
		}
		delete(e.flows, t)
		e.mu.Unlock()
		old.Replaced()
	}
}

// hold keeps close from finishing until e.wg.Done, for a handshake that is about to begin. It
// returns false if the engine is shutting down: close may then already be in its last Wait.
func (e *engine) hold() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.down {
		e.wg.Add(1)
	}
	return !e.down
}

// find returns the live flow of a tuple, or nil.
func (e *engine) find(t host.Tuple) *conn.Flow {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flows[t]
}

// unlink removes a flow from the table.
func (e *engine) unlink(f *conn.Flow) {
	e.mu.Lock()
	if e.flows[f.Tuple] == f {
		delete(e.flows, f.Tuple)
		f.Share.End()
	}
	e.mu.Unlock()
	e.room.Note()
}

// all returns the live flows.
func (e *engine) all() []*conn.Flow {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	fs := make([]*conn.Flow, 0, len(e.flows))
	for _, f := range e.flows {
		fs = append(fs, f)
	}
	return fs
}

// admit decides whether there is room for a flow that is in the table.
func (e *engine) admit(f *conn.Flow) (shed negotiate.Reason, declines bool) {
	if e.g.stopping.Load() {
		return negotiate.ReasonDrained, true
	}
	return e.limits.Admit(f.Side, f.Peer(), &f.Share)
}

// count returns the number of live flows.
func (e *engine) count() int {
	if e == nil {
		return 0
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.flows)
}
