package segment

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/packet"
)

// outdated is the age from which a timestamp says nothing about later ones, because the peer's clock may have wrapped
// halfway since (RFC 7323 5.5).
const outdated = 24 * 24 * time.Hour

// Recent is the peer's timestamp with which others are compared (TS.Recent of RFC 7323 4.3), and when it arrived.
type Recent struct {
	Value uint32
	At    time.Duration
}

// Outdates reports whether a segment with timestamp v that arrives now is an old duplicate.
func (r Recent) Outdates(v uint32, now time.Duration) bool {
	return packet.After(r.Value, v) && now-r.At < outdated
}

// PAWS protects a flow against wrapped sequence numbers (RFC 7323 5): a segment with an older timestamp than an earlier
// one is an old duplicate, whatever its sequence number. The zero value accepts everything. It is safe for concurrent
// use.
type PAWS struct {
	mu     sync.Mutex // guards everything below
	begun  bool
	recent Recent
}

// Begin makes g compare segments with r, and with those that arrive.
func (g *PAWS) Begin(r Recent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun, g.recent = true, r
}

// Stamped is an inbound segment with a timestamp, on a flow that has acknowledged everything before Acked.
type Stamped struct {
	Seq, End, Acked uint32
	Stamp           uint32
	Now             time.Duration
}

// Takes reports whether s is not an old duplicate. The timestamp of a segment that reaches what was acknowledged
// becomes the one to compare with (RFC 7323 4.3). That of an earlier segment, or of one after a gap, does not, as it
// may be forged, or newer than what is missing.
func (g *PAWS) Takes(s Stamped) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.begun:
	case g.recent.Outdates(s.Stamp, s.Now):
		return false
	case s.Acked-s.Seq <= s.End-s.Seq:
		g.recent = Recent{Value: s.Stamp, At: s.Now}
	}
	return true
}

// A gateway that dies leaves the tuple to its host's kernel. The kernel's reset ends our connection, unless the
// application's socket is still there: in TIME_WAIT it answers everything, and stays there as long as segments come. So
// a segment counts as the peer's only if it acknowledges something we may have sent. If no such segment comes while
// others do, the peer is gone.
//
// A host that cannot see the connection can send strange answers, too. They end the connection only if the peer, which
// is asked, has been silent for StrangeTime. Their bytes and their FIN are dropped (RFC 5961 5.2), since gVisor checks
// only the sequence number.
const (
	strangeMost = 5
	// StrangeTime is how long a peer that is asked must have been silent.
	StrangeTime = 10 * time.Second
)

// StrangeACKs counts the strange answers since the peer was asked and has not answered. It is safe for concurrent use.
type StrangeACKs struct {
	n     atomic.Uint32
	since atomic.Int64 // when it was first asked, in nanoseconds of the caller's clock
	asked atomic.Int64 // when it was last asked
}

// Strange records an inbound ACK at time at that the peer of an established connection cannot have sent. It reports
// whether another host has taken the peer's place, or whether to ask the peer, which is due once per every.
func (a *StrangeACKs) Strange(at, every time.Duration) (gone, ask bool) {
	last, now := a.asked.Load(), at.Nanoseconds()
	ask = last == 0 || now-last >= every.Nanoseconds()
	if ask {
		a.asked.Store(now)
	}
	switch {
	case a.n.Load() > 0:
	case ask:
		a.since.Store(now)
	default: // the peer has answered just now
		return false, false
	}
	n := a.n.Add(1)
	return n >= strangeMost && now-a.since.Load() >= StrangeTime.Nanoseconds(), ask
}

// Heard records a segment that the peer may have sent.
func (a *StrangeACKs) Heard() {
	if a.n.Load() != 0 {
		a.n.Store(0)
	}
}

// Count returns the number of strange answers since the peer was heard.
func (a *StrangeACKs) Count() uint32 { return a.n.Load() }
