package loop

import (
	"sync/atomic"
	"time"
)

// StuckAfter is by how much the turn of a loop may be late before the heartbeat stops
// for all: new connections are native until it turns again.
const StuckAfter = 150 * time.Millisecond

// Pulse is how a gateway keeps time: its heartbeats, when it stood still, and by how much
// it came late. A gateway stands still when a loop hangs, or when its process or machine
// gets no processor; it comes late when it has to wait for one. What took too long
// meanwhile says nothing about a peer. The zero value has not begun. It is safe for
// concurrent use.
type Pulse struct {
	beat   Instant               // of the last heartbeat
	lateAt Instant               // when beats were resumed that had stopped
	delays [delays]atomic.Uint64 // the longest of a period each: its number above 32 bits, microseconds below
}

const (
	// delays periods are kept. What is older was waited for so long that only standing
	// still matters.
	delays      = 64
	delayPeriod = 128 * time.Millisecond
	// delayShare is the part of a wait by which the gateway itself may have been late.
	delayShare = 4
)

// Beat notes a heartbeat.
func (p *Pulse) Beat(now time.Time) {
	if p.missed(now) {
		p.lateAt.Store(now)
	}
	if last := p.beat.Load(); !last.IsZero() {
		p.Late(now, now.Sub(last)-BeatInterval)
	}
	p.beat.Store(now)
}

// Last returns the last heartbeat, zero for none.
func (p *Pulse) Last() time.Time { return p.beat.Load() }

// Late notes that something of this gateway came late by d.
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

// epoch is when periods are counted from, by the monotonic clock.
var epoch = time.Now()

func period(t time.Time) uint32 { return uint32(t.Sub(epoch) / delayPeriod) }

// missed reports whether the gateway stands still, or has until just now.
func (p *Pulse) missed(now time.Time) bool {
	last := p.beat.Load()
	return !last.IsZero() && now.Sub(last) >= StuckAfter
}

// WasLate reports whether the gateway has stood still at some time since then, or was so
// late that something which was waited for may have been there in time.
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
