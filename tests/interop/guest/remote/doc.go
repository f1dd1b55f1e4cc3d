// Package remote starts programs at the other end of a stream and follows them
// there: [Serve] on the machine that runs them, [Start] on the other.
//
// It exists because a guest has no useful terminal, and several
// programs run in it at once: each connection is one program. Closing the
// connection kills the program with everything that it has started, so nothing
// outlives the test that started it.
//
// It has no authentication: it is for machines that only the test can reach.
//
// The trap: the connection shares its path with the traffic under test.
package remote
