package clc

import (
	"encoding/binary"
	"fmt"
)

// AppendIdentity appends the TLVs that identify the sender.
func AppendIdentity(b []byte, gateway, host [16]byte, dgramPort uint16) []byte {
	b = AppendTLV(b, TLVGatewayID, gateway[:])
	if host != ([16]byte{}) {
		b = AppendTLV(b, TLVHostID, host[:])
	}
	if dgramPort != 0 {
		b = AppendTLV(b, TLVDgramPort, binary.BigEndian.AppendUint16(nil, dgramPort))
	}
	return b
}

// AppendRandom appends the random TLV, unless random is zero.
func AppendRandom(b []byte, random [16]byte) []byte {
	if random == ([16]byte{}) {
		return b
	}
	return AppendTLV(b, TLVRandom, random[:])
}

// softwareMax is the longest value of the software TLV.
const softwareMax = 16

// software returns the value of the software TLV for text: its first visible ASCII characters, without spaces.
func software(text string) []byte {
	var b []byte
	for i := 0; i < len(text) && len(b) < softwareMax; i++ {
		if visible(text[i]) {
			b = append(b, text[i])
		}
	}
	return b
}

func visible(c byte) bool { return c > ' ' && c < 0x7f }

// AppendSoftware appends the software TLV, unless it would be empty.
func AppendSoftware(b []byte, text string) []byte {
	if v := software(text); len(v) > 0 {
		return AppendTLV(b, TLVSoftware, v)
	}
	return b
}

// SetSoftware parses the value of the software TLV.
func SetSoftware(text *string, v []byte) error {
	if len(v) == 0 || len(v) > softwareMax {
		return fmt.Errorf("value of %d bytes, want 1 to %d: %w", len(v), softwareMax, ErrMalformed)
	}
	for _, c := range v {
		if !visible(c) {
			return fmt.Errorf("byte %#02x in a name: %w", c, ErrMalformed)
		}
	}
	*text = string(v)
	return nil
}

// SetIdentity parses a TLV that AppendIdentity has written, and ignores others.
func SetIdentity(typ uint16, v []byte, gateway, host *[16]byte, dgramPort *uint16) error {
	switch typ {
	case TLVGatewayID:
		return SetID(gateway, v)
	case TLVHostID:
		return SetID(host, v)
	case TLVDgramPort:
		return SetUint16(dgramPort, v)
	}
	return nil
}

// SetID parses a value of 16 bytes.
func SetID(id *[16]byte, v []byte) error {
	if err := Want(v, 16); err != nil {
		return err
	}
	copy(id[:], v)
	return nil
}

// SetUint16 parses a value of two bytes.
func SetUint16(n *uint16, v []byte) error {
	if err := Want(v, 2); err != nil {
		return err
	}
	*n = binary.BigEndian.Uint16(v)
	return nil
}
