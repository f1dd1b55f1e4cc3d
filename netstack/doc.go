// Package netstack is the wire TCP of the gateway: a mini socket a connection, and
// gVisor's stack in a box for those that need more.
//
// It exists because the gateway must own one TCP connection of which another
// stack, the kernel of the application, sent the SYN. A link endpoint between
// gVisor and the wire (the shim) does what no TCP stack offers:
//
//   - client: it adopts the connection an application's SYN began, so that the
//     wire sees one sane TCP connection (Stack.Adopt). When gVisor goes on with
//     it, gVisor's own SYN is swallowed, and sequence numbers, timestamps, SACK
//     blocks and the window scale are translated;
//   - server: it answers a SYN that carries an offer with a SYN-ACK that
//     carries the accept, and learns from the confirm option whether a gateway
//     speaks at the other end (Conn.Confirmed);
//   - it keeps every packet of an unknown tuple away from gVisor, which would
//     answer it with a reset, and answers late segments of ended flows.
//
// The package decides nothing: which SYN to take, what to do with a bare SYN,
// when to abort is the owner's, told through Handler. It speaks no protocol
// above TCP and does no steering; packets come from a TUN the caller opened, or
// from an in-memory Wire or PacketLink in tests.
//
// The one trap: Handler and notify functions are called on goroutines of the
// link and of gVisor. They must only take notes and signal; a Handler that
// waits for the stack deadlocks it.
//
// Host is a second, unrelated use of the same library: an ordinary stack with
// addresses, Dial and Listen, which plays the kernel of the applications in
// tests that run without privileges.
package netstack
