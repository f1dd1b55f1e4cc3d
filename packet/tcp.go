package packet

import (
	"encoding/binary"
	"iter"
)

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

// TCP option kinds (IANA TCP parameters).
const (
	KindEOL           = 0   // RFC 9293, 3.2
	KindNOP           = 1   // RFC 9293, 3.2
	KindMSS           = 2   // RFC 9293, 3.2
	KindWindowScale   = 3   // RFC 7323, 2.2
	KindSACKPermitted = 4   // RFC 2018, 2
	KindSACK          = 5   // RFC 2018, 3
	KindTimestamps    = 8   // RFC 7323, 3.2
	KindExperiment    = 254 // RFC 4727, RFC 6994
)

// Lengths of whole options.
const (
	lenMSS           = 4
	lenWindowScale   = 3
	lenSACKPermitted = 2
	// TimestampsLen is the length of the timestamps option: kind, length, value(4), echo(4).
	TimestampsLen = 10
)

const (
	// defaultMSS is what a peer can receive over IPv4 if it sends no MSS option (RFC 9293, 3.7.1).
	defaultMSS = 536
	// maxWindowScale is the largest shift (RFC 7323, 2.3).
	maxWindowScale = 14
)

// OptionList is the options area of a TCP header: the bytes after the first twenty.
type OptionList []byte

// TCPOption is one option of an OptionList: kind, length, value.
type TCPOption []byte

// Kind returns the kind, byte 0.
func (o TCPOption) Kind() uint8 { return o[0] }

// Value returns the value, the bytes from 2 on.
func (o TCPOption) Value() []byte { return o[2:] }

// All yields the options with their offsets in the list, except NOPs. It stops at the end of the list, or where the
// list is malformed (RFC 9293, 3.1).
func (l OptionList) All() iter.Seq2[int, TCPOption] {
	return func(yield func(int, TCPOption) bool) {
		for i := 0; ; {
			at, next := l.next(i)
			if next == 0 || !yield(at, TCPOption(l[at:next])) {
				return
			}
			i = next
		}
	}
}

// next returns the beginning and the end of the first option at or after i; the end is 0 if there is none.
func (l OptionList) next(i int) (at, end int) {
	for i < len(l) && l[i] == KindNOP {
		i++
	}
	if i+1 >= len(l) || l[i] == KindEOL {
		return 0, 0
	}
	n := int(l[i+1])
	if n < 2 || n > len(l)-i {
		return 0, 0
	}
	return i, i + n
}

// TCPOptions are the options of a TCP header that the gateway needs.
type TCPOptions struct {
	MSS          uint16 // 0 when absent
	WS           int8   // window scale shift, -1 when absent
	SACK         bool   // SACK permitted
	TS           bool
	TSVal, TSEcr uint32
	// Option is ours. It has no role if there is none: if the version or role is unknown, or if the lengths before the
	// option do not add up.
	Option Option
}

// PeerMSS returns the MSS, or the default if the peer sent none.
func (o *TCPOptions) PeerMSS() uint16 {
	if o.MSS == 0 {
		return defaultMSS
	}
	return o.MSS
}

// Append appends the options of a handshake in o, each on a boundary of four bytes: MSS, timestamps, SACK permitted,
// window scale. It omits ours and those that the gateway never sends.
func (o *TCPOptions) Append(b []byte) []byte {
	if o.MSS != 0 {
		b = append(b, KindMSS, lenMSS, byte(o.MSS>>8), byte(o.MSS))
	}
	if o.TS {
		b = AppendTimestamps(b, o.TSVal, o.TSEcr)
	}
	if o.SACK {
		b = append(b, KindNOP, KindNOP, KindSACKPermitted, lenSACKPermitted)
	}
	if o.WS >= 0 {
		b = append(b, KindNOP, KindWindowScale, lenWindowScale, byte(o.WS))
	}
	return b
}

// AppendTimestamps appends two NOPs and the timestamps option (RFC 7323, appendix A).
func AppendTimestamps(b []byte, value, echo uint32) []byte {
	b = append(b, KindNOP, KindNOP, KindTimestamps, TimestampsLen)
	b = binary.BigEndian.AppendUint32(b, value)
	return binary.BigEndian.AppendUint32(b, echo)
}

// ParseTCPOptions parses options. If an option occurs more than once, the last one counts; of ours, the first.
func ParseTCPOptions(l OptionList) TCPOptions {
	o := TCPOptions{WS: -1}
	for _, opt := range l.All() {
		o.read(opt)
	}
	return o
}

func (o *TCPOptions) read(b TCPOption) {
	switch b.Kind() {
	case KindMSS:
		if len(b) == lenMSS {
			o.MSS = binary.BigEndian.Uint16(b[2:])
		}
	case KindWindowScale:
		if len(b) == lenWindowScale {
			o.WS = int8(min(b[2], maxWindowScale))
		}
	case KindSACKPermitted:
		o.SACK = len(b) == lenSACKPermitted
	case KindTimestamps:
		if len(b) == TimestampsLen {
			o.TS = true
			o.TSVal, o.TSEcr = binary.BigEndian.Uint32(b[2:]), binary.BigEndian.Uint32(b[6:])
		}
	case KindExperiment:
		if ours, ok := decodeOption(b); ok && o.Option.Role == 0 {
			o.Option = ours
		}
	}
}

// Blank overwrites every option of the given kind by NOPs.
func (l OptionList) Blank(kind uint8) {
	for _, o := range l.All() {
		if o.Kind() == kind {
			o.blank()
		}
	}
}

func (o TCPOption) blank() {
	for i := range o {
		o[i] = KindNOP
	}
}

// AppendWithoutSACK appends the options without SACK blocks, padded by NOPs to a multiple of four bytes. Blocks are
// advisory and may be omitted (RFC 2018, 8).
func (l OptionList) AppendWithoutSACK(b []byte) []byte {
	start := len(b)
	for _, o := range l.All() {
		if o.Kind() != KindSACK {
			b = append(b, o...)
		}
	}
	for (len(b)-start)%4 != 0 {
		b = append(b, KindNOP)
	}
	return b
}
