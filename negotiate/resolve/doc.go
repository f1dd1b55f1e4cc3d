// Package resolve answers for datagrams what negotiate answers for a connection: may they go to this host over RDMA, and
// to which queue pair?
//
// Gateways ask each other once per host, by messages on a UDP port (docs/PROTOCOL.md "Resolution"). A Resolver keeps what
// is known of every peer, when it is to be asked, proved and forgotten, and answers the queries of others. Like negotiate
// it is pure: bytes, clock readings and results of local steps go in, bytes and actions come out.
//
// The trap: source addresses of datagrams are claims. Whatever an unproved peer says costs the owner nothing, and nothing
// it says changes what was proved before (docs/PROTOCOL.md "Authentication").
package resolve
