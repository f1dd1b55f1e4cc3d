package rsocket

import (
	"math/bits"

	"github.com/smcgw/smcgw/rmb"
)

// MaxRing bounds rings so that every count fits the 29 bits of an immediate and 32-bit offset differences.
const MaxRing = rmb.MaxRing

// Stream is the protocol of one connection without any I/O: it says what to post and is told what completed. It never
// blocks or reads a clock, and stops allocating once its logs have grown to the peak number of messages in flight. It
// must not be used by two goroutines at a time.
//
// Offsets are absolute 64-bit byte counts of a direction since the connection began and never go back.
type Stream struct {
	set       settings
	peer      peerSettings
	err       error
	bigEndian bool // our byte order
	deaf      bool // failed for a reason other than losing the queue pair: what is received is ignored
	down      bool // the queue pair is gone

	connected, disconnected bool
	readable, writable      bool // as in rs_state: cleared by either side
	peerShut                bool // the peer announced that it will send no more data
	peerGone                bool // the peer sent its last message and posts nothing more
	quiet                   bool // no stream message was sent or received yet: probes may be sent
	heard                   bool // a stream message was received: no probe may follow it

	send sendSide
	recv recvSide
	ctrl control
	test probe
	maps *maps // nil between gateways
}

// State is the stream's position in the diagram of the package comment.
type State uint8

// States.
const (
	StateIdle         State = iota // before Connect
	StateOpen                      // both directions are open
	StateLocalShut                 // our direction has ended
	StateRemoteShut                // the peer's direction has ended
	StateDisconnected              // both have ended
	StateFailed                    // Err has the reason
)

// String names the state.
func (s State) String() string {
	names := [...]string{"idle", "open", "local_shut", "remote_shut", "disconnected", "failed"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// NewStream returns an idle stream, which uses cfg.Ring, cfg.Targets and cfg.IOMaps for its whole life. The error wraps
// [ErrConfig].
func NewStream(cfg Config) (*Stream, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Stream{set: cfg.settings(), bigEndian: nativeBigEndian()}
	s.recv.init(&cfg)
	s.send.init(&s.set)
	if cfg.Dialect == Stock {
		s.maps = &maps{own: cfg.IOMaps, slots: len(cfg.IOMaps) / iomapSize}
	}
	return s, nil
}

// ConnData returns, before Connect, the connection data to send to the peer.
func (s *Stream) ConnData() ConnData {
	c, ring := &s.set, s.recv.ring.Size()
	d := ConnData{
		BigEndian: s.bigEndian,
		Iomap:     true,
		Rings:     c.rings,
		Credits:   c.credits,
		TargetSGL: SGE{Addr: c.targetsAddr, Key: c.targetsKey, Length: uint32(len(c.targets) / sgeSize)},
		DataBuf:   SGE{Addr: s.recv.addr, Key: s.recv.key, Length: uint32(c.firstGrant(ring))},
	}
	if s.maps != nil {
		d.IomapSlots = uint16(s.maps.slots)
	}
	return d
}

// peerSettings is the part of the peer's connection data that a stream keeps; the peer's ring is in sendSide.
type peerSettings struct {
	bigEndian bool
	rings     bool
	credits   uint16
	targets   SGE
}

// Connect starts the stream with the peer's connection data. A second call returns [ErrState]; unusable data is a
// [*ProtocolError] and fails the stream.
func (s *Stream) Connect(peer ConnData) error {
	if s.connected || s.err != nil {
		return ErrState
	}
	if peer.Credits == 0 || peer.TargetSGL.Length == 0 || peer.DataBuf.Length == 0 ||
		peer.DataBuf.overflows() || s.set.dialect == Gateway && peer.DataBuf.Length > MaxRing {
		return s.fail(&ProtocolError{Violation: ViolationConnData})
	}
	s.peer = peerSettings{bigEndian: peer.BigEndian, rings: peer.Rings, credits: peer.Credits, targets: peer.TargetSGL}
	s.recv.connect(&s.set, peer)
	s.send.connect(&s.set, peer)
	if s.maps != nil && peer.Iomap {
		s.maps.peerSlots = int(peer.IomapSlots)
	}
	s.connected, s.readable, s.writable, s.quiet = true, true, true, true
	return nil
}

// State returns the stream's state.
func (s *Stream) State() State {
	switch {
	case s.err != nil:
		return StateFailed
	case s.disconnected:
		return StateDisconnected
	case !s.connected:
		return StateIdle
	case !s.writable:
		return StateLocalShut
	case !s.readable:
		return StateRemoteShut
	default:
		return StateOpen
	}
}

// Err returns the error that broke the stream, or nil.
func (s *Stream) Err() error { return s.err }

// SentOffset returns the number of bytes sent.
func (s *Stream) SentOffset() uint64 { return s.send.sent }

// FreedOffset returns the number of sent bytes that need not be kept any more: between gateways those that the peer has
// consumed, otherwise those that the transport has acknowledged.
func (s *Stream) FreedOffset() uint64 { return s.send.freed }

// ReceivedOffset returns the number of bytes received.
func (s *Stream) ReceivedOffset() uint64 { return s.recv.filling().Produced() }

// ConsumedOffset returns the number of received bytes that were consumed.
func (s *Stream) ConsumedOffset() uint64 { return s.recv.ring.Consumed() }

// PeerShut reports whether the peer announced that it will send no more data.
func (s *Stream) PeerShut() bool { return s.peerShut }

// PeerGone reports whether the peer sent DISCONNECT, after which it posts nothing more.
func (s *Stream) PeerGone() bool { return s.peerGone }

// Fail breaks the stream for an external reason, such as a failed queue pair. The first reason is kept.
func (s *Stream) Fail(err error) { _ = s.fail(err) }

// Lose breaks the stream because its queue pair is gone. Nothing more is sent, but messages that arrived before the
// loss, possibly the peer's last ones, may still be in the completion queue and are received. Losing the queue pair
// after the stream has ended is no error, except between gateways while bytes of ours are not placed: there the peer
// keeps its queue pair until it has everything.
func (s *Stream) Lose(err error) {
	s.down = true
	if s.err == nil && (!s.disconnected || s.set.dialect == Gateway && !s.placed()) {
		s.err = err
	}
}

func (s *Stream) fail(err error) error {
	if s.err == nil {
		s.err = err
	}
	s.deaf = true
	return s.err
}

func (s *Stream) violation(v Violation, imm Imm, length uint32) error {
	return s.fail(&ProtocolError{Violation: v, Imm: imm, Length: length})
}

// live reports whether messages can still be sent.
func (s *Stream) live() bool { return s.connected && !s.disconnected && s.err == nil }

// endsLog records where messages end, by message number, to turn a message count into a byte offset. The lower half of
// an offset is enough: two of them are never further apart than a ring. It grows with the number of messages in flight,
// since most connections are idle.
type endsLog struct {
	ends []uint32 // length a power of two
	low  uint64   // the last message asked for: older ones are not asked for again
	size uint32   // maximum length of ends; 0: no log is kept
}

// smallEndsLog is the initial length of a log, allocated with its first message.
const smallEndsLog = 2

// newEndsLog returns a log of the last n messages.
func newEndsLog(n int) endsLog {
	return endsLog{size: 1 << bits.Len(uint(n-1))}
}

func (l *endsLog) kept() bool { return l.size != 0 }

func (l *endsLog) mask() uint64 { return uint64(len(l.ends) - 1) }

func (l *endsLog) put(message, end uint64) {
	for message-l.low >= uint64(len(l.ends)) && len(l.ends) < int(l.size) {
		l.grow(message)
	}
	l.ends[message&l.mask()] = uint32(end)
}

// grow doubles the log; the message is put afterwards.
func (l *endsLog) grow(message uint64) {
	ends := make([]uint32, min(int(l.size), max(smallEndsLog, 2*len(l.ends))))
	mask := uint64(len(ends) - 1)
	for m := message - min(message, uint64(len(l.ends))); m < message; m++ {
		ends[m&mask] = l.ends[m&l.mask()]
	}
	l.ends = ends
}

// after returns how far the end of the message is beyond the offset, or a value that is not positive if it is not
// beyond. Messages must be asked for in order.
func (l *endsLog) after(message, offset uint64) int32 {
	l.low = message
	return int32(l.ends[message&l.mask()] - uint32(offset))
}
