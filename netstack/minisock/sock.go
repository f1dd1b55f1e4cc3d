package minisock

import (
	"time"

	"github.com/smcgw/smcgw/netstack/internal/segment"
	"github.com/smcgw/smcgw/packet"
)

const (
	// Room is how many unread bytes a Sock can hold.
	Room = 32 << 10
	// window is the room that is announced to the peer. A Sock can hold less. So its window never closes, which would
	// require an update when it opens again, and is never smaller than the largest scale can express (RFC 7323 2.3).
	window = 2 * Room
	// Flight is how many written and unacknowledged bytes a Sock can hold. They may be sent at once on any path (RFC
	// 6928 2).
	Flight = 12 << 10
	// Unacknowledged is how many received bytes may wait for their acknowledgement: less than two full segments (RFC
	// 9293 3.8.6.3) on any path.
	Unacknowledged = 1 << 10
	// repeatsMost is how often a Sock retransmits unacknowledged bytes. Beyond that only a full endpoint can find out
	// what is wrong.
	repeatsMost = 2
)

// Config is the state of a connection after its handshake. Sequence numbers are those on the wire.
type Config struct {
	Seq, Ack uint32 // the first of this side and of the peer
	Window   uint32 // in bytes, of the peer
	// Scale is the shift of this side's windows, PeerScale that of the peer's.
	Scale, PeerScale uint8
	Stamp, Recent    uint32 // the least timestamp that may be sent, and the last of the peer
	// Owed says that the peer's SYN has not been acknowledged yet.
	Owed bool
	// Timeout is the time until the first retransmission.
	Timeout time.Duration
	Now     time.Duration // current time, on the clock of all methods
}

// Sock is the connection. Its owner serializes all calls.
//
// Apart from being over it has only one state: every transition to another state of RFC 9293 3.3.2 is Beyond it.
type Sock struct {
	una, nxt, top    uint32 // of this side: oldest unacknowledged, next to send, highest sent
	rcv              uint32 // next expected from the peer
	told             uint32 // last acknowledgement sent
	window           uint32 // of the peer, from una on
	scale, peerScale uint8
	recent           segment.Recent
	stamp            uint32
	born             time.Duration // when the timestamp was stamp

	out, in []byte // written, from una on; received and unread

	timeout time.Duration
	repeats uint
	sentAt  time.Duration // when the oldest unacknowledged bytes were last sent
	alive   keepalive

	challenged challenged
}

// challenged counts the challenges of the current second.
type challenged struct {
	since time.Duration
	n     int
}

// keepalive says when to probe an idle peer.
type keepalive struct {
	idle, interval time.Duration // idle 0: never
	count          int
	asked          int
	since          time.Duration // since when the peer counts as idle
}

// New returns a Sock.
func New(c Config) *Sock {
	s := &Sock{
		una: c.Seq, nxt: c.Seq, top: c.Seq, rcv: c.Ack, told: c.Ack, window: c.Window,
		scale: c.Scale, peerScale: c.PeerScale, stamp: c.Stamp, recent: segment.Recent{Value: c.Recent, At: c.Now}, born: c.Now,
		timeout: c.Timeout,
	}
	if c.Owed {
		s.told--
	}
	return s
}

// Segment is an outbound segment. The payload is valid until the next call of Write or Receive.
type Segment struct {
	Seq, Ack     uint32
	Flags        uint8
	Window       uint16
	TSVal, TSEcr uint32
	Payload      []byte
}

// Numbers is the state from which a full endpoint continues.
type Numbers struct {
	Seq, Ack uint32 // oldest unacknowledged; next expected from the peer
	Sent     uint32 // next never sent
	Window   uint32 // in bytes, of the peer, from Seq on
	Stamp    uint32
	Recent   segment.Recent
	Written  []byte // everything from Seq on, including what was sent
}

// Numbers returns the state of the connection at now.
func (s *Sock) Numbers(now time.Duration) Numbers {
	return Numbers{Seq: s.una, Sent: s.top, Ack: s.rcv, Window: s.window, Stamp: s.at(now), Recent: s.recent, Written: s.out}
}

// at returns the timestamp for now, in milliseconds (RFC 7323 4.1).
func (s *Sock) at(now time.Duration) uint32 { return s.stamp + uint32((now-s.born)/time.Millisecond) }

// Write accepts as much of p as there is room for, and returns the number of bytes.
func (s *Sock) Write(p []byte) int {
	n := min(len(p), Flight-len(s.out))
	s.out = append(s.out, p[:n]...)
	return n
}

// Next returns the next segment that the peer's window has room for, with a payload of at most size bytes, or false if
// there is none.
func (s *Sock) Next(now time.Duration, size int) (Segment, bool) {
	sent := s.nxt - s.una
	n := min(len(s.out)-int(sent), size, int(s.window)-int(sent))
	if n <= 0 {
		return Segment{}, false
	}
	seg := s.segment(now, s.nxt, packet.FlagACK)
	seg.Payload = s.out[sent:][:n]
	if s.nxt += uint32(n); s.nxt == s.una+uint32(len(s.out)) {
		seg.Flags |= packet.FlagPSH
	}
	if packet.After(s.nxt, s.top) {
		s.top = s.nxt
	}
	if sent == 0 {
		s.sentAt = now
	}
	return seg, true
}

// Stuck reports whether there are bytes to send for which the peer's window has no room.
func (s *Sock) Stuck() bool {
	sent := s.nxt - s.una
	return len(s.out) > int(sent) && s.window <= sent
}

// Ack returns an acknowledgement of everything received.
func (s *Sock) Ack(now time.Duration) Segment { return s.segment(now, s.top, packet.FlagACK) }

// Reset returns the reset that ends the connection.
func (s *Sock) Reset(now time.Duration) Segment {
	return s.segment(now, s.top, packet.FlagRST|packet.FlagACK)
}

// segment returns a segment that acknowledges everything received.
func (s *Sock) segment(now time.Duration, seq uint32, flags uint8) Segment {
	s.told = s.rcv
	return Segment{
		Seq: seq, Ack: s.rcv, Flags: flags, Window: uint16(min((window-len(s.in))>>s.scale, 0xffff)),
		TSVal: s.at(now), TSEcr: s.recent.Value,
	}
}

// Owes returns how many bytes of the peer are not acknowledged yet. After the handshake that is 1, for the peer's SYN.
func (s *Sock) Owes() int { return int(s.rcv - s.told) }

// Read moves received bytes to p and returns how many.
func (s *Sock) Read(p []byte) int {
	n := copy(p, s.in)
	if s.in = s.in[n:]; len(s.in) == 0 {
		s.in = nil
	}
	return n
}

// Unread returns how many received bytes wait for Read.
func (s *Sock) Unread() int { return len(s.in) }

// Due is what has become due.
type Due uint8

const (
	// Nothing is due.
	Nothing Due = iota
	// Repeat: unacknowledged bytes must be retransmitted; Next returns them once more.
	Repeat
	// Probe: the peer must be probed with the segment that Sock.Probe returns.
	Probe
	// Silent: the peer has not answered any probe, so the connection has timed out.
	Silent
	// TooLate: retransmitted bytes are still not acknowledged, which requires a full endpoint.
	TooLate
)

// String returns the name of d.
func (d Due) String() string {
	return [...]string{"nothing", "repeat", "probe", "silent", "too late"}[d]
}

// SetKeepalive makes the Sock probe the peer when it has been idle for idle, starting now, and then every interval.
// After count unanswered probes it is Silent. idle 0 turns it off.
func (s *Sock) SetKeepalive(now, idle, interval time.Duration, count int) {
	s.alive = keepalive{idle: max(idle, 0), interval: interval, count: count, since: now}
}

// Keepalive returns the arguments of SetKeepalive.
func (s *Sock) Keepalive() (idle, interval time.Duration, count int) {
	return s.alive.idle, s.alive.interval, s.alive.count
}

// waits reports whether sent bytes are unacknowledged.
func (s *Sock) waits() bool { return s.nxt != s.una }

func (s *Sock) repeatAt() time.Duration { return s.sentAt + s.timeout<<s.repeats }

func (s *Sock) probeAt() time.Duration {
	return s.alive.since + s.alive.idle + time.Duration(s.alive.asked)*s.alive.interval
}

// Deadline returns when to call Expire, or false if nothing is pending. While bytes are unacknowledged, their
// retransmissions serve as probes.
func (s *Sock) Deadline() (at time.Duration, ok bool) {
	switch {
	case s.waits():
		return s.repeatAt(), true
	case s.alive.idle > 0:
		return s.probeAt(), true
	}
	return 0, false
}

// Expire returns what has become due at now.
func (s *Sock) Expire(now time.Duration) Due {
	at, ok := s.Deadline()
	switch {
	case !ok || at > now:
		return Nothing
	case s.waits() && s.repeats == repeatsMost:
		return TooLate
	case s.waits():
		s.repeats++
		s.nxt, s.sentAt = s.una, now
		return Repeat
	case s.alive.asked >= s.alive.count:
		return Silent
	}
	// After a pause of the process, probe once from now on instead of making up for all missed probes.
	s.alive.since = now - s.alive.idle - time.Duration(s.alive.asked)*s.alive.interval
	s.alive.asked++
	return Probe
}

// Probe returns a segment that the peer must answer (RFC 9293 3.8.4).
func (s *Sock) Probe(now time.Duration) Segment {
	seg := s.Ack(now)
	seg.Seq = s.una - 1
	return seg
}
