// Package strange finds out from the acknowledgements of a flow that another host has taken its peer's place. It does no I/O
// and reads no clock.
package strange
