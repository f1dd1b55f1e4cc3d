package clc

import (
	"encoding/binary"
	"fmt"
)

// TLVs of CLC messages (docs/PROTOCOL.md "TLVs"): type(2), length of the value(2), value; no padding.
const (
	// TLVHeaderLen is the length of the type and length fields.
	TLVHeaderLen = 4
	// TLVCritical is the bit of a TLV type that its receiver must understand or decline.
	TLVCritical = 0x8000

	// The TLVs of the handshake.
	TLVNonce     = 0x8001
	TLVVersions  = 0x8002
	TLVGatewayID = 0x8003
	TLVHostID    = 0x0004
	TLVDgramPort = 0x0005
	TLVBudget    = 0x8006
	TLVCarrier   = 0x8007
	TLVMAC       = 0x0009
	TLVReason    = 0x800A
	TLVChosen    = 0x800B
	TLVRandom    = 0x0011
	TLVPartition = 0x0013
	TLVSoftware  = 0x0014

	// On the datagram port.
	TLVQueryNonce = 0x800C
	TLVAddress    = 0x800D
	TLVUDOffer    = 0x800E
	TLVTTL        = 0x800F
	TLVPadding    = 0x0010
	TLVCookie     = 0x0012

	// On the control connection.
	TLVNumber  = 0x8015
	TLVName    = 0x8016
	TLVOrder   = 0x8017
	TLVNonces  = 0x8018
	TLVSent    = 0x8019
	TLVOpen    = 0x801A
	TLVWritten = 0x801B
	TLVRead    = 0x001C
)

// TLVSet is a set of TLV types: bit n stands for type n, without the critical bit.
type TLVSet uint32

// tlvBit returns the bit of a known TLV type, or zero for an unknown one.
func tlvBit(typ uint16) TLVSet {
	switch typ {
	case TLVNonce, TLVVersions, TLVGatewayID, TLVHostID, TLVDgramPort, TLVBudget, TLVCarrier, TLVMAC, TLVReason, TLVChosen,
		TLVQueryNonce, TLVAddress, TLVUDOffer, TLVTTL, TLVPadding, TLVRandom, TLVCookie, TLVPartition, TLVSoftware,
		TLVNumber, TLVName, TLVOrder, TLVNonces, TLVSent, TLVOpen, TLVWritten, TLVRead:
		return 1 << (typ &^ TLVCritical)
	}
	return 0
}

// Set returns the set of the given types, all of which must be known.
func Set(types ...uint16) (s TLVSet) {
	for _, t := range types {
		s |= tlvBit(t)
	}
	return s
}

// Has reports whether s contains all the given types.
func (s TLVSet) Has(types ...uint16) bool {
	return s&Set(types...) == Set(types...)
}

// TLVError is an error in one TLV.
type TLVError struct {
	Type uint16
	Err  error
}

// Error implements error.
func (e *TLVError) Error() string { return fmt.Sprintf("tlv %#04x: %v", e.Type, e.Err) }

// Unwrap returns the error without the TLV type.
func (e *TLVError) Unwrap() error { return e.Err }

// AppendTLV appends one TLV.
func AppendTLV(b []byte, typ uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, typ)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// WalkTLVs calls f for every TLV whose type is in known, and returns the set of types that it has seen. It skips other
// TLVs, or returns a CriticalTLVError if this version does not know one that is critical. Only carriers and UD offers
// may repeat, and nothing may follow a MAC.
func WalkTLVs(b []byte, known TLVSet, f func(typ uint16, v []byte) error) (TLVSet, error) {
	var seen TLVSet
	for len(b) > 0 {
		typ, v, rest, err := cutTLV(b)
		if err != nil {
			return seen, err
		}
		b = rest
		bit := tlvBit(typ)
		if bit == 0 && typ&TLVCritical != 0 {
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
			return seen, &TLVError{typ, err}
		}
	}
	return seen, nil
}

func checkOrder(typ uint16, bit, seen TLVSet) error {
	switch {
	case seen.Has(TLVMAC):
		return &TLVError{typ, fmt.Errorf("after the mac: %w", ErrMalformed)}
	case typ != TLVCarrier && typ != TLVUDOffer && seen&bit != 0:
		return &TLVError{typ, fmt.Errorf("twice: %w", ErrMalformed)}
	}
	return nil
}

// cutTLV splits the first TLV off b, which consists of whole TLVs.
func cutTLV(b []byte) (typ uint16, value, rest []byte, err error) {
	if len(b) < TLVHeaderLen {
		return 0, nil, nil, fmt.Errorf("tlv header of %d bytes: %w", len(b), ErrMalformed)
	}
	typ = binary.BigEndian.Uint16(b)
	n := int(binary.BigEndian.Uint16(b[2:]))
	if n > len(b)-TLVHeaderLen {
		return 0, nil, nil, &TLVError{typ, fmt.Errorf("of %d bytes, %d follow: %w", n, len(b)-TLVHeaderLen, ErrMalformed)}
	}
	return typ, b[TLVHeaderLen : TLVHeaderLen+n], b[TLVHeaderLen+n:], nil
}

// Want returns an error unless v has n bytes.
func Want(v []byte, n int) error {
	if len(v) != n {
		return fmt.Errorf("value of %d bytes, want %d: %w", len(v), n, ErrMalformed)
	}
	return nil
}

// Read calls set for the TLVs of a message of type t as [WalkTLVs] does, and returns an error if one of must is missing.
func Read(t MessageType, tlvs []byte, known TLVSet, set func(typ uint16, v []byte) error, must ...uint16) error {
	seen, err := WalkTLVs(tlvs, known, set)
	if err == nil && !seen.Has(must...) {
		err = fmt.Errorf("clc %s without a mandatory tlv: %w", t, ErrMalformed)
	}
	return err
}

// ReadMessage is [Read] for the message at the start of b. It returns the header.
func ReadMessage(t MessageType, b []byte, known TLVSet, set func(typ uint16, v []byte) error, must ...uint16) (Header, error) {
	h, tlvs, err := Message(b, t)
	if err == nil {
		err = Read(t, tlvs, known, set, must...)
	}
	return h, err
}
