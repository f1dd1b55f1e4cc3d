package gateway

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/smcgw/smcgw/gateway/config"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/negotiate"
)

// stallBatch is how many flows a shard looks at in one go: one system call for
// all of them, and between two batches it turns.
const stallBatch = 128

// stallLoop looks at every flow, several times in the time a stall takes, until
// ctx ends.
func (g *gateway) stallLoop(ctx context.Context) {
	timeout := g.cfg.Limits.StallTimeout.Duration()
	if timeout == 0 {
		return
	}
	tick := time.NewTicker(timeout / stallLooks)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			g.lookForStalls(timeout)
		case <-ctx.Done():
			return
		}
	}
}

// lookForStalls looks at every flow once. One goroutine at a time calls it.
func (g *gateway) lookForStalls(timeout time.Duration) {
	batches := map[*loop.Shard][]*carry{}
	for _, f := range g.all() {
		c, r, leg := f.pumps()
		switch {
		case c != nil:
			batches[c.s] = append(batches[c.s], c)
			if len(batches[c.s]) == stallBatch {
				lookAt(c.s, batches[c.s], timeout)
				batches[c.s] = batches[c.s][:0]
			}
		case r != nil && leg != nil:
			r.lookForStall(leg, time.Now(), timeout)
		}
	}
	for s, batch := range batches {
		lookAt(s, batch, timeout)
	}
}

// pumps returns what moves the bytes of a flow that is carried: a carry, or a
// relay and its app leg.
func (f *flow) pumps() (*carry, *relay, *appLeg) {
	if s := f.getState(); s != StateCarrying && s != StateClosing {
		return nil, nil, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return nil, nil, nil
	case f.relay != nil && !f.relay.started.Load(): // it is about to begin
		return nil, nil, nil
	case f.relay != nil:
		return nil, f.relay, f.leg
	case f.picked != nil:
		return f.picked, nil, nil
	default:
		return nil, nil, nil
	}
}

// lookAt looks at flows of one shard, on its thread.
func lookAt(s *loop.Shard, flows []*carry, timeout time.Duration) {
	s.Call(func() {
		var polled [stallBatch]unix.PollFd
		n := 0
		for _, c := range flows {
			if c.watchable() {
				polled[n] = unix.PollFd{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}
				flows[n] = c
				n++
			}
		}
		if n == 0 {
			return
		}
		if _, err := unix.Poll(polled[:n], 0); err != nil {
			return // the next look finds the same
		}
		now := time.Now()
		for i, c := range flows[:n] {
			if s.WorksFor(c.f); c.watchable() {
				c.lookForStall(readyOf(polled[i].Revents), now, timeout)
			}
		}
	})
}

// stalled ends a flow that stands still by the fault of a gateway; where says how
// both directions stand, for the log.
func (f *flow) stalled(by config.Carrier, where ...any) {
	f.g.count.stalled(by)
	f.g.log.Warn("connection stalled", append([]any{"flow_id", f.id, "side", f.side, "carrier", by, "remote", f.tuple.Remote}, where...)...)
	f.mu.Lock()
	f.reason, f.remote = negotiate.ReasonNone, false // why it is on the carrier it is on did not end it
	f.mu.Unlock()
	f.abort(negotiate.ReasonStalled, false)
}
