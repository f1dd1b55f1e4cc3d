package rsocket

// MaxProbe is the longest probe: the largest RDMA path MTU.
const MaxProbe = 4096

// maxProbes bounds the probes one stream sends and answers.
const maxProbes = 4

// probe is the carrier proof between gateways: before the first stream message, the client writes one full path MTU
// into the peer's first grant, and the server writes the same bytes back into the client's. Neither counts as stream
// data, costs a credit or moves an offset; the bytes are overwritten by the first stream bytes.
//
// A probe may be repeated: on a network that loses packets the repetition makes the peer ask for what is missing, long
// before the transport's timer would. What is still on the way when the first echo is back meets a stream that has
// begun, but only on our side: the transport keeps the order of either direction.
type probe struct {
	length   uint16 // of the own probe
	echo     uint16 // length of the peer's probe to echo
	sent     uint8  // own probes
	echoes   uint8  // of them, those that came back
	received uint8
}

// Probe returns the write of n probe bytes. They may be sent from anywhere but the start of the own ring, where the echo
// arrives. Repetitions, as long as the first and the same bytes, fail with ErrBlocked when they are too many. A probe where
// none may be, or of a length that may not be, is ErrState.
func (s *Stream) Probe(n int) (Control, error) {
	t := &s.test
	if !s.mayProbe() || n <= 0 || n > s.longestProbe() || t.sent > 0 && n != int(t.length) {
		return Control{}, ErrState
	}
	if !s.ctrl.available() || t.sent == maxProbes {
		return Control{}, ErrBlocked
	}
	t.length = uint16(n)
	t.sent++
	return s.probeMessage(n, 0), nil
}

// Echo returns the answer to the probe that was received, if there is one. Its bytes are those of [Stream.ProbeBytes] and
// can be sent from there.
func (s *Stream) Echo() (Control, bool) {
	if s.test.echo == 0 || !s.mayProbe() || !s.ctrl.available() {
		return Control{}, false
	}
	n := int(s.test.echo)
	s.test.echo = 0
	return s.probeMessage(n, probeEcho), true
}

// ProbeBytes returns the first n bytes of the own ring, where probes and echoes arrive. Nil beyond the ring.
func (s *Stream) ProbeBytes(n int) []byte {
	return s.recv.ring.First(n)
}

func (s *Stream) mayProbe() bool { return s.set.dialect == Gateway && s.live() && s.quiet }

// longestProbe: half of either ring, so that it leaves room for what it is sent from.
func (s *Stream) longestProbe() int {
	return min(MaxProbe, int(s.send.ring.Length)/2, s.recv.ring.Size()/2)
}

func (s *Stream) probeMessage(n int, flag uint32) Control {
	c := s.controlMessage(workProbe, MakeImm(OpProbe, uint32(n)|flag))
	c.RemoteAddr, c.RKey, c.Length = s.send.ring.Addr, s.send.ring.Key, n
	return c
}

func (s *Stream) receiveProbe(imm Imm, length uint32) (Events, error) {
	t := &s.test
	n := int(imm.Data() &^ probeEcho)
	switch {
	case s.set.dialect != Gateway || !s.live() || s.heard:
		return 0, s.violation(ViolationProbe, imm, length)
	case n == 0 || uint32(n) != length:
		return 0, s.violation(ViolationLength, imm, length)
	case n > s.longestProbe():
		return 0, s.violation(ViolationProbe, imm, length)
	case imm.Data()&probeEcho != 0:
		return s.receiveEcho(imm, length)
	case t.echo != 0 || t.received == maxProbes:
		return 0, s.violation(ViolationProbe, imm, length)
	}
	t.received++
	if !s.quiet { // a late repetition: our own bytes are on their way to where the echo would go
		return 0, nil
	}
	t.echo = uint16(n)
	return EventProbe, nil
}

func (s *Stream) receiveEcho(imm Imm, length uint32) (Events, error) {
	t := &s.test
	if t.echoes == t.sent || uint32(t.length) != length {
		return 0, s.violation(ViolationProbe, imm, length)
	}
	t.echoes++
	if t.echoes > 1 {
		return 0, nil
	}
	return EventProved, nil
}
