package rsocket

// MaxProbe is the longest probe: the largest RDMA path MTU.
const MaxProbe = 4096

// maxProbes bounds the probes that one stream sends and answers.
const maxProbes = 4

// probe is the state of the carrier proof between gateways. Before the first stream message, the client writes one full
// path MTU into the peer's first grant, and the server writes the same bytes back into the client's. Neither counts as
// stream data, costs a credit or moves an offset; the first stream bytes overwrite them.
//
// A probe may be repeated: on a lossy network the repetition makes the peer ask for what is missing, long before the
// transport's timer would. A late repetition may arrive after its receiver has begun to send stream messages, but never
// after stream messages of the prober: the transport keeps the order of each direction.
type probe struct {
	length   uint16 // of our probe
	echo     uint16 // length of the peer's probe to echo
	sent     uint8  // our probes
	echoes   uint8  // our probes that came back
	received uint8
}

// Probe returns the write of n probe bytes. They may be sent from anywhere but the start of our ring, where the echo
// arrives. A repetition must have the length and bytes of the first; too many fail with ErrBlocked. A probe that is not
// allowed now, or has an invalid length, is ErrState.
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

// Echo returns the answer to the received probe, if there is one. Its bytes are those of [Stream.ProbeBytes] and can be
// sent from there.
func (s *Stream) Echo() (Control, bool) {
	if s.test.echo == 0 || !s.mayProbe() || !s.ctrl.available() {
		return Control{}, false
	}
	n := int(s.test.echo)
	s.test.echo = 0
	return s.probeMessage(n, probeEcho), true
}

// ProbeBytes returns the first n bytes of our ring, where probes and echoes arrive; nil if n exceeds the ring.
func (s *Stream) ProbeBytes(n int) []byte {
	return s.recv.ring.First(n)
}

func (s *Stream) mayProbe() bool { return s.set.dialect == Gateway && s.live() && s.quiet }

// longestProbe returns the maximum length of a probe: half of either ring, to leave room for the memory that it is sent
// from.
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
	if !s.quiet { // a late repetition: the echo would overwrite stream bytes of ours
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
