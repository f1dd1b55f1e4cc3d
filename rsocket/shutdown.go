package rsocket

// Shutdown ends the own direction after all data sent so far. If the peer's direction has ended too, the message is
// DISCONNECT, as rshutdown does it.
func (s *Stream) Shutdown() {
	if !s.live() || !s.writable {
		return
	}
	s.writable = false
	if s.readable {
		s.ctrl.shutdown = true
	} else {
		s.ctrl.disconnect = true
	}
}

// Disconnect ends both directions after all data sent so far. What the peer still has under way is received until the
// message completes.
func (s *Stream) Disconnect() {
	if !s.live() || !s.readable && !s.writable {
		return
	}
	s.readable, s.writable = false, false
	// A SHUTDOWN still waiting would make the peer disconnect as well: one message is enough.
	s.ctrl.shutdown, s.ctrl.disconnect = false, true
}

func (s *Stream) receiveControl(imm Imm, length uint32) (Events, error) {
	if length != 0 {
		return 0, s.violation(ViolationLength, imm, length)
	}
	switch imm.Data() {
	case CtrlDisconnect:
		s.peerShut, s.peerGone = true, true
		s.ctrl.shutdown, s.ctrl.disconnect = false, false // the peer does not listen any more
		return s.becomeDisconnected(), nil
	case CtrlShutdown:
		return s.receiveShutdown(), nil
	default:
		return 0, s.violation(ViolationImmediate, imm, length)
	}
}

// receiveShutdown: with our own direction shut as well, both sides are disconnected without a further message. Our own
// SHUTDOWN still goes out if it is waiting, since the peer needs it to come to the same conclusion.
func (s *Stream) receiveShutdown() Events {
	if s.peerShut {
		return 0
	}
	s.peerShut = true
	if s.writable {
		s.readable = false
		return EventShutdown
	}
	return EventShutdown | s.becomeDisconnected()
}

func (s *Stream) becomeDisconnected() Events {
	if s.disconnected {
		return 0
	}
	s.disconnect()
	return EventDisconnected
}

func (s *Stream) disconnect() {
	s.disconnected, s.readable, s.writable = true, false, false
	s.ctrl.keepalive = false
}
