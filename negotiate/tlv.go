package negotiate

import (
	"encoding/binary"
	"fmt"
)

// TLVs of CLC messages (docs/PROTOCOL.md "TLVs"): type(2), length of the value(2), value; no padding.
const (
	tlvHeaderLen = 4
	// tlvCritical marks a TLV that its receiver must understand or else decline.
	tlvCritical = 0x8000

	tlvNonce     = 0x8001
	tlvVersions  = 0x8002
	tlvGatewayID = 0x8003
	tlvHostID    = 0x0004
	tlvDgramPort = 0x0005
	tlvBudget    = 0x8006
	tlvCarrier   = 0x8007
	tlvMAC       = 0x0009
	tlvReason    = 0x800A
	tlvChosen    = 0x800B
	tlvRandom    = 0x0011
	tlvPartition = 0x0013

	// On the datagram port.
	tlvQueryNonce = 0x800C
	tlvAddress    = 0x800D
	tlvUDOffer    = 0x800E
	tlvTTL        = 0x800F
	tlvPadding    = 0x0010
	tlvCookie     = 0x0012
)

// tlvSet remembers which TLVs a message has had: bit n for type n (without the critical bit).
type tlvSet uint32

// tlvBit returns the bit of a known TLV type, and zero for an unknown one.
func tlvBit(typ uint16) tlvSet {
	switch typ {
	case tlvNonce, tlvVersions, tlvGatewayID, tlvHostID, tlvDgramPort, tlvBudget, tlvCarrier, tlvMAC, tlvReason, tlvChosen,
		tlvQueryNonce, tlvAddress, tlvUDOffer, tlvTTL, tlvPadding, tlvRandom, tlvCookie, tlvPartition:
		return 1 << (typ &^ tlvCritical)
	}
	return 0
}

// has reports whether every one of these types was seen.
func (s tlvSet) has(types ...uint16) bool {
	for _, t := range types {
		if s&tlvBit(t) == 0 {
			return false
		}
	}
	return true
}

func appendTLV(b []byte, typ uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// walkTLVs calls f for every TLV whose type is in known. Others are skipped, or reported as CriticalTLVError when their
// sender insists and this version does not know them. Only carriers and UD offers may repeat, and a MAC ends its message.
func walkTLVs(b []byte, known tlvSet, f func(typ uint16, v []byte) error) (tlvSet, error) {
	var seen tlvSet
	for len(b) > 0 {
		typ, v, rest, err := cutTLV(b)
		if err != nil {
			return seen, err
		}
		b = rest
		bit := tlvBit(typ)
		if bit == 0 && typ&tlvCritical != 0 {
			return seen, &CriticalTLVError{Type: typ}
		}
		if err := checkOrder(typ, bit, seen); err != nil {
			return seen, err
		}
		seen |= bit
		if bit&known == 0 {
			continue
		}
		if err := f(typ, v); err != nil {
			return seen, fmt.Errorf("tlv %#04x: %w", typ, err)
		}
	}
	return seen, nil
}

func checkOrder(typ uint16, bit, seen tlvSet) error {
	switch {
	case seen.has(tlvMAC):
		return fmt.Errorf("tlv %#04x after the mac: %w", typ, ErrMalformed)
	case typ != tlvCarrier && typ != tlvUDOffer && seen&bit != 0:
		return fmt.Errorf("tlv %#04x twice: %w", typ, ErrMalformed)
	}
	return nil
}

// cutTLV splits the first TLV off b, which holds whole TLVs only.
func cutTLV(b []byte) (typ uint16, value, rest []byte, err error) {
	if len(b) < tlvHeaderLen {
		return 0, nil, nil, fmt.Errorf("tlv header of %d bytes: %w", len(b), ErrMalformed)
	}
	typ = binary.BigEndian.Uint16(b)
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b)-tlvHeaderLen {
		return 0, nil, nil, fmt.Errorf("tlv %#04x of %d bytes: %w", typ, n, ErrMalformed)
	}
	return typ, b[tlvHeaderLen : tlvHeaderLen+n], b[tlvHeaderLen+n:], nil
}

// want checks the length of a TLV's value.
func want(v []byte, n int) error {
	if len(v) != n {
		return fmt.Errorf("value of %d bytes, want %d: %w", len(v), n, ErrMalformed)
	}
	return nil
}

// missing is the error for a message without a mandatory TLV.
func missing(t MessageType) error {
	return fmt.Errorf("clc %s without a mandatory tlv: %w", t, ErrMalformed)
}
