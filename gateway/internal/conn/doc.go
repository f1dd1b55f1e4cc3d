// Package conn implements a single connection of a gateway. It drives the core of package
// flow: it reads and writes both legs, negotiates, moves the bytes, and tears the connection down.
//
//	Env.New ─► Flow ── Adopt (client) ── Serve (server) ─► negotiator ─► a pump ─► end
//	                                                                       │
//	            carry: app leg ◄─► link to the peer      wireControl: records on the wire leg
//	            relay: app leg ◄─► records ──────────────────────┘
//	            rawRelay: app leg ◄─► wire leg, for a client that is native
//
// A connection knows its gateway only through [Env]. The gateway keeps the table of
// connections and reports events to them: [Flow] has one method per event, which posts to the
// connection's shard. The core decides what follows, and Flow.do carries it out.
//
// A [Desk] receives what netstack and the programs report about connections that begin. It
// starts a new flow, passes the report to the flow that has the tuple, or leaves the
// connection to the kernel. It never blocks.
//
// The one trap: apart from the fields of [Opening] and what operators see, everything in a
// Flow belongs to its shard. The wire TCP invokes its callbacks with its own locks held, so a
// callback must do nothing but post.
package conn
