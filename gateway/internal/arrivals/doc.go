// Package arrivals is what netstack and the programs say of connections that begin: a
// [Desk] begins a connection, or gives what has arrived to the one of its tuple, or
// leaves it to the kernel. The table of connections is the gateway's. The trap: nothing
// here waits, and a panic is of the flow that the call is about.
package arrivals
