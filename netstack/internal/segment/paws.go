package segment

import (
	"sync"
	"time"

	"github.com/smcgw/smcgw/packet"
)

// outdated is the age of a timestamp that says nothing about later ones: the peer's clock may have gone
// round half since (RFC 7323 5.5).
const outdated = 24 * 24 * time.Hour

// Recent is the timestamp of a peer that others are compared with (TS.Recent of RFC 7323 4.3), and when it came.
type Recent struct {
	Value uint32
	At    time.Duration
}

// Outdates reports whether a segment with the timestamp v that comes now is an old duplicate.
func (r Recent) Outdates(v uint32, now time.Duration) bool {
	return packet.After(r.Value, v) && now-r.At < outdated
}

// PAWS protects one flow against wrapped sequence numbers (RFC 7323 5): a segment with a timestamp older than one that came
// before is an old duplicate, whatever its sequence number. The zero value takes all. Methods may be called concurrently.
type PAWS struct {
	mu     sync.Mutex // guards everything below
	begun  bool
	recent Recent
}

// Begin has g compare segments with r, and with what comes.
func (g *PAWS) Begin(r Recent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.begun, g.recent = true, r
}

// Stamped is a segment with a timestamp that has come, of a flow that has acknowledged everything before Acked.
type Stamped struct {
	Seq, End, Acked uint32
	Stamp           uint32
	Now             time.Duration
}

// Takes reports whether s is no old duplicate. The timestamp of one that reaches what was acknowledged counts from here on
// (RFC 7323 4.3): that of one in front of it or after a gap may be forged, or newer than what is missing.
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
