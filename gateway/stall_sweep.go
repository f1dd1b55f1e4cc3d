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
	batches := map[*loop.Shard][]pump{}
	for _, f := range g.all() {
		p := f.pump()
		if p == nil {
			continue
		}
		s := g.shardFor(f)
		batches[s] = append(batches[s], p)
		if len(batches[s]) == stallBatch {
			lookAt(s, batches[s], timeout)
			batches[s] = batches[s][:0]
		}
	}
	for s, batch := range batches {
		lookAt(s, batch, timeout)
	}
}

// pump returns what moves the bytes of a flow that is carried, or nil.
func (f *flow) pump() pump {
	if s := f.getState(); s != StateCarrying && s != StateClosing {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return nil
	case f.relay != nil:
		return f.relay
	case f.picked != nil:
		return f.picked
	default:
		return nil
	}
}

// lookAt looks at flows of one shard, on its thread.
func lookAt(s *loop.Shard, flows []pump, timeout time.Duration) {
	s.Call(func() {
		var polled [stallBatch]unix.PollFd
		n := 0
		for _, p := range flows {
			if fd, ok := p.watchable(); ok {
				polled[n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}
				flows[n] = p
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
		for i, p := range flows[:n] {
			s.WorksFor(p.Owner())
			if _, ok := p.watchable(); ok {
				p.lookForStall(readyOf(polled[i].Revents), now, timeout)
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
