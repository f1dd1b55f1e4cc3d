package gateway

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/smcgw/smcgw/rsocket"
)

// What gateways say to each other on UD (docs/PROTOCOL.md "Datagrams"). A whole
// datagram is a SEND: ds_header of the source, ds_header of the destination,
// payload. A SEND_WITH_IMM is a piece of a longer one, or control, as the two
// highest bits of the immediate say:
//
//	00  piece    id[29:16] last[15] index[14:0]    both headers and the piece
//	01  control  zero[29:8] type[7:0]              see the types
const (
	dgramKindShift   = 30
	dgramKindPiece   = 0
	dgramKindControl = 1

	dgramIDBits  = 14
	dgramIDMask  = 1<<dgramIDBits - 1
	dgramLastBit = 1 << 15
	dgramIndex   = dgramLastBit - 1
)

// The control messages. The payload of a PROBE comes back as ECHO. NATIVE names
// a service, by ds_header, that is not to be carried to for a while, and why:
// reason(1), seconds(2). Port 0 is every service of the address.
const (
	dgramProbe  = 1
	dgramEcho   = 2
	dgramNative = 3
)

const (
	// dgramHeaders4 and dgramHeaders6 precede the payload on UD.
	dgramHeaders4 = 2 * rsocket.DatagramHeader4Len
	dgramHeaders6 = 2 * rsocket.DatagramHeader6Len
	// dgramMaxPayload is the longest payload of a datagram, that of IPv6.
	dgramMaxPayload = 65535 - 8
	// dgramMinMTU is the smallest packet UD may take: one of IB.
	dgramMinMTU = 256
	// dgramMaxPieces is what the longest payload takes at the smallest MTU.
	dgramMaxPieces = (dgramMaxPayload + dgramMinMTU - dgramHeaders6 - 1) / (dgramMinMTU - dgramHeaders6)
)

// errDgram is a message on UD that no gateway sends.
var errDgram = errors.New("malformed datagram message")

// pieceImm is the immediate of a piece.
func pieceImm(id uint16, index int, last bool) uint32 {
	imm := uint32(dgramKindPiece)<<dgramKindShift | uint32(id&dgramIDMask)<<16 | uint32(index)
	if last {
		imm |= dgramLastBit
	}
	return imm
}

// controlImm is the immediate of a control message.
func controlImm(kind uint8) uint32 { return dgramKindControl<<dgramKindShift | uint32(kind) }

// dgramImm is an immediate taken apart.
type dgramImm struct {
	control uint8 // type, 0 for a piece
	id      uint16
	index   int
	last    bool
}

func parseDgramImm(imm uint32) (dgramImm, error) {
	switch {
	case imm>>dgramKindShift == dgramKindPiece:
		p := dgramImm{id: uint16(imm >> 16 & dgramIDMask), last: imm&dgramLastBit != 0, index: int(imm & dgramIndex)}
		if p.index >= dgramMaxPieces {
			return dgramImm{}, fmt.Errorf("piece %d: %w", p.index, errDgram)
		}
		return p, nil
	case imm>>dgramKindShift == dgramKindControl && imm>>8&0x3fffff == 0 && imm&0xff != 0:
		return dgramImm{control: uint8(imm)}, nil
	}
	return dgramImm{}, fmt.Errorf("immediate %#x: %w", imm, errDgram)
}

// dgramEnds are the two ends of a datagram, as its sender sees them.
type dgramEnds struct{ src, dst netip.AddrPort }

// headersLen is the length of both headers.
func (e dgramEnds) headersLen() int {
	if e.src.Addr().Is4() {
		return dgramHeaders4
	}
	return dgramHeaders6
}

// append appends both headers.
func (e dgramEnds) append(b []byte) []byte {
	b = rsocket.DatagramHeader{Source: e.src}.Append(b)
	return rsocket.DatagramHeader{Source: e.dst}.Append(b)
}

// parseDgram reads both headers at the beginning of b; payload is the rest.
func parseDgram(b []byte) (e dgramEnds, payload []byte, err error) {
	src, b, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	dst, payload, err := rsocket.ParseDatagramHeader(b)
	if err != nil {
		return e, nil, err
	}
	e = dgramEnds{src: src.Source, dst: dst.Source}
	from, to := e.src.Addr(), e.dst.Addr()
	switch {
	case from.Is4() != to.Is4(), from.Is4In6(), to.Is4In6(),
		from.IsUnspecified(), from.IsMulticast(), to.IsUnspecified(), to.IsMulticast():
		return dgramEnds{}, nil, fmt.Errorf("from %v to %v: %w", e.src, e.dst, errDgram)
	case e.dst.Port() == 0:
		return dgramEnds{}, nil, fmt.Errorf("port 0: %w", errDgram)
	}
	return e, payload, nil
}

// nativeNotice is the payload of NATIVE.
type nativeNotice struct {
	service netip.AddrPort // port 0: all of the address
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
		return nativeNotice{}, fmt.Errorf("notice about %v with %d bytes: %w", h.Source, len(rest), errDgram)
	}
	return nativeNotice{service: h.Source, reason: rest[0], seconds: uint16(rest[1])<<8 | uint16(rest[2])}, nil
}
