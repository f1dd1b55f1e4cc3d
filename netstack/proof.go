package netstack

import (
	"encoding/binary"
	"time"

	"github.com/smcgw/smcgw/netstack/link"

	"github.com/smcgw/smcgw/packet"
)

// The program that steers packets to the stack sends the SYN-ACK of an accepted
// connection before the stack hears of it, and keeps no state (docs/PROTOCOL.md
// "Cookies"). The segment that answers it proves the client's address, and repeats
// what the SYN asked for. From that the stack makes the SYN anew, swallows gVisor's
// answer to it, and translates between gVisor's numbers and those of the SYN-ACK for
// the life of the connection, as it does for an adopted one.

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

// syn makes the client's SYN, without the offer, which gVisor does not know. n and t are the headers
// of the segment that proved the handshake.
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
	f := s.newServerFlow(k, syn, made, pr.ask)
	f.serve.prove(&pr, raw)
	f.una.Store(pr.iss + 1)
	f.sent.Store(pr.iss + 1)
	if done := s.replace(old); done != nil {
		go s.handshakeAfter(done, f, syn, made) // bounded by the flows that are half open
		return true
	}
	s.handshake(f, syn, made)
	return true
}

// prove enters what is known of the SYN-ACK, and the segment that waits for gVisor's.
func (v *serving) prove(p *proof, raw []byte) {
	v.proof, v.early = p, [][]byte{raw}
	v.iss.Store(p.iss)
	v.sent.Store(true)
}

// maxEarly bounds the segments that wait for gVisor's SYN-ACK.
const maxEarly = 16

// tooEarly keeps a segment until gVisor can have it. One too many is lost: it will
// be sent again.
func (v *serving) tooEarly(raw func() []byte) bool {
	if v.proof == nil || v.through.Load() {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.through.Load() {
		return false
	}
	if len(v.early) < maxEarly {
		v.early = append(v.early, raw())
	}
	return true
}

// nextEarly returns the next segment that waits; without one no more will.
func (v *serving) nextEarly() []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.early) == 0 {
		v.through.Store(true)
		v.early = nil
		return nil
	}
	raw := v.early[0]
	v.early = v.early[1:]
	return raw
}

// standIn takes gVisor's SYN-ACK for the one that was sent for us, and lets in what
// has answered that. gVisor's locks are held: another goroutine does so.
func (s *Stack) standIn(f *flow, raw []byte, t packet.TCP) {
	v, o := f.serve, packet.ParseTCPOptions(t.Options())
	if v.stood.Load() || !s.hold() { // gVisor sends it again
		return
	}
	v.mu.Lock()
	v.synack = raw
	v.mu.Unlock()
	v.seq, v.ts = v.proof.iss-t.Seq(), v.proof.stamp-o.TSVal
	if v.proof.ask.WS >= 0 && o.WS >= 0 {
		v.wsNS, v.ws = uint8(o.WS), CookieScale
	}
	v.stood.Store(true)
	go func() { // bounded: once a flow, and ends
		defer s.release()
		s.letIn(f)
	}()
}

// letIn hands gVisor what came early, in order. Its first segment has an echoed
// timestamp as old as the round trip: gVisor's own was a moment.
func (s *Stack) letIn(f *flow) {
	age := uint32(f.serve.proof.rtt.Milliseconds())
	for raw := f.serve.nextEarly(); raw != nil; raw = f.serve.nextEarly() {
		if _, t, ok := parseTCP(raw); ok {
			s.shim.server(f, t)
			agedEcho(t, age)
			age = 0
			s.inject(raw)
		}
	}
}

// agedEcho makes the timestamp that t echoes older.
func agedEcho(t packet.TCP, ms uint32) {
	if echo := echoOf(t); echo != nil {
		sub32(echo, ms)
	}
}
