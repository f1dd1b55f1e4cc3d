package datagram

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket"
)

// The messages between gateways on UD (docs/PROTOCOL.md "Datagrams"). A whole datagram is a
// SEND: ds_header of the source, ds_header of the destination, payload. A SEND_WITH_IMM is a
// piece of a longer datagram or a control message, depending on the two highest bits of the
// immediate:
//
//	00  piece    id[29:16] last[15] index[14:0]    both headers and the piece
//	01  control  zero[29:8] type[7:0]              see the types
const (
	kindShift   = 30
	kindPiece   = 0
	kindControl = 1

	idBits    = 14
	idMask    = 1<<idBits - 1
	lastBit   = 1 << 15
	indexMask = lastBit - 1
)

// The control messages. The payload of a PROBE is returned as ECHO. NATIVE names a service,
// as a ds_header, to which nothing is to be carried for a while, followed by reason(1) and
// seconds(2). Port 0 means every service of the address.
const (
	controlProbe  = 1
	controlEcho   = 2
	controlNative = 3
)

const (
	// headers4 and headers6 are the lengths of the headers before the payload on UD.
	headers4 = 2 * rsocket.DatagramHeader4Len
	headers6 = 2 * rsocket.DatagramHeader6Len
	// maxPayload is the longest payload of a datagram, that of IPv6.
	maxPayload = 65535 - 8
	// minMTU is the smallest MTU of UD, the minimum of InfiniBand.
	minMTU = 256
	// maxPieces is the number of pieces of the longest payload at the smallest MTU.
	maxPieces = (maxPayload + minMTU - headers6 - 1) / (minMTU - headers6)
)

// errMalformed means a message on UD that no gateway sends.
var errMalformed = errors.New("malformed datagram message")

// pieceImm returns the immediate of a piece.
func pieceImm(id uint16, index int, last bool) uint32 {
	imm := uint32(kindPiece)<<kindShift | uint32(id&idMask)<<16 | uint32(index)
	if last {
		imm |= lastBit
	}
	return imm
}

// controlImm returns the immediate of a control message.
func controlImm(kind uint8) uint32 { return kindControl<<kindShift | uint32(kind) }

// immediate is a parsed immediate.
type immediate struct {
	control uint8 // type; 0 for a piece
	id      uint16
	index   int
	last    bool
}

func parseImmediate(imm uint32) (immediate, error) {
	switch {
	case imm>>kindShift == kindPiece:
		p := immediate{id: uint16(imm >> 16 & idMask), last: imm&lastBit != 0, index: int(imm & indexMask)}
		if p.index >= maxPieces {
			return immediate{}, fmt.Errorf("piece %d: %w", p.index, errMalformed)
		}
		return p, nil
	case imm>>kindShift == kindControl && imm>>8&0x3fffff == 0 && imm&0xff != 0:
		return immediate{control: uint8(imm)}, nil
	}
	return immediate{}, fmt.Errorf("immediate %#x: %w", imm, errMalformed)
}

// endPair holds the two ends of a datagram, as its sender sees them.
type endPair struct{ src, dst netip.AddrPort }

// headersLen returns the length of both headers.
func (e endPair) headersLen() int {
	if e.src.Addr().Is4() {
		return headers4
	}
	return headers6
}

// append appends both headers.
func (e endPair) append(b []byte) []byte {
	b = rsocket.DatagramHeader{Source: e.src}.Append(b)
	return rsocket.DatagramHeader{Source: e.dst}.Append(b)
}

// parseMessage parses both headers at the beginning of b; payload is the rest.
func parseMessage(b []byte) (e endPair, payload []byte, err error) {
	src, b, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	dst, payload, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	e = endPair{src: src.Source, dst: dst.Source}
	from, to := e.src.Addr(), e.dst.Addr()
	switch {
	case from.Is4() != to.Is4(), from.Is4In6(), to.Is4In6(),
		from.IsUnspecified(), from.IsMulticast(), to.IsUnspecified(), to.IsMulticast():
		return endPair{}, nil, fmt.Errorf("from %v to %v: %w", e.src, e.dst, errMalformed)
	case e.dst.Port() == 0:
		return endPair{}, nil, fmt.Errorf("port 0: %w", errMalformed)
	}
	return e, payload, nil
}

// nativeNotice is the payload of NATIVE.
type nativeNotice struct {
	service netip.AddrPort // port 0: the whole address
	reason  uint8
	seconds uint16
}

func (n nativeNotice) append(b []byte) []byte {
	b = rsocket.DatagramHeader{Source: n.service}.Append(b)
	return append(b, n.reason, byte(n.seconds>>8), byte(n.seconds))
}

func parseNativeNotice(b []byte) (nativeNotice, error) {
	h, rest, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return nativeNotice{}, err
	}
	if len(rest) != 3 || rest[0] == 0 && h.Source.Port() != 0 || h.Source.Addr().Is4In6() {
		return nativeNotice{}, fmt.Errorf("notice about %v with %d bytes: %w", h.Source, len(rest), errMalformed)
	}
	return nativeNotice{service: h.Source, reason: rest[0], seconds: uint16(rest[1])<<8 | uint16(rest[2])}, nil
}
