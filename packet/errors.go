package packet

import "errors"

// Errors of this package. They are returned unwrapped.
var (
	// ErrTruncated: the bytes end before the headers do.
	ErrTruncated = errors.New("truncated packet")
	// ErrMalformed: the lengths or versions in the headers contradict each other.
	ErrMalformed = errors.New("malformed packet")
	// ErrFragment: the packet is an IP fragment.
	ErrFragment = errors.New("ip fragment")
	// ErrProtocol: the packet carries another protocol than the requested one.
	ErrProtocol = errors.New("unexpected ip protocol")
)
