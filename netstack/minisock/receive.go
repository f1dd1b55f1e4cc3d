package minisock

import (
	"time"

	"github.com/smcgw/smcgw/netstack/internal/segment"

	"github.com/smcgw/smcgw/packet"
)

// Verdict is what an inbound segment has done.
type Verdict uint8

const (
	// Dropped: nothing; it must not be answered.
	Dropped Verdict = iota
	// Taken: bytes or an acknowledgement were news, or nothing was. There may be something to read, to
	// send, and to acknowledge.
	Taken
	// Answer: it says nothing new and wants the acknowledgement at once (RFC 9293 3.10.7.4).
	Answer
	// Over: it is the exact reset of the connection.
	Over
	// Beyond: it takes a whole endpoint, which is to have the segment too. Nothing was taken of it.
	Beyond
)

// String returns the name of v.
func (v Verdict) String() string {
	return [...]string{"dropped", "taken", "answer", "over", "beyond"}[v]
}

// special are the flags of segments that do more than to carry bytes.
const special = packet.FlagFIN | packet.FlagURG

// challengesMost is how many segments that are not the peer's, or need not be, are answered in a second:
// two ends that disagree would answer each other for ever, and a forged segment must cost little.
const challengesMost = 8

// Receive judges a segment whose checksum is right, of this connection's addresses. Only one of a
// sender that sees the connection is Beyond: its acknowledgement is of what was sent, and it is in the window.
func (s *Sock) Receive(now time.Duration, t packet.TCP, payload []byte) Verdict {
	flags := t.Flags()
	switch {
	case flags&packet.FlagRST != 0:
		return s.reset(now, t)
	case flags&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN|packet.FlagACK && t.Seq()+1 == s.rcv:
		return Answer // the SYN-ACK once more: the acknowledgement has not reached the peer
	case flags&packet.FlagSYN != 0:
		return s.challenge(now) // RFC 5961 4.2
	case flags&packet.FlagACK == 0:
		return Dropped
	}
	o := packet.ParseTCPOptions(t.Options())
	ack, seq, length := t.Ack(), t.Seq(), uint32(len(payload))
	if flags&packet.FlagFIN != 0 {
		length++
	}
	switch {
	case packet.After(ack, s.top), packet.After(s.una-Flight, ack):
		return s.challenge(now) // of what was not sent, or of more than was ever under way: RFC 5961 5.2
	case o.TS && s.recent.Outdates(o.TSVal, now):
		return Answer // RFC 7323 5.3
	case packet.After(s.rcv, seq) && !packet.After(seq+length, s.rcv):
		s.hear(now)
		return Answer // it came before, or it is a keepalive probe
	case s.rcv-seq > length && seq-s.rcv >= window:
		return s.challenge(now)
	case s.rcv-seq > length, !o.TS, flags&special != 0, len(s.in)+len(payload) > Room:
		return Beyond
	}
	s.hear(now)
	if !packet.After(seq, s.told) {
		s.recent = segment.Recent{Value: o.TSVal, At: now} // RFC 7323 4.3
	}
	s.acked(now, ack, uint32(t.Window())<<s.peerScale)
	fresh := payload[s.rcv-seq:]
	if s.rcv += uint32(len(fresh)); len(fresh) > 0 {
		s.in = append(s.in, fresh...)
	}
	return Taken
}

// reset judges a reset: one that is not exact is challenged if it is in the window (RFC 5961 3.2).
func (s *Sock) reset(now time.Duration, t packet.TCP) Verdict {
	switch ahead := t.Seq() - s.rcv; {
	case ahead == 0:
		return Over
	case ahead < window:
		return s.challenge(now)
	default:
		return Dropped
	}
}

// challenge answers what the peer would not send, or would have sent before: were it the peer, it would know
// by the answer.
func (s *Sock) challenge(now time.Duration) Verdict {
	if now-s.challenged.since >= time.Second {
		s.challenged = challenged{since: now}
	}
	if s.challenged.n++; s.challenged.n > challengesMost {
		return Dropped
	}
	return Answer
}

func (s *Sock) hear(now time.Duration) {
	s.alive.since, s.alive.asked = now, 0
}

// acked takes an acknowledgement of everything before ack, by a peer that takes window bytes
// from there on.
func (s *Sock) acked(now time.Duration, ack, window uint32) {
	if packet.After(s.una, ack) {
		return
	}
	s.window = window
	if ack == s.una {
		return
	}
	s.out = s.out[ack-s.una:]
	if len(s.out) == 0 {
		s.out = nil
	}
	s.una, s.repeats, s.sentAt = ack, 0, now
	if packet.After(ack, s.nxt) {
		s.nxt = ack // it was to be sent again
	}
}
