package minisock

import (
	"time"

	"github.com/smcgw/smcgw/netstack/internal/segment"

	"github.com/smcgw/smcgw/packet"
)

const (
	// Room is how many received bytes a Sock holds that were not read.
	Room = 32 << 10
	// window is what the peer is told of the room. A Sock holds less: its window never
	// closes, which would have to be told of when it opens, and is no smaller than what the
	// largest scale can say (RFC 7323 2.3).
	window = 2 * Room
	// Flight is how many bytes a Sock holds that were written and not acknowledged. They may
	// leave at once, on any path (RFC 6928 2).
	Flight = 12 << 10
	// Unacknowledged is how many received bytes may wait for their acknowledgement: less
	// than two full segments (RFC 9293 3.8.6.3) of any path.
	Unacknowledged = 1 << 10
	// repeatsMost is how often a Sock repeats what is not acknowledged. Behind that it
	// takes more than a Sock to find out why.
	repeatsMost = 2
)

// Config is the state of a connection whose handshake is over. Sequence numbers are those
// of the wire.
type Config struct {
	Seq, Ack uint32 // the first of ours and of the peer's
	Window   uint32 // bytes that the peer takes
	// Scale is by how much our windows are shifted, PeerScale those of the peer.
	Scale, PeerScale uint8
	Stamp, Recent    uint32 // the least timestamp that we may send, and the last of the peer
	// Owed says that the peer has not been told that its SYN came.
	Owed bool
	// Timeout is how long bytes are waited for before they are sent again the first time.
	Timeout time.Duration
	Now     time.Duration // the time, on the clock of all methods
}

// Sock is the connection. Its owner serializes all calls.
//
// It has no states but for being over: what would be a transition of another state of
// RFC 9293 3.3.2 is Beyond it.
type Sock struct {
	una, nxt, top    uint32 // ours: the oldest unacknowledged, the next to be sent, the highest sent
	rcv              uint32 // the peer's next
	told             uint32 // the last acknowledgement that left
	window           uint32 // from una on
	scale, peerScale uint8
	recent           segment.Recent
	stamp            uint32
	born             time.Duration // when the timestamp was stamp

	out, in []byte // written, from una on; received and not read

	timeout time.Duration
	repeats uint
	sentAt  time.Duration // of the oldest unacknowledged bytes, the last time
	alive   keepalive

	challenged challenged
}

// challenged counts the challenges of a second.
type challenged struct {
	since time.Duration
	n     int
}

// keepalive is when an idle peer is asked for a sign of life.
type keepalive struct {
	idle, interval time.Duration // idle 0: never
	count          int
	asked          int
	since          time.Duration // the peer counts as idle from here on
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

// Segment is one that leaves. The payload is valid until the next call of Write or Receive.
type Segment struct {
	Seq, Ack     uint32
	Flags        uint8
	Window       uint16
	TSVal, TSEcr uint32
	Payload      []byte
}

// Numbers is what a whole endpoint goes on with.
type Numbers struct {
	Seq, Ack uint32 // of the oldest bytes that are not acknowledged; the peer's next
	Sent     uint32 // the next that was not sent
	Window   uint32 // bytes that the peer takes from Seq on
	Stamp    uint32
	Recent   segment.Recent
	Written  []byte // all from Seq on, what was sent included
}

// Numbers returns the state of the connection at now.
func (s *Sock) Numbers(now time.Duration) Numbers {
	return Numbers{Seq: s.una, Sent: s.top, Ack: s.rcv, Window: s.window, Stamp: s.at(now), Recent: s.recent, Written: s.out}
}

// at is the timestamp of now, in milliseconds (RFC 7323 4.1).
func (s *Sock) at(now time.Duration) uint32 { return s.stamp + uint32((now-s.born)/time.Millisecond) }

// Write takes what there is room for of p to be sent, and returns how many bytes that are.
func (s *Sock) Write(p []byte) int {
	n := min(len(p), Flight-len(s.out))
	s.out = append(s.out, p[:n]...)
	return n
}

// Next returns the next segment with at most size bytes that the peer's window has room
// for; false: there is none.
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

// Stuck reports whether there are bytes to be sent that the peer's window has no room for.
func (s *Sock) Stuck() bool {
	sent := s.nxt - s.una
	return len(s.out) > int(sent) && s.window <= sent
}

// Ack returns the acknowledgement of all that came.
func (s *Sock) Ack(now time.Duration) Segment { return s.segment(now, s.top, packet.FlagACK) }

// Reset returns the reset that ends the connection.
func (s *Sock) Reset(now time.Duration) Segment {
	return s.segment(now, s.top, packet.FlagRST|packet.FlagACK)
}

// segment makes one that says what has come.
func (s *Sock) segment(now time.Duration, seq uint32, flags uint8) Segment {
	s.told = s.rcv
	return Segment{
		Seq: seq, Ack: s.rcv, Flags: flags, Window: uint16(min((window-len(s.in))>>s.scale, 0xffff)),
		TSVal: s.at(now), TSEcr: s.recent.Value,
	}
}

// Owes returns how many bytes of the peer wait for their acknowledgement. Behind the
// handshake that is one, for the peer's SYN.
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
