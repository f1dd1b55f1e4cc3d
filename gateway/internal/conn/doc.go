// Package conn is one connection of a gateway: what drives the core of package flow. It
// reads and writes both legs, negotiates, moves the bytes, and ends what has ended.
//
//	Env.New ─► Flow ── Adopt (client) ── Serve (server) ─► negotiator ─► a pump ─► end
//	                                                                       │
//	            carry: app leg ◄─► link to the peer      wireControl: records on the wire leg
//	            relay: app leg ◄─► records ──────────────────────┘
//	            rawRelay: app leg ◄─► wire leg, for a client that is native
//
// A connection knows its gateway by [Env] only. The gateway keeps the table of connections
// and says what happens to them: [Flow] has a method for each, which posts to the shard of
// the connection. What follows is decided by the core and done by Flow.do.
//
// A [Desk] takes what netstack and the programs say of connections that begin: it begins
// one, or gives what has arrived to the one of its tuple, or leaves it to the kernel. It
// does not wait.
//
// The one trap: everything in a Flow but the fields of [Opening] and what operators see
// belongs to its shard. A callback of the wire TCP is called with locks of that held, and
// must do nothing but post.
package conn
