// Package subnet finds the ways to peers through InfiniBand subnets, and checks what peers say of themselves against
// them.
//
// It exists because the addresses of a TCP connection name no queue pair there: packets follow LIDs, which the subnet
// administrator gives out and takes back, and only within a partition. A path is what the kernel's connection
// manager answers for the addresses of the connection (verbs/hw/rdmacm). What a peer says of itself is worth nothing until
// it agrees with that, or a host could be made to send to a third one (docs/PROTOCOL.md "Carrier proof").
//
// An administrator may be slow or silent. So the question goes on when those that wait for it have given up, and later
// connections find its answer.
package subnet
