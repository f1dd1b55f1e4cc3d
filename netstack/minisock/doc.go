// Package minisock is as much of TCP (RFC 9293) as an established connection needs that
// exchanges a few short messages: segments in order, their acknowledgements and
// repetitions, timestamps, keepalive probes, an exact reset. Its Sock is a few hundred
// bytes and needs no goroutine. For everything else (a FIN, a gap, more bytes than a few,
// a peer that does not answer) it says so, and its owner goes on with a whole endpoint
// from the numbers that it hands out.
//
// The package has no I/O, no clock and no lock: bytes and times in, segments and verdicts
// out. Linux calls sockets of this kind mini sockets.
package minisock
