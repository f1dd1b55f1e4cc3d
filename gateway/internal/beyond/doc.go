// Package beyond promotes connections whose other end is on another host: it brings together what the broker knows of the
// programs, the control connections to other gateways ([between.Control]) and the ends that the devices carry ([mirror.End]).
//
//	broker ── an end waits ──► talk to the peer gateway ── OFFER, ANSWER, CONFIRM ──► a carrier ── GRANT ──► broker
//
// A talk is one control connection with its goroutine, which all that happens to its connections comes to as a job: from the
// broker, from shards, from the peer. So no state of a connection has a lock. An end that a server's program has asked about
// waits in a table by its name until the peer's OFFER comes, or the offer waits for the end.
//
// The trap: the broker calls with its lock held, and shards must not wait, so both only leave jobs.
package beyond
