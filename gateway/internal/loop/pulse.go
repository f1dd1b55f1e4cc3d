package loop

import "time"

// StuckAfter is by how much the turn of a loop may be late before the heartbeat stops
// for all: new connections are native until it turns again.
const StuckAfter = 150 * time.Millisecond

// Pulse is how a gateway keeps time: its heartbeats, and when it stood still. A gateway
// stands still when a loop hangs, or when its process or machine gets no processor. What
// took too long meanwhile says nothing about a peer. The zero value has not begun. It is
// safe for concurrent use.
type Pulse struct {
	beat   Instant // of the last heartbeat
	lateAt Instant // when beats were resumed that had stopped, or a deadline was looked at late
}

// Beat notes a heartbeat.
func (p *Pulse) Beat(now time.Time) {
	if p.missed(now) {
		p.lateAt.Store(now)
	}
	p.beat.Store(now)
}

// Last returns the last heartbeat, zero for none.
func (p *Pulse) Last() time.Time { return p.beat.Load() }

// Late notes that a deadline was looked at late.
func (p *Pulse) Late(now time.Time) { p.lateAt.Store(now) }

// missed reports whether the gateway stands still, or has until just now.
func (p *Pulse) missed(now time.Time) bool {
	last := p.beat.Load()
	return !last.IsZero() && now.Sub(last) >= StuckAfter
}

// WasLate reports whether the gateway has stood still at some time since then.
func (p *Pulse) WasLate(since, now time.Time) bool {
	return p.missed(now) || p.lateAt.Load().After(since)
}
