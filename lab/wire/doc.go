// Package wire joins TCP stacks of tests in memory: a [Wire] with seeded faults, and a [Pipe] to functions.
//
// It knows raw IP packets but no connections. Close the stacks at the ends of a wire before the wire.
package wire
