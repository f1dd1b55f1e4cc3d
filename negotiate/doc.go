// Package negotiate answers one question: may these two peers carry this TCP connection over RDMA?
//
// It holds everything the two gateways say to each other on the wire leg of a connection: the CLC messages (PROPOSAL,
// ACCEPT, CONFIRM, DECLINE), the records of a carrying wire leg, the client and server handshake machines, the reasons
// why a connection is not (or no longer) carried, and for how long a peer is remembered for them. docs/PROTOCOL.md is
// the normative text of the bytes.
//
// The package is pure: bytes, clock readings and results of local steps go in; bytes and actions come out. It opens no
// socket, starts no goroutine, reads no clock and imports no package of the project but its own, so a test drives both
// ends of a handshake in one loop. The owner of the connection executes the actions.
//
// The one trap: byte slices in parsed values and in actions alias memory of their source. A Record's payload aliases the
// bytes that were fed in; the bytes of an action belong to the receiver of the action.
package negotiate
