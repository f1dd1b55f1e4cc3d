// Package legs makes the sockets that face the applications of a real host, in the
// network namespace of the legs: it dials applications from the client's own address
// and accepts connections whose SYN was handed over (docs/ARCHITECTURE.md "Legs"). A
// pool takes sockets from the keeper of that namespace in batches. The trap: all of it
// is called on a loop and must not wait.
package legs
