// Package legs makes the sockets that face the applications of a real host, in the network namespace of the legs: it
// dials applications from the client's own address, and accepts connections whose SYN was handed over
// (docs/ARCHITECTURE.md "Legs"). A pool obtains the sockets in batches from the keeper of that namespace. The trap: all
// of it is called on a loop and must not block.
package legs
