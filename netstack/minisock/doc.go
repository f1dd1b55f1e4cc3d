// Package minisock implements as much of TCP (RFC 9293) as an established connection needs that exchanges a few short
// messages: in-order segments, acknowledgements and retransmissions, timestamps, keepalive probes, and an exact reset.
// A Sock takes a few hundred bytes and needs no goroutine. It reports everything else (a FIN, a gap, more than a few
// bytes, a peer that does not answer), and its owner then continues with a full endpoint from the numbers that the Sock
// provides.
//
// The package has no I/O, no clock and no lock: bytes and times go in, segments and verdicts come out. Linux calls
// sockets of this kind mini sockets.
package minisock
