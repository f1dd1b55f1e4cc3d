package netstack

import (
	"errors"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/netstack/minisock"
	"github.com/smcgw/smcgw/packet"
)

// synOf rebuilds the SYN that the client of a proof has sent (docs/PROTOCOL.md "Cookies"). n and t are the headers of
// the segment that proved the handshake.
func synOf(pr *cookieProof, n []byte, t packet.TCP) []byte {
	head := pr.SYN(t)
	q := buildTCP(plainHeader(n), head, head[packet.TCPMinLen:], nil)
	defer q.DecRef()
	return link.Flatten(q)
}

// plainHeader returns the network header n without options.
func plainHeader(n []byte) []byte {
	if n[0]>>4 == 6 {
		return n
	}
	h := append([]byte(nil), n[:packet.IPv4MinLen]...)
	h[0] = 0x45
	return h
}

// confirmedHeader is the least size of a TCP header with timestamps and the confirm option.
const confirmedHeader = packet.TCPMinLen + 12 + optionSpace

// mayProve reports whether a segment can be the first of a new connection on the tuple of f, which is nil if there is
// no flow. A live flow is replaced only by a segment with the confirm option, because its owner may just not have ended
// it yet.
func mayProve(f *flow, t packet.TCP) bool {
	if f == nil || f.isn == t.Seq()-1 {
		return f == nil
	}
	return !f.alive() || f.server && len(t) >= confirmedHeader && packet.ParseTCPOptions(t.Options()).Option.Role == packet.RoleConfirm
}

// proved handles a segment that may be the first of a connection whose SYN was answered on the stack's behalf. It
// returns false if the segment is not. old is the flow of its tuple, if any.
func (s *Stack) proved(k tupleKey, old *flow, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) bool {
	pr, ok := readCookie(t)
	if !ok {
		return false
	}
	syn := SYN{Tuple: k.tuple(), ISN: pr.ISN, Offer: true, Nonce: pr.Ask.Option.Nonce, Proved: true}
	if old == nil && s.flows.full(s.cfg.Limits) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, ErrOverload)
		return true
	}
	syn.Raw = synOf(&pr, p.Header, t)
	rtt, ok := s.cfg.Handler.Proved(syn)
	if !ok || !s.hold() {
		return false
	}
	defer s.release()
	f := s.newServerFlow(k, syn, &pr)
	f.rtt, syn.Raw = rtt, nil
	old.forget()
	s.stand(f, syn, p, t, pkt)
	return true
}

// stand begins the connection of a client that has answered a SYN-ACK sent on the stack's behalf. pkt is that answer.
func (s *Stack) stand(f *flow, syn SYN, p packet.IP, t packet.TCP, pkt *stack.PacketBuffer) {
	pr := f.serve.proof
	c, err := s.begin(f, minisock.Config{Seq: pr.ISS + 1, Ack: f.isn + 1, Stamp: pr.Stamp, Recent: pr.Ask.TSVal})
	if err != nil {
		s.notBegun(syn, err)
		return
	}
	s.shim.inServer(f, p, t, pkt)
	s.count.accepted.Add(1)
	s.cfg.Handler.Accepted(c)
}

// newServerFlow returns the flow of a proved connection.
func (s *Stack) newServerFlow(k tupleKey, syn SYN, proof *cookieProof) *flow {
	f := &flow{
		key: k, server: true, isn: syn.ISN, nonce: syn.Nonce, wq: &waiter.Queue{},
		serve: &serving{proof: proof},
	}
	f.awaited.Store(syn.ISN + 1)
	f.una.Store(proof.ISS + 1)
	f.sent.Store(proof.ISS + 1)
	f.segMax.Store(s.segMax(syn.Raw, proof.Ask.PeerMSS()))
	return f
}

// notBegun reports a connection that could not begin, unless it has already begun.
func (s *Stack) notBegun(syn SYN, err error) {
	if !errors.Is(err, errRepeated) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, err)
	}
}

// withoutEndpoint is gVisor's handler for segments without an endpoint, which may just have gone. A SYN is dropped;
// anything else is answered with a reset.
func withoutEndpoint(_ stack.TransportEndpointID, pkt *stack.PacketBuffer) (handled bool) {
	return packet.TCP(pkt.TransportHeader().Slice()).Flags()&(packet.FlagSYN|packet.FlagACK) == packet.FlagSYN
}
