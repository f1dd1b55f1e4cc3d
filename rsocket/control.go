package rsocket

// Work request ids identify what completed: bits 55:48 are the kind, bits 47:32 the number of works other than controls
// so far, and bits 31:0 the lower half of the sent offset. Bit 63 marks receives, as in rsocket.c.
const (
	// RecvID is the work request id for receives.
	RecvID uint64 = 1 << 63

	workData       = 1
	workSGL        = 2
	workShutdown   = 3
	workDisconnect = 4
	workKeepalive  = 5
	workProbe      = 6
	workIOMap      = 7
	workDirect     = 8
)

func (s *Stream) workID(kind uint64) uint64 {
	return kind<<48 | uint64(uint16(s.send.works))<<32 | uint64(uint32(s.send.sent))
}

func workKind(id uint64) uint64   { return id >> 48 & 0xff }
func workNumber(id uint64) uint16 { return uint16(id >> 32) }
func workOffset(id uint64) uint32 { return uint32(id) }

// control holds the control messages to be sent, and those that occupy one of the four control slots.
type control struct {
	posted, done uint32 // control messages, in order (ctrl_seqno)

	shutdown, disconnect, keepalive bool // to be sent
}

func (c *control) available() bool { return c.posted-c.done < ControlSlots }

func (c *control) idle() bool { return c.posted == c.done }

// Control is a control message to post: always signaled, with a payload of at most 16 bytes.
type Control struct {
	Write
	// Slot is 0 to 3; the scratch buffer of that number is in use until the message completes.
	Slot int
	// Payload is the grant in the peer's byte order; its first Length bytes are sent.
	Payload [sgeSize]byte
}

// NextControl returns the next control message that is due and has a slot. Call it until it returns false after
// anything that can make one due: receiving, consuming, completing, shutting down. The messages must be posted in
// order, after all data sent so far.
func (s *Stream) NextControl() (Control, bool) {
	if !s.connected || s.err != nil || s.down || !s.ctrl.available() {
		return Control{}, false
	}
	switch {
	case s.live() && s.creditsWanted():
		return s.creditMessage(), true
	case s.ctrl.shutdown:
		s.ctrl.shutdown = false
		return s.controlMessage(workShutdown, MakeImm(OpCtrl, CtrlShutdown)), true
	case s.ctrl.disconnect:
		s.ctrl.disconnect = false
		return s.controlMessage(workDisconnect, MakeImm(OpCtrl, CtrlDisconnect)), true
	case s.live() && s.ctrl.keepalive:
		s.ctrl.keepalive = false
		c := s.controlMessage(workKeepalive, 0)
		c.Bare = true
		return c, true
	}
	return Control{}, false
}

// creditsWanted reports whether credits are due. They are not if the peer cannot use them, or after our last message.
func (s *Stream) creditsWanted() bool {
	if s.peerShut || !s.readable && !s.writable {
		return false
	}
	d := &s.recv
	return d.grantable() > 0 || d.creditsDue(int(s.set.credits)) || d.early && s.ctrl.idle()
}

// owesCredits reports whether credits may be returned early: to a gateway that does not know that we have consumed all
// that has arrived.
func (s *Stream) owesCredits() bool {
	d := &s.recv
	return s.live() && !s.peerShut && s.set.dialect == Gateway && d.consumed == d.messages && d.returned != d.consumed
}

// ReturnCredits makes the next control message return credits if any are due, so that the peer's [Stream.FreedOffset]
// becomes exact, unless the peer is a stock one or not all has been consumed. It waits until no other is in flight. It
// is for a stream at rest: a peer that handles nothing between several of them would run out of receives, and the rest
// of them would have to wait for it.
func (s *Stream) ReturnCredits() { s.recv.early = s.owesCredits() }

// creditsSettled reports whether the credits that ReturnCredits returns have arrived.
func (s *Stream) creditsSettled() bool { return s.ctrl.idle() && !(s.recv.early && s.owesCredits()) }

func (s *Stream) controlMessage(kind uint64, imm Imm) Control {
	c := Control{Slot: int(s.ctrl.posted % ControlSlots)}
	c.ID, c.Imm, c.Signaled = s.workID(kind), imm, true
	s.ctrl.posted++
	s.quiet = s.quiet && (kind == workKeepalive || kind == workProbe)
	return c
}

// creditMessage returns credits, and a grant if one is due (rs_send_credits).
func (s *Stream) creditMessage() Control {
	d := &s.recv
	d.returned, d.early = d.consumed, false
	d.limit = d.consumed + uint64(s.set.credits)
	c := s.controlMessage(workSGL, MakeImm(OpSGL, uint32(uint16(d.limit))))
	n := d.grantable()
	if n == 0 {
		return c
	}
	g := SGE{Addr: d.addr + uint64(d.grantNext.Count), Key: d.key, Length: uint32(n)}
	if d.next != nil {
		g = d.grantNextRing()
	} else {
		d.grant(n, d.ring.Size())
	}
	c.Payload = grantBytes(g, s.peer.bigEndian)
	c.RemoteAddr = s.peer.targets.Addr + uint64(d.slot)*sgeSize
	c.RKey, c.Length = s.peer.targets.Key, sgeSize
	d.slot = (d.slot + 1) % d.slots
	return c
}

// Completed handles a successful send completion.
func (s *Stream) Completed(id uint64) Events {
	s.retire(id)
	switch kind := workKind(id); {
	case kind == workIOMap:
		s.announced()
	case kind == workData, kind == workDirect, s.ctrl.idle():
	default:
		s.ctrl.done++
		if kind == workDisconnect && !s.disconnected {
			s.disconnect()
			return EventDisconnected
		}
	}
	return 0
}

// announced counts a completed announcement. The count is bounded by what was sent, since the work id comes from the
// queue pair.
func (s *Stream) announced() {
	if s.maps != nil {
		s.maps.completed = min(s.maps.announced, s.maps.completed+1)
	}
}

// Keepalive requests a zero-length write without immediate: the peer's transport answers it, its software sees nothing.
func (s *Stream) Keepalive() { s.ctrl.keepalive = true }

// Settled reports whether the queue pair may be closed: the stream is over and nothing of ours is waiting or in flight.
// After the peer's DISCONNECT, after a failure, or without a queue pair there is nothing to wait for.
func (s *Stream) Settled() bool {
	if s.err != nil || s.down || s.peerGone {
		return true
	}
	return s.disconnected && !s.ctrl.shutdown && !s.ctrl.disconnect && s.ctrl.idle()
}

// placed reports whether every send but control messages has completed.
func (s *Stream) placed() bool { return s.send.doneWorks == s.send.works }
