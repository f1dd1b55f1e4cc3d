package rsocket

// Shutdown ends our direction after all data sent so far. If the peer's direction has ended too, the message is
// DISCONNECT, as in rshutdown.
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

// Disconnect ends both directions after all data sent so far. What the peer still has in flight is received until the
// message completes.
func (s *Stream) Disconnect() {
	if !s.live() || !s.readable && !s.writable {
		return
	}
	s.readable, s.writable = false, false
	// A pending SHUTDOWN would also make the peer disconnect: one message is enough.
	s.ctrl.shutdown, s.ctrl.disconnect = false, true
}

func (s *Stream) receiveControl(imm Imm, length uint32) (Events, error) {
	if length != 0 {
		return 0, s.violation(ViolationLength, imm, length)
	}
	switch imm.Data() {
	case CtrlDisconnect:
		s.peerShut, s.peerGone = true, true
		s.ctrl.shutdown, s.ctrl.disconnect = false, false // the peer no longer receives
		return s.becomeDisconnected(), nil
	case CtrlShutdown:
		return s.receiveShutdown(), nil
	default:
		return 0, s.violation(ViolationImmediate, imm, length)
	}
}

// receiveShutdown handles SHUTDOWN. If our direction has been shut down too, both sides become disconnected without a
// further message. A SHUTDOWN of ours that is pending is still sent: the peer needs it to reach the same conclusion.
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
