package rsocket

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors of the package. A violation by the peer is a [*ProtocolError], which unwraps to ErrProtocol.
var (
	// ErrConnData is connection data that is too short.
	ErrConnData = errors.New("malformed connection data")
	// ErrVersion is a peer with a version other than 1.
	ErrVersion = fmt.Errorf("unsupported protocol version: %w", syscall.ENOTSUP)
	// ErrProtocol is any violation by the peer.
	ErrProtocol = errors.New("rsocket protocol violation")
	// ErrConfig is an invalid size or number in a configuration.
	ErrConfig = errors.New("invalid stream configuration")
	// ErrState is a call that the stream's state does not permit; nothing changed.
	ErrState = errors.New("operation in wrong stream state")
	// ErrBlocked is a call for more than Window or a span currently permits; nothing changed.
	ErrBlocked = errors.New("write beyond the granted span")

	// ErrDatagramHeader is a datagram that does not start with a valid ds_header.
	ErrDatagramHeader = errors.New("malformed datagram header")
	// ErrResolveHeader is a datagram without the header, which is most likely a plain one.
	ErrResolveHeader = errors.New("no resolution header")
	// ErrIOMap is an empty mapping, or one that wraps around an address space.
	ErrIOMap = fmt.Errorf("unusable mapping: %w", syscall.EINVAL)
	// ErrIOMapSlots is a mapping for which the peer has no free slot, or no slots at all.
	ErrIOMapSlots = fmt.Errorf("no free slot for a mapping at the peer: %w", syscall.ENOMEM)
	// ErrIOMapCredits is a mapping whose announcement could leave no credits for data: stock peers do not return the
	// credits of announcements.
	ErrIOMapCredits = fmt.Errorf("too many announcements of mappings: %w", syscall.ENOMEM)
	// ErrNotMapped is a direct write to an offset that no mapping of the peer covers.
	ErrNotMapped = errors.New("offset not mapped by the peer")
	// ErrMessageMode is a peer or device without immediates, which sends messages beside its writes, as rsockets over
	// iWARP do. Such streams are not supported.
	ErrMessageMode = errors.New("iwarp message mode not supported")
)

// Violation is the rule of the protocol that the peer broke.
type Violation uint8

// Violations.
const (
	// ViolationImmediate: an operation or control code that never crosses the wire.
	ViolationImmediate Violation = iota + 1
	// ViolationLength: the length does not match the immediate.
	ViolationLength
	// ViolationData: data beyond the grant.
	ViolationData
	// ViolationCredit: a message without a credit.
	ViolationCredit
	// ViolationLimit: a credit limit that goes backwards or beyond the peer's receive queue.
	ViolationLimit
	// ViolationGrant: a grant that is empty, outside of the peer's ring, out of order, or without a free entry.
	ViolationGrant
	// ViolationShutdown: data after the peer ended its direction.
	ViolationShutdown
	// ViolationProbe: an unexpected probe.
	ViolationProbe
	// ViolationConnData: unusable connection data.
	ViolationConnData
	// ViolationIOMap: a mapping for a slot that does not exist, or one that wraps around an address space.
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

// ProtocolError is a violation by the peer. It ends only the stream that it happened on.
type ProtocolError struct {
	// Violation is the broken rule.
	Violation Violation
	// Imm is the immediate of the offending message, zero for connection data.
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

// Is reports whether a violation is [ErrMessageMode].
func (e *ProtocolError) Is(target error) bool {
	return target == ErrMessageMode && e.Violation == ViolationMessageMode
}
