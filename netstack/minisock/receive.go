package minisock

import (
	"time"

	"github.com/smcgw/smcgw/netstack/internal/segment"

	"github.com/smcgw/smcgw/packet"
)

// Verdict is the effect of an inbound segment.
type Verdict uint8

const (
	// Dropped: it had no effect and must not be answered.
	Dropped Verdict = iota
	// Taken: it was accepted. There may now be something to read, to send, and to acknowledge.
	Taken
	// Answer: it brings nothing new and requires an immediate acknowledgement (RFC 9293 3.10.7.4).
	Answer
	// Over: it is the exact reset of the connection.
	Over
	// Beyond: it requires a full endpoint, which must get the segment, too. The Sock has consumed none of it.
	Beyond
)

// String returns the name of v.
func (v Verdict) String() string {
	return [...]string{"dropped", "taken", "answer", "over", "beyond"}[v]
}

// special are the flags of segments that do more than carry bytes.
const special = packet.FlagFIN | packet.FlagURG

// challengesMost bounds how many segments are answered in a second that are not, or need not be, from the peer: two
// ends that disagree would answer each other forever, and a forged segment must cost little.
const challengesMost = 8

// Receive handles a segment that has a correct checksum and the addresses of this connection. Only a segment whose
// sender can see the connection is Beyond: it acknowledges what was sent, and is in the window.
func (s *Sock) Receive(now time.Duration, t packet.TCP, payload []byte) Verdict {
	flags := t.Flags()
	switch {
	case flags&packet.FlagRST != 0:
		return s.reset(now, t)
	case flags&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN|packet.FlagACK && t.Seq()+1 == s.rcv:
		return Answer // a repeated SYN-ACK: the peer did not get the acknowledgement
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
		return s.challenge(now) // acknowledges what was not sent, or is older than anything in flight: RFC 5961 5.2
	case o.TS && s.recent.Outdates(o.TSVal, now):
		return Answer // RFC 7323 5.3
	case packet.After(s.rcv, seq) && !packet.After(seq+length, s.rcv):
		s.hear(now)
		return Answer // a duplicate, or a keepalive probe
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

// reset handles a reset. One in the window that is not exact is challenged (RFC 5961 3.2).
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

// challenge answers a segment that the peer would not send, or has sent before. If it is from the peer after all, the
// answer tells the peer the actual state.
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

// acked handles an acknowledgement of everything before ack, by a peer that accepts window bytes from there on.
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
		s.nxt = ack // was about to be retransmitted
	}
}
