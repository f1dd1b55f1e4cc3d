package loop

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// BeatInterval is how often a gateway says that it lives; the programs take it for gone
// after 200 ms.
const BeatInterval = 40 * time.Millisecond

// lagging is what the heartbeat asks of a loop: by how much its next turn is late, 0
// for one that rests and is not to turn yet. One that is late for StuckAfter hangs.
type lagging interface {
	Late(now time.Time) time.Duration
}

// Heart says that a gateway lives as long as every loop turns that it watches
// (docs/ARCHITECTURE.md "Shards").
type Heart struct {
	Write func() error // the heartbeat
	Pulse *Pulse       // notes it
	Log   *slog.Logger

	loops atomic.Pointer[[]lagging]
}

// Watch has these loops turn, in place of those before.
func (h *Heart) Watch(shards []*Shard) {
	loops := make([]lagging, len(shards))
	for i, s := range shards {
		loops[i] = s
	}
	h.loops.Store(&loops)
}

// Run beats until ctx ends.
func (h *Heart) Run(ctx context.Context) {
	tick := time.NewTicker(BeatInterval)
	defer tick.Stop()
	for {
		h.Beat(time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// Beat beats once.
func (h *Heart) Beat(now time.Time) {
	if loops := h.loops.Load(); loops != nil {
		for _, l := range *loops {
			if l.Late(now) >= StuckAfter {
				return
			}
		}
	}
	if err := h.Write(); err != nil {
		h.Log.Error("heartbeat", "error", err)
		return
	}
	h.Pulse.Beat(now)
}
