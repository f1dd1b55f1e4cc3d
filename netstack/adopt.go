package netstack

import (
	"fmt"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/packet"
)

// unknownRTT seeds the retransmission timer when the owner could not measure.
const unknownRTT = 100 * time.Millisecond

// Adopt takes over the connection that the application's SYN began and the
// peer's SYN-ACK (with the accept) answered. Both are raw IP packets, of the SYN
// the headers suffice. synRTT is the time between them as the owner measured it
// (0: unknown); it seeds the retransmission timer.
//
// Adopt does not wait. done is called once, when the third ACK, with the confirm option,
// has left, or with why there is no connection, maybe before Adopt returns. A flow that
// lives on the tuple is forgotten first, unless it is the same connection: a repeated
// SYN-ACK yields ErrAdopted and changes nothing. On other errors nothing of the adoption remains but a lingering
// tuple; at most the third ACK was sent.
func (s *Stack) Adopt(syn, synack []byte, synRTT time.Duration, done func(*Conn, error)) {
	if !s.hold() {
		done(nil, fmt.Errorf("adopt: %w", net.ErrClosed))
		return
	}
	defer s.release()
	f, answer, err := s.newClientFlow(syn, synack)
	if err != nil {
		done(nil, fmt.Errorf("adopt: %w", err))
		return
	}
	f.rtt = synRTT
	adopted := func(c *Conn, err error) {
		if err != nil {
			done(nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), err))
			return
		}
		s.count.adopted.Add(1)
		done(c, nil)
	}
	begin := func() {
		rtt := synRTT
		if rtt <= 0 {
			rtt = unknownRTT
		}
		if err := s.lead(f, answer, uint32(rtt.Milliseconds()), adopted); err != nil {
			adopted(nil, err)
		}
	}
	there, err := s.clear(f)
	switch {
	case err != nil:
		adopted(nil, err)
	case there == nil:
		begin()
	default:
		s.busy.Add(1)
		go s.whenGone(there, begin, adopted)
	}
}

// whenGone begins a handshake when gVisor has let go of the one before on its tuple.
func (s *Stack) whenGone(there <-chan struct{}, begin func(), done func(*Conn, error)) {
	defer s.release()
	late := time.NewTimer(s.cfg.HandshakeTimeout)
	defer late.Stop()
	select {
	case <-there:
		begin()
	case <-late.C:
		done(nil, ErrHandshakeTimeout)
	}
}

// newClientFlow reads both packets and checks that they belong together. answer is the
// SYN-ACK for gVisor, without what the application did not ask for.
func (s *Stack) newClientFlow(syn, synack []byte) (f *flow, answer []byte, err error) {
	p, t, ok := parseHeaders(syn)
	if !ok || t.Flags()&(packet.FlagSYN|packet.FlagACK|packet.FlagRST) != packet.FlagSYN {
		return nil, nil, fmt.Errorf("syn: %w", ErrPacket)
	}
	answer = append([]byte(nil), synack...)
	q, u, ok := parseTCP(answer)
	if !ok || u.Flags()&(packet.FlagSYN|packet.FlagACK|packet.FlagRST) != packet.FlagSYN|packet.FlagACK {
		return nil, nil, fmt.Errorf("syn-ack: %w", ErrPacket)
	}
	k, isn := outboundKey(p.Header, t), t.Seq()
	if k != inboundKey(q.Header, u) || u.Ack() != isn+1 || !k.tuple().valid() {
		return nil, nil, fmt.Errorf("syn-ack of another connection: %w", ErrPacket)
	}
	app, peer := packet.ParseTCPOptions(t.Options()), packet.ParseTCPOptions(u.Options())
	if app.Option.Role != packet.RoleOffer || peer.Option.Role != packet.RoleAccept || app.Option.Nonce != peer.Option.Nonce {
		return nil, nil, fmt.Errorf("no matching offer and accept: %w", ErrPacket)
	}
	f = &flow{key: k, isn: isn, nonce: app.Option.Nonce, wq: &waiter.Queue{}, adopt: &adoption{app: app, peer: peer, iss: u.Seq(), look: lookOf(p)}}
	f.una.Store(isn + 1)
	f.sent.Store(isn + 1)
	f.segMax.Store(s.segMax(synack, peer.PeerMSS()))
	f.fitting.path.v6 = synack[0]>>4 == 6
	for kind, wanted := range map[byte]bool{packet.KindTimestamps: app.TS, packet.KindWindowScale: app.WS >= 0, packet.KindSACKPermitted: app.SACK} {
		if !wanted {
			u.Options().Blank(kind)
		}
	}
	return f, answer, nil
}

// parseHeaders reads a packet of which only the headers may be present.
func parseHeaders(raw []byte) (p packet.IP, t packet.TCP, ok bool) {
	if p, ok = parseIP(raw, 1<<17); !ok {
		return p, nil, false
	}
	t, err := p.TCP()
	return p, t, err == nil
}

// clear makes room for the new flow f on its tuple. there is closed when gVisor has let go
// of the old one; nil: it has.
func (s *Stack) clear(f *flow) (there <-chan struct{}, err error) {
	old := s.flows.get(f.key)
	switch {
	case old == nil:
		return nil, nil
	case old.server:
		return s.replace(old), nil
	case old.alive() && old.isn == f.isn && old.nonce == f.nonce:
		return nil, ErrAdopted
	}
	if c := old.conn.Load(); c != nil {
		c.Forget()
	}
	s.giveUp(old, net.ErrClosed)
	s.retire(old) // an Abort that is still at it does so later
	return old.stillThere(), nil
}
