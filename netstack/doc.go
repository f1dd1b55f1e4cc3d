// Package netstack is the wire TCP of the gateway: a mini socket for each connection, and gVisor's stack for those that
// need more.
//
// The gateway must own one TCP connection whose SYN was sent by another stack, the kernel of the application. A link
// endpoint between gVisor and the wire (the shim) does what no TCP stack offers:
//
//   - client: it adopts the connection that an application's SYN began, so that the wire sees one consistent TCP
//     connection (Stack.Adopt). When gVisor continues the connection, the shim swallows gVisor's own SYN and
//     translates sequence numbers, timestamps, SACK blocks and the window scale;
//   - server: it begins a connection with the segment that answers a SYN-ACK of the steering programs, and learns
//     from the confirm option whether the client is a gateway (Conn.Confirmed);
//   - it keeps every packet of an unknown tuple away from gVisor, which would answer with a reset, and answers late
//     segments of ended flows.
//
// The package decides nothing. Which SYN to take, what to do with a SYN without option and when to abort is up to the
// owner, which is told through Handler. The package speaks no protocol above TCP and does no steering. Packets come
// from a TUN that the caller has opened, or from an in-memory link in tests.
//
// Handlers and notify functions are called on goroutines of the link and of gVisor. They must only take notes and
// signal: a Handler that waits for the stack deadlocks it.
package netstack
