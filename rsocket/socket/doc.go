// Package socket provides RDMA sockets for Go programs: a [Conn] is a net.Conn, a [Listener] a net.Listener, a
// [PacketConn] a net.PacketConn. Their peers may be stock rsockets.
//
// It is separate from rsocket because the gateway needs only the protocol: it has its own event loop, queue pairs and
// handshake. Here a [Stack] drives a device, and a [Dialer] and a [Listener] make connections by the RDMA
// communication manager. The package does no name resolution beyond net.Resolver's, no encryption and no authentication.
//
// The trap: losing a queue pair without the peer's SHUTDOWN is ECONNRESET, not the end of the data, and data that
// arrived before it still counts: read until an error comes.
//
// # Datagrams
//
// A [PacketConn] is a UDP socket and one UD queue pair per device. While a socket knows no queue pair of the peer, it
// sends datagrams over UDP, after a header that asks for it ([rsocket.ResolveHeader]). Nothing waits for the answer,
// and a peer that never answers is always reached this way. On the queue pair, a header before each datagram names its
// source ([rsocket.DatagramHeader]).
//
//	     one socket                               another
//	            ── DATA, QPN a, "1st" ── UDP ──►           delivers "1st"; knows a
//	knows b     ◄───────── CTRL, QPN b ── UDP ──
//	            ── ds_header, "2nd" ───── UD ──►           delivers "2nd"
//
// A peer whose queue pair has been silent is asked again, and its queue pair is not trusted meanwhile. Between two
// sockets of this package, a queue pair must echo a probe before it is used. Peers that are not rsockets get datagrams
// without headers once they have sent such a datagram, or from the beginning if so configured
// ([PacketListenConfig.Plain]). docs/protocol/rsocket.md has the bytes.
package socket
