// Package negotiate answers one question: may these two peers carry this TCP connection over RDMA?
//
// It contains everything that two gateways say to each other on the wire leg of a connection: the CLC messages
// (PROPOSAL, ACCEPT, CONFIRM, DECLINE, ASK), the records on a wire leg that carries, the handshake machines of client
// and server, the reasons why a connection is not (or no longer) carried, and the policy for how long each reason is
// remembered about a peer. docs/PROTOCOL.md is the normative text of the bytes.
//
// The package is pure: bytes, clock readings and results of local steps go in; bytes and actions come out. It opens no
// socket, starts no goroutine, reads no clock, and imports no other package of the project than those below it, so a
// test can drive both ends of a handshake in one loop. The owner of the connection executes the actions.
//
// Beware of aliasing: byte slices in parsed values and in actions alias the memory of their source. A Record's payload
// aliases the bytes that were fed in; the bytes of an action belong to its receiver.
package negotiate
