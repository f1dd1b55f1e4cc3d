package negotiate

import (
	"errors"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// What every CLC message has (docs/PROTOCOL.md "CLC messages"). Named after SMC's connection layer control, whose job it
// does.
const (
	// Version is the protocol version this package speaks; MinVersion is the oldest.
	Version    = clc.Version
	MinVersion = clc.MinVersion

	// HeaderLen is the size of the header of every CLC message.
	HeaderLen = clc.HeaderLen
	// MaxMessageLen bounds a whole CLC message.
	MaxMessageLen = clc.MaxMessageLen
	// MaxRendezvousName bounds SHMEndpoint.Name.
	MaxRendezvousName = clc.MaxRendezvousName
)

// Errors of the codecs. Every other error of a CLC parser wraps one of these or is a *CriticalTLVError.
var (
	// ErrShort says that the bytes are the beginning of something valid so far: feed more.
	ErrShort = clc.ErrShort
	// ErrMalformed says that the bytes can never become valid.
	ErrMalformed = clc.ErrMalformed
)

// CriticalTLVError is an unknown TLV whose sender insists that it be understood.
type CriticalTLVError = clc.CriticalTLVError

// MessageType is the type of a CLC message.
type MessageType = clc.MessageType

// The messages of a handshake.
const (
	TypeProposal = clc.TypeProposal
	TypeAccept   = clc.TypeAccept
	TypeConfirm  = clc.TypeConfirm
	TypeDecline  = clc.TypeDecline
	TypeAsk      = clc.TypeAsk
)

// Header is the header of a CLC message.
type Header = clc.Header

// ParseHeader reads the header of a CLC message. It rejects a wrong eyecatcher as early as its first wrong byte.
func ParseHeader(b []byte) (Header, int, error) { return clc.ParseHeader(b) }

// ReasonOf maps an error of a CLC or record codec to the reason that belongs into DECLINE or ABORT.
func ReasonOf(err error) Reason {
	var critical *CriticalTLVError
	switch {
	case err == nil:
		return ReasonNone
	case errors.As(err, &critical):
		return ReasonVersion
	case errors.Is(err, ErrAuth):
		return ReasonAuthFailed
	}
	return ReasonProtocolError
}
