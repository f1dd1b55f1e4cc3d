package loop

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

// BeatInterval is how often a gateway writes its heartbeat. The programs consider it gone after 200 ms without one.
const BeatInterval = 40 * time.Millisecond

// lagging is what the heartbeat asks of a loop: how late its next turn is, 0 if that is not due yet. A loop that is
// late by StuckAfter hangs.
type lagging interface {
	Late(now time.Time) time.Duration
	relieve(now time.Time)
}

// Heart writes a gateway's heartbeat as long as every loop that it watches turns (docs/ARCHITECTURE.md "Shards").
type Heart struct {
	Write func() error // writes the heartbeat
	Pulse *Pulse       // records it
	Log   *slog.Logger

	loops atomic.Pointer[[]lagging]
}

// Watch watches these loops, in place of earlier ones.
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

// Beat writes one heartbeat, unless a loop hangs.
func (h *Heart) Beat(now time.Time) {
	if loops := h.loops.Load(); loops != nil {
		for _, l := range *loops {
			l.relieve(now)
		}
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
