// Package remote starts programs at the other end of a stream and follows them
// there: [Serve] on the machine that runs them, [Start] on the other.
//
// It exists because a guest has no terminal worth that name and several
// programs run in it at once; one connection is one program. Closing the
// connection kills the program with everything it started, so nothing outlives
// the test that wanted it.
//
// It has no authentication: it is for machines that only the test can reach.
//
// The trap: the connection shares its path with the traffic under test.
package remote
