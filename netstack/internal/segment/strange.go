package segment

import (
	"sync/atomic"
	"time"
)

// A gateway that has died leaves the tuple to its host's kernel. The kernel's reset
// ends our connection, unless a socket of the application is still there: one in
// TIME_WAIT answers whatever comes, and stays for as long as segments come. So a segment
// counts only if it acknowledges what we could have sent. Where such answers are missing
// while others come in, the peer is gone.
//
// A host that cannot see the connection can send strange answers, too. They end it
// only if the peer, which is asked, has said nothing for StrangeTime. Their bytes and their
// FIN are dropped (RFC 5961 5.2): gVisor would look at the sequence number alone.
const (
	strangeMost = 5
	// StrangeTime is how long a peer that is asked has to be silent.
	StrangeTime = 10 * time.Second
)

// StrangeACKs counts the strange answers since the peer was asked and has not answered. Methods may be called concurrently.
type StrangeACKs struct {
	n     atomic.Uint32
	since atomic.Int64 // when it was asked first, nanoseconds of the caller's clock
	asked atomic.Int64 // when it was asked last
}

// Strange takes note, at a time, of an inbound ACK of an established connection that the peer cannot have sent. It reports
// whether another host has taken the peer's place, or else whether to ask the peer, which is done once in that long.
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
	default: // it was there just now
		return false, false
	}
	n := a.n.Add(1)
	return n >= strangeMost && now-a.since.Load() >= StrangeTime.Nanoseconds(), ask
}

// Heard takes note of one that the peer can have sent.
func (a *StrangeACKs) Heard() {
	if a.n.Load() != 0 {
		a.n.Store(0)
	}
}

// Count is how many strange answers there were since the peer was heard.
func (a *StrangeACKs) Count() uint32 { return a.n.Load() }
