// Package resolution knows how each peer of a datagram socket is reached: over UDP, over UDP with the question for a
// queue pair, or over the queue pair itself.
//
// It is a table of state machines without I/O and without a clock: the socket tells it what it sends and what arrives,
// and does what it is told to. The trap: address handles belong to the table, which closes them. It does not make them,
// for an adapter may look for the peer for seconds: it says which it wants, and goes on.
package resolution
