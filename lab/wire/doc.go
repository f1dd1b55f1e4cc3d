// Package wire joins TCP stacks of tests in memory: a [Wire] with seeded faults, and a [Pipe] to functions.
//
// It knows raw IP packets and no connection. The trap: the stacks at the ends of a wire are closed before it.
package wire
