// Package seqmap translates between the sequence space that a wire sees and that of an endpoint
// whose handshake the wire does not see.
package seqmap
