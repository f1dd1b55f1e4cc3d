package negotiate

import (
	"errors"

	"github.com/smcgw/smcgw/negotiate/internal/clc"
)

// Properties of all CLC messages (docs/PROTOCOL.md "CLC messages"). The name is that of SMC's connection layer control,
// which does the same job.
const (
	// Version is the protocol version that this package speaks; MinVersion is the oldest that it accepts.
	Version    = clc.Version
	MinVersion = clc.MinVersion

	// HeaderLen is the size of the header of every CLC message.
	HeaderLen = clc.HeaderLen
	// MaxMessageLen bounds a whole CLC message.
	MaxMessageLen = clc.MaxMessageLen
	// MaxRendezvousName bounds SHMEndpoint.Name.
	MaxRendezvousName = clc.MaxRendezvousName
)

// Errors of the codecs. Every other error of a CLC parser wraps one of these, or is a *CriticalTLVError.
var (
	// ErrShort says that the bytes are valid so far but incomplete.
	ErrShort = clc.ErrShort
	// ErrMalformed says that no further bytes can make the message valid.
	ErrMalformed = clc.ErrMalformed
)

// CriticalTLVError reports an unknown TLV that its sender marked as critical.
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

// ParseHeader parses the header of a CLC message. It rejects a wrong eyecatcher at its first wrong byte.
func ParseHeader(b []byte) (Header, int, error) { return clc.ParseHeader(b) }

// ReasonOf maps an error of a CLC or record codec to the reason for DECLINE or ABORT.
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
