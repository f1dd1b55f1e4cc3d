package loop

import (
	"context"
	"log/slog"
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

// Heart says that a gateway lives as long as every loop turns
// (docs/ARCHITECTURE.md "Shards").
type Heart struct {
	Loops []*Shard
	Write func() error // the heartbeat
	Pulse *Pulse       // notes it
	Log   *slog.Logger
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
	loops := make([]lagging, len(h.Loops))
	for i, s := range h.Loops {
		loops[i] = s
	}
	h.beat(loops, now)
}

func (h *Heart) beat(loops []lagging, now time.Time) {
	for _, l := range loops {
		if l.Late(now) >= StuckAfter {
			return
		}
	}
	if err := h.Write(); err != nil {
		h.Log.Error("heartbeat", "error", err)
		return
	}
	h.Pulse.Beat(now)
}
