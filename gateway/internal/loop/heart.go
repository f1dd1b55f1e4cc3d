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

// StuckAfter is how late the turn of a loop may be before the heartbeat stops for all: new connections are native until
// it turns again.
const StuckAfter = 150 * time.Millisecond

// Pulse records how well a gateway keeps time: its heartbeats, when it stood still, and how late it was. A gateway
// stands still when a loop hangs, or when its process or machine gets no processor; it is late when it has to wait for
// one. A wait that was too long meanwhile says nothing about a peer. The zero value has not begun. Pulse is safe for
// concurrent use.
type Pulse struct {
	beat   Instant               // the latest heartbeat
	lateAt Instant               // when the gateway last resumed after standing still
	delays [delays]atomic.Uint64 // longest delay of each period: period number in the upper 32 bits, µs below
}

const (
	// delays is how many periods are kept. A wait that began earlier is so long that only standing still matters for
	// it.
	delays      = 64
	delayPeriod = 128 * time.Millisecond
	// delayShare is the fraction of a wait, one in so many, by which the gateway may be late before the wait proves
	// nothing.
	delayShare = 4
)

// Beat records a heartbeat.
func (p *Pulse) Beat(now time.Time) {
	if p.missed(now) {
		p.lateAt.Store(now)
	}
	if last := p.beat.Load(); !last.IsZero() {
		p.Late(now, now.Sub(last)-BeatInterval)
	}
	p.beat.Store(now)
}

// Last returns the latest heartbeat, zero if there was none.
func (p *Pulse) Last() time.Time { return p.beat.Load() }

// Late records that something in this gateway was late by d.
func (p *Pulse) Late(now time.Time, d time.Duration) {
	if d >= StuckAfter {
		p.lateAt.Store(now)
	}
	if d < time.Microsecond {
		return
	}
	n := period(now)
	at, word := &p.delays[n%delays], uint64(n)<<32|uint64(min(d.Microseconds(), 1<<32-1))
	for old := at.Load(); old < word && !at.CompareAndSwap(old, word); old = at.Load() {
	}
}

// epoch is the time from which periods are counted, by the monotonic clock.
var epoch = time.Now()

func period(t time.Time) uint32 { return uint32(t.Sub(epoch) / delayPeriod) }

// missed reports whether the gateway is standing still, or was until just now.
func (p *Pulse) missed(now time.Time) bool {
	last := p.beat.Load()
	return !last.IsZero() && now.Sub(last) >= StuckAfter
}

// WasLate reports whether, since a time, the gateway has stood still, or was so late that something it has waited for
// may have arrived in time.
func (p *Pulse) WasLate(since, now time.Time, waited time.Duration) bool {
	if p.missed(now) || p.lateAt.Load().After(since) {
		return true
	}
	allowed := max(waited/delayShare, time.Microsecond)
	if last := p.beat.Load(); !last.IsZero() && now.Sub(last)-BeatInterval >= allowed {
		return true
	}
	from, to := period(since), period(now)
	for i := range p.delays {
		w := p.delays[i].Load()
		if n := uint32(w >> 32); n-from <= to-from && time.Duration(uint32(w))*time.Microsecond >= allowed {
			return true
		}
	}
	return false
}

// Late returns how late the loop's next turn is. It is 0 once the loop has ended: what the gateway still closes may
// take a while.
func (s *Shard) Late(now time.Time) time.Duration {
	if s.left.Load() {
		return 0
	}
	return max(0, now.Sub(s.made)-time.Duration(s.due.Load()))
}

// expect makes the next turn due now. A loop that is about to sleep first publishes until when, and then looks for
// posts. So either it sees the post for which expect is called, or expect sees the new due time.
func (s *Shard) expect(now time.Time) {
	at := int64(now.Sub(s.made))
	for {
		due := s.due.Load()
		if due <= at || s.due.CompareAndSwap(due, at) {
			return
		}
	}
}

// Instant is a time that goroutines share. Unlike a number of nanoseconds it keeps the monotonic clock reading, so it
// is immune to jumps of the wall clock. The zero value is the zero time.
type Instant struct{ at atomic.Pointer[time.Time] }

// Load returns the time.
func (i *Instant) Load() time.Time {
	if t := i.at.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Store sets the time.
func (i *Instant) Store(t time.Time) { i.at.Store(&t) }

// Passed moves the instant to now if it is at least d ago, and reports whether
// this caller moved it.
func (i *Instant) Passed(now time.Time, d time.Duration) bool {
	last := i.at.Load()
	return (last == nil || now.Sub(*last) >= d) && i.at.CompareAndSwap(last, &now)
}
