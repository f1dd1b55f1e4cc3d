package netstack

import (
	"sync/atomic"
	"time"

	"github.com/smcgw/smcgw/packet"
)

// A gateway that has died leaves the tuple to its host's kernel. The kernel's reset
// ends our connection, unless a socket of the application is still there: one in
// TIME_WAIT answers whatever comes, and stays for as long as segments come. So a segment
// counts only if it acknowledges what we could have sent. Where such answers are missing
// while others come in, the peer is gone.
//
// A host that cannot see the connection can send strange answers, too. They end it
// only if the peer, which is asked, has said nothing for strangeTime. Their bytes and their
// FIN are dropped (RFC 5961 5.2): gVisor would look at the sequence number alone.
const (
	strangeMost = 5
	strangeTime = 10 * time.Second
	// oldestACK is how far behind the last one an acknowledgement that was late may be: a
	// whole window of the largest size.
	oldestACK = 8 << 20
)

// strangeACKs counts the strange answers since the peer was asked and has not answered.
type strangeACKs struct {
	n     atomic.Uint32
	since atomic.Int64 // when it was asked first, nanoseconds of the stack's clock
	asked atomic.Int64 // when it was asked last
}

// strange takes note of an inbound ACK of an established connection that the peer cannot have sent. It
// reports whether another host has taken the peer's place, or else whether to ask the peer.
func (a *strangeACKs) strange(at int64) (gone, ask bool) {
	last := a.asked.Load()
	ask = last == 0 || at-last >= int64(askFor)
	if ask {
		a.asked.Store(at)
	}
	switch {
	case a.n.Load() > 0:
	case ask:
		a.since.Store(at)
	default: // it was there just now
		return false, false
	}
	n := a.n.Add(1)
	return n >= strangeMost && at-a.since.Load() >= int64(strangeTime), ask
}

// heard takes note of one that the peer can have sent.
func (a *strangeACKs) heard() {
	if a.n.Load() != 0 {
		a.n.Store(0)
	}
}

// askAbout asks the peer of f for a sign of life, from another goroutine.
func (s *Stack) askAbout(f *flow) {
	s.clock.AfterFunc(0, func() {
		if c := f.conn.Load(); c != nil && s.hold() {
			defer s.release()
			c.Ask(nil)
		}
	})
}

// possible reports whether t may be the peer's, by what it acknowledges.
func (f *flow) possible(t packet.TCP) bool {
	const flags = packet.FlagSYN | packet.FlagACK | packet.FlagRST
	return t.Flags()&flags != packet.FlagACK || f.state.Load() == flowHandshake || f.plausible(t.Ack())
}

// plausible reports whether the peer can acknowledge that.
func (f *flow) plausible(ack uint32) bool {
	return !packet.After(ack, f.sent.Load()) && !packet.After(f.una.Load()-oldestACK, ack)
}

// makeReset turns a bare acknowledgement into the reset its sender owes us: exactly at
// the sequence number that we expect.
func makeReset(t packet.TCP, expected uint32) {
	t.SetSeq(expected)
	t.SetFlags(packet.FlagRST)
}
