// Package pathsize finds how large the packets of a connection may be where routers drop larger
// ones in silence (RFC 4821). It has no I/O and no clock.
package pathsize
