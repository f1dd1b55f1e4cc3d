package packet

import "encoding/binary"

// Lengths of TCP headers: RFC 9293, 3.1.
const (
	TCPMinLen = 20
	TCPMaxLen = 60
)

// TCP flags (RFC 9293, 3.1).
const (
	FlagFIN = 0x01
	FlagSYN = 0x02
	FlagRST = 0x04
	FlagPSH = 0x08
	FlagACK = 0x10
	FlagURG = 0x20
)

// TCP is a TCP header with its options (RFC 9293, 3.1). The first eight bytes, which ICMP errors quote, suffice for the
// ports and the sequence number. Everything else needs a complete header, as [IP.TCP] returns it.
type TCP []byte

// parseTCP returns the header of the segment b, which must be complete. The payload is b[len(header):].
func parseTCP(b []byte) (TCP, error) {
	if len(b) < TCPMinLen {
		return nil, ErrTruncated
	}
	n := int(b[12]>>4) * 4
	switch {
	case n < TCPMinLen:
		return nil, ErrMalformed
	case n > len(b):
		return nil, ErrTruncated
	}
	return TCP(b[:n]), nil
}

// TCP returns the TCP header of the packet, which is part of Payload. It fails with ErrProtocol, with ErrTruncated if
// the header extends beyond the bytes that are present, and with ErrMalformed if it is invalid.
func (p *IP) TCP() (TCP, error) {
	if p.Proto != ProtoTCP {
		return nil, ErrProtocol
	}
	t, err := parseTCP(p.Payload)
	if err != nil && p.Whole() {
		return nil, ErrMalformed
	}
	return t, err
}

// SrcPort returns the source port, bytes 0 and 1.
func (t TCP) SrcPort() uint16 { return binary.BigEndian.Uint16(t) }

// DstPort returns the destination port, bytes 2 and 3.
func (t TCP) DstPort() uint16 { return binary.BigEndian.Uint16(t[2:]) }

// Seq returns the sequence number, bytes 4 to 7.
func (t TCP) Seq() uint32 { return binary.BigEndian.Uint32(t[4:]) }

// Ack returns the acknowledgement number, bytes 8 to 11.
func (t TCP) Ack() uint32 { return binary.BigEndian.Uint32(t[8:]) }

// Flags returns the flags, byte 13.
func (t TCP) Flags() uint8 { return t[13] }

// Window returns the unscaled window, bytes 14 and 15.
func (t TCP) Window() uint16 { return binary.BigEndian.Uint16(t[14:]) }

// Options returns the options, the bytes from 20 on.
func (t TCP) Options() OptionList { return OptionList(t[TCPMinLen:]) }

// SetSeq sets the sequence number.
func (t TCP) SetSeq(v uint32) { binary.BigEndian.PutUint32(t[4:], v) }

// SetAck sets the acknowledgement number.
func (t TCP) SetAck(v uint32) { binary.BigEndian.PutUint32(t[8:], v) }

// SetFlags sets the flags.
func (t TCP) SetFlags(v uint8) { t[13] = v }

// SetWindow sets the window.
func (t TCP) SetWindow(v uint16) { binary.BigEndian.PutUint16(t[14:], v) }

// SetChecksum sets the checksum, bytes 16 and 17.
func (t TCP) SetChecksum(v uint16) { binary.BigEndian.PutUint16(t[tcpChecksumAt:], v) }

// SetHeaderLen sets the length of the header, a multiple of four, in the upper half of byte 12.
func (t TCP) SetHeaderLen(n int) { t[12] = uint8(n/4)<<4 | t[12]&0x0f }

// After reports whether sequence number a is later than b (RFC 9293, 3.4).
func After(a, b uint32) bool { return int32(a-b) > 0 }
