package conn

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	life "github.com/smcgw/smcgw/gateway/internal/flow"
	"github.com/smcgw/smcgw/gateway/internal/loop"
	"github.com/smcgw/smcgw/gateway/report"
	"github.com/smcgw/smcgw/negotiate"
)

// stallBatch is how many flows of a shard are polled by one system call. Between two batches
// the shard takes a turn.
const stallBatch = 128

// StallLoop checks every connection, several times within the time that counts as a stall,
// until ctx ends.
func StallLoop(ctx context.Context, timeout time.Duration, all func() []*Flow) {
	tick := time.NewTicker(timeout / life.StallLooks)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			lookForStalls(all(), timeout)
		case <-ctx.Done():
			return
		}
	}
}

// lookForStalls checks every connection once. Calls must not overlap.
func lookForStalls(all []*Flow, timeout time.Duration) {
	batches := map[*loop.Shard][]*Flow{}
	for _, f := range all {
		if !f.Carried() {
			continue
		}
		s := f.Shard
		batches[s] = append(batches[s], f)
		if len(batches[s]) == stallBatch {
			lookAt(s, batches[s], timeout)
			batches[s] = batches[s][:0]
		}
	}
	for s, batch := range batches {
		lookAt(s, batch, timeout)
	}
}

// pump returns the pump that moves the bytes of a flow and can stall, or nil.
func (f *Flow) pump() pump {
	switch {
	case f.core.Ended():
		return nil
	case f.core.By() == life.ByRelay:
		return f.relay
	case f.core.By() == life.ByLink:
		return f.picked
	default:
		return nil
	}
}

// lookAt checks flows of one shard, on its thread.
func lookAt(s *loop.Shard, flows []*Flow, timeout time.Duration) {
	s.Call(func() {
		var polled [stallBatch]unix.PollFd
		var pumps [stallBatch]pump
		n := 0
		for _, f := range flows {
			p := f.pump()
			if p == nil {
				continue
			}
			if fd, ok := p.watchable(); ok {
				polled[n] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN | unix.POLLOUT | unix.POLLRDHUP}
				pumps[n] = p
				n++
			}
		}
		if n == 0 {
			return
		}
		if _, err := unix.Poll(polled[:n], 0); err != nil {
			return // the next look will find the same
		}
		now := time.Now()
		for i, p := range pumps[:n] {
			s.WorksFor(p.Owner())
			if _, ok := p.watchable(); ok {
				p.lookForStall(readyOf(polled[i].Revents), now, timeout)
			}
		}
	})
}

// stalled ends a flow that a gateway has stalled. where describes the state of both
// directions for the log.
func (f *Flow) stalled(by report.Carrier, where ...any) {
	f.env.Counters.stalled(by)
	f.env.Log.Warn("connection stalled", append([]any{"flow_id", f.ID, "side", f.Side, "carrier", by, "remote", f.Tuple.Remote}, where...)...)
	f.abort(negotiate.ReasonStalled, false)
}
