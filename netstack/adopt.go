package netstack

import (
	"fmt"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/minisock"

	"github.com/smcgw/smcgw/packet"
)

// unknownRTT seeds the retransmission timer if the owner could not measure the round trip.
const unknownRTT = 100 * time.Millisecond

// Adopt takes over the connection that the application's SYN began and that the peer's SYN-ACK, with the accept option,
// has answered. Both are raw IP packets; of the SYN the headers suffice. synRTT is the time between them as the owner
// measured it (0: unknown), which seeds the retransmission timer.
//
// Adopt does not block. The third ACK, with the confirm option, leaves with the first written bytes, or soon without
// them. A live flow on the tuple is forgotten first, unless it is the same connection: for a repeated SYN-ACK Adopt
// returns ErrAdopted and changes nothing.
func (s *Stack) Adopt(syn, synack []byte, synRTT time.Duration) (*Conn, error) {
	if !s.hold() {
		return nil, fmt.Errorf("adopt: %w", net.ErrClosed)
	}
	defer s.release()
	f, err := s.newClientFlow(syn, synack)
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	f.rtt = synRTT
	old := s.flows.get(f.key)
	if old != nil && !old.server && old.alive() && old.isn == f.isn && old.nonce == f.nonce {
		return nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), ErrAdopted)
	}
	old.forget()
	c, err := s.adopted(f)
	if err != nil {
		return nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), err)
	}
	return c, nil
}

// adopted begins the connection of a SYN and a SYN-ACK, and acknowledges it.
func (s *Stack) adopted(f *flow) (*Conn, error) {
	a := f.adopt
	c, err := s.begin(f, minisock.Config{
		Seq: f.isn + 1, Ack: a.iss + 1, Owed: true, Window: uint32(a.window), Stamp: a.app.TSVal, Recent: a.peer.TSVal,
	})
	if err != nil {
		return nil, err
	}
	s.count.adopted.Add(1)
	if f.peer().TS {
		c.acknowledge()
	} else {
		c.QuickACK() // segments of a mini socket always have timestamps
	}
	return c, nil
}

// newClientFlow parses both packets and checks that they belong together.
func (s *Stack) newClientFlow(syn, synack []byte) (*flow, error) {
	p, t, ok := parseHeaders(syn)
	if !ok || t.Flags()&(packet.FlagSYN|packet.FlagACK|packet.FlagRST) != packet.FlagSYN {
		return nil, fmt.Errorf("syn: %w", ErrPacket)
	}
	q, u, ok := parseTCP(synack)
	if !ok || u.Flags()&(packet.FlagSYN|packet.FlagACK|packet.FlagRST) != packet.FlagSYN|packet.FlagACK {
		return nil, fmt.Errorf("syn-ack: %w", ErrPacket)
	}
	k, isn := outboundKey(p.Header, t), t.Seq()
	if k != inboundKey(q.Header, u) || u.Ack() != isn+1 || !k.tuple().valid() {
		return nil, fmt.Errorf("syn-ack of another connection: %w", ErrPacket)
	}
	app, peer := packet.ParseTCPOptions(t.Options()), packet.ParseTCPOptions(u.Options())
	if app.Option.Role != packet.RoleOffer || peer.Option.Role != packet.RoleAccept || app.Option.Nonce != peer.Option.Nonce {
		return nil, fmt.Errorf("no matching offer and accept: %w", ErrPacket)
	}
	f := &flow{key: k, isn: isn, nonce: app.Option.Nonce, wq: &waiter.Queue{}, adopt: &adoption{app: app, peer: peer, iss: u.Seq(), look: lookOf(p), window: u.Window()}}
	f.una.Store(isn + 1)
	f.sent.Store(isn + 1)
	f.segMax.Store(s.segMax(synack, peer.PeerMSS()))
	f.awaited.Store(u.Seq() + 1)
	return f, nil
}

// parseHeaders parses a packet of which possibly only the headers are present.
func parseHeaders(raw []byte) (p packet.IP, t packet.TCP, ok bool) {
	if p, ok = parseIP(raw, 1<<17); !ok {
		return p, nil, false
	}
	t, err := p.TCP()
	return p, t, err == nil
}
