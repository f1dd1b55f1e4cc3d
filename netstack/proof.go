package netstack

import (
	"time"

	"github.com/smcgw/smcgw/netstack/cookie"
	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/netstack/minisock"

	"github.com/smcgw/smcgw/packet"
)

// proof is what the answer to a SYN-ACK of the steering program tells of the handshake
// (docs/PROTOCOL.md "Cookies"). With that the connection begins, as an adopted one does.
type proof struct {
	cookie.Proof
	rtt time.Duration // as the owner knows it
}

// syn makes the SYN that the client has sent. n and t are the headers of the segment that proved
// the handshake.
func (p *proof) syn(n []byte, t packet.TCP) []byte {
	head := p.SYN(t)
	q := buildTCP(plainHeader(n), head, head[packet.TCPMinLen:], nil)
	defer q.DecRef()
	return link.Flatten(q)
}

// plainHeader is the network header n without options.
func plainHeader(n []byte) []byte {
	if n[0]>>4 == 6 {
		return n
	}
	h := append([]byte(nil), n[:packet.IPv4MinLen]...)
	h[0] = 0x45
	return h
}

// confirmedHeader is the least a TCP header with timestamps and the confirm takes.
const confirmedHeader = packet.TCPMinLen + 12 + optionSpace

// mayProve reports whether a segment can be the first of a connection on the tuple
// of the flow f, nil: none. One that lives is replaced by what confirms only: the
// owner may not have ended it yet.
func mayProve(f *flow, t packet.TCP) bool {
	if f == nil || f.isn == t.Seq()-1 {
		return f == nil
	}
	return !f.alive() || f.server && len(t) >= confirmedHeader && packet.ParseTCPOptions(t.Options()).Option.Role == packet.RoleConfirm
}

// proved handles a segment that may be the first of a connection whose SYN was
// answered for us; false: it is not. old is the flow of its tuple, if any.
func (s *Stack) proved(k tupleKey, old *flow, p packet.IP, t packet.TCP, raw []byte) bool {
	read, ok := cookie.Read(t)
	if !ok {
		return false
	}
	pr := proof{Proof: read}
	syn := SYN{Tuple: k.tuple(), ISN: pr.ISN, Offer: true, Nonce: pr.Ask.Option.Nonce, Proved: true}
	if old == nil && s.flows.full(s.cfg.Limits) {
		s.count.shed.Add(1)
		s.cfg.Handler.NotAccepted(syn, ErrOverload)
		return true
	}
	made := pr.syn(p.Header, t)
	syn.Raw = made
	if pr.rtt, ok = s.cfg.Handler.Proved(syn); !ok || !s.hold() {
		return false
	}
	defer s.release()
	f := s.newServerFlow(k, syn, made, pr.Ask)
	f.serve.proof, f.rtt = &pr, pr.rtt
	f.serve.iss.Store(pr.ISS)
	f.serve.sent.Store(true)
	f.una.Store(pr.ISS + 1)
	f.sent.Store(pr.ISS + 1)
	if done := s.replace(old); done != nil {
		s.busy.Add(1)
		go func() { // bounded by the flows that are half open
			defer s.release()
			<-done
			s.stand(f, syn, raw)
		}()
		return true
	}
	s.stand(f, syn, raw)
	return true
}

// stand begins the connection of a client that has answered a SYN-ACK which was sent for us.
// raw is its answer.
func (s *Stack) stand(f *flow, syn SYN, raw []byte) {
	p, t, ok := parseTCP(raw)
	if !ok {
		return // cannot be: the caller has read it
	}
	pr := f.serve.proof
	c := newMini(s, f, networkHeader(f.key, f.look()), f.config(minisock.Config{
		Seq: pr.ISS + 1, Ack: f.isn + 1, Stamp: pr.Stamp, Recent: pr.Ask.TSVal,
	}))
	f.state.Store(flowOpen)
	if err := s.flows.put(f, s.cfg.Limits); err != nil {
		f.state.Store(flowDead)
		s.notBegun(f, syn, err)
		return
	}
	pkt := link.Buffer(raw)
	defer pkt.DecRef()
	pkt.RXChecksumValidated = true
	s.shim.inServer(f, p, t, pkt)
	s.handshakeOver(f, c, nil)
}
