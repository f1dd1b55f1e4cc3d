package netstack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/packet"
)

// unknownRTT seeds the retransmission timer when the owner could not measure.
const unknownRTT = 100 * time.Millisecond

// begin takes the measure of gVisor's own SYN, which the caller swallows.
func (a *adoption) begin(isn uint32, t packet.TCP) {
	o := packet.ParseTCPOptions(t.Options())
	a.seq = isn - t.Seq()
	a.ts = a.app.TSVal - o.TSVal
	a.synTS = o.TSVal
	if a.app.WS >= 0 && o.WS >= 0 && a.peer.WS >= 0 {
		a.wsNS, a.ws = uint8(o.WS), uint8(a.app.WS)
	}
	a.ready.Store(true)
}

// Adopt takes over the connection that the application's SYN began and the
// peer's SYN-ACK (with the accept) answered. Both are raw IP packets, of the SYN
// the headers suffice. synRTT is the time between them as the owner measured it
// (0: unknown); it seeds the retransmission timer.
//
// Adopt returns when the third ACK, with the confirm option, has left. A flow
// that lives on the tuple is forgotten first, unless it is the same connection:
// a repeated SYN-ACK yields ErrAdopted and changes nothing. On other errors
// nothing of the adoption remains but a lingering tuple; at most the third ACK
// was sent.
func (s *Stack) Adopt(ctx context.Context, syn, synack []byte, synRTT time.Duration) (*Conn, error) {
	if !s.hold() {
		return nil, fmt.Errorf("adopt: %w", net.ErrClosed)
	}
	defer s.release()
	f, err := s.newClientFlow(syn, synack)
	if err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	if err := s.clear(ctx, f); err != nil {
		return nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), err)
	}
	if err := s.flows.put(f, s.cfg.Limits); err != nil {
		return nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), err)
	}
	c, err := s.lead(ctx, f, synack, synRTT)
	if err != nil {
		s.retire(f)
		return nil, fmt.Errorf("adopt %v: %w", f.key.tuple(), err)
	}
	s.count.adopted.Add(1)
	return c, nil
}

// newClientFlow reads both packets and checks that they belong together.
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
	f := &flow{key: k, isn: isn, nonce: app.Option.Nonce, wq: &waiter.Queue{}, adopt: &adoption{app: app, peer: peer, iss: u.Seq(), look: lookOf(p)}}
	f.una.Store(isn + 1)
	f.sent.Store(isn + 1)
	f.segMax.Store(s.segMax(synack, peer.PeerMSS()))
	f.fitting.path.v6 = synack[0]>>4 == 6
	return f, nil
}

// parseHeaders reads a packet of which only the headers may be present.
func parseHeaders(raw []byte) (p packet.IP, t packet.TCP, ok bool) {
	if p, ok = parseIP(raw, 1<<17); !ok {
		return p, nil, false
	}
	t, err := p.TCP()
	return p, t, err == nil
}

// clear makes room for the new flow f on its tuple.
func (s *Stack) clear(ctx context.Context, f *flow) error {
	old := s.flows.get(f.key)
	if old == nil {
		return nil
	}
	var done <-chan struct{}
	if old.server {
		done = s.replace(old)
	} else {
		if old.alive() && old.isn == f.isn && old.nonce == f.nonce {
			return ErrAdopted
		}
		if c := old.conn.Load(); c != nil {
			c.Forget()
		}
		s.retire(old) // an Abort that is still at it does so later
		done = old.stillThere()
	}
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lead takes gVisor through a handshake of which nothing is on the wire but its
// last segment.
func (s *Stack) lead(ctx context.Context, f *flow, synack []byte, rtt time.Duration) (*Conn, error) {
	local, proto := fullAddress(f.key.tuple().Local)
	remote, _ := fullAddress(f.key.tuple().Remote)
	ep, terr := s.stack.NewEndpoint(tcp.ProtocolNumber, proto, f.wq)
	if terr != nil {
		return nil, mapError(terr)
	}
	entry, ready := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	f.wq.EventRegister(&entry)
	defer f.wq.EventUnregister(&entry)
	// The kernel gives one local port to connections with different peers.
	ep.SocketOptions().SetReuseAddress(true)
	f.adopt.look.dress(ep)
	if terr = ep.Bind(local); terr == nil {
		terr = ep.Connect(remote)
	}
	if _, started := terr.(*tcpip.ErrConnectStarted); !started {
		ep.Abort()
		return nil, mapError(terr)
	}
	if !f.adopt.ready.Load() {
		ep.Abort()
		return nil, fmt.Errorf("no syn of the stack's own: %w", net.ErrClosed)
	}
	s.injectSYNACK(f, synack, rtt)
	select {
	case <-ready:
	case <-ctx.Done():
		s.retire(f) // before the abort: nothing may be sent
		ep.Abort()
		return nil, context.Cause(ctx)
	}
	c := newConn(s, f, ep)
	c.synRTT = rtt
	f.conn.Store(c)
	if tcp.EndpointState(ep.State()) != tcp.StateEstablished || !f.state.CompareAndSwap(flowHandshake, flowOpen) {
		s.retire(f)
		ep.Abort()
		if terr = ep.LastError(); terr != nil {
			return nil, mapError(terr)
		}
		return nil, net.ErrClosed
	}
	return c, nil
}

// injectSYNACK gives the peer's SYN-ACK to gVisor, as the answer to its own SYN:
// without what the application did not ask for, and with an echoed timestamp as
// old as the round trip, or gVisor would take the hand-over for the round trip
// and retransmit every few milliseconds.
func (s *Stack) injectSYNACK(f *flow, synack []byte, rtt time.Duration) {
	raw := append([]byte(nil), synack...)
	_, t, ok := parseTCP(raw)
	if !ok {
		return // cannot be: newClientFlow has read it
	}
	a := f.adopt
	for kind, wanted := range map[byte]bool{packet.KindTimestamps: a.app.TS, packet.KindWindowScale: a.app.WS >= 0, packet.KindSACKPermitted: a.app.SACK} {
		if !wanted {
			t.Options().Blank(kind)
		}
	}
	a.in(t)
	if rtt <= 0 {
		rtt = unknownRTT
	}
	if echo := echoOf(t); echo != nil {
		binary.BigEndian.PutUint32(echo, a.synTS-uint32(rtt.Milliseconds()))
	}
	s.inject(raw)
}
