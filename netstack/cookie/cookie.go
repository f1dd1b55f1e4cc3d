package cookie

import "github.com/smcgw/smcgw/packet"

// Scale is the window scale that the SYN-ACK announced, if it announced one.
const Scale = 8

// Of the timestamp of the SYN-ACK, bits 31 to 16 are the nonce, 15 to 8 belong to the
// program that made it.
const (
	scaleShift = 4
	noScale    = 15
	sackBit    = 8
	mssBits    = 7
)

// sizes is what the SYN-ACK tells of the client's MSS: the largest that is not above it.
func sizes() [8]uint16 { return [...]uint16{536, 1220, 1340, 1400, 1440, 1460, 8940, 8960} }

// Stamp is the timestamp of the SYN-ACK for a SYN that announced an MSS (0: none) and a window
// scale (-1: none). tick is whatever its maker likes.
func Stamp(mss uint16, ws int, sack bool, nonce uint16, tick uint8) uint32 {
	stamp := uint32(nonce)<<16 | uint32(tick)<<8
	if ws < 0 {
		ws = noScale
	}
	stamp |= uint32(ws) << scaleShift
	if sack {
		stamp |= sackBit
	}
	for i, size := range sizes() {
		if mss >= size {
			stamp = stamp&^mssBits | uint32(i)
		}
	}
	return stamp
}

// Proof is what the answer to a SYN-ACK tells of the handshake.
type Proof struct {
	ISN   uint32            // of the client's SYN
	ISS   uint32            // sequence number of the SYN-ACK
	Stamp uint32            // its timestamp
	Ask   packet.TCPOptions // of the client's SYN
}

// Read reads the TCP header of a segment that starts at ISN + 1. Without timestamps it proves
// nothing.
func Read(t packet.TCP) (Proof, bool) {
	o := packet.ParseTCPOptions(t.Options())
	if t.Flags()&(packet.FlagSYN|packet.FlagRST|packet.FlagACK) != packet.FlagACK || !o.TS {
		return Proof{}, false
	}
	p := Proof{ISN: t.Seq() - 1, ISS: t.Ack() - 1, Stamp: o.TSEcr}
	p.Ask = packet.TCPOptions{
		MSS: sizes()[o.TSEcr&mssBits], WS: int8(o.TSEcr >> scaleShift & noScale),
		TS: true, TSVal: o.TSVal, SACK: o.TSEcr&sackBit != 0,
		Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: uint16(o.TSEcr >> 16)},
	}
	if p.Ask.WS == noScale {
		p.Ask.WS = -1
	}
	return p, true
}

// SYN makes the TCP header of the SYN that the client has sent, without the offer. t is that of
// the segment that proved the handshake. Its checksum is not set.
func (p *Proof) SYN(t packet.TCP) packet.TCP {
	head := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	copy(head[:4], t)
	head.SetSeq(p.ISN)
	head.SetFlags(packet.FlagSYN)
	head.SetWindow(0xffff)
	head = p.Ask.Append(head)
	head.SetHeaderLen(len(head))
	return head
}
