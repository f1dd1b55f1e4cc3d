// Package resolution decides how each peer of a datagram socket is reached: over UDP, over UDP with a question for the
// queue pair, or over the queue pair itself.
//
// It is a table of state machines without I/O or a clock: the socket reports what it sends and receives, and does what
// the table says. The trap: the table owns and closes address handles but does not make them, because an adapter may
// need seconds to resolve the peer. It returns the handles that it wants, and goes on without them.
package resolution
