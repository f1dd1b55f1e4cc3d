package netstack

import "github.com/smcgw/smcgw/packet"

// oldestACK is how far an acknowledgement that arrives late may be behind the last one: a whole window of the largest
// size.
const oldestACK = 8 << 20

// askAbout asks the peer of f for a sign of life, on another goroutine.
func (s *Stack) askAbout(f *flow) {
	s.clock.AfterFunc(0, func() {
		if c := f.conn.Load(); c != nil && s.hold() {
			defer s.release()
			c.Ask(nil)
		}
	})
}

// possible reports whether t can be from the peer, judging by what it acknowledges.
func (f *flow) possible(t packet.TCP) bool {
	const flags = packet.FlagSYN | packet.FlagACK | packet.FlagRST
	return t.Flags()&flags != packet.FlagACK || f.plausible(t.Ack())
}

// plausible reports whether the peer can acknowledge ack.
func (f *flow) plausible(ack uint32) bool {
	return !packet.After(ack, f.sent.Load()) && !packet.After(f.una.Load()-oldestACK, ack)
}

// makeReset turns a bare acknowledgement into the reset that its sender should have sent: exactly at the expected
// sequence number.
func makeReset(t packet.TCP, expected uint32) {
	t.SetSeq(expected)
	t.SetFlags(packet.FlagRST)
}
