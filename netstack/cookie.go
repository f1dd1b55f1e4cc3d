package netstack

import "github.com/smcgw/smcgw/packet"

// A cookie is a SYN-ACK that the steering program has sent on the stack's behalf, without state and before the stack
// hears of it (docs/PROTOCOL.md "Cookies"). The segment that answers it proves the client's address, and repeats what
// the SYN asked for.

// cookieScale is the window scale that the SYN-ACK announced, if it announced one.
const cookieScale = 8

// In the timestamp of the SYN-ACK, bits 31 to 16 are the nonce, and bits 15 to 8 belong to the program.
const (
	scaleShift = 4
	noScale    = 15
	sackBit    = 8
	mssBits    = 7
)

// cookieSizes returns the values of the MSS field of the cookie: it holds the largest that is not above the client's
// MSS.
func cookieSizes() [8]uint16 { return [...]uint16{536, 1220, 1340, 1400, 1440, 1460, 8940, 8960} }

// cookieProof is what the answer to a SYN-ACK reveals about the handshake.
type cookieProof struct {
	ISN   uint32            // of the client's SYN
	ISS   uint32            // sequence number of the SYN-ACK
	Stamp uint32            // its timestamp
	Ask   packet.TCPOptions // options of the client's SYN
}

// readCookie parses the TCP header of a segment that starts at ISN + 1. Without timestamps it proves nothing.
func readCookie(t packet.TCP) (cookieProof, bool) {
	o := packet.ParseTCPOptions(t.Options())
	if t.Flags()&(packet.FlagSYN|packet.FlagRST|packet.FlagACK) != packet.FlagACK || !o.TS {
		return cookieProof{}, false
	}
	p := cookieProof{ISN: t.Seq() - 1, ISS: t.Ack() - 1, Stamp: o.TSEcr}
	p.Ask = packet.TCPOptions{
		MSS: cookieSizes()[o.TSEcr&mssBits], WS: int8(o.TSEcr >> scaleShift & noScale),
		TS: true, TSVal: o.TSVal, SACK: o.TSEcr&sackBit != 0,
		Option: packet.Option{Version: packet.OptionVersion, Role: packet.RoleOffer, Nonce: uint16(o.TSEcr >> 16)},
	}
	if p.Ask.WS == noScale {
		p.Ask.WS = -1
	}
	return p, true
}

// SYN returns the TCP header of the SYN that the client has sent, without the offer and without a checksum. t is the
// header of the segment that proved the handshake.
func (p *cookieProof) SYN(t packet.TCP) packet.TCP {
	head := make(packet.TCP, packet.TCPMinLen, packet.TCPMaxLen)
	copy(head[:4], t)
	head.SetSeq(p.ISN)
	head.SetFlags(packet.FlagSYN)
	head.SetWindow(0xffff)
	head = p.Ask.Append(head)
	head.SetHeaderLen(len(head))
	return head
}
