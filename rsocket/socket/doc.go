// Package socket is sockets on RDMA for Go programs: a [Conn] is a net.Conn, a [Listener] a net.Listener, a [PacketConn] a
// net.PacketConn, and their peers may be stock rsockets.
//
// It is apart from rsocket because the gateway needs the protocol and none of this: it has an event loop, queue pairs and
// a handshake of its own. Here a [Stack] drives a device, a [Dialer] and a [Listener] make connections by the RDMA
// communication manager, [Stack.Client] and [Stack.Server] make them over any byte stream. What the package does not do:
// it knows no names, no encryption and no authentication.
//
// The trap: a queue pair that is lost without the peer's SHUTDOWN is ECONNRESET, not the end of the data, and what
// arrived before it still counts: read until an error comes.
//
// # Datagrams
//
// A [PacketConn] is a UDP socket and a UD queue pair per device. A socket that knows no queue pair of the peer yet
// sends datagrams over UDP after a header that asks for it ([rsocket.ResolveHeader]); nothing waits, and a peer that
// never answers is reached that way for good. On the queue pair each datagram is after a header that says whose it is
// ([rsocket.DatagramHeader]).
//
//	     one socket                               another
//	            ── DATA, QPN a, "1st" ── UDP ──►           delivers "1st"; knows a
//	knows b     ◄───────── CTRL, QPN b ── UDP ──
//	            ── ds_header, "2nd" ───── UD ──►           delivers "2nd"
//
// A queue pair that is not heard of is asked for again, and meanwhile not trusted; between two sockets of this package it
// has to echo a probe before it is used. Peers that are no rsockets are spoken to without headers once they have spoken so,
// or from the beginning where the configuration says so ([PacketListenConfig.Plain]). docs/protocol/rsocket.md has
// the bytes.
package socket
