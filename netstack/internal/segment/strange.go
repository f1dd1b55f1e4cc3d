package segment

import (
	"sync/atomic"
	"time"
)

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
