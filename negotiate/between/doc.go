// Package between is what two gateways say to each other about promoted connections between their hosts: the messages
// of the control connection, and a [Control], the machine at each of its ends. The normative text is
// docs/protocol/between-hosts.md "Control connection".
//
// Like negotiate it is pure: bytes, clock readings and the owner's calls go in; bytes and actions come out. It knows
// nothing about memory, libraries and queue pairs. It says which connections both gateways have agreed to carry, passes
// on what the library of either side says, and says when a connection is over.
//
// Calls about a number may come too late, since something the peer has sent in the same turn may have ended the
// connection. Such calls do nothing; only the actions tell the actual state.
package between
