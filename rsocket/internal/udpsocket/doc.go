// Package udpsocket is the UDP socket of a datagram rsocket: it tells which address of ours a datagram was sent to, sends
// from the address that the peer knows, and answers without waiting.
//
// The trap: Receive and Answer belong to one goroutine, the receiver. Any may call Send, and those that do wait for each
// other.
package udpsocket
