// Package beyond promotes connections whose other end is on another host. It connects the broker, which knows the
// programs, the control connections to other gateways ([between.Control]), and the ends that devices carry
// ([mirror.End]).
//
//	broker ── an end waits ──► talk to the peer gateway ── OFFER, ANSWER, CONFIRM ──► a carrier ── GRANT ──► broker
//
// A talk is one control connection with a goroutine that owns the state of its connections. Whatever happens to them,
// in the broker, in a shard or at the peer, is posted to it as a job, so that state needs no lock. A server's end that
// has asked waits in a table, by its name, until the peer's OFFER comes; an offer that comes first waits for the end.
//
// The trap: the broker calls with its lock held, and shards must not block, so both may only post jobs.
package beyond
