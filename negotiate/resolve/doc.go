// Package resolve answers for datagrams what negotiate answers for connections: may they go to this host over RDMA, and
// to which queue pair?
//
// Gateways ask each other once per host, with messages on a UDP port (docs/PROTOCOL.md "Resolution"). A Resolver knows
// the state of every peer, when to query, prove and forget it, and answers the queries of others. Like negotiate it is
// pure: bytes, clock readings and results of local steps go in; bytes and actions come out.
//
// Do not trust source addresses of datagrams, which are mere claims. Whatever an unproved peer sends costs the owner
// nothing, and changes nothing that was proved before (docs/PROTOCOL.md "Authentication").
package resolve
