package clc

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// CLC framing (docs/PROTOCOL.md "CLC messages"). The name is that of SMC's connection layer control, which does the
// same job.
const (
	// Version is the protocol version that this package speaks; MinVersion is the oldest that it accepts.
	Version    = 1
	MinVersion = 1

	// HeaderLen is the size of the header of every CLC message.
	HeaderLen = 8
	// MaxMessageLen bounds a whole CLC message.
	MaxMessageLen = 4096

	// Eyecatcher begins every message.
	Eyecatcher uint32 = 0x534D4757 // "SMGW"
)

// Errors of the codecs. Every other error of a CLC parser wraps one of these, or is a *CriticalTLVError.
var (
	// ErrShort says that the bytes are valid so far but incomplete.
	ErrShort = errors.New("incomplete message")
	// ErrMalformed says that no further bytes can make the message valid.
	ErrMalformed = errors.New("malformed message")

	// ErrEyecatcher says that the bytes are not a CLC message at all.
	ErrEyecatcher = fmt.Errorf("clc eyecatcher: %w", ErrMalformed)
)

// CriticalTLVError reports an unknown TLV that its sender marked as critical. No TLV has type 0, so the zero value
// stands for none.
type CriticalTLVError struct{ Type uint16 }

// Error implements error.
func (e *CriticalTLVError) Error() string {
	return fmt.Sprintf("unknown critical tlv %#04x", e.Type)
}

// MessageType is the type of a CLC message.
type MessageType uint8

// The CLC messages.
const (
	TypeProposal MessageType = 1
	TypeAccept   MessageType = 2
	TypeConfirm  MessageType = 3
	TypeDecline  MessageType = 4

	// On the datagram port.
	TypeResolve  MessageType = 5
	TypeResolved MessageType = 6
	TypeRefused  MessageType = 7

	// On the wire leg again.
	TypeAsk MessageType = 8
)

// String returns the message's name.
func (t MessageType) String() string {
	switch t {
	case TypeProposal:
		return "proposal"
	case TypeAccept:
		return "accept"
	case TypeConfirm:
		return "confirm"
	case TypeDecline:
		return "decline"
	case TypeResolve:
		return "resolve"
	case TypeResolved:
		return "resolved"
	case TypeRefused:
		return "refused"
	case TypeAsk:
		return "ask"
	}
	return fmt.Sprintf("message_%d", uint8(t))
}

// Header is the header of a CLC message.
type Header struct {
	Type    MessageType
	Version uint8
	// Len is the length of the whole message including the header.
	Len int
}

// ParseHeader parses the header of a CLC message. It rejects a wrong eyecatcher at its first wrong byte, so that
// callers never wait for more of a stream that is not CLC. An unknown type is not an error here, because Len suffices
// to skip the message.
func ParseHeader(b []byte) (Header, int, error) {
	for i := 0; i < 4 && i < len(b); i++ {
		if b[i] != byte(Eyecatcher>>(24-8*i)) {
			return Header{}, 0, ErrEyecatcher
		}
	}
	if len(b) < HeaderLen {
		return Header{}, 0, ErrShort
	}
	h := Header{
		Type:    MessageType(b[4]),
		Version: b[5],
		Len:     int(binary.BigEndian.Uint16(b[6:])),
	}
	if h.Len < HeaderLen || h.Len > MaxMessageLen {
		return Header{}, 0, fmt.Errorf("clc length %d: %w", h.Len, ErrMalformed)
	}
	return h, HeaderLen, nil
}

// AppendHeader begins a message; EndMessage sets its length.
func AppendHeader(b []byte, t MessageType, version uint8) []byte {
	b = binary.BigEndian.AppendUint32(b, Eyecatcher)
	return append(b, uint8(t), version, 0, 0)
}

// EndMessage sets the length of the message that starts at b[start].
func EndMessage(b []byte, start int) []byte {
	binary.BigEndian.PutUint16(b[start+6:], uint16(len(b)-start))
	return b
}

// Message returns the header and the TLVs of the message at the start of b, which must be of type t.
func Message(b []byte, t MessageType) (Header, []byte, error) {
	h, _, err := ParseHeader(b)
	if err != nil {
		return Header{}, nil, err
	}
	if h.Type != t {
		return Header{}, nil, fmt.Errorf("clc %s instead of %s: %w", h.Type, t, ErrMalformed)
	}
	if len(b) < h.Len {
		return Header{}, nil, ErrShort
	}
	return h, b[HeaderLen:h.Len], nil
}
