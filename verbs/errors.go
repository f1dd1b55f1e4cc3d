package verbs

import "errors"

// Errors that devices return; match them with errors.Is. Where callers act differently, they are finer than the errno
// values of libibverbs (EINVAL, ENOMEM, EOPNOTSUPP).
var (
	// ErrInvalid is a malformed argument (EINVAL): a bad flag, too many SGEs, inline data above the limit.
	ErrInvalid = errors.New("invalid argument")
	// ErrState is an operation that the queue pair's state does not permit.
	ErrState = errors.New("operation not permitted in this queue pair state")
	// ErrTransition is a Modify that the state machine forbids or that lacks a required attribute.
	ErrTransition = errors.New("illegal queue pair transition")
	// ErrQueueFull is a post to a send or receive queue without a free entry (ENOMEM).
	ErrQueueFull = errors.New("work queue full")
	// ErrNoMemory means that a quota or table of the device is exhausted.
	ErrNoMemory = errors.New("device memory exhausted")
	// ErrNotSupported is an operation that the device lacks; its Attr says so too.
	ErrNotSupported = errors.New("operation not supported by device")
	// ErrAccess is a key or range that does not have memory with the requested access.
	ErrAccess = errors.New("memory access violation")
	// ErrBusy is the close of an object that others still use (EBUSY).
	ErrBusy = errors.New("object in use")
	// ErrRemoteGone means that the remote queue pair or the whole peer is gone, or not there yet.
	ErrRemoteGone = errors.New("remote queue pair gone")
	// ErrCQOverrun is reported by Poll of a CQ that lost completions; its queue pairs are in ERR.
	ErrCQOverrun = errors.New("completion queue overrun")
	// ErrClosed is the use of an object after its Close.
	ErrClosed = errors.New("object closed")
)
