package netstack

import (
	"encoding/binary"
	"time"

	"github.com/smcgw/smcgw/netstack/link"
	"github.com/smcgw/smcgw/netstack/minisock"

	"github.com/smcgw/smcgw/packet"
)

// The program that steers packets to the stack sends the SYN-ACK of an accepted
// connection before the stack hears of it, and keeps no state (docs/PROTOCOL.md
// "Cookies"). The segment that answers it proves the client's address, and repeats
// what the SYN asked for. With that the connection begins, as an adopted one does.

// CookieScale is the window scale that the SYN-ACK announced, if it announced one.
const CookieScale = 8

// Of the timestamp of the SYN-ACK, bits 31 to 16 are the nonce, 15 to 8 belong to the
// program that made it.
const (
	cookieScaleShift = 4
	cookieNoScale    = 15
	cookieSACK       = 8
	cookieMSS        = 7
)

// cookieSizes is what the SYN-ACK tells of the client's MSS: the largest that is not
// above it.
func cookieSizes() [8]uint16 { return [...]uint16{536, 1220, 1340, 1400, 1440, 1460, 8940, 8960} }

// CookieStamp is the timestamp of the SYN-ACK for a SYN that announced an MSS (0:
// none) and a window scale (-1: none). tick is whatever its maker likes.
func CookieStamp(mss uint16, ws int, sack bool, nonce uint16, tick uint8) uint32 {
	stamp := uint32(nonce)<<16 | uint32(tick)<<8
	if ws < 0 {
		ws = cookieNoScale
	}
	stamp |= uint32(ws) << cookieScaleShift
	if sack {
		stamp |= cookieSACK
	}
	for i, size := range cookieSizes() {
		if mss >= size {
			stamp = stamp&^cookieMSS | uint32(i)
		}
	}
	return stamp
}

// proof is what the answer to a SYN-ACK tells of the handshake.
type proof struct {
	iss   uint32 // sequence number of the SYN-ACK
	stamp uint32 // its timestamp
	ask   packet.TCPOptions
	rtt   time.Duration // as the owner knows it
}

// readProof reads the TCP header of a segment that starts at ISN + 1. Without
// timestamps it proves nothing.
func readProof(t packet.TCP) (proof, bool) {
	o := packet.ParseTCPOptions(t.Options())
	if t.Flags()&(packet.FlagSYN|packet.FlagRST|packet.FlagACK) != packet.FlagACK || !o.TS {
		return proof{}, false
	}
	p := proof{iss: t.Ack() - 1, stamp: o.TSEcr}
	p.ask = packet.TCPOptions{
		MSS: cookieSizes()[o.TSEcr&cookieMSS], WS: int8(o.TSEcr >> cookieScaleShift & 15),
		TS: true, TSVal: o.TSVal, SACK: o.TSEcr&cookieSACK != 0,
		Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: uint16(o.TSEcr >> 16)},
	}
	if p.ask.WS == cookieNoScale {
		p.ask.WS = -1
	}
	return p, true
}

// syn makes the SYN that the client has sent. n and t are the headers of the segment that proved
// the handshake.
func (p *proof) syn(n []byte, t packet.TCP) []byte {
	opts := []byte{packet.KindMSS, 4, byte(p.ask.MSS >> 8), byte(p.ask.MSS), packet.KindNOP, packet.KindNOP, packet.KindTimestamps, 10}
	opts = binary.BigEndian.AppendUint32(opts, p.ask.TSVal)
	opts = binary.BigEndian.AppendUint32(opts, 0)
	if p.ask.SACK {
		opts = append(opts, packet.KindNOP, packet.KindNOP, packet.KindSACKPermitted, 2)
	}
	if p.ask.WS >= 0 {
		opts = append(opts, packet.KindNOP, packet.KindWindowScale, 3, byte(p.ask.WS))
	}
	var head [packet.TCPMinLen]byte
	copy(head[:4], t)
	packet.TCP(head[:]).SetSeq(t.Seq() - 1)
	packet.TCP(head[:]).SetFlags(packet.FlagSYN)
	packet.TCP(head[:]).SetWindow(0xffff)
	q := buildTCP(plainHeader(n), head[:], opts, nil)
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
	pr, ok := readProof(t)
	if !ok {
		return false
	}
	syn := SYN{Tuple: k.tuple(), ISN: t.Seq() - 1, Offer: true, Nonce: pr.ask.Option.Nonce, Proved: true}
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
	f := s.newServerFlow(k, syn, made, pr.ask)
	f.serve.proof, f.rtt = &pr, pr.rtt
	f.serve.iss.Store(pr.iss)
	f.serve.sent.Store(true)
	f.una.Store(pr.iss + 1)
	f.sent.Store(pr.iss + 1)
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
		Seq: pr.iss + 1, Ack: f.isn + 1, Stamp: pr.stamp, Recent: pr.ask.TSVal,
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
