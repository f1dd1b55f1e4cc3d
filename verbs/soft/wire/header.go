package wire

import (
	"encoding/binary"
	"errors"
)

// Sizes in bytes.
const (
	BTHLen  = 12
	ICRCLen = 4
	// MinLen is the shortest UDP payload that can be a RoCEv2 datagram.
	MinLen = BTHLen + ICRCLen
	// MaxHeaderLen is the BTH with the largest extension headers, those of an
	// atomic request.
	MaxHeaderLen = BTHLen + atomicETHLen
	// MaxLen is the longest UDP payload: the path MTU bounds the payload to 4096.
	MaxLen = MaxHeaderLen + 4096 + ICRCLen

	dethLen         = 8
	rethLen         = 16
	atomicETHLen    = 28
	aethLen         = 4
	atomicAckETHLen = 8
	immLen          = 4
	iethLen         = 4
	reservedLen     = 16
)

// Reasons why a datagram is not a packet. Such a datagram must be dropped without an answer.
var (
	ErrTruncated = errors.New("truncated datagram")
	ErrVersion   = errors.New("unknown transport version")
	ErrOpcode    = errors.New("unknown opcode")
	ErrPad       = errors.New("padding larger than payload")
)

// Header is the BTH and the extension headers of a packet. The opcode determines which extension headers are present,
// and so which fields are valid.
type Header struct {
	Opcode    Opcode
	Solicited bool // the completion of this message wakes a solicited-only waiter
	Migrated  bool // path migration state; adapters refuse anything but true
	AckReq    bool // the responder must acknowledge
	FECN      bool // forward congestion, not covered by the ICRC
	BECN      bool // backward congestion (CNP), not covered by the ICRC
	PKey      uint16
	DestQP    uint32 // 24 bits
	PSN       uint32 // 24 bits

	QKey  uint32 // DETH
	SrcQP uint32 // DETH, 24 bits

	VA     uint64 // RETH and AtomicETH
	RKey   uint32 // RETH and AtomicETH
	Length uint32 // RETH: bytes of the whole message

	SwapAdd uint64 // AtomicETH: what to swap in or to add
	Compare uint64 // AtomicETH

	Syndrome Syndrome // AETH
	MSN      uint32   // AETH, 24 bits
	Orig     uint64   // AtomicAckETH

	Imm     uint32 // ImmDt, as a number of the big-endian bytes
	InvRKey uint32 // IETH
}

const mask24 = 1<<24 - 1

// Pad returns how many padding bytes follow n bytes of payload to make the packet a whole number of words (IBTA vol. 1,
// 9.2). They are sent as zeros.
func Pad(n int) int { return -n & 3 }

// Len returns the size of the BTH and the extension headers. For a CNP that includes its 16 reserved bytes.
func (h *Header) Len() int { return int(headerLens[h.Opcode]) }

// Append appends the BTH and the extension headers of a packet with the given number of payload bytes. The caller
// appends the payload, Pad(payload) zeros and the ICRC. A CNP only lacks the ICRC. Fields of 24 bits are truncated.
func (h *Header) Append(b []byte, payload int) []byte {
	be := binary.BigEndian
	flags := uint8(Pad(payload)) << 4
	if h.Solicited {
		flags |= 0x80
	}
	if h.Migrated {
		flags |= 0x40
	}
	dest, psn := h.DestQP&mask24, h.PSN&mask24
	if h.FECN {
		dest |= 1 << 31
	}
	if h.BECN {
		dest |= 1 << 30
	}
	if h.AckReq {
		psn |= 1 << 31
	}
	b = append(b, uint8(h.Opcode), flags, uint8(h.PKey>>8), uint8(h.PKey))
	b = be.AppendUint32(b, dest)
	b = be.AppendUint32(b, psn)

	t := traits[h.Opcode]
	if t&HasDETH != 0 {
		b = be.AppendUint32(b, h.QKey)
		b = be.AppendUint32(b, h.SrcQP&mask24)
	}
	if t&(HasRETH|HasAtomicETH) != 0 {
		b = be.AppendUint64(b, h.VA)
		b = be.AppendUint32(b, h.RKey)
	}
	if t&HasRETH != 0 {
		b = be.AppendUint32(b, h.Length)
	}
	if t&HasAtomicETH != 0 {
		b = be.AppendUint64(b, h.SwapAdd)
		b = be.AppendUint64(b, h.Compare)
	}
	if t&HasAETH != 0 {
		b = be.AppendUint32(b, uint32(h.Syndrome)<<24|h.MSN&mask24)
	}
	if t&HasAtomicAckETH != 0 {
		b = be.AppendUint64(b, h.Orig)
	}
	if t&HasImm != 0 {
		b = be.AppendUint32(b, h.Imm)
	}
	if t&HasIETH != 0 {
		b = be.AppendUint32(b, h.InvRKey)
	}
	if t&HasReserved != 0 {
		b = append(b, make([]byte, reservedLen)...)
	}
	return b
}

// Parse parses the headers of a UDP payload that ends with the ICRC, which it does not check. Fields that the opcode
// does not have are zeroed. The returned payload is a part of b, without padding and ICRC.
func (h *Header) Parse(b []byte) (payload []byte, err error) {
	*h = Header{}
	if len(b) < MinLen {
		return nil, ErrTruncated
	}
	be := binary.BigEndian
	flags, dest, psn := b[1], be.Uint32(b[4:]), be.Uint32(b[8:])
	if flags&0x0f != 0 {
		return nil, ErrVersion
	}
	t := traits[b[0]]
	if t == 0 {
		return nil, ErrOpcode
	}
	n := int(headerLens[b[0]])
	end := len(b) - ICRCLen
	if end < n {
		return nil, ErrTruncated
	}
	pad := int(flags >> 4 & 3)
	if end-n < pad {
		return nil, ErrPad
	}
	h.Opcode = Opcode(b[0])
	h.Solicited = flags&0x80 != 0
	h.Migrated = flags&0x40 != 0
	h.PKey = be.Uint16(b[2:])
	h.FECN = dest&(1<<31) != 0
	h.BECN = dest&(1<<30) != 0
	h.DestQP = dest & mask24
	h.AckReq = psn&(1<<31) != 0
	h.PSN = psn & mask24
	h.parseExtensions(t, b[BTHLen:n])
	return b[n : end-pad : end-pad], nil
}

// parseExtensions parses the headers after the BTH; x has the length that the traits determine.
func (h *Header) parseExtensions(t Traits, x []byte) {
	be := binary.BigEndian
	if t&HasDETH != 0 {
		h.QKey, h.SrcQP = be.Uint32(x), be.Uint32(x[4:])&mask24
		x = x[dethLen:]
	}
	if t&HasRETH != 0 {
		h.VA, h.RKey, h.Length = be.Uint64(x), be.Uint32(x[8:]), be.Uint32(x[12:])
		x = x[rethLen:]
	}
	if t&HasAtomicETH != 0 {
		h.VA, h.RKey = be.Uint64(x), be.Uint32(x[8:])
		h.SwapAdd, h.Compare = be.Uint64(x[12:]), be.Uint64(x[20:])
		x = x[atomicETHLen:]
	}
	if t&HasAETH != 0 {
		word := be.Uint32(x)
		h.Syndrome, h.MSN = Syndrome(word>>24), word&mask24
		x = x[aethLen:]
	}
	if t&HasAtomicAckETH != 0 {
		h.Orig = be.Uint64(x)
		x = x[atomicAckETHLen:]
	}
	if t&HasImm != 0 {
		h.Imm = be.Uint32(x)
		x = x[immLen:]
	}
	if t&HasIETH != 0 {
		h.InvRKey = be.Uint32(x)
	}
}
