package segment

import (
	"sync"
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
