// Package between is what two gateways say to each other about promoted connections between their hosts: the messages of
// the control connection, and a [Control], the machine at each of its ends (docs/protocol/between-hosts.md "Control
// connection" is the normative text).
//
// Like negotiate it is pure: bytes, clock readings and what the owner does go in, bytes and actions come out. It knows
// nothing of memory, libraries and queue pairs; it says which connections both gateways have agreed to carry, tells either
// of what the other's library says, and for all of them when that is over.
//
// The trap: commands about a number come late, too, since a connection may be over by what the peer has said in the same
// turn. They do nothing then; only actions tell what is so.
package between
