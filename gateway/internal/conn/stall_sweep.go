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

// stallBatch is how many flows a shard looks at in one go: one system call for
// all of them, and between two batches it turns.
const stallBatch = 128

// StallLoop looks at every connection, several times in the time a stall takes, until ctx
// ends.
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

// lookForStalls looks at every connection once. One goroutine at a time calls it.
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

// pump returns what moves the bytes of a flow and can stand still, or nil.
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

// lookAt looks at flows of one shard, on its thread.
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
			return // the next look finds the same
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

// stalled ends a flow that stands still by the fault of a gateway; where says how
// both directions stand, for the log.
func (f *Flow) stalled(by report.Carrier, where ...any) {
	f.env.Counters.stalled(by)
	f.env.Log.Warn("connection stalled", append([]any{"flow_id", f.ID, "side", f.Side, "carrier", by, "remote", f.Tuple.Remote}, where...)...)
	f.abort(negotiate.ReasonStalled, false)
}
