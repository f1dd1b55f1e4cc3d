package rsocket

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors of the package. A peer's violation is a [*ProtocolError], which unwraps to ErrProtocol.
var (
	// ErrConnData is connection data that is cut.
	ErrConnData = errors.New("malformed connection data")
	// ErrVersion is a peer with another version than 1.
	ErrVersion = fmt.Errorf("unsupported protocol version: %w", syscall.ENOTSUP)
	// ErrProtocol is any violation by the peer.
	ErrProtocol = errors.New("rsocket protocol violation")
	// ErrConfig is a size or number that no stream can have.
	ErrConfig = errors.New("invalid stream configuration")
	// ErrState is a call that the stream's state does not permit; nothing changed.
	ErrState = errors.New("operation in wrong stream state")
	// ErrBlocked is a call for more than Window or a span permits now; nothing changed.
	ErrBlocked = errors.New("write beyond the granted span")

	// ErrDatagramHeader is what no datagram rsocket puts before a payload.
	ErrDatagramHeader = errors.New("malformed datagram header")
	// ErrResolveHeader is a datagram without the header, so most likely a plain one.
	ErrResolveHeader = errors.New("no resolution header")
	// ErrIOMap is a mapping of nothing, or over the end of an address space.
	ErrIOMap = fmt.Errorf("unusable mapping: %w", syscall.EINVAL)
	// ErrIOMapSlots is a mapping too many for the slots the peer has, which may be none.
	ErrIOMapSlots = fmt.Errorf("no free slot for a mapping at the peer: %w", syscall.ENOMEM)
	// ErrIOMapCredits is a mapping that could leave no credits for data: stock peers do not return the credits of
	// announcements.
	ErrIOMapCredits = fmt.Errorf("too many announcements of mappings: %w", syscall.ENOMEM)
	// ErrNotMapped is a direct write to an offset that no mapping of the peer covers.
	ErrNotMapped = errors.New("offset not mapped by the peer")
	// ErrMessageMode is a peer, or a device, that sends messages beside its writes because it knows no immediates, as
	// rsockets over iWARP do. Such a stream cannot be understood here.
	ErrMessageMode = errors.New("iwarp message mode not supported")
)

// Violation says which rule of the protocol the peer broke.
type Violation uint8

// Violations.
const (
	// ViolationImmediate: an operation or control code that never crosses the wire.
	ViolationImmediate Violation = iota + 1
	// ViolationLength: the bytes that came are not what the immediate says.
	ViolationLength
	// ViolationData: data beyond what was granted.
	ViolationData
	// ViolationCredit: more messages than credits.
	ViolationCredit
	// ViolationLimit: a credit limit that goes backwards or beyond the peer's receive queue.
	ViolationLimit
	// ViolationGrant: a grant that is empty, outside of the peer's ring, out of order or one too many.
	ViolationGrant
	// ViolationShutdown: data after the peer ended its direction.
	ViolationShutdown
	// ViolationProbe: a probe where none may be.
	ViolationProbe
	// ViolationConnData: connection data no stream can be run with.
	ViolationConnData
	// ViolationIOMap: a mapping for a slot that does not exist, or over the end of an address space.
	ViolationIOMap
	// ViolationMessageMode: a SEND, which only iWARP peers use.
	ViolationMessageMode
)

// String names the violation.
func (v Violation) String() string {
	switch v {
	case ViolationImmediate:
		return "unknown immediate"
	case ViolationLength:
		return "length mismatch"
	case ViolationData:
		return "data beyond the grant"
	case ViolationCredit:
		return "message without credit"
	case ViolationLimit:
		return "impossible credit limit"
	case ViolationGrant:
		return "impossible grant"
	case ViolationShutdown:
		return "data after shutdown"
	case ViolationProbe:
		return "unexpected probe"
	case ViolationConnData:
		return "unusable connection data"
	case ViolationIOMap:
		return "impossible mapping"
	case ViolationMessageMode:
		return ErrMessageMode.Error()
	default:
		return fmt.Sprintf("violation %d", uint8(v))
	}
}

// ProtocolError is a violation by the peer. It ends the stream it happened on and nothing else.
type ProtocolError struct {
	// Violation is the broken rule.
	Violation Violation
	// Imm is the offending message, zero for connection data.
	Imm Imm
	// Length is the number of bytes that came with it.
	Length uint32
}

// Error describes the violation.
func (e *ProtocolError) Error() string {
	if e.Violation == ViolationConnData || e.Violation == ViolationMessageMode {
		return e.Violation.String()
	}
	return fmt.Sprintf("%s: %s with %d bytes", e.Violation, e.Imm, e.Length)
}

// Unwrap returns [ErrProtocol].
func (e *ProtocolError) Unwrap() error { return ErrProtocol }

// Is tells that a violation is [ErrMessageMode].
func (e *ProtocolError) Is(target error) bool {
	return target == ErrMessageMode && e.Violation == ViolationMessageMode
}
